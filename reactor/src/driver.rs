//! The driver: the receiver and its effect handler, as their caller uses them.

use crate::application::{Application, NewSession, SessionTicket};
use crate::effect_handler::{EffectHandler, Parts};
use crate::memory::LostMemory;
use crate::turn::{Polled, nothing_polled};
use jet_core::{OpenError, Receiver, SessionId};
use jet_fabric::nic::{Counters, Nic};

/// Longest time in nanoseconds that peers may take to receive the farewell at the end of a drain.
const FAREWELL_NS: u64 = 1_500_000_000;
/// Nanoseconds between two checks of a drain's progress.
const DRAIN_CHECK_NS: u64 = 5_000_000;

/// Progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    Not,
    /// Messages that the receiver knows are being finished.
    Finishing {
        deadline_ns: u64,
    },
    /// The farewell to the peers is on its way.
    Leaving {
        deadline_ns: u64,
    },
}

/// The receiver's driver: the receiver and its effect handler. `now_ns` is a time in nanoseconds, of any
/// clock that does not go back.
pub struct Driver<N: Nic, A> {
    pub(crate) receiver: Receiver,
    pub(crate) handler: EffectHandler<N, A>,
    pub(crate) nic_is_gone: bool,
    pub(crate) polled: Polled,
    drain: Drain,
}

impl<N: Nic, A: Application> Driver<N, A> {
    /// Makes a driver that has not started.
    pub fn new(receiver: Receiver, parts: Parts<N>) -> Self {
        let handler = EffectHandler::new(parts, receiver.config());
        let polled = nothing_polled();
        Self { receiver, handler, nic_is_gone: false, polled, drain: Drain::Not }
    }

    /// Posts the first receive entries to the NIC. To be called before the first [`Self::turn`].
    pub fn start(&mut self, now_ns: u64) {
        self.receiver.start(now_ns, &mut self.handler);
        self.handler.nic.flush();
    }

    /// Returns the receiver, whose state may be read.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns the NIC's counters.
    pub fn counters(&self) -> Counters {
        self.handler.nic.counters()
    }

    /// Returns the bytes that were delivered to applications, also to those that are gone.
    #[inline]
    pub fn delivered_bytes(&self) -> u64 {
        self.handler.sessions.delivered_bytes()
    }

    /// Whether any message has a record: it is on its way to an application, an application has it, or a
    /// part of it.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.receiver.has_messages()
    }

    /// Whether the NIC's device was removed. The driver cannot continue then.
    pub fn nic_is_gone(&self) -> bool {
        self.nic_is_gone
    }

    /// Returns a piece of memory that the hardware lost, and that was not returned before. To be called after
    /// each turn, until it returns `None`.
    pub fn take_lost_memory(&mut self) -> Option<LostMemory> {
        self.handler.memory.take_unreported_loss()
    }

    /// Notes that the driver was called `late_ns` nanoseconds too late. This time does not count as time for
    /// which applications held their slabs.
    pub fn handle_stall(&mut self, late_ns: u64) {
        self.receiver.handle_stall(late_ns);
    }

    /// Notes that the first `ready_slabs` slabs of escape memory can be used.
    pub fn handle_escape_memory(&mut self, ready_slabs: u32) {
        self.receiver.handle_escape_memory(ready_slabs);
    }

    /// Opens a session for an application.
    ///
    /// # Errors
    /// [`OpenError`]: the receiver refuses the session. What was prepared for it is dropped.
    pub fn open(&mut self, now_ns: u64, new: NewSession<A>) -> Result<SessionTicket, OpenError> {
        let session = self.receiver.handle_session_opened(now_ns, new.registration)?;
        Ok(self.handler.sessions.attach(session, new))
    }

    /// Returns the application of an open session.
    pub fn application(&mut self, session: SessionId) -> Option<&mut A> {
        self.handler.sessions.application(session)
    }

    /// Ends a session whose application may live on, and may go on reading the slabs that it holds.
    pub fn end_session(&mut self, now_ns: u64, ticket: SessionTicket) {
        if self.handler.sessions.has_had(ticket) {
            self.receiver.handle_session_ended(now_ns, ticket.session, &mut self.handler);
        }
    }

    /// Notes that the application is gone, whether its session was ended before or not.
    pub fn application_gone(&mut self, now_ns: u64, ticket: SessionTicket) {
        // The number is not given to another session before this application is gone.
        if self.handler.sessions.has_had(ticket) {
            self.receiver.handle_session_gone(now_ns, ticket.session, &mut self.handler);
        }
    }

    /// Begins to drain: takes nothing new, finishes messages until the deadline, and then disconnects all
    /// peers. A further call moves the deadline, unless the peers are being disconnected already.
    pub fn drain(&mut self, deadline_ns: u64) {
        match &mut self.drain {
            Drain::Not => {
                self.receiver.drain();
                self.handler.nic.stop_listening();
                self.drain = Drain::Finishing { deadline_ns };
            }
            Drain::Finishing { deadline_ns: before } => *before = deadline_ns,
            // No message is being finished any more.
            Drain::Leaving { .. } => {}
        }
    }

    /// Whether a drain's deadline is over. To be checked after busy turns too, since senders may keep every
    /// turn busy.
    pub fn deadline_is_over(&self, now_ns: u64) -> bool {
        match self.drain {
            Drain::Not => false,
            Drain::Finishing { deadline_ns } | Drain::Leaving { deadline_ns } => now_ns >= deadline_ns,
        }
    }

    /// Continues a drain: disconnects all peers once nothing is left to finish, or the deadline is over.
    /// Returns `true` when the drain is over.
    pub fn continue_drain(&mut self, now_ns: u64) -> bool {
        match self.drain {
            Drain::Not => false,
            Drain::Finishing { deadline_ns } => {
                // Headers that wait would be lost with their connections, and with them ends of messages.
                let is_drained = self.receiver.is_drained() && !self.handler.posting.any_waiting_header();
                if now_ns >= deadline_ns || is_drained {
                    self.receiver.disconnect_all(&mut self.handler);
                    self.handler.publish();
                    self.drain = Drain::Leaving { deadline_ns: now_ns + FAREWELL_NS };
                }
                false
            }
            Drain::Leaving { deadline_ns } => now_ns >= deadline_ns || self.handler.peers.bound() == 0,
        }
    }

    /// Returns the nanoseconds for which the driver needs no call while nothing happens; `None`: without
    /// limit.
    pub fn idle_span_ns(&self, now_ns: u64) -> Option<u64> {
        let tick_ns = self.receiver.next_tick_ns().map(|tick| tick.saturating_sub(now_ns).max(1));
        let drain_ns = (self.drain != Drain::Not).then_some(DRAIN_CHECK_NS);
        match (tick_ns, drain_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Prepares to sleep: applications, the NIC and the workers wake the caller from now on when they have
    /// something for the driver. Returns `false` where there is something already; then nobody has to wake
    /// the caller. [`Self::wake_up`] takes it back.
    pub fn prepare_sleep(&mut self, now_ns: u64) -> bool {
        let has_broken_rings = self.handler.sessions.has_faulted();
        if has_broken_rings || self.handler.must_try_again() || !self.handler.sessions.prepare_sleep() {
            return false;
        }
        let may_sleep = self.handler.workers.arm() && self.handler.nic.arm(now_ns);
        if !may_sleep {
            self.handler.sessions.wake_up();
        }
        may_sleep
    }

    /// Carries out one job of workers without threads ([`Workers::stepped`](crate::workers::Workers)).
    /// Returns `false` if there is none.
    pub fn step_workers(&mut self) -> bool {
        self.handler.workers.step()
    }

    /// Returns whether workers have ended a job and the driver has not taken its end.
    pub fn any_job_done(&self) -> bool {
        self.handler.workers.any_done()
    }

    /// Takes [`Self::prepare_sleep`] back: applications need not wake the caller any more.
    pub fn wake_up(&mut self) {
        self.handler.sessions.wake_up();
    }
}
