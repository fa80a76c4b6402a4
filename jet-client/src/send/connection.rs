//! The one connection of a sender: its credit, and when it is made again.

use super::options::ProtocolOptions;
use super::protocol::Action;
use crate::backoff::{Waits, nanoseconds};
use jet_wire::message::hello::{Welcome, features};
use jet_wire::message::{ByeReason, CreditHeader, FIRST_VERSION, WaitsFor};
use jet_wire::planted;

/// Credit on the current connection. All counts are of this connection alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    credit_limit: u64,
    sends: u64,
    /// Limit down to which the receiver recalled unused credit, until the recall is answered.
    recalled_to: Option<u64>,
    pub requests_max: u32,
    /// Version of the wire format that both ends agreed on.
    pub version: u8,
    /// Whether heartbeats say what this sender waits for.
    tells_reasons: bool,
    /// What this sender waits for, as the last heartbeat said it.
    waits_for: Option<WaitsFor>,
}

impl Connection {
    pub(super) const NONE: Self = Self {
        credit_limit: 0,
        sends: 0,
        recalled_to: None,
        requests_max: 0,
        version: 0,
        tells_reasons: false,
        waits_for: None,
    };

    pub(super) fn new(welcome: &Welcome) -> Self {
        Self {
            credit_limit: welcome.credit_limit,
            requests_max: welcome.requests_max,
            version: welcome.agreed_version(),
            tells_reasons: welcome.features & features::WAITS_FOR != 0
                && welcome.agreed_version() > FIRST_VERSION,
            ..Self::NONE
        }
    }

    #[inline]
    pub(super) fn has_credit(&self) -> bool {
        self.sends < self.credit_limit
    }

    #[inline]
    pub(super) fn sent(&mut self) {
        self.sends += 1;
    }

    pub(super) fn not_sent(&mut self) {
        self.sends -= 1;
    }

    /// Takes a credit header that recalls nothing. A receiver that never says what is waited for has its
    /// reasons all the same.
    pub(super) fn hear_credit(&mut self, credit: &CreditHeader) -> Heard {
        let limit = credit.credit_limit.get();
        let raises = limit > self.credit_limit;
        self.raise_limit(limit);
        if raises {
            return Heard::Raise;
        }
        if self.tells_reasons {
            self.waits_for = credit.waits_for();
            if self.waits_for.is_none() {
                return Heard::SignOfLife;
            }
        }
        Heard::Reason
    }

    /// Returns what this sender waits for, as far as the receiver said it since the last end.
    pub(super) fn waits_for(&self) -> Option<WaitsFor> {
        self.waits_for
    }

    /// Notes that something ended: what was waited for may be another thing now.
    #[inline]
    pub(super) fn note_end(&mut self) {
        self.waits_for = None;
    }

    /// Raises the credit limit. Limits only grow, except by a recall that was answered.
    #[inline]
    pub(super) fn raise_limit(&mut self, limit: u64) {
        let leaked = if planted!(CreditLeaked) { limit / 16 } else { 0 };
        self.credit_limit = self.credit_limit.max(limit - leaked);
    }

    pub(super) fn recall(&mut self, limit: u64) {
        // Where all credit is used, there is nothing to give back, and no credit to answer with.
        self.recalled_to = self.has_credit().then_some(limit);
    }

    /// Returns the answer to a recall, if one is to be sent now. The answer is the limit that the receiver
    /// asked for, or the number of SENDs including the answer where that is higher.
    #[inline]
    pub(super) fn answer_recall(&mut self) -> Option<u64> {
        let asked = self.recalled_to.take()?;
        self.credit_limit = self.credit_limit.min(asked.max(self.sends + 1));
        Some(self.credit_limit)
    }
}

/// What a credit header says that recalls nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// More credit.
    Raise,
    /// A heartbeat, with a reason to wait.
    Reason,
    /// A heartbeat without a reason.
    SignOfLife,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The sender waits until `at_ns` before it connects.
    Waiting {
        at_ns: u64,
    },
    /// The sender is to connect now.
    Due,
    Connecting,
    Up,
    /// The sender is to disconnect now.
    Leaving,
    /// The sender asked to disconnect, and waits for the end of the connection.
    Left,
    /// The sender gave up connecting, and does not try again before the next message is submitted.
    GivenUp,
    /// The receiver sent the sender away while it had nothing to send. It connects again when a message is
    /// submitted: until then its place is for senders that have one.
    Resting,
    Closed,
}

/// The state machine that decides when to connect, when to disconnect, and when to give up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    state: State,
    reconnect_for_ns: u64,
    waits: Waits,
    seed: u64,
    /// Whether there is an established connection. In the states `Leaving` and `Left` there may be one, or
    /// only an attempt that nobody answered.
    stands: bool,
    /// Attempts in a row without progress.
    attempts: u32,
    /// Time since which no connection made progress, in nanoseconds.
    outage_since_ns: Option<u64>,
    connected_at_ns: u64,
    /// Whether the connection is left because nothing moved on.
    in_vain: bool,
    /// Time at which the receiver of this connection last gave a reason to wait.
    last_reason_ns: u64,
    closing: bool,
    farewell: Option<ByeReason>,
    /// Longest message that the receiver of the last connection accepts, in bytes.
    pub message_bytes_max: Option<u64>,
    /// Whether the receiver verifies checksums. True where none is connected, because the next one may.
    pub checks: bool,
    /// Whether the receiver passes replies on. False where none is connected.
    pub replies: bool,
    /// Whether the receiver gives messages back. False where none is connected.
    pub cancels: bool,
    /// Whether the receiver READs messages that lie in several pieces. True where none is connected, because
    /// the next one may.
    pub gathers: bool,
    /// Whether the bytes of large messages may be pushed behind their requests.
    pub pushes: bool,
}

impl Link {
    pub(super) fn new(options: &ProtocolOptions) -> Self {
        Self {
            state: State::Due,
            reconnect_for_ns: nanoseconds(options.reconnect_for),
            waits: options.backoff.into(),
            seed: options.sender_id,
            stands: false,
            attempts: 0,
            outage_since_ns: None,
            connected_at_ns: 0,
            in_vain: false,
            last_reason_ns: 0,
            closing: false,
            farewell: None,
            message_bytes_max: None,
            checks: true,
            replies: false,
            cancels: false,
            gathers: true,
            pushes: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.stands
    }

    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.state == State::GivenUp
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::GivenUp | State::Closed)
    }

    pub(super) fn farewell(&self) -> Option<ByeReason> {
        self.farewell
    }

    /// Notes that a message was submitted: a sender that gave up, or rests, connects again.
    #[inline]
    pub(super) fn note_submission(&mut self) {
        if matches!(self.state, State::GivenUp | State::Resting) {
            self.state = State::Due;
            self.attempts = 0;
            self.outage_since_ns = None;
        }
    }

    pub(super) fn connected(&mut self, welcome: &Welcome, now_ns: u64) {
        self.state = if self.state == State::Leaving { State::Leaving } else { State::Up };
        self.stands = true;
        (self.connected_at_ns, self.last_reason_ns) = (now_ns, now_ns);
        self.farewell = None;
        self.message_bytes_max = Some(welcome.message_bytes_max);
        self.checks = welcome.features & features::CRC32C != 0;
        self.replies = welcome.features & features::REPLIES != 0;
        self.cancels = welcome.features & features::CANCEL != 0;
        self.gathers = welcome.features & features::GATHER != 0;
        self.pushes = welcome.features & features::PUSH != 0;
    }

    /// Notes that the connection made progress.
    #[inline]
    pub(super) fn progressed(&mut self) {
        self.attempts = 0;
        self.outage_since_ns = None;
    }

    pub(super) fn leave(&mut self, farewell: Option<ByeReason>) {
        self.farewell = farewell.or(self.farewell);
        if self.state == State::Up {
            self.state = State::Leaving;
        }
    }

    /// Notes that the receiver gave a reason to wait.
    pub(super) fn note_reason(&mut self, now_ns: u64) {
        self.last_reason_ns = now_ns;
    }

    /// Leaves a connection on which nothing moves on any more. The time after the last reason is no progress.
    pub(super) fn leave_in_vain(&mut self) {
        self.in_vain = true;
        self.leave(None);
    }

    pub(super) fn close(&mut self) {
        self.closing = true;
        self.state = match self.state {
            State::Up | State::Connecting => State::Leaving,
            State::Waiting { .. } | State::Due | State::GivenUp | State::Resting => State::Closed,
            other => other,
        };
    }

    pub(super) fn give_up(&mut self) {
        self.state = if self.closing { State::Closed } else { State::GivenUp };
    }

    /// Notes that the connection ended, or could not be made. `is_idle`: every message has its end.
    /// `is_closing`: none is submitted any more.
    pub(super) fn disconnected(&mut self, now_ns: u64, is_idle: bool, is_closing: bool) {
        self.gathers = true;
        let (stood, in_vain) = (std::mem::take(&mut self.stands), std::mem::take(&mut self.in_vain));
        // The next receiver may be another one.
        self.checks = true;
        if (is_idle && is_closing) || self.state == State::Closed {
            self.state = State::Closed;
            return;
        }
        if is_idle && stood && self.farewell == Some(ByeReason::Draining) {
            self.state = State::Resting;
            return;
        }
        // A connection that lasted longer than the longest wait counts as progress, even if no message ended
        // on it. If it was left in vain, it lasted to its last reason.
        let until_ns = if in_vain { self.last_reason_ns } else { now_ns };
        if stood && until_ns.saturating_sub(self.connected_at_ns) > self.waits.max_ns {
            self.progressed();
        }
        let since = *self.outage_since_ns.get_or_insert(now_ns);
        let until = since.saturating_add(self.reconnect_for_ns);
        let wait_ns = self.waits.wait_ns(self.attempts, self.seed);
        self.attempts = self.attempts.saturating_add(1);
        self.state = if now_ns >= until {
            State::GivenUp
        } else if wait_ns == 0 {
            State::Due
        } else {
            State::Waiting { at_ns: now_ns.saturating_add(wait_ns).min(until) }
        };
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        match self.state {
            State::Waiting { at_ns } if at_ns <= now_ns => self.state = State::Due,
            // Nobody answers this attempt. Once its end is reported, the limit `reconnect_for_ns` applies.
            State::Connecting if self.gives_up_at_ns().is_some_and(|at| at <= now_ns) => {
                self.state = State::Leaving;
            }
            _ => {}
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        match self.state {
            State::Waiting { at_ns } => Some(at_ns),
            State::Connecting => self.gives_up_at_ns(),
            _ => None,
        }
    }

    fn gives_up_at_ns(&self) -> Option<u64> {
        self.outage_since_ns.map(|since| since.saturating_add(self.reconnect_for_ns))
    }

    /// Returns whether [`Self::poll_action`] has something.
    pub(super) fn has_action(&self) -> bool {
        matches!(self.state, State::Due | State::Leaving)
    }

    pub(super) fn poll_action(&mut self) -> Option<Action> {
        match self.state {
            State::Due => {
                self.state = State::Connecting;
                Some(Action::Connect)
            }
            State::Leaving => {
                self.state = State::Left;
                Some(Action::Disconnect)
            }
            _ => None,
        }
    }
}
