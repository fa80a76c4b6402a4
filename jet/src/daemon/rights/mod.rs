//! Rights on this host: who may register which applications, and who may look.
//!
//! The rules are in the section `[rights]` of the configuration ([`config`]). This module decides; it does no
//! I/O. Who asks is a [`Subject`]. Names of users and groups are looked up when the rights are read
//! ([`accounts`]): at the daemon's start, and when an operator asks for it ([`RightsKeeper`]).
//!
//! A program is the same as a rule's where both are the same file. So a program in another mount namespace
//! cannot pass for it by a path of its own. A program that was replaced while it ran is another file.

pub mod accounts;
pub mod config;
mod keeper;
mod subject;

pub use config::{RightsConfig, RightsConfigError, Viewers};
pub use keeper::{ReadRights, RightsKeeper};
pub use subject::{FileIdentity, Subject};

use jet_wire::message::hello::AppName;
use std::path::{Path, PathBuf};

/// Rules with the numbers of users and groups.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    look: Viewers,
    register: Vec<Rule>,
}

/// An entry of `rights.register`.
#[derive(Clone, Debug)]
struct Rule {
    names: Vec<String>,
    users: Vec<u32>,
    groups: Vec<u32>,
    executables: Vec<PathBuf>,
    classes: Vec<u8>,
}

/// Why a registration is refused. It is for the operator: the application hears only that it is denied.
///
/// Each is that of the entry that came closest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum RegisterDenied {
    /// No entry has the name.
    #[error("no entry of rights.register has this name")]
    Name,
    /// No entry with the name has the user, or a group of it.
    #[error("no entry of rights.register with this name has this user, or one of its groups")]
    Account,
    /// No such entry has the program.
    #[error("no entry of rights.register with this name and user has this program")]
    Program,
    /// An entry has the program, but the daemon cannot tell which program this process runs.
    #[error(
        "an entry of rights.register names programs, and the daemon may not see which program this process \
         runs; let it run as that user or as root, or with CAP_SYS_PTRACE"
    )]
    ProgramUnknown,
    /// No such entry has the class.
    #[error("no entry of rights.register with this name, user and program has this class")]
    Class,
}

impl Rights {
    /// Whether whoever may connect to the control socket may ask for the status.
    pub fn applications_may_look(&self) -> bool {
        self.look == Viewers::Applications
    }

    /// Whether a decision needs to know who registers.
    pub fn asks_who(&self) -> bool {
        !self.register.is_empty()
    }

    /// Whether a decision about this name needs to know which program registers.
    pub fn asks_for_program(&self, name: &AppName) -> bool {
        let may_have =
            |rule: &&Rule| rule.names.iter().any(|pattern| matches_pattern(pattern, name.as_str()));
        self.register.iter().filter(may_have).any(|rule| !rule.executables.is_empty())
    }

    /// Decides whether `subject` may register an application of this name in this class. `identity_of`
    /// returns the identity of the file at a path.
    ///
    /// # Errors
    /// [`RegisterDenied`] says what no entry has.
    pub fn may_register(
        &self,
        subject: &Subject,
        name: &AppName,
        class: u8,
        identity_of: impl Fn(&Path) -> Option<FileIdentity>,
    ) -> Result<(), RegisterDenied> {
        if self.register.is_empty() {
            return Ok(());
        }
        let mut closest = RegisterDenied::Name;
        for rule in &self.register {
            match rule.allows(subject, name.as_str(), class, &identity_of) {
                Ok(()) => return Ok(()),
                Err(denied) => closest = closest.max(denied),
            }
        }
        Err(closest)
    }
}

impl Rule {
    fn allows(
        &self,
        subject: &Subject,
        name: &str,
        class: u8,
        identity_of: impl Fn(&Path) -> Option<FileIdentity>,
    ) -> Result<(), RegisterDenied> {
        if !self.names.iter().any(|pattern| matches_pattern(pattern, name)) {
            return Err(RegisterDenied::Name);
        }
        let is_user = subject.user.is_some_and(|user| self.users.contains(&user));
        let is_member = subject.groups.iter().any(|group| self.groups.contains(group));
        if !(self.users.is_empty() && self.groups.is_empty() || is_user || is_member) {
            return Err(RegisterDenied::Account);
        }
        if !self.executables.is_empty() {
            let Some(program) = subject.program else { return Err(RegisterDenied::ProgramUnknown) };
            if !self.executables.iter().any(|path| identity_of(path) == Some(program)) {
                return Err(RegisterDenied::Program);
            }
        }
        if !(self.classes.is_empty() || self.classes.contains(&class)) {
            return Err(RegisterDenied::Class);
        }
        Ok(())
    }
}

/// Whether a name is the one that stands there, or begins as the one with a `*` behind it.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests;
