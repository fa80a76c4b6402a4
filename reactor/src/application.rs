//! Applications, as the driver reaches them.

use jet_core::{ProcessId, SessionEnd, SessionId, Standstill};
use jet_fabric::memory::SharedMemory;
use jet_wire::message::hello::AppName;
use jet_wire::segment::DaemonEnd;
use std::sync::Arc;

/// One application, beside its segment. Nothing here may wait.
pub trait Application {
    /// There is something new in its rings, and it sleeps.
    fn wake(&mut self);

    /// It holds all that it may while more waits for it, or (`None`) does so no longer.
    fn stands_still(&mut self, standstill: Option<Standstill>);

    /// Its session is over: why.
    fn ended(self, end: SessionEnd);
}

/// A session in the making: all that was prepared for it, so that the driver allocates nothing.
pub struct NewSession<A> {
    /// The application's name.
    pub app: AppName,
    /// Its class.
    pub class: u8,
    /// Its messages may take memory instead of waiting.
    pub takes_memory: bool,
    /// Whose it is, where that can be told.
    pub process: Option<ProcessId>,
    /// This end of the segment.
    pub segment: DaemonEnd,
    /// The segment's mapping, which the end points into.
    pub memory: Arc<SharedMemory>,
    /// How it is reached.
    pub application: A,
}

/// A session that stands: its number, and a ticket that no other session ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTicket {
    /// The number.
    pub session: SessionId,
    /// The ticket.
    pub ticket: u64,
}
