//! Putting back what processes that were killed had changed of the cache: by the next daemon, or by `jet cache restore`.

use jet_cat::adjustments::{self, AdjustError};
use jet_cat::registers::{self, SettingError};
use jet_cat::resctrl::{OpenError, Resctrl};
use jet_cat::reservation::{self, JournalError, Left};
use std::fmt;
use std::path::Path;

/// Something that was left, and what became of it.
#[derive(Debug)]
pub enum Recovered {
    /// Reserved cache.
    Reserved(Left),
    /// Registers of the processor: put back, or not.
    Registers(Result<(), SettingError>),
    /// Bandwidth of groups, and ways of devices: put back, or not.
    Adjusted(Result<(), AdjustError>),
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
            Self::Unseen(_) | Self::Unread(_) => false,
        }
    }
}

/// One line for people.
impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const REGISTERS: &str = "the processor's registers that were left set";
        const ADJUSTED: &str = "bandwidth of groups and ways of devices that were left set";
        match self {
            Self::Reserved(left) => left.fmt(f),
            Self::Registers(Ok(())) => write!(f, "{REGISTERS} are put back"),
            Self::Registers(Err(error)) => write!(f, "{REGISTERS} are not put back: {error}"),
            Self::Adjusted(Ok(())) => write!(f, "{ADJUSTED} are put back"),
            Self::Adjusted(Err(error)) => write!(f, "{ADJUSTED} are not put back: {error}"),
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

/// Puts back what was left, in the order of an end; reservations that are to outlive processes only where they are meant, too.
///
/// # Errors
/// The journals' folder cannot be read.
pub fn recover(journals: &Path, standing_too: bool) -> Result<Vec<Recovered>, JournalError> {
    let reserved = reservation::reserved(journals)?;
    let mut recovered = Vec::new();
    match Resctrl::find() {
        Ok(resctrl) => {
            recovered.extend(some(adjustments::recover(&resctrl, journals)).map(Recovered::Adjusted));
            let reservations = if standing_too { reservation::restore_all } else { reservation::recover };
            match reservations(&resctrl, journals) {
                Ok(left) => recovered.extend(left.into_iter().map(Recovered::Reserved)),
                Err(error) => recovered.push(Recovered::Unread(error)),
            }
        }
        // What is written down may stand where it is mounted.
        Err(error) if !reserved.is_empty() => recovered.push(Recovered::Unseen(error)),
        Err(_) => {}
    }
    recovered.extend(some(registers::recover(journals)).map(Recovered::Registers));
    Ok(recovered)
}
