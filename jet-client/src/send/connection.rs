//! The one connection of a sender: its credit, and when it is made again.

use super::options::{Backoff, ProtocolOptions};
use super::protocol::Action;
use jet_wire::message::ByeReason;
use jet_wire::message::hello::{Welcome, features};

/// Credit on the connection that stands. Counts are of this connection alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    credit_limit: u64,
    sends: u64,
    /// The receiver asked for what is unused above this.
    recalled_to: Option<u64>,
    pub requests_max: u32,
    /// The version of the wire that both ends agreed on.
    pub version: u8,
}

impl Connection {
    pub(super) const NONE: Self =
        Self { credit_limit: 0, sends: 0, recalled_to: None, requests_max: 0, version: 0 };

    pub(super) fn new(welcome: &Welcome) -> Self {
        Self {
            credit_limit: welcome.credit_limit,
            sends: 0,
            recalled_to: None,
            requests_max: welcome.requests_max,
            version: welcome.agreed_version(),
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

    /// Limits only grow, except by a recall that was answered.
    #[inline]
    pub(super) fn raise_limit(&mut self, limit: u64) {
        self.credit_limit = self.credit_limit.max(limit);
    }

    pub(super) fn recall(&mut self, limit: u64) {
        // With all of it used there is nothing to give back and nothing to answer with.
        self.recalled_to = self.has_credit().then_some(limit);
    }

    /// The answer to a recall that is to be sent now: what was sent, the answer included, or the limit asked
    /// for.
    #[inline]
    pub(super) fn answer_recall(&mut self) -> Option<u64> {
        let asked = self.recalled_to.take()?;
        self.credit_limit = self.credit_limit.min(asked.max(self.sends + 1));
        Some(self.credit_limit)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits to connect.
    Waiting {
        at_ns: u64,
    },
    /// To connect now.
    Due,
    Connecting,
    Up,
    /// To disconnect now.
    Leaving,
    /// Asked to disconnect.
    Left,
    /// Not made again until somebody wants it.
    GivenUp,
    Closed,
}

/// When to connect, when to disconnect, when to give up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    state: State,
    reconnect_for_ns: u64,
    backoff: Backoff,
    seed: u64,
    /// There is a connection. One that is being left may be, and may be an attempt that nobody answered.
    stands: bool,
    /// Attempts that brought nothing about.
    attempts: u32,
    /// Since when there was no connection that brought something about.
    outage_since_ns: Option<u64>,
    connected_at_ns: u64,
    closing: bool,
    farewell: Option<ByeReason>,
    /// What the last receiver said that it takes.
    pub message_bytes_max: Option<u64>,
    /// Whether the receiver checks checksums; with none connected, the next one may.
    pub checks: bool,
}

impl Link {
    pub(super) fn new(options: &ProtocolOptions) -> Self {
        Self {
            state: State::Due,
            reconnect_for_ns: options.reconnect_for_ns,
            backoff: options.backoff,
            seed: options.sender_id,
            stands: false,
            attempts: 0,
            outage_since_ns: None,
            connected_at_ns: 0,
            closing: false,
            farewell: None,
            message_bytes_max: None,
            checks: true,
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

    /// A message was submitted: a connection that was given up is tried again.
    #[inline]
    pub(super) fn wanted(&mut self) {
        if self.state == State::GivenUp {
            self.state = State::Due;
            self.attempts = 0;
            self.outage_since_ns = None;
        }
    }

    pub(super) fn connected(&mut self, welcome: &Welcome, now_ns: u64) {
        self.state = if self.state == State::Leaving { State::Leaving } else { State::Up };
        self.stands = true;
        self.connected_at_ns = now_ns;
        self.farewell = None;
        self.message_bytes_max = Some(welcome.message_bytes_max);
        self.checks = welcome.features & features::CRC32C != 0;
    }

    /// The connection brought something about.
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

    pub(super) fn close(&mut self) {
        self.closing = true;
        self.state = match self.state {
            State::Up | State::Connecting => State::Leaving,
            State::Waiting { .. } | State::Due | State::GivenUp => State::Closed,
            other => other,
        };
    }

    pub(super) fn give_up(&mut self) {
        self.state = if self.closing { State::Closed } else { State::GivenUp };
    }

    pub(super) fn disconnected(&mut self, now_ns: u64, finished: bool) {
        let stood = std::mem::take(&mut self.stands);
        // The next receiver may be another.
        self.checks = true;
        if finished || self.state == State::Closed {
            self.state = State::Closed;
            return;
        }
        // A connection that stood for longer than the longest wait was a good one, though nothing ended on
        // it.
        if stood && now_ns.saturating_sub(self.connected_at_ns) > self.backoff.max_ns {
            self.progressed();
        }
        let since = *self.outage_since_ns.get_or_insert(now_ns);
        let until = since.saturating_add(self.reconnect_for_ns);
        let wait_ns = self.backoff.wait_ns(self.attempts, self.seed);
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
            // An attempt that nobody answers: the end of it is reported, and then the limit counts.
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
