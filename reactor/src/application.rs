//! The applications, as the driver reaches them.

use jet_core::{Registration, SessionEnd, SessionId, Standstill};
use jet_fabric::memory::SharedMemory;
use jet_wire::segment::DaemonEnd;
use std::sync::Arc;

/// Connection of the driver to one application, beside the session segment. No method may block.
pub trait Application {
    /// Wakes the application, which sleeps, because there is something new in its rings.
    fn wake(&mut self);

    /// Reports that the application holds all that it may while more waits for it, or (`None`) no longer does
    /// so.
    fn stands_still(&mut self, standstill: Option<Standstill>);

    /// Reports the end of the application's session, with its reason.
    fn ended(self, end: SessionEnd);
}

/// Everything that a new session needs, allocated in advance so that the driver allocates nothing.
pub struct NewSession<A> {
    /// Values with which the application registers.
    pub registration: Registration,
    /// The daemon's end of the session segment.
    pub segment: DaemonEnd,
    /// Mapping of the segment, which `segment` points into.
    pub memory: Arc<SharedMemory>,
    /// Connection to the application beside the segment.
    pub application: A,
}

/// An open session: its number, and a ticket that no other session ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTicket {
    /// Number of the session, which a later session may get again.
    pub session: SessionId,
    /// Ticket of the session, never used again.
    pub ticket: u64,
}
