//! The set-up thread, which carries out orders for slow calls.

use super::{Order, Outcome};
use crate::memory::ThreadPrefers;
use crate::nic::Qp;
use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Requests without a place in the table of connections that may wait for their refusal at once.
const STRANGERS_MAX: usize = 64;

/// Options of the set-up thread: what it is for and where it runs.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct ThreadOptions {
    /// Connections that can be open at once.
    pub connections: u32,
    /// NUMA node where the connections' queues should lie.
    pub numa_node: Option<u32>,
    /// Processor of the polling thread, which the set-up thread avoids if there is another.
    ///
    /// A call of the set-up thread may hold a lock of the provider on which the polling thread spins.
    pub not_on: Option<usize>,
}

/// Priority of an order. Orders are not always carried out in the sequence in which they were given.
///
/// A peer that waits for its answer gives up after a while. So connections that were begun are finished
/// before another one begins. Destruction of ended connections comes last, since nobody waits for it.
#[derive(Clone, Copy, Debug)]
enum Lane {
    /// Answers to peers.
    Answer,
    /// Beginnings of connections, and surveys.
    Begin,
    /// Destruction, for which nobody waits.
    Clear,
}

impl Lane {
    const ALL: [Self; 3] = [Self::Answer, Self::Begin, Self::Clear];

    fn of(order: &Order) -> Self {
        match order {
            Order::Accept { .. } | Order::HangUp { .. } | Order::Refuse { .. } => Self::Answer,
            Order::Make { .. } | Order::Survey { .. } | Order::Renew { .. } => Self::Begin,
            Order::LetGo { .. } => Self::Clear,
        }
    }
}

#[derive(Debug)]
struct Shared {
    orders: [ArrayQueue<Order>; Lane::ALL.len()],
    outcomes: ArrayQueue<Outcome>,
    /// Whether the connection at each place is to end. An order to begin it need not be carried out then.
    is_to_end: Box<[AtomicBool]>,
    ends: AtomicBool,
    bell: OwnedFd,
}

/// Thread that carries orders out, one after the other.
///
/// Dropping it ends the thread after its present order. Later orders are dropped with their objects.
#[derive(Debug)]
pub(in super::super) struct SetUpThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    strangers: usize,
}

impl SetUpThread {
    pub(super) fn start(options: ThreadOptions) -> io::Result<Self> {
        let connections = options.connections as usize;
        // One more, for a survey or its outcome.
        let orders = connections + STRANGERS_MAX + 1;
        let shared = Arc::new(Shared {
            orders: Lane::ALL.map(|_| ArrayQueue::new(orders)),
            outcomes: ArrayQueue::new(orders),
            is_to_end: (0..connections).map(|_| AtomicBool::new(false)).collect(),
            ends: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        });
        let its_own = Arc::clone(&shared);
        let run = move || {
            if let Some(cpu) = options.not_on {
                stay_off(cpu);
            }
            // Where the node cannot be chosen, the NIC has reported that, or works without.
            let _near = options.numa_node.and_then(|node| ThreadPrefers::node(node).ok());
            its_own.run();
        };
        let thread = std::thread::Builder::new().name("jet-set-up".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread), strangers: 0 })
    }

    pub(super) fn order(&mut self, order: Order) -> Option<Outcome> {
        match &order {
            Order::Refuse { qp: None, .. } if self.strangers == STRANGERS_MAX => {
                return Some(order.carry_out());
            }
            Order::Refuse { qp: None, .. } => self.strangers += 1,
            Order::Make { qp, .. } => {
                self.shared.is_to_end[qp.index as usize].store(false, Ordering::Relaxed)
            }
            _ => {}
        }
        let thread = self.thread.as_ref().expect("it runs until this is dropped");
        assert!(
            !thread.is_finished(),
            "the thread for set-up stopped unexpectedly; the log lines before this one say why"
        );
        let lane = Lane::of(&order) as usize;
        self.shared.orders[lane].push(order).expect("there is a place for each connection");
        thread.thread().unpark();
        None
    }

    /// Notes that orders to begin a connection need not be carried out. They have their outcomes all the
    /// same.
    pub(super) fn give_up(&self, qp: Qp) {
        // Only a hint: where the thread sees it too late, the connection is begun and then ended.
        self.shared.is_to_end[qp.index as usize].store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has_outcomes(&self) -> bool {
        !self.shared.outcomes.is_empty()
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<Outcome> {
        // Two loads show that a queue is empty; a pop would cost a fence.
        if self.shared.outcomes.is_empty() {
            return None;
        }
        let outcome = self.shared.outcomes.pop()?;
        if let Outcome::Refused { qp: None } = outcome {
            self.strangers -= 1;
        }
        Some(outcome)
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    pub(super) fn clear(&self) {
        // Without a ring there is nothing to read.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
    }
}

/// Takes one processor off those that this thread may run on, if there is another.
fn stay_off(cpu: usize) {
    let Ok(mut allowed) = sched_getaffinity(None) else { return };
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return;
    }
    allowed.unset(cpu);
    if allowed.count() > 0 {
        // Where that is not allowed, the thread runs on any processor.
        let _ = sched_setaffinity(None, &allowed);
    }
}

impl Shared {
    fn next(&self) -> Option<Order> {
        self.orders.iter().find_map(ArrayQueue::pop)
    }

    fn carry_out(&self, order: Order) -> Outcome {
        match order {
            Order::Make { qp, id, .. } if self.is_to_end[qp.index as usize].load(Ordering::Relaxed) => {
                let result = Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
                Outcome::Made { qp, id, result }
            }
            order => order.carry_out(),
        }
    }

    fn run(&self) {
        // Acquire pairs with the Release in `drop`: orders from before the end are dropped, not carried out.
        while !self.ends.load(Ordering::Acquire) {
            let Some(order) = self.next() else {
                std::thread::park();
                continue;
            };
            self.outcomes.push(self.carry_out(order)).expect("there is a place for each connection");
            // A write fails only when the bell rings already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for SetUpThread {
    fn drop(&mut self) {
        // Release pairs with the Acquire in the thread's loop.
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The log has the panic.
            let _ = thread.join();
        }
        // Objects of orders and outcomes are dropped before what they were made of.
        while self.shared.next().is_some() {}
        while self.shared.outcomes.pop().is_some() {}
    }
}
