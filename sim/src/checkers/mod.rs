//! Checkers: each watches one kind of promise, and says which event broke it. Three look at the simulation
//! itself, not at events: `quarantine`, `wake_up` and `liveness`.

mod congestion;
mod connections;
mod consumers;
mod credit;
mod drained;
mod escape_memory;
mod fates;
mod liveness;
mod open;
mod order;
mod quarantine;
mod routing;
mod slabs;
mod starvation;
mod stopped;
mod wake_up;
mod windows;

pub use congestion::Pace;

use crate::event::Event;
use crate::scenario::Scenario;
use jet_core::{PeerStats, SessionStats, Stats};
use jet_fabric::nic::Counters;
use std::fmt;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The checker that found it.
    pub checker: &'static str,
    /// Time, in nanoseconds.
    pub now_ns: u64,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checker, now_ns, what } = self;
        write!(f, "{checker}, at {now_ns} ns: {what}")
    }
}

/// What a look at the receiver sees, between two of its turns.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Time, in nanoseconds.
    pub now_ns: u64,
    /// Statistics of the receiver.
    pub stats: &'a Stats,
    /// Statistics of each connected sender.
    pub peers: &'a [PeerStats],
    /// Statistics of each open session.
    pub sessions: &'a [SessionStats],
    /// Counters of the receiver's NIC.
    pub nic: &'a Counters,
    /// READs that the receiver's NIC has under way.
    pub nic_reads: u32,
    /// Entries of the receive queue that the receiver's NIC has.
    pub nic_entries: u32,
    /// Connections that senders made.
    pub connections: u64,
    /// Connections that senders ended because the receiver sent nothing for too long.
    pub receiver_timeouts: u64,
    /// Connections that senders ended because the receiver named nothing that they wait for.
    pub progress_timeouts: u64,
    /// The smallest share of its windows that a sender uses, in thousandths.
    pub window_permille: u32,
    /// Whether everything has ended.
    pub is_settled: bool,
}

/// Watches a promise.
pub trait Checker {
    /// Returns the checker's name.
    fn name(&self) -> &'static str;

    /// Looks at an event.
    ///
    /// # Errors
    /// What is wrong with it.
    fn note(&mut self, now_ns: u64, event: &Event) -> Result<(), String> {
        let _ = (now_ns, event);
        Ok(())
    }

    /// Looks at the receiver between two of its turns.
    ///
    /// # Errors
    /// What is wrong with it.
    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let _ = look;
        Ok(())
    }

    /// Says what is missing at the end.
    ///
    /// # Errors
    /// What is missing.
    fn end(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Keeps what a checker found, where nobody found anything before.
fn keep(failure: &mut Option<Failure>, (checker, now_ns): (&'static str, u64), result: Result<(), String>) {
    if let Err(what) = result {
        failure.get_or_insert(Failure { checker, now_ns, what });
    }
}

/// Declares all checkers. Each is called by its type, not through `dyn`: there are millions of events, and
/// most checkers look at few kinds of them. What the first one finds is kept in `failure`.
macro_rules! checkers {
    ($($checker:ident: $kind:ty = $made:expr),* $(,)?) => {
        /// All checkers of a scenario.
        #[derive(Debug)]
        pub struct Checkers {
            $($checker: $kind,)*
        }

        impl Checkers {
            /// Makes the checkers of a scenario.
            pub fn new(scenario: &Scenario) -> Self {
                Self { $($checker: $made(scenario),)* }
            }

            /// Lets all look at an event.
            pub fn note(&mut self, now_ns: u64, event: &Event, failure: &mut Option<Failure>) {
                $(keep(failure, (self.$checker.name(), now_ns), self.$checker.note(now_ns, event));)*
            }

            /// Lets all look at the receiver between two of its turns.
            pub fn look(&mut self, look: &Look<'_>, failure: &mut Option<Failure>) {
                $(keep(failure, (self.$checker.name(), look.now_ns), self.$checker.look(look));)*
            }

            /// Lets all say what is missing at the end.
            pub fn end(&mut self, now_ns: u64, failure: &mut Option<Failure>) {
                $(keep(failure, (self.$checker.name(), now_ns), self.$checker.end());)*
            }
        }
    };
}

checkers! {
    fates: fates::Fates = fates::Fates::new,
    routing: routing::Routing = routing::Routing::new,
    order: order::Order = |_| order::Order::default(),
    slabs: slabs::Slabs = slabs::Slabs::new,
    windows: windows::Windows = windows::Windows::new,
    credit: credit::Credit = credit::Credit::new,
    escape_memory: escape_memory::EscapeMemory = escape_memory::EscapeMemory::new,
    starvation: starvation::Starvation = starvation::Starvation::new,
    stopped: stopped::Stopped = stopped::Stopped::new,
    congestion: congestion::Congestion = congestion::Congestion::new,
    connections: connections::Connections = connections::Connections::new,
    consumers: consumers::Consumers = consumers::Consumers::new,
    drained: drained::Drained = |_| drained::Drained,
}
