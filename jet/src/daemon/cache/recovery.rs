//! Putting back what processes that were killed had changed of the cache: by the next daemon, or by `jet
//! cache restore`.

use jet_cat::adjustments::{self, AdjustError, GivenUp};
use jet_cat::registers::{self, SettingError};
use jet_cat::resctrl::{OpenError, Resctrl};
use jet_cat::reservation::{self, JournalError, Left};
use std::fmt;
use std::path::Path;

const REGISTERS: &str = "the processor's registers that were left set";
const ADJUSTED: &str = "bandwidth of groups and ways of devices that were left set";

/// How far putting back goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What processes that are gone had left.
    Gone,
    /// And reservations that are to outlive processes.
    Standing,
    /// And what cannot be put back stays as it is, and is forgotten.
    Forget,
}

/// Something that was left, and what became of it.
#[derive(Debug)]
pub enum Recovered {
    /// Reserved cache.
    Reserved(Left),
    /// Registers of the processor: put back, or not.
    Registers(Result<(), SettingError>),
    /// Bandwidth of groups, and ways of devices: put back, or not.
    Adjusted(Result<(), AdjustError>),
    /// Of these what could be put back is, and the rest is given up: which, and what stays as it is.
    Forgotten(&'static str, Vec<String>),
    /// Of these nothing is given up, because a living process has them.
    InUse(&'static str),
    /// Journals of reservations are there, and no resctrl to look at.
    Unseen(OpenError),
    /// Journals of reservations cannot be read.
    Unread(JournalError),
}

impl Recovered {
    /// Whether it is as it should be now.
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

/// One line for people.
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

/// Whether something was left, and what became of it.
fn some<E>(put_back: Result<bool, E>) -> Option<Result<(), E>> {
    match put_back {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    }
}

/// What became of something that was given up.
fn given_up<E>(
    what: &'static str,
    given_up: Result<GivenUp, E>,
    put_back: fn(Result<(), E>) -> Recovered,
) -> Option<Recovered> {
    match given_up {
        // Somebody else put it back a moment ago.
        Ok(GivenUp::Nothing) => None,
        Ok(GivenUp::InUse) => Some(Recovered::InUse(what)),
        // Somebody put right what did not fit a moment ago.
        Ok(GivenUp::Stays(stays)) if stays.is_empty() => Some(put_back(Ok(()))),
        Ok(GivenUp::Stays(stays)) => Some(Recovered::Forgotten(what, stays)),
        Err(error) => Some(put_back(Err(error))),
    }
}

/// Puts back what was left, in the order of an end.
///
/// # Errors
/// The journals' folder cannot be read.
pub fn recover(journals: &Path, extent: Extent) -> Result<Vec<Recovered>, JournalError> {
    let reserved = reservation::reserved(journals)?;
    let forgets = extent == Extent::Forget;
    let mut recovered = Vec::new();
    match Resctrl::find() {
        Ok(resctrl) => {
            match some(adjustments::recover(&resctrl, journals)) {
                Some(Err(error)) if forgets && error.may_stay_for_ever() => {
                    let forgotten = adjustments::forget(&resctrl, journals);
                    recovered.extend(given_up(ADJUSTED, forgotten, Recovered::Adjusted));
                }
                result => recovered.extend(result.map(Recovered::Adjusted)),
            }
            let reservations = match extent {
                Extent::Gone => reservation::recover,
                Extent::Standing => reservation::restore_all,
                Extent::Forget => reservation::forget_all,
            };
            match reservations(&resctrl, journals) {
                Ok(left) => recovered.extend(left.into_iter().map(Recovered::Reserved)),
                Err(error) => recovered.push(Recovered::Unread(error)),
            }
        }
        // What is written down may stand where it is mounted.
        Err(error) if !reserved.is_empty() => recovered.push(Recovered::Unseen(error)),
        Err(_) => {}
    }
    match some(registers::recover(journals)) {
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
        assert_eq!(told(Ok(GivenUp::Nothing)), None);
        for (result, words) in [
            (Ok(GivenUp::InUse), "left set are in use by a living process, and stay so"),
            (Ok(GivenUp::Stays(Vec::new())), "left set are put back"),
            (Ok(GivenUp::Stays(vec!["one".to_owned(), "two".to_owned()])), "this stays as it is: one; two"),
            (Err(SettingError::Running), "left set are not put back: another process has set"),
        ] {
            let told = told(result).unwrap();
            assert!(told.contains(words), "{words}: {told}");
        }
    }
}
