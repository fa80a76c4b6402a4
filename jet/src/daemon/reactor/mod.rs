//! The reactor's thread. The thread runs the driver's turns, gives the driver the time, and carries out
//! commands of the control plane within the turns. While there is nothing to do, the thread sleeps on epoll.

mod application;
mod bell;
mod command;
mod epoll;
mod orders;
mod patience;
mod snapshot;
mod turns;

pub use application::{LocalApplication, NewSession};
pub use bell::Ringer;
pub use command::{Command, CommandInbox, Commands, OpenSessionError};
pub use epoll::Epoll;
pub use snapshot::Snapshot;

use epoll::Woken;
use jet_core::SessionId;
use jet_fabric::give_way::GiveWay;
use jet_fabric::nic::Nic;
use jet_fabric::spin_budget::SpinBudget;
use jet_reactor::LostMemory;
use orders::Orders;
use patience::Patience;
use std::io;
use std::time::Instant;
use turns::Turns;

/// Options of a reactor.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// Core to which the reactor's thread is pinned; `None`: not pinned.
    pub cpu: Option<usize>,
    /// Longest time in nanoseconds that the reactor spins before it sleeps.
    pub spin_ns_max: u64,
}

/// Reason why a reactor ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The core for the reactor's thread does not exist, or this process may not use it.
    #[error("cannot pin the reactor to core {cpu}; name another as reactor.cpu, or none")]
    Core {
        /// Number of the core.
        cpu: usize,
    },
    /// Waiting on epoll failed.
    #[error("the reactor cannot sleep: {0}")]
    Sleep(io::Error),
    /// The RDMA device was removed or failed. Senders keep messages that were not acknowledged, and send them
    /// again.
    #[error(
        "the RDMA device was removed, or failed; start again when it is back (see `rdma link` and dmesg). \
         Nothing is lost: senders keep what was not acknowledged"
    )]
    NicGone,
}

/// The driver, with applications on this host as the sessions' applications.
pub type Driver<N> = jet_reactor::Driver<N, LocalApplication>;

/// The reactor: the driver, the commands to it, its clock, and its epoll.
pub struct Reactor<N: Nic> {
    driver: Driver<N>,
    orders: Orders,
    epoll: Epoll,
    /// Core to which the reactor's thread is pinned.
    cpu: Option<usize>,
    started: Instant,
    /// How long the reactor spins before it sleeps.
    spin: SpinBudget,
    give_way: GiveWay,
    patience: Patience,
    turns: Turns,
}

impl<N: Nic> Reactor<N> {
    /// Creates a reactor, which does nothing before [`run`](Self::run).
    pub fn new(driver: Driver<N>, inbox: CommandInbox, epoll: Epoll, options: ReactorOptions) -> Self {
        let ReactorOptions { cpu, spin_ns_max } = options;
        let orders = Orders { inbox, escape_error: None, filling: None };
        let (started, spin) = (Instant::now(), SpinBudget::new(spin_ns_max));
        let (give_way, patience, turns) = (GiveWay::default(), Patience::default(), Turns::default());
        Self { driver, orders, epoll, cpu, started, spin, give_way, patience, turns }
    }

    /// Runs the reactor on the calling thread until a drain is over.
    ///
    /// # Errors
    /// Returns [`RunError`] if the reactor cannot continue.
    pub fn run(mut self) -> Result<(), RunError> {
        if let Some(cpu) = self.cpu
            && !core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
        {
            return Err(RunError::Core { cpu });
        }
        let now_ns = self.now_ns();
        self.driver.start(now_ns);
        let mut idle_since_ns = None;
        let mut idle_turns = 0u32;
        loop {
            let now_ns = self.now_ns();
            if let Some(late_ns) = self.turns.begin(now_ns) {
                self.driver.handle_stall(late_ns);
            }
            if self.turn(now_ns) {
                if let Some(since_ns) = idle_since_ns.take().filter(|_| idle_turns > 0) {
                    self.spin.pays(now_ns - since_ns);
                }
                idle_turns = 0;
                self.give_way.found_something();
                self.patience.found_work();
                if !self.driver.deadline_is_over(now_ns) {
                    if self.give_way.handed_on(self.driver.delivered_bytes()) {
                        // An application that is to read these bytes may share this core.
                        let worked_ns = self.now_ns();
                        self.turns.end(worked_ns);
                        self.give_way_at(worked_ns);
                    }
                    continue;
                }
            }
            if self.driver.nic_is_gone() {
                return Err(RunError::NicGone);
            }
            if self.driver.continue_drain(now_ns) {
                return Ok(());
            }
            let idle_ns = now_ns - *idle_since_ns.get_or_insert(now_ns);
            if idle_ns < self.spin.ns() {
                if idle_turns == 0 {
                    self.give_way.begin(now_ns);
                }
                idle_turns += 1;
                let is_time = self.give_way.found_nothing();
                if is_time && !self.patience.waits_on(idle_ns, self.driver.has_messages()) {
                    // A peer that has work for the reactor may share this core.
                    self.turns.give_way();
                    self.give_way_at(self.now_ns());
                }
                continue;
            }
            self.spin.was_in_vain();
            self.patience.sleeps();
            (idle_since_ns, idle_turns) = (None, 0);
            self.sleep(now_ns).map_err(RunError::Sleep)?;
        }
    }

    fn give_way_at(&mut self, now_ns: u64) {
        let Self { give_way, started, .. } = self;
        give_way.give(now_ns, || elapsed_ns(started));
    }

    fn now_ns(&self) -> u64 {
        elapsed_ns(&self.started)
    }

    fn turn(&mut self, now_ns: u64) -> bool {
        let Self { driver, orders, epoll, turns, .. } = self;
        let others = |driver: &mut _| orders.carry_out(now_ns, turns.longest_ns(), driver, epoll);
        let worked = driver.turn(now_ns, others);
        while let Some(LostMemory { bytes, of_pool }) = driver.take_lost_memory() {
            tracing::warn!(
                "the hardware lost memory (a machine check, see dmesg): {bytes} bytes of {} are not used any \
                 more, and messages in them end as corrupt",
                if of_pool { "the pool" } else { "escape memory" },
            );
        }
        worked
    }

    fn sleep(&mut self, now_ns: u64) -> io::Result<()> {
        let Self { driver, orders, epoll, turns, .. } = self;
        let span_ns = driver.idle_span_ns(now_ns);
        if !orders.inbox.is_empty() || !driver.prepare_sleep(now_ns) {
            return Ok(());
        }
        turns.sleep(now_ns, span_ns);
        let mut rung = [None; 64];
        let mut count = 0;
        epoll.sleep(span_ns, |woken| {
            if count < rung.len() {
                rung[count] = Some(woken);
                count += 1;
            }
        })?;
        driver.wake_up();
        for woken in rung.into_iter().flatten() {
            match woken {
                Woken::Commands => {
                    orders.inbox.bell.clear();
                }
                Woken::Session(session) => clear_doorbell(driver, epoll, SessionId(session)),
            }
        }
        Ok(())
    }
}

fn elapsed_ns(since: &Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Takes the waiting rings off a session's doorbell. A closed doorbell is removed from epoll: the control
/// plane notices that the application is gone, and closes the session. So is one that takes long.
fn clear_doorbell<N: Nic>(driver: &mut Driver<N>, epoll: &Epoll, session: SessionId) {
    if let Some(application) = driver.application(session)
        && !application.bell.clear()
    {
        epoll.remove(&application.bell);
    }
}
