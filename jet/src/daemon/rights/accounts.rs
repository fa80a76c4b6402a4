//! Looking up users and groups in the system's databases, which may be on another host and take long.

use super::config::{Account, RegisterRule, RightsConfig, RightsConfigError};
use super::{Rights, Rule};
use nix::unistd::{Group, User};

/// Makes rules of the configuration, with the numbers of the users and groups that it names.
///
/// # Errors
/// [`RightsConfigError`] names a user or a group that this host does not know.
pub fn resolve(config: &RightsConfig) -> Result<Rights, RightsConfigError> {
    let register = config.register.iter().map(rule).collect::<Result<_, _>>()?;
    Ok(Rights { look: config.look, register })
}

fn rule(rule: &RegisterRule) -> Result<Rule, RightsConfigError> {
    let user = |name: &str| Ok(User::from_name(name)?.map(|user| user.uid.as_raw()));
    let group = |name: &str| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()));
    Ok(Rule {
        names: rule.names.clone(),
        users: numbers("users", "passwd", &rule.users, user)?,
        groups: numbers("groups", "group", &rule.groups, group)?,
        executables: rule.executables.clone(),
        classes: rule.classes.clone(),
    })
}

/// Returns the numbers of accounts.
fn numbers(
    key: &'static str,
    database: &'static str,
    accounts: &[Account],
    look_up: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<Vec<u32>, RightsConfigError> {
    let number = |account: &Account| match account {
        Account::Number(number) => Ok(*number),
        Account::Name(name) => match look_up(name) {
            Ok(Some(number)) => Ok(number),
            Ok(None) => Err(RightsConfigError::Account { key, account: account.clone(), database }),
            Err(error) => {
                let (account, source) = (account.clone(), error.into());
                Err(RightsConfigError::Lookup { key, account, source })
            }
        },
    };
    accounts.iter().map(number).collect()
}
