//! The reactor: one thread that polls the NIC, the applications' release rings and the command queue, tells the
//! receiver, and carries out what it says. Nothing on its message path allocates, locks or makes a system call while
//! there is work.

mod command;
mod epoll;
mod hands;
#[cfg(test)]
mod hands_tests;
mod posting;
#[cfg(test)]
mod posting_tests;
mod status;
mod turn;

pub use command::{Command, CommandInbox, Commands, NewSession, SessionTicket};
pub use epoll::Epoll;
pub use hands::{EscapeHands, Hands, PoolMemory};

use jet_core::{Receiver, SessionId};
use jet_fabric::nic::Nic;
use std::io;
use std::time::Instant;

/// What a reactor is made with besides its parts.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// The core that it is pinned to.
    pub cpu: Option<usize>,
    /// The longest that it spins before it sleeps.
    pub spin_ns_max: u64,
    /// Tells this start of the daemon from others.
    pub incarnation: u64,
    /// Where the NIC listens.
    pub listen: Vec<String>,
    /// The pool's pages.
    pub pages: &'static str,
    /// The pool's NUMA node, where one was asked for.
    pub numa_node: Option<u32>,
    /// Whether the NIC has its own thread.
    pub nic_thread: bool,
}

/// How long peers may take to hear the farewell at the end of a drain.
const FAREWELL_NS: u64 = 1_500_000_000;

/// Why a reactor ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The core is not there, or not allowed.
    #[error("cannot pin the reactor to core {cpu}; name another as reactor.cpu, or none")]
    Core {
        /// The core.
        cpu: usize,
    },
    /// The system refuses to wait.
    #[error("the reactor cannot sleep: {0}")]
    Sleep(io::Error),
    /// What the NIC runs on was taken away. What was not acknowledged is with its senders, who send it again.
    #[error(
        "the RDMA device was removed, or failed; start again when it is back (see `rdma link` and dmesg). Nothing is \
         lost: senders keep what was not acknowledged"
    )]
    NicGone,
}

/// Where a drain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    Not,
    /// Messages are being finished.
    Finishing {
        deadline_ns: u64,
    },
    /// Peers are being told goodbye.
    Leaving {
        deadline_ns: u64,
    },
}

/// The receiver, its hands and its clock.
pub struct Reactor<N: Nic> {
    receiver: Receiver,
    hands: Hands<N>,
    commands: CommandInbox,
    options: ReactorOptions,
    started: Instant,
    drain: Drain,
    spin_ns: u64,
    /// When it was to look again, at the latest.
    due_ns: Option<u64>,
    nic_is_gone: bool,
    /// Why there is no escape memory, or less than was asked for.
    escape_error: Option<String>,
}

impl<N: Nic> Reactor<N> {
    /// A reactor that has not started.
    pub fn new(receiver: Receiver, hands: Hands<N>, commands: CommandInbox, options: ReactorOptions) -> Self {
        let spin_ns = options.spin_ns_max;
        Self {
            receiver,
            hands,
            commands,
            options,
            started: Instant::now(),
            drain: Drain::Not,
            spin_ns,
            due_ns: None,
            nic_is_gone: false,
            escape_error: None,
        }
    }

    /// Runs until a drain is over.
    ///
    /// # Errors
    /// [`RunError`]: what there is no going on without.
    pub fn run(mut self) -> Result<(), RunError> {
        if let Some(cpu) = self.options.cpu
            && !core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
        {
            return Err(RunError::Core { cpu });
        }
        let now_ns = self.now_ns();
        self.receiver.start(now_ns, &mut self.hands);
        self.hands.nic.flush();
        let mut idle_since_ns = None;
        let mut idle_turns = 0u32;
        loop {
            let now_ns = self.now_ns();
            if let Some(late_ns) = self.due_ns.and_then(|due_ns| now_ns.checked_sub(due_ns)) {
                self.receiver.handle_stall(late_ns);
            }
            self.due_ns = Some(due_ns(now_ns, 0));
            if self.turn(now_ns) {
                if idle_since_ns.take().is_some() && idle_turns > 0 {
                    // Spinning paid off.
                    self.spin_ns = (self.spin_ns * 2).min(self.options.spin_ns_max);
                }
                idle_turns = 0;
                if !self.deadline_is_over(now_ns) {
                    continue;
                }
            }
            if self.nic_is_gone {
                return Err(RunError::NicGone);
            }
            if self.drain_is_over(now_ns) {
                return Ok(());
            }
            let idle_ns = now_ns - *idle_since_ns.get_or_insert(now_ns);
            if idle_ns < self.spin_ns {
                idle_turns += 1;
                if idle_turns.is_multiple_of(YIELD_EVERY) {
                    // Both ends may share this core.
                    rustix::thread::sched_yield();
                } else {
                    std::hint::spin_loop();
                }
                continue;
            }
            self.spin_ns = (self.spin_ns / 2).max(SPIN_NS_MIN.min(self.options.spin_ns_max));
            (idle_since_ns, idle_turns) = (None, 0);
            self.sleep(now_ns).map_err(RunError::Sleep)?;
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep(&mut self, now_ns: u64) -> io::Result<()> {
        let tick_ns = self.receiver.next_tick_ns().map(|tick| tick.saturating_sub(now_ns).max(1));
        let drain_ns = (self.drain != Drain::Not).then_some(DRAIN_LOOK_NS);
        let span_ns = match (tick_ns, drain_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if !self.hands.prepare_sleep() {
            return Ok(());
        }
        let sessions = self.hands.open_count();
        if !self.commands.is_empty() || !self.hands.arm_workers() || !self.hands.nic.arm(now_ns) {
            self.hands.wake_up(sessions);
            return Ok(());
        }
        // Until then it sleeps because it wants to.
        self.due_ns = span_ns.map(|span_ns| due_ns(now_ns, span_ns));
        let mut rung = [None; 64];
        let mut count = 0;
        self.hands.epoll.sleep(span_ns, |woken| {
            if count < rung.len() {
                rung[count] = Some(woken);
                count += 1;
            }
        })?;
        self.hands.wake_up(sessions);
        for woken in rung.into_iter().flatten() {
            match woken {
                epoll::Woken::Commands => {
                    self.commands.bell.clear();
                }
                epoll::Woken::Session(session) => self.hands.silence(SessionId(session)),
            }
        }
        Ok(())
    }

    /// Whether a drain's time is up: looked at in busy turns too, since senders may keep every turn busy.
    fn deadline_is_over(&self, now_ns: u64) -> bool {
        match self.drain {
            Drain::Not => false,
            Drain::Finishing { deadline_ns } | Drain::Leaving { deadline_ns } => now_ns >= deadline_ns,
        }
    }

    fn drain_is_over(&mut self, now_ns: u64) -> bool {
        match self.drain {
            Drain::Not => false,
            Drain::Finishing { deadline_ns } => {
                if now_ns >= deadline_ns || self.receiver.is_drained() {
                    self.receiver.disconnect_all(&mut self.hands);
                    self.hands.publish();
                    self.drain = Drain::Leaving { deadline_ns: now_ns + FAREWELL_NS };
                }
                false
            }
            Drain::Leaving { deadline_ns } => now_ns >= deadline_ns || self.hands.bound() == 0,
        }
    }
}

/// How long a turn may take, and waking up: a turn takes microseconds, and one in which megabytes are copied and checked 1 ms. What
/// it takes longer, it or the machine stood still.
const LOOK_NS: u64 = 1_000_000;
/// What `epoll` rounds the length of a sleep up to.
const SLEEP_UNIT_NS: u64 = 1_000_000;

/// When the reactor looks again at the latest, if it is let, after a sleep of at most so long.
fn due_ns(now_ns: u64, sleep_ns: u64) -> u64 {
    let sleep_ns = sleep_ns.checked_next_multiple_of(SLEEP_UNIT_NS).unwrap_or(u64::MAX);
    now_ns.saturating_add(sleep_ns).saturating_add(LOOK_NS)
}

/// The least that a reactor which may spin spins.
const SPIN_NS_MIN: u64 = 2_000;
/// Idle turns between two yields.
const YIELD_EVERY: u32 = 8;
/// Between two looks at a drain's progress.
const DRAIN_LOOK_NS: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_that_was_wanted_is_no_stall() {
        assert_eq!(due_ns(7, 0), 7 + LOOK_NS);
        assert_eq!(due_ns(7, 500_000), 7 + 1_000_000 + LOOK_NS);
        assert_eq!(due_ns(7, 1_000_001), 7 + 2_000_000 + LOOK_NS);
        assert_eq!(due_ns(7, u64::MAX), u64::MAX);
    }
}
