//! Congestion actuators: the NIC's own knobs, lowered under danger and put back above the safety line (Jet
//! §4.3, "Marking ECN").
//!
//! The signal that always works, [`Soft`], is a message of Jet's own that the receiver sends; here it only
//! has a row in the status. The others turn knobs of a ConnectX, each optional and probed.
//! [`CongestionControl`] owns them on a thread of its own; the reactor tells it `on` or `off` and never
//! waits. Whatever is changed stands in a journal before it is changed, so that the next start undoes what a
//! killed daemon left.

mod config;
mod control;
mod files;
mod journal;
mod keeper;
mod leftover;
mod mstcongestion;
mod observed;
mod pace;
#[cfg(test)]
mod tests;
mod tool;

pub use config::{ActuatorKind, CongestionConfig, CongestionConfigError, Mode};
pub use control::{CongestionControl, CongestionView, Mark, StartError};
pub use files::FileKnobs;
pub use journal::{JournalError, journal_path};
pub use keeper::{Recovery, recover};
pub use mstcongestion::Mstcongestion;
pub use observed::{PcieCong, Soft};
pub use tool::ToolError;

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// One way to make senders slower.
///
/// `plan`, then the journal, then `lower`; later `restore` with the very settings that were journalled. Calls
/// may take as long as the time limit of an external tool, never longer.
pub trait Congestion: Send {
    /// As in the configuration and the status.
    fn name(&self) -> &'static str;

    /// What it is, in one sentence without a full stop.
    fn what(&self) -> &'static str;

    /// Whether it can be used here. Changes nothing.
    fn probe(&mut self) -> Support;

    /// What [`lower`](Self::lower) would change, with the values that are there now. Changes nothing; knobs
    /// that stand where they would be lowered to are left out.
    ///
    /// # Errors
    /// [`ActuatorError`]: a value cannot be read.
    fn plan(&mut self) -> Result<Vec<Setting>, ActuatorError>;

    /// Sets every knob to its lowered value and reads it back.
    ///
    /// # Errors
    /// [`ActuatorError`]; some of the settings may stand changed then: restore them.
    fn lower(&mut self, settings: &[Setting]) -> Result<(), ActuatorError>;

    /// Puts back what was there before, last first. They may be of another device than the configured one:
    /// the journal of an earlier configuration. Doing it twice does no harm. A knob that holds neither of the
    /// two values belongs to somebody else by now, and one that is gone needs nothing: each is left alone and
    /// told in the notes.
    ///
    /// # Errors
    /// The first [`ActuatorError`]; the other settings have been tried all the same. Try again later.
    fn restore(&mut self, settings: &[Setting]) -> Result<Vec<String>, ActuatorError>;
}

/// Whether an actuator can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Ready {
        /// The present values, for people.
        found: String,
    },
    /// It cannot.
    Unsupported {
        /// Why, and what would help.
        why: String,
    },
}

/// One value of one knob: what stands in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The actuator's name.
    pub actuator: String,
    /// Interface or PCI address.
    pub device: String,
    /// Which of the actuator's knobs.
    pub knob: String,
    /// The value before.
    pub before: String,
    /// The value while lowered.
    pub lowered: String,
}

impl Setting {
    /// Whether both are of the same knob.
    pub fn is_same_knob(&self, other: &Self) -> bool {
        (&self.actuator, &self.device, &self.knob) == (&other.actuator, &other.device, &other.knob)
    }
}

/// Why an actuator could not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum ActuatorError {
    /// The actuator has no device.
    #[error("{why}")]
    NoDevice {
        /// Why, and what to set.
        why: String,
    },
    /// A file vanished.
    #[error("{} is not there any more; the driver was reloaded or the NIC removed", path.display())]
    Gone {
        /// Which.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds no number, so that it could not be put back.
    #[error("{} holds \"{found}\" and not a number", path.display())]
    NoNumber {
        /// Which.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
    /// A file cannot be written by anybody.
    #[error("{} is read-only; this driver or firmware does not let it be set", path.display())]
    ReadOnly {
        /// Which.
        path: PathBuf,
    },
    /// A file may not be written by this process.
    #[error(
        "may not write {}: {source}; run jetd as root, or mount what it lies on writable (containers have it \
         read-only)",
        path.display()
    )]
    NotPermitted {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not take the value.
    #[error("{} does not take {value}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// The value.
        value: String,
        /// What the system said.
        source: io::Error,
    },
    /// A knob took the value and shows another.
    #[error("{knob} was set to {value} and reads {found}; the firmware does not take that value")]
    NotTaken {
        /// Which.
        knob: String,
        /// What was written.
        value: String,
        /// What is there.
        found: String,
    },
    /// A knob is none of this actuator's; the journal was not written by this version.
    #[error("\"{knob}\" of {device} is no knob of this actuator")]
    UnknownKnob {
        /// Which.
        knob: String,
        /// Of what.
        device: String,
    },
    /// The external tool.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The external tool answered something else than expected.
    #[error(
        "{tool} answered \"{said}\"; expected its Action (disabled, drop or mark) and Mode (aggressive or \
         dynamic)"
    )]
    Answer {
        /// Which tool.
        tool: String,
        /// What it said.
        said: String,
    },
}

/// A knob that holds a third value.
fn changed_by_others(setting: &Setting, found: &str) -> String {
    let Setting { device, knob, before, lowered, .. } = setting;
    format!(
        "{knob} of {device} is {found}, neither {before} as before nor {lowered} as lowered: left as it is"
    )
}

/// A knob that is gone.
fn gone(setting: &Setting) -> String {
    let Setting { device, knob, before, .. } = setting;
    format!("{knob} of {device}, which was {before}, is no longer there: nothing to restore")
}

/// The actuator of a kind, for what the configuration says.
fn actuator(
    config: &CongestionConfig,
    kind: ActuatorKind,
    lock: &Result<leftover::ToolLock, String>,
) -> Box<dyn Congestion> {
    match kind {
        ActuatorKind::Mstcongestion => Box::new(Mstcongestion::new(config, lock.clone())),
        ActuatorKind::RoceNp => Box::new(FileKnobs::roce_np(config)),
        ActuatorKind::CcParams => Box::new(FileKnobs::cc_params(config)),
        ActuatorKind::PcieCong => Box::new(PcieCong),
    }
}
