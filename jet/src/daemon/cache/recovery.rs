//! Undoing changes of the cache that killed processes left: at the start of the next daemon, or by
//! `jet cache restore`.

use jet_cat::adjustments::{self, AdjustError, ForgetOutcome};
use jet_cat::registers::{self, SettingError};
use jet_cat::resctrl::{OpenError, Resctrl};
use jet_cat::reservation::{self, JournalError, Leftover};
use std::fmt;
use std::path::Path;

const REGISTERS: &str = "the processor's registers that were left set";
const ADJUSTED: &str = "bandwidth of groups and ways of devices that were left set";

/// Scope of undoing changes of the cache. Each scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryScope {
    /// Undo cache changes of processes that are gone.
    Gone,
    /// Also undo the reservations of `jet cache apply`, which are meant to outlive the process that made
    /// them.
    Standing,
    /// Also give up changes that cannot be undone, and remove their journals.
    Forget,
}

/// A cache change that a killed process left, and how undoing it ended.
#[derive(Debug)]
pub enum Recovered {
    /// A reservation of cache that a process left.
    Reserved(Leftover),
    /// Settings of the processor's registers: undone, or the error.
    Registers(Result<(), SettingError>),
    /// Memory bandwidth of resctrl groups and ways that devices fill: undone, or the error.
    Adjusted(Result<(), AdjustError>),
    /// Changes of this kind are undone as far as possible, and the rest is given up: the kind, and the
    /// settings that stay.
    Forgotten(&'static str, Vec<String>),
    /// Changes of this kind are not given up, because a living process uses them.
    InUse(&'static str),
    /// Journals of reservations exist, but resctrl cannot be opened to check them.
    Unseen(OpenError),
    /// Journals of reservations cannot be read.
    Unread(JournalError),
}

impl Recovered {
    /// Whether no problem is left: the change is undone, given up, or in use by a living process.
    pub fn is_well(&self) -> bool {
        match self {
            Self::Reserved(left) => left.restored.is_ok(),
            Self::Registers(result) => result.is_ok(),
            Self::Adjusted(result) => result.is_ok(),
            Self::Forgotten(..) | Self::InUse(_) => true,
            Self::Unseen(_) | Self::Unread(_) => false,
        }
    }
}

/// Writes one line for people about the change and how undoing it ended.
impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved(left) => left.fmt(f),
            Self::Registers(Ok(())) => write!(f, "{REGISTERS} are put back"),
            Self::Registers(Err(error)) => write!(f, "{REGISTERS} are not put back: {error}"),
            Self::Adjusted(Ok(())) => write!(f, "{ADJUSTED} are put back"),
            Self::Adjusted(Err(error)) => write!(f, "{ADJUSTED} are not put back: {error}"),
            Self::Forgotten(what, stays) => write!(
                f,
                "{what} are forgotten: their journal is removed, and this stays as it is: {}",
                stays.join("; ")
            ),
            Self::InUse(what) => write!(f, "{what} are in use by a living process, and stay so"),
            Self::Unseen(error) => {
                write!(f, "whether cache is still reserved that was left so cannot be told: {error}")
            }
            Self::Unread(error) => write!(f, "cannot look for cache that was left reserved: {error}"),
        }
    }
}

/// Turns the result of undoing a change into `None` if there was nothing to undo, and otherwise into success
/// or the error.
fn outcome<E>(put_back: Result<bool, E>) -> Option<Result<(), E>> {
    match put_back {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    }
}

/// Describes how giving up a change ended; `None` if another process has undone it already.
fn given_up<E>(
    what: &'static str,
    given_up: Result<ForgetOutcome, E>,
    put_back: fn(Result<(), E>) -> Recovered,
) -> Option<Recovered> {
    match given_up {
        // Another process undid it a moment ago.
        Ok(ForgetOutcome::Nothing) => None,
        Ok(ForgetOutcome::InUse) => Some(Recovered::InUse(what)),
        // Another process has put right what did not fit, so all of it could be undone.
        Ok(ForgetOutcome::Stays(stays)) if stays.is_empty() => Some(put_back(Ok(()))),
        Ok(ForgetOutcome::Stays(stays)) => Some(Recovered::Forgotten(what, stays)),
        Err(error) => Some(put_back(Err(error))),
    }
}

/// Undoes cache changes that processes left, in the order in which an ending daemon undoes its own.
///
/// # Errors
/// Returns an error if the folder of the journals cannot be read.
pub fn recover(journals: &Path, scope: RecoveryScope) -> Result<Vec<Recovered>, JournalError> {
    let reserved = reservation::reserved(journals)?;
    let forgets = scope == RecoveryScope::Forget;
    let mut recovered = Vec::new();
    match Resctrl::find() {
        Ok(resctrl) => {
            match outcome(adjustments::recover(&resctrl, journals)) {
                Some(Err(error)) if forgets && error.may_stay_for_ever() => {
                    let forgotten = adjustments::forget(&resctrl, journals);
                    recovered.extend(given_up(ADJUSTED, forgotten, Recovered::Adjusted));
                }
                result => recovered.extend(result.map(Recovered::Adjusted)),
            }
            let reservations = match scope {
                RecoveryScope::Gone => reservation::recover,
                RecoveryScope::Standing => reservation::restore_all,
                RecoveryScope::Forget => reservation::forget_all,
            };
            match reservations(&resctrl, journals) {
                Ok(left) => recovered.extend(left.into_iter().map(Recovered::Reserved)),
                Err(error) => recovered.push(Recovered::Unread(error)),
            }
        }
        // The recorded changes may exist where resctrl is mounted.
        Err(error) if !reserved.is_empty() => recovered.push(Recovered::Unseen(error)),
        Err(_) => {}
    }
    match outcome(registers::recover(journals)) {
        Some(Err(error)) if forgets && error.may_stay_for_ever() => {
            recovered.extend(given_up(REGISTERS, registers::forget(journals), Recovered::Registers));
        }
        result => recovered.extend(result.map(Recovered::Registers)),
    }
    Ok(recovered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_told_as_it_became() {
        let told = |result| given_up(REGISTERS, result, Recovered::Registers).map(|one| one.to_string());
        assert_eq!(told(Ok(ForgetOutcome::Nothing)), None);
        for (result, words) in [
            (Ok(ForgetOutcome::InUse), "left set are in use by a living process, and stay so"),
            (Ok(ForgetOutcome::Stays(Vec::new())), "left set are put back"),
            (
                Ok(ForgetOutcome::Stays(vec!["one".to_owned(), "two".to_owned()])),
                "this stays as it is: one; two",
            ),
            (Err(SettingError::Running), "left set are not put back: another process has set"),
        ] {
            let told = told(result).unwrap();
            assert!(told.contains(words), "{words}: {told}");
        }
    }
}
