//! The receiver as a state machine.
//!
//! This crate makes all decisions about receiving and touches nothing outside: `no_std`, no unsafe, no clock,
//! no I/O. Time enters as a value. The same code runs with a real RNIC, a software NIC and a simulator.
//!
//! Inputs are the `handle_*` calls of [`Receiver`]. What is to be done about them comes out through
//! [`Effects`], which the driver implements. The order of calls:
//!
//! 1. [`Receiver::new`], then [`Receiver::start`] posts the first SRQ entries.
//! 2. For each completion, connection event or release entry, the `handle_*` that fits.
//! 3. After each batch of those, [`Receiver::flush`]: tops up the SRQ, grants READs, sends acknowledgements.
//! 4. By the time that [`Receiver::next_tick_ns`] names, [`Receiver::handle_tick`].
//!
//! After construction nothing allocates, except where memory was lost to the hardware (see
//! [`Receiver::handle_poisoned`]).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod admission;
mod checks;
mod config;
mod credit;
mod delivery;
mod effects;
mod escape;
mod histogram;
mod index;
mod messages;
mod outbox;
mod places;
pub mod pool;
mod quarantine;
mod reads;
mod receiver;
mod registry;
mod releases;
mod replies;
mod slots;
mod srq;
mod standstill;
mod stats;
mod time;

pub use admission::{GrantPolicy, QueueHead, StrictWithAging};
pub use config::{CLASSES_MAX, Checksums, Config, ConfigError, FRAGMENT_SLABS_MAX};
pub use effects::{
    Commands, CopyFailed, CopyId, CopyRefused, Effects, EscapeCopy, PeerId, ProcessId, Questions, ReadId,
    ReleaseError, Remote, SessionEnd, SessionId, SourceId, Standstill, StandstillStage, Sums, UserId,
};
pub use histogram::Histogram;
pub use receiver::{Arrival, Joined, OpenError, Receiver};
pub use registry::Registration;
pub use stats::{
    EscapeStats, PeerStats, QuarantineStats, ReadsWaitFor, SessionStats, ShareStats, StandstillStats, Stats,
};
