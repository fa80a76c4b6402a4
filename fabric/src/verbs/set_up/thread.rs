//! The thread for set-up.

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

/// Requests at once that are refused without a place in the table of connections.
const STRANGERS_MAX: usize = 64;

/// What such a thread is for.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Place {
    /// Connections that there may be.
    pub connections: u32,
    /// The NUMA node that their queues are to lie on.
    pub numa_node: Option<u32>,
    /// The processor of who polls, which is left to it where there is another: a call of this thread may hold
    /// a lock of the provider's that the one that polls spins on.
    pub not_on: Option<usize>,
}

/// What is ordered first is not always what is done first. A peer that waits for its answer gives up after a
/// while: who is begun is finished before another one begins, and what is over is cleared away when nobody
/// waits.
#[derive(Clone, Copy, Debug)]
enum Lane {
    /// Answers to peers.
    Answer,
    /// Beginnings.
    Begin,
    /// What nobody waits for.
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
    /// By a connection's place: it is to end, so that what was ordered to begin it need not be done.
    is_to_end: Box<[AtomicBool]>,
    ends: AtomicBool,
    bell: OwnedFd,
}

/// A thread that carries orders out, one after the other. Dropped, it ends when it is done with the one that
/// it is at; those behind are dropped with what they are about.
#[derive(Debug)]
pub(in super::super) struct SetUpThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    strangers: usize,
}

impl SetUpThread {
    pub(super) fn start(place: Place) -> io::Result<Self> {
        let connections = place.connections as usize;
        // And one survey, or what comes of it.
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
            if let Some(cpu) = place.not_on {
                stay_off(cpu);
            }
            // Where that is not allowed, the NIC has said so, or goes without.
            let _near = place.numa_node.and_then(|node| ThreadPrefers::node(node).ok());
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
            "the thread for set-up stopped unexpectedly; its last words are above"
        );
        let lane = Lane::of(&order) as usize;
        self.shared.orders[lane].push(order).expect("there is a place for each connection");
        thread.thread().unpark();
        None
    }

    /// What was ordered to begin a connection need not be done any more. It has its outcome all the same.
    pub(super) fn give_up(&self, qp: Qp) {
        // A hint: where the thread does not see it in time, the connection is begun and then ended.
        self.shared.is_to_end[qp.index as usize].store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has_outcomes(&self) -> bool {
        !self.shared.outcomes.is_empty()
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<Outcome> {
        // An empty queue is known by two loads; to pop from it is a fence.
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
        // Where it has not rung there is nothing to read.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
    }
}

/// Lets this thread run on every processor that it may run on but one, where there is another.
fn stay_off(cpu: usize) {
    let Ok(mut allowed) = sched_getaffinity(None) else { return };
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return;
    }
    allowed.unset(cpu);
    if allowed.count() > 0 {
        // Where that is not allowed it runs wherever it runs.
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
        // Acquire, as the Release of who ends it: what was ordered before is dropped, not carried out.
        while !self.ends.load(Ordering::Acquire) {
            let Some(order) = self.next() else {
                std::thread::park();
                continue;
            };
            self.outcomes.push(self.carry_out(order)).expect("there is a place for each connection");
            // A bell that rings already is full.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for SetUpThread {
    fn drop(&mut self) {
        // Release, as the thread's Acquire.
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has said so.
            let _ = thread.join();
        }
        // What it left behind goes before what it was made of.
        while self.shared.next().is_some() {}
        while self.shared.outcomes.pop().is_some() {}
    }
}
