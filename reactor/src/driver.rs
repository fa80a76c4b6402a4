//! The receiver with its handler, as whoever has the clock sees it.

use crate::application::{Application, NewSession, SessionTicket};
use crate::effect_handler::{EffectHandler, Parts};
use crate::memory::LostMemory;
use jet_core::{OpenError, Receiver, SessionId};
use jet_fabric::nic::{Counters, Nic};

/// How long peers may take to hear the farewell at the end of a drain.
const FAREWELL_NS: u64 = 1_500_000_000;
/// Between two looks at a drain's progress.
const DRAIN_LOOK_NS: u64 = 5_000_000;

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

/// The receiver and its handler. `now_ns` is any clock that does not go back.
pub struct Driver<N: Nic, A> {
    pub(crate) receiver: Receiver,
    pub(crate) handler: EffectHandler<N, A>,
    pub(crate) nic_is_gone: bool,
    drain: Drain,
}

impl<N: Nic, A: Application> Driver<N, A> {
    /// One that has not started.
    pub fn new(receiver: Receiver, parts: Parts<N>) -> Self {
        let handler = EffectHandler::new(parts, receiver.config());
        Self { receiver, handler, nic_is_gone: false, drain: Drain::Not }
    }

    /// Gives the NIC what it receives into. Before the first [`Self::turn`].
    pub fn start(&mut self, now_ns: u64) {
        self.receiver.start(now_ns, &mut self.handler);
        self.handler.nic.flush();
    }

    /// The receiver, to be asked how things stand.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// What the NIC counted.
    pub fn counters(&self) -> Counters {
        self.handler.nic.counters()
    }

    /// What the NIC runs on was taken away: there is no going on.
    pub fn nic_is_gone(&self) -> bool {
        self.nic_is_gone
    }

    /// Memory that the hardware lost and this did not tell before. To be asked after each turn.
    pub fn take_lost_memory(&mut self) -> Option<LostMemory> {
        self.handler.memory.take_untold()
    }

    /// Nobody called for so long although it was time: that is not held against applications.
    pub fn handle_stall(&mut self, late_ns: u64) {
        self.receiver.handle_stall(late_ns);
    }

    /// The first so many slabs of escape memory can be used.
    pub fn handle_escape_memory(&mut self, ready_slabs: u32) {
        self.receiver.handle_escape_memory(ready_slabs);
    }

    /// Lets an application in.
    ///
    /// # Errors
    /// [`OpenError`]: the receiver does not take it. What was prepared is dropped.
    pub fn open(&mut self, new: NewSession<A>) -> Result<SessionTicket, OpenError> {
        let session =
            self.receiver.handle_session_opened(new.app, new.class, new.takes_memory, new.process)?;
        Ok(self.handler.sessions.attach(session, new))
    }

    /// An open session's application.
    pub fn application(&mut self, session: SessionId) -> Option<&mut A> {
        self.handler.sessions.application(session)
    }

    /// The session is to end. Its application may live on, and read what it held.
    pub fn end(&mut self, now_ns: u64, ticket: SessionTicket) {
        if self.handler.sessions.has_had(ticket) {
            self.receiver.handle_session_ended(now_ns, ticket.session, &mut self.handler);
        }
    }

    /// The application is gone, whether its session was ended before or not.
    pub fn gone(&mut self, now_ns: u64, ticket: SessionTicket) {
        // Until it is gone its number is nobody else's.
        if self.handler.sessions.has_had(ticket) {
            self.receiver.handle_session_gone(now_ns, ticket.session, &mut self.handler);
        }
    }

    /// Takes nothing new, finishes what there is until the deadline, and parts with everybody. Said again:
    /// another deadline, as long as there is something to finish.
    pub fn drain(&mut self, deadline_ns: u64) {
        match &mut self.drain {
            Drain::Not => {
                self.receiver.drain();
                self.handler.nic.stop_listening();
                self.drain = Drain::Finishing { deadline_ns };
            }
            Drain::Finishing { deadline_ns: before } => *before = deadline_ns,
            // What was to be finished is over.
            Drain::Leaving { .. } => {}
        }
    }

    /// Whether a drain's time is up: looked at after busy turns too, since senders may keep every turn busy.
    pub fn deadline_is_over(&self, now_ns: u64) -> bool {
        match self.drain {
            Drain::Not => false,
            Drain::Finishing { deadline_ns } | Drain::Leaving { deadline_ns } => now_ns >= deadline_ns,
        }
    }

    /// Parts with everybody where nothing is left to be finished, or the time is up; `true`: the drain is
    /// over.
    pub fn go_on_draining(&mut self, now_ns: u64) -> bool {
        match self.drain {
            Drain::Not => false,
            Drain::Finishing { deadline_ns } => {
                if now_ns >= deadline_ns || self.receiver.is_drained() {
                    self.receiver.disconnect_all(&mut self.handler);
                    self.handler.publish();
                    self.drain = Drain::Leaving { deadline_ns: now_ns + FAREWELL_NS };
                }
                false
            }
            Drain::Leaving { deadline_ns } => now_ns >= deadline_ns || self.handler.peers.bound() == 0,
        }
    }

    /// How long nobody needs to call while nothing happens; `None`: for ever.
    pub fn idle_span_ns(&self, now_ns: u64) -> Option<u64> {
        let tick_ns = self.receiver.next_tick_ns().map(|tick| tick.saturating_sub(now_ns).max(1));
        let drain_ns = (self.drain != Drain::Not).then_some(DRAIN_LOOK_NS);
        match (tick_ns, drain_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// From now on whoever has something for the driver rings: applications at their doorbells, the NIC, the
    /// workers. `false`: there is something already. Take it back with [`Self::wake_up`].
    pub fn prepare_sleep(&mut self, now_ns: u64) -> bool {
        if !self.handler.sessions.prepare_sleep() {
            return false;
        }
        let may_sleep = self.handler.workers.arm() && self.handler.nic.arm(now_ns);
        if !may_sleep {
            self.handler.sessions.wake_up();
        }
        may_sleep
    }

    /// Nobody needs to ring any more.
    pub fn wake_up(&mut self) {
        self.handler.sessions.wake_up();
    }
}
