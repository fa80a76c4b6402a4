//! Slow calls on connections, and those of the port's survey: system calls, and commands to the device's
//! firmware.
//!
//! A connection takes about eight such calls at its beginning and its end, each from tens of microseconds to
//! a millisecond. A survey reads some hundred files. A NIC with many connections has a thread for these
//! calls, so that existing connections are served meanwhile. A NIC with few connections makes the calls in
//! place.
//!
//! The objects of a call travel with its order, and return with the outcome. So an identifier or a QP is with
//! one of the two threads, never with both. A connection has at most one order under way, and so has the
//! port. So the queues of orders and of outcomes have a place for each order.

mod thread;

use super::addresses::LocalAddress;
use super::connection_manager::{ConnectionId, Terms};
use super::ece;
use super::listening::Listening;
use super::port::{Port, Standing};
use super::queue_pair::{BeginError, Parts, QpAttributes, QueuePair};
use crate::nic::{PrivateData, Qp};
use std::io;
use std::os::fd::BorrowedFd;
use thread::SetUpThread;
pub(super) use thread::ThreadOptions;

/// Order to make slow calls.
#[derive(Debug)]
pub(super) enum Order {
    /// Makes a QP for a connection that is to be accepted, and brings it to work.
    Make { qp: Qp, id: ConnectionId, parts: Parts, wanted: QpAttributes },
    /// Tells the peer that its request is accepted.
    Accept { qp: Qp, id: ConnectionId, terms: Terms },
    /// Takes the QP to the error state, and tells the peer.
    HangUp { qp: Qp, id: ConnectionId, pair: QueuePair },
    /// Refuses a request: of a connection, or of a peer that got no place in the table.
    Refuse { qp: Option<Qp>, id: ConnectionId, words: PrivateData },
    /// Destroys the connection's QP and identifier.
    LetGo { qp: Qp, id: Option<ConnectionId>, pair: Option<QueuePair> },
    /// Reads the port's state and addresses.
    Survey { port: Port },
    /// Listens anew at addresses that are back. With `all`, at each address that is present.
    Renew { listening: Vec<Listening>, present: Vec<LocalAddress>, all: bool },
}

/// Outcome of an order.
#[derive(Debug)]
pub(super) enum Outcome {
    Made { qp: Qp, id: ConnectionId, result: Result<QueuePair, BeginError> },
    Accepted { qp: Qp, id: ConnectionId, result: io::Result<()> },
    HungUp { qp: Qp, id: ConnectionId, pair: QueuePair },
    Refused { qp: Option<Qp> },
    Gone { qp: Qp },
    Surveyed { survey: Survey },
    Renewed { listening: Vec<Listening> },
}

/// State and addresses of a port that a survey found.
#[derive(Debug)]
pub(super) struct Survey {
    pub standing: io::Result<Standing>,
    pub addresses: Vec<LocalAddress>,
}

impl Survey {
    pub fn of(port: &Port) -> Self {
        Self { standing: port.standing(), addresses: port.addresses() }
    }
}

#[cfg(test)]
thread_local! {
    /// Orders that this thread has carried out, and queues that it has made.
    pub(super) static SLOW_CALLS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Counts a slow call, for the test of which thread makes them.
pub(super) fn count_slow_call() {
    #[cfg(test)]
    SLOW_CALLS.set(SLOW_CALLS.get() + 1);
}

impl Order {
    fn carry_out(self) -> Outcome {
        count_slow_call();
        match self {
            Self::Make { qp, id, parts, wanted } => {
                let result = QueuePair::new(&parts).map_err(BeginError::System).and_then(|mut pair| {
                    ece::take_offer(&pair, &id);
                    pair.begin_work(&id, &wanted)?;
                    ece::answer(&pair, &id);
                    Ok(pair)
                });
                Outcome::Made { qp, id, result }
            }
            Self::Accept { qp, id, terms } => {
                let result = id.accept(&terms);
                Outcome::Accepted { qp, id, result }
            }
            Self::HangUp { qp, id, pair } => {
                pair.fail();
                id.disconnect();
                Outcome::HungUp { qp, id, pair }
            }
            Self::Refuse { qp, id, words } => {
                id.reject(&words);
                drop(id);
                Outcome::Refused { qp }
            }
            Self::LetGo { qp, id, pair } => {
                drop(pair);
                drop(id);
                Outcome::Gone { qp }
            }
            Self::Survey { port } => Outcome::Surveyed { survey: Survey::of(&port) },
            Self::Renew { mut listening, present, all } => {
                for at in &mut listening {
                    at.renew(&present, all);
                }
                Outcome::Renewed { listening }
            }
        }
    }
}

/// Executor of orders.
#[derive(Debug)]
pub(super) enum SetUp {
    /// The calling thread carries orders out at once.
    Here,
    /// A thread of its own carries orders out.
    There(SetUpThread),
}

impl SetUp {
    /// Starts a thread for orders. With `None`, the calling thread carries the orders out.
    pub fn new(thread: Option<ThreadOptions>) -> io::Result<Self> {
        thread.map_or(Ok(Self::Here), |place| Ok(Self::There(SetUpThread::start(place)?)))
    }

    /// Has an order carried out. Returns the outcome if the calling thread did it.
    pub fn order(&mut self, order: Order) -> Option<Outcome> {
        match self {
            Self::Here => Some(order.carry_out()),
            Self::There(thread) => thread.order(order),
        }
    }

    /// Notes that a connection whose order is under way is to end.
    pub fn give_up(&self, qp: Qp) {
        if let Self::There(thread) = self {
            thread.give_up(qp);
        }
    }

    /// Takes the outcome of the oldest order that has one.
    #[inline]
    pub fn take(&mut self) -> Option<Outcome> {
        match self {
            Self::Here => None,
            Self::There(thread) => thread.take(),
        }
    }

    /// Whether there is an outcome to take.
    #[inline]
    pub fn has_outcomes(&self) -> bool {
        matches!(self, Self::There(thread) if thread.has_outcomes())
    }

    /// Returns the descriptor that is readable when there are outcomes, until [`Self::clear`]. `None` without
    /// a thread.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Here => None,
            Self::There(thread) => Some(thread.bell()),
        }
    }

    /// Reads the descriptor empty, so that it becomes readable with the next outcome.
    pub fn clear(&self) {
        if let Self::There(thread) = self {
            thread.clear();
        }
    }
}
