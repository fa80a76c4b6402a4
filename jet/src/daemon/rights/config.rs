//! The section `[rights]` of the configuration.

use jet_wire::message::hello::{APP_NAME_MAX, AppName};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Who may do what on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RightsConfig {
    /// Who may ask for the status.
    pub look: Viewers,
    /// Who may register applications. Without an entry: whoever may connect to the control socket may
    /// register any name in any class.
    pub register: Vec<RegisterRule>,
}

/// Who may ask for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Viewers {
    /// Whoever may connect to the control socket or to the admin socket.
    #[default]
    Applications,
    /// Whoever may connect to the admin socket.
    Admin,
}

/// Permission to register applications. A registration needs one entry all of whose conditions hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegisterRule {
    /// Names of applications. A name that ends with `*` stands for all names that begin so.
    pub names: Vec<String>,
    /// Users whose processes may register. Without a user and a group: all.
    pub users: Vec<Account>,
    /// Groups whose members' processes may register.
    pub groups: Vec<Account>,
    /// Programs that may register: paths of their files. Without one: all.
    pub executables: Vec<PathBuf>,
    /// Classes in which they may register. Without one: all.
    pub classes: Vec<u8>,
}

/// A user or a group, by its name or its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Account {
    /// Number of the user or the group.
    Number(u32),
    /// Name of the user or the group.
    Name(String),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "\"{name}\""),
        }
    }
}

/// Reason why the section `[rights]` is refused.
#[derive(Debug, thiserror::Error)]
pub enum RightsConfigError {
    /// An entry names no application.
    #[error(
        "rights.register: entry {entry} has no names; write names = [\"store\"], or names = [\"*\"] for all"
    )]
    NoNames {
        /// Number of the entry, from 1.
        entry: usize,
    },
    /// A name is none that an application can have.
    #[error(
        "rights.register: entry {entry}: names has \"{name}\"; a name has 1 to {APP_NAME_MAX} characters out \
         of A-Z a-z 0-9 . _ - / :, and behind them one * for all names that begin so"
    )]
    Name {
        /// Number of the entry, from 1.
        entry: usize,
        /// The name.
        name: String,
    },
    /// A class does not exist.
    #[error(
        "rights.register: entry {entry}: classes has {found}, but there are 0 to {max} \
             (admission.classes)"
    )]
    Class {
        /// Number of the entry, from 1.
        entry: usize,
        /// The class.
        found: u8,
        /// The last class that there is.
        max: u8,
    },
    /// A program's path does not begin at the root.
    #[error("rights.register: entry {entry}: executables has {path:?}; write the whole path, from / on")]
    Path {
        /// Number of the entry, from 1.
        entry: usize,
        /// The path.
        path: PathBuf,
    },
    /// The system knows no such user or group.
    #[error(
        "rights.register: {key} has {account}, which this host does not know; write a name of \
             getent {database}, or a number"
    )]
    Account {
        /// Name of the key.
        key: &'static str,
        /// The user or group.
        account: Account,
        /// Database that names come from.
        database: &'static str,
    },
    /// The system could not say whether there is such a user or group.
    #[error(
        "rights.register: {key} has {account}, which could not be looked up: {source}; try again, or \
             write the number"
    )]
    Lookup {
        /// Name of the key.
        key: &'static str,
        /// The user or group.
        account: Account,
        /// Error from the system.
        source: std::io::Error,
    },
}

impl RightsConfig {
    /// Checks everything that needs no look at the system. `classes`: how many there are.
    ///
    /// # Errors
    /// [`RightsConfigError`] names the entry, and what to write instead.
    pub fn check(&self, classes: u8) -> Result<(), RightsConfigError> {
        for (entry, rule) in (1..).zip(&self.register) {
            if rule.names.is_empty() {
                return Err(RightsConfigError::NoNames { entry });
            }
            if let Some(name) = rule.names.iter().find(|name| !is_pattern(name)) {
                return Err(RightsConfigError::Name { entry, name: name.clone() });
            }
            if let Some(&found) = rule.classes.iter().find(|class| **class >= classes) {
                return Err(RightsConfigError::Class { entry, found, max: classes.saturating_sub(1) });
            }
            if let Some(path) = rule.executables.iter().find(|path| !path.is_absolute()) {
                return Err(RightsConfigError::Path { entry, path: path.clone() });
            }
        }
        Ok(())
    }
}

/// Whether this is a name that an application can have, or the beginning of one and `*`.
fn is_pattern(name: &str) -> bool {
    match name.strip_suffix('*') {
        Some("") => true,
        Some(begin) => !begin.contains('*') && AppName::new(begin).is_ok(),
        None => AppName::new(name).is_ok(),
    }
}
