//! Congestion actuators: settings (knobs) of the NIC, lowered while the pool is in danger and restored above
//! the safety line (Jet §4.3, "Marking ECN").
//!
//! The signal that always works, [`Passive::soft`], is a message that the receiver sends; as an actuator,
//! it only has a row in the status. The other actuators change settings of a ConnectX NIC. Each actuator is
//! optional, and probed before use. [`CongestionControl`] owns the actuators on a separate thread; the
//! reactor tells that thread `on` or `off`, and never waits. Each change is recorded in a journal before it
//! is made, so the next start undoes what a killed daemon left.

mod config;
mod control;
mod files;
mod journal;
mod keeper;
mod mstcongestion;
mod pace;
mod passive_actuators;
#[cfg(test)]
mod tests;
mod tool;
mod tool_lock;

pub use config::{ActuatorKind, CongestionConfig, CongestionConfigError, Mode};
pub use control::{CongestionControl, CongestionView, StartError, WishHandle};
pub use files::FileKnobs;
pub use journal::{JournalError, journal_path};
pub use keeper::{Recovery, recover};
pub use mstcongestion::Mstcongestion;
pub use passive_actuators::Passive;
pub use tool::ToolError;

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// An actuator: settings of the NIC that make senders slower while they are lowered.
///
/// The caller stores the settings of [`plan`](Self::plan) in the journal before it calls
/// [`lower`](Self::lower). Later the caller calls [`restore`](Self::restore) with exactly the settings of the
/// journal. Runs of an external tool have a time limit; a run that exceeds it ends the call with an error.
pub trait Congestion: Send {
    /// Returns the actuator's name, as in the configuration and the status.
    fn name(&self) -> &'static str;

    /// Describes the actuator in one sentence without a full stop.
    fn what(&self) -> &'static str;

    /// Returns whether the actuator can be used on this host. Changes nothing.
    fn probe(&mut self) -> Support;

    /// Returns the settings that [`lower`](Self::lower) would change, with their present values, without
    /// changing any. Knobs that need no change are left out.
    ///
    /// # Errors
    /// Returns [`ActuatorError`] if a value cannot be read.
    fn plan(&mut self) -> Result<Vec<Setting>, ActuatorError>;

    /// Sets the knob of each setting to its lowered value, and reads the value back.
    ///
    /// # Errors
    /// Returns [`ActuatorError`]. After an error some settings may be changed, so the caller must restore
    /// them.
    fn lower(&mut self, settings: &[Setting]) -> Result<(), ActuatorError>;

    /// Restores each knob's value from before lowering, in reverse order. Returns notes for people. A second
    /// call does no harm.
    ///
    /// The settings may be of another device than the configured one, if the journal is of an earlier
    /// configuration. A knob that holds neither of its two values was changed by another program, and is left
    /// alone. A knob that is gone needs no restoring. Each of these two cases adds a note.
    ///
    /// # Errors
    /// Returns the first [`ActuatorError`]; the caller tries again later. A failed setting may keep the
    /// others from being tried.
    fn restore(&mut self, settings: &[Setting]) -> Result<Vec<String>, ActuatorError>;
}

/// Result of probing an actuator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The actuator can be used.
    Ready {
        /// Present values of the actuator's knobs, as text for people.
        found: String,
    },
    /// The actuator cannot be used.
    Unsupported {
        /// Reason why the actuator cannot be used, and what would help.
        why: String,
    },
}

/// One knob's value before lowering and its lowered value, as the journal records them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Name of the actuator.
    pub actuator: String,
    /// Name of the network interface, or PCI address of the device.
    pub device: String,
    /// Name of the knob within the actuator.
    pub knob: String,
    /// Value before lowering.
    pub before: String,
    /// Value while lowered.
    pub lowered: String,
}

impl Setting {
    /// Whether both settings are of the same knob.
    pub fn is_same_knob(&self, other: &Self) -> bool {
        (&self.actuator, &self.device, &self.knob) == (&other.actuator, &other.device, &other.knob)
    }
}

/// Reason why an actuator failed.
#[derive(Debug, thiserror::Error)]
pub enum ActuatorError {
    /// The actuator has no device.
    #[error("{why}")]
    NoDevice {
        /// Reason why there is no device, and which key to set.
        why: String,
    },
    /// A knob's file has vanished.
    #[error("{} is not there any more; the driver was reloaded or the NIC removed", path.display())]
    Gone {
        /// Path of the file.
        path: PathBuf,
    },
    /// A knob's file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// A knob's file holds no number, so its value could not be restored later.
    #[error("{} holds \"{found}\" and not a number", path.display())]
    NoNumber {
        /// Path of the file.
        path: PathBuf,
        /// Text that the file holds.
        found: String,
    },
    /// A knob's file is read-only for every process.
    #[error("{} is read-only; this driver or firmware does not let it be set", path.display())]
    ReadOnly {
        /// Path of the file.
        path: PathBuf,
    },
    /// This process may not write a knob's file.
    #[error(
        "may not write {}: {source}; run jetd as root, or mount what it lies on writable (containers have it \
         read-only)",
        path.display()
    )]
    NotPermitted {
        /// Path of the file.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// A knob's file refuses the value.
    #[error("{} does not take {value}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Value that was written.
        value: String,
        /// Error from the system.
        source: io::Error,
    },
    /// A knob accepted a value without an error, but has another value when it is read back.
    #[error("{knob} was set to {value} and reads {found}; the firmware does not take that value")]
    NotTaken {
        /// Name of the knob.
        knob: String,
        /// Value that was written.
        value: String,
        /// Value that was read back from the knob.
        found: String,
    },
    /// The journal names a knob that this actuator does not have: another version wrote the journal.
    #[error("\"{knob}\" of {device} is no knob of this actuator")]
    UnknownKnob {
        /// Name of the knob.
        knob: String,
        /// Device that the journal names.
        device: String,
    },
    /// The external tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The external tool's answer has an unexpected form.
    #[error(
        "{tool} answered \"{said}\"; expected its Action (disabled, drop or mark) and Mode (aggressive or \
         dynamic)"
    )]
    Answer {
        /// Name of the tool.
        tool: String,
        /// Answer of the tool.
        said: String,
    },
}

/// Builds the note about a knob that has neither its lowered value nor its value from before.
fn changed_by_others(setting: &Setting, found: &str) -> String {
    let Setting { device, knob, before, lowered, .. } = setting;
    format!(
        "{knob} of {device} is {found}, neither {before} as before nor {lowered} as lowered: left as it is"
    )
}

/// Builds the note about a knob that no longer exists.
fn gone(setting: &Setting) -> String {
    let Setting { device, knob, before, .. } = setting;
    format!("{knob} of {device}, which was {before}, is no longer there: nothing to restore")
}

/// Creates the actuator of this kind as configured. The actuator's external tool, if it has one, inherits the
/// lock.
fn actuator(
    config: &CongestionConfig,
    kind: ActuatorKind,
    lock: &Result<tool_lock::ToolLock, String>,
) -> Box<dyn Congestion> {
    match kind {
        ActuatorKind::Mstcongestion => Box::new(Mstcongestion::new(config, lock.clone())),
        ActuatorKind::RoceNp => Box::new(FileKnobs::roce_np(config)),
        ActuatorKind::CcParams => Box::new(FileKnobs::cc_params(config)),
        ActuatorKind::PcieCong => Box::new(Passive::pcie_cong()),
    }
}
