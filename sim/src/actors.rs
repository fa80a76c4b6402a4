//! The actors of a simulation: processes, and the times at which they run.

use crate::application::ApplicationProcess;
use crate::cheat::CheatProcess;
use crate::receiver::ReceiverProcess;
use crate::sender::SenderProcess;

/// Time of an actor that does not run by itself.
pub const NEVER: u64 = u64::MAX;

/// The receiver.
pub struct ReceiverActor {
    /// Its process, where one runs.
    pub process: Option<ReceiverProcess>,
    /// Time at which it runs next, or is started.
    pub at_ns: u64,
    /// Whether it found nothing to do, and is about to sleep.
    pub is_tired: bool,
    /// Whether it sleeps until it is woken, or until that time.
    pub is_asleep: bool,
    /// Time at which a job of its workers ends.
    pub job_ns: u64,
    /// Processes that were started.
    pub incarnation: u64,
    /// Turns of all of them.
    pub turns: u32,
    /// Time before which it does not run, whoever wakes it.
    pub stalled_until_ns: u64,
    /// Nanoseconds for which it is late.
    pub late_ns: u64,
    /// Whether something was asked of it beside what NIC, rings and workers have.
    pub was_commanded: bool,
}

impl ReceiverActor {
    /// An actor without a process. One is started at once.
    pub const NEW: Self = Self {
        process: None,
        at_ns: 0,
        is_tired: false,
        is_asleep: false,
        job_ns: NEVER,
        incarnation: 0,
        turns: 0,
        stalled_until_ns: 0,
        late_ns: 0,
        was_commanded: false,
    };
}

/// An application.
pub struct ApplicationActor {
    /// Its process.
    pub process: ApplicationProcess,
    /// Time at which it runs next.
    pub at_ns: u64,
}

/// A sender.
pub struct SenderActor {
    /// Its process.
    pub process: SenderProcess,
    /// Whether it has run. Before that it waits for nobody.
    pub has_begun: bool,
    /// Time at which it runs next.
    pub at_ns: u64,
}

/// A sender that breaks the rules.
pub struct CheatActor {
    /// Its process.
    pub process: CheatProcess,
    /// Time at which it runs next.
    pub at_ns: u64,
}

/// Which actor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The receiver, or a job of its workers.
    Receiver,
    /// An application, by its place.
    Application(usize),
    /// A sender, by its place.
    Sender(usize),
    /// A cheat, by its place.
    Cheat(usize),
    /// Who causes faults.
    Chaos,
    /// A process that lives on after its fault.
    Holder,
}
