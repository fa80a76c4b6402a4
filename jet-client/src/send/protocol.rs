//! A sender's protocol as a state machine: no I/O, no clock, no randomness, no allocation after construction.
//!
//! Inputs are `submit_*` and `handle_*`, outputs are `poll_*`. After any input, call
//! [`Protocol::poll_action`], [`Protocol::poll_transmit`] and [`Protocol::poll_end`] until each returns
//! `None`. Call [`Protocol::handle_timeout`] at the time that [`Protocol::poll_timeout`] returns. `now_ns` is
//! a time in nanoseconds of any clock that does not go back.
//!
//! The protocol keeps these rules:
//!
//! * No SEND without credit, except for the one that takes a message back. A recall is answered by a
//!   `CreditReturn`, which is a SEND too. Where all credit is used there is nothing to give back, and the
//!   protocol makes no answer: the receiver sees it from the SENDs that arrive.
//! * Small messages are sent in the order of submission, and so are large ones. Between the two the older
//!   message goes first, unless the windows or the receiver's limit of requests hold the large one back.
//! * A congestion signal cuts the share that may be used of every window at once: messages without an end,
//!   large messages requested, and their bytes. The share never falls below one message, so that no message
//!   waits for ever.
//! * Every message has exactly one end. A message that was sent and not acknowledged when a connection ended
//!   goes back to its place in the queue, and is marked redelivered.

mod cancel;
mod retries;

pub use super::exchange::{Action, CANCEL_ID, CREDIT_RETURN_ID, End, ProtocolStats, SubmitError, Transmit};

use super::connection::{Connection, Heard, Link};
use super::exchange::Replied;
use super::options::ProtocolOptions;
use super::receiver_timeout::{Over, ReceiverTimeout};
use super::table::{Queue, State, Table};
use super::window::Window;
use crate::backoff::{Waits, nanoseconds};
use cancel::Cancels;
use jet_wire::message::hello::{Refusal, Welcome};
use jet_wire::message::{
    AckRange, AckStatus, ByeReason, FromReceiver, HeaderBytes, WaitsFor, parse_from_receiver,
};

/// The sender's protocol as a state machine; the module's documentation describes it.
#[derive(Debug)]
pub struct Protocol {
    options: ProtocolOptions,
    /// Times of the options, converted once.
    receiver_timeout_ns: u64,
    retry_for_ns: u64,
    retry_waits: Waits,
    table: Table,
    small: Queue,
    large: Queue,
    ended: Queue,
    link: Link,
    connection: Connection,
    window: Window,
    receiver_timeout: ReceiverTimeout,
    /// Messages in [`State::Sent`].
    sent: u32,
    sent_large: u32,
    sent_large_bytes: u64,
    /// Messages that are queued, sent or waiting.
    unfinished: u32,
    sends_pending: u32,
    next_sequence: u64,
    /// Sequence number of the oldest message in the table, or a smaller one.
    oldest_sequence: u64,
    next_retry_ns: Option<u64>,
    cancels: Cancels,
    closing: bool,
    stats: ProtocolStats,
}

impl Protocol {
    /// Makes a protocol that wants to connect.
    ///
    /// # Panics
    /// Where `in_flight_max` is not 1 to 65,536 or `sends_max` is 0.
    pub fn new(options: ProtocolOptions) -> Self {
        let (in_flight_max, sends_max) = (options.in_flight_max, options.sends_max);
        assert!((1..=1 << 16).contains(&in_flight_max), "in_flight_max is {in_flight_max}, not 1 to 65,536");
        assert!(sends_max > 0, "sends_max is 0: nothing could be sent");
        Self {
            options,
            receiver_timeout_ns: nanoseconds(options.receiver_timeout),
            retry_for_ns: nanoseconds(options.retry.retry_for),
            retry_waits: options.retry.backoff.into(),
            table: Table::new(in_flight_max),
            small: Queue::EMPTY,
            large: Queue::EMPTY,
            ended: Queue::EMPTY,
            link: Link::new(&options),
            connection: Connection::NONE,
            window: Window::new(options.recovery_permille, nanoseconds(options.recovery_interval)),
            receiver_timeout: ReceiverTimeout::NEVER,
            sent: 0,
            sent_large: 0,
            sent_large_bytes: 0,
            unfinished: 0,
            sends_pending: 0,
            next_sequence: options.first_sequence,
            oldest_sequence: options.first_sequence,
            next_retry_ns: None,
            cancels: Cancels::NONE,
            closing: false,
            stats: ProtocolStats::default(),
        }
    }

    /// Accepts a small message. Returns its place in the table and its sequence number.
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline]
    pub fn submit_small(&mut self, bytes: u32, now_ns: u64) -> Result<(u32, u64), SubmitError> {
        self.submit(u64::from(bytes), false, now_ns)
    }

    /// Accepts a large message. Returns its place in the table and its sequence number.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit_large(&mut self, bytes: u64, now_ns: u64) -> Result<(u32, u64), SubmitError> {
        self.submit(bytes, true, now_ns)
    }

    /// Accepts a large message that lies in several pieces. Returns its place in the table and its sequence
    /// number. It ends as [`AckStatus::Denied`] where the receiver that is connected when it is to be sent
    /// knows no such messages, or as an earlier attempt ended after which an application may have it.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit_gathered(&mut self, bytes: u64, now_ns: u64) -> Result<(u32, u64), SubmitError> {
        if !self.link.gathers {
            return Err(SubmitError::NoGather);
        }
        let (index, sequence) = self.submit(bytes, true, now_ns)?;
        self.table.get_mut(index).gathered = true;
        Ok((index, sequence))
    }

    #[inline]
    fn submit(&mut self, bytes: u64, large: bool, now_ns: u64) -> Result<(u32, u64), SubmitError> {
        if self.closing {
            return Err(SubmitError::Closed);
        }
        if let Some(max) = self.link.message_bytes_max
            && bytes > max
        {
            return Err(SubmitError::TooLarge { bytes, max });
        }
        let sequence = self.next_sequence;
        if !self.is_within_span() {
            return Err(SubmitError::WouldBlock);
        }
        let index = self.table.insert(sequence, bytes, large, now_ns).ok_or(SubmitError::WouldBlock)?;
        self.next_sequence += 1;
        self.unfinished += 1;
        self.table.push_back(if large { &mut self.large } else { &mut self.small }, index);
        self.link.note_submission();
        Ok((index, sequence))
    }

    /// Whether another message would be accepted, as far as room is concerned.
    pub fn has_room(&self) -> bool {
        self.table.used() < self.table.capacity() && self.is_within_span()
    }

    /// Returns whether the next message is near enough to the oldest one whose end was not polled.
    #[inline]
    fn is_within_span(&self) -> bool {
        self.next_sequence - self.oldest_sequence < self.options.sequence_span
    }

    /// Finds the oldest message whose end was not polled. Each number is passed once.
    fn find_oldest(&mut self) {
        while self.oldest_sequence < self.next_sequence && self.table.find(self.oldest_sequence).is_none() {
            self.oldest_sequence += 1;
        }
    }

    /// Accepts no further messages, lets those in flight end, then disconnects.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether the protocol was closed, every message has its end, and there is no connection. Ends may still
    /// be polled.
    pub fn is_closed(&self) -> bool {
        self.closing && self.unfinished == 0 && self.link.is_down()
    }

    /// Whether the receiver verifies checksums. True where none is connected.
    #[inline]
    pub fn receiver_checks(&self) -> bool {
        self.link.checks
    }

    /// Notes that a connection is established.
    pub fn handle_connected(&mut self, welcome: &Welcome, now_ns: u64) {
        self.stats.connections += 1;
        self.link.connected(welcome, now_ns);
        self.connection = Connection::new(welcome);
        self.window.restart(now_ns);
        self.receiver_timeout =
            ReceiverTimeout::after(self.receiver_timeout_ns, welcome.heartbeat_ms, now_ns);
    }

    /// Notes that the connection ended, or could not be made.
    pub fn handle_disconnected(&mut self, now_ns: u64) {
        self.take_back_sent(now_ns);
        self.link.disconnected(now_ns, self.unfinished == 0, self.closing);
        if self.link.is_given_up() {
            self.give_up();
        }
    }

    /// Notes that the receiver refused the connection. `None` where it gave no reason.
    pub fn handle_refused(&mut self, refusal: Option<Refusal>, now_ns: u64) {
        self.take_back_sent(now_ns);
        if matches!(refusal, Some(Refusal::Version(_) | Refusal::Malformed)) {
            // Another attempt would be refused for the same reason.
            self.link.give_up();
        } else {
            self.link.disconnected(now_ns, self.unfinished == 0, self.closing);
        }
        if self.link.is_given_up() {
            self.give_up();
        }
    }

    /// Counts a header that belongs to no established connection.
    pub fn handle_stray_header(&mut self) {
        self.stats.headers_stray += 1;
    }

    /// Whether messages may ask for replies on the connection.
    #[inline]
    pub fn may_want_replies(&self) -> bool {
        self.link.replies
    }

    /// Whether the bytes of large messages may be pushed behind their requests.
    pub fn may_push(&self) -> bool {
        self.link.pushes
    }

    /// Handles a header that arrived with `payload_bytes` bytes behind it. A header that cannot be parsed is
    /// counted, and ends the connection. Call [`Self::handle_connected`] before the headers of a connection:
    /// headers before that are counted and ignored. Returns the message that the bytes reply to, if they do.
    pub fn handle_header(
        &mut self,
        header: &HeaderBytes,
        payload_bytes: usize,
        now_ns: u64,
    ) -> Option<Replied> {
        if !self.link.is_up() {
            self.handle_stray_header();
            return None;
        }
        let mut replied = None;
        let is_word = match parse_from_receiver(self.connection.version, header, payload_bytes) {
            Ok(FromReceiver::Ack(ack)) => {
                self.connection.raise_limit(ack.credit_limit.get());
                self.stats.statuses_unknown += ack.ranges_of_unknown_status() as u64;
                for range in ack.ranges() {
                    self.handle_range(range, now_ns);
                }
                self.connection.note_end();
                true
            }
            Ok(FromReceiver::Reply(reply)) => {
                self.connection.raise_limit(reply.credit_limit.get());
                let index = self.table.find(reply.sequence()).filter(|&index| self.awaits_end(index));
                replied = index.map(|index| Replied { index, bytes: payload_bytes });
                self.handle_ack(index, reply.status(), now_ns);
                self.connection.note_end();
                true
            }
            Ok(FromReceiver::Credit(credit)) if credit.recall() => {
                self.stats.recalls += 1;
                self.connection.recall(credit.credit_limit.get());
                true
            }
            Ok(FromReceiver::Credit(credit)) => {
                let heard = self.connection.hear_credit(credit);
                if heard == Heard::Reason {
                    self.link.note_reason(now_ns);
                }
                heard != Heard::SignOfLife
            }
            Ok(FromReceiver::Congestion(signal)) => {
                self.window.signal(signal.window_permille.get(), now_ns);
                true
            }
            Ok(FromReceiver::Bye(bye)) => {
                self.link.leave(bye.reason());
                true
            }
            Err(_) => {
                self.stats.malformed += 1;
                self.link.leave(None);
                true
            }
        };
        if is_word {
            self.receiver_timeout.note_word();
        } else {
            self.receiver_timeout.note_sign_of_life();
        }
        replied
    }

    /// Returns whether the message was sent, and has no end yet.
    #[inline]
    fn awaits_end(&self, index: u32) -> bool {
        let entry = self.table.get(index);
        entry.state == State::Sent && entry.end.is_none()
    }

    /// Handles a SEND's completion. With `ok` false its connection is about to end, and the message's fate is
    /// decided then.
    #[inline]
    pub fn handle_send_completed(&mut self, id: u64, ok: bool, now_ns: u64) {
        if id == CREDIT_RETURN_ID || id == CANCEL_ID {
            self.sends_pending = self.sends_pending.saturating_sub(1);
            if id == CANCEL_ID {
                self.cancel_completed();
            }
            return;
        }
        let (index, generation) = split_id(id);
        let Some(entry) = self.table.checked(index, generation).filter(|entry| entry.send_pending) else {
            return;
        };
        let end = entry.end;
        self.sends_pending = self.sends_pending.saturating_sub(1);
        self.table.get_mut(index).send_pending = false;
        if !ok {
            self.link.leave(None);
        }
        if let Some(status) = end {
            self.settle(index, status, now_ns);
        }
    }

    /// Takes back a transmit that could not be posted: the message returns to the front of its queue.
    pub fn handle_not_sent(&mut self, transmit: Transmit) {
        self.sends_pending = self.sends_pending.saturating_sub(1);
        self.stats.sends -= 1;
        match transmit {
            Transmit::Cancel { index, .. } => self.cancel_not_sent(index),
            Transmit::CreditReturn { credit_limit } => {
                self.connection.not_sent();
                // The receiver tells the limit that it asked for until it has the answer. With less than that
                // in the answer, what it tells meanwhile would give back what was given up.
                self.connection.recall(credit_limit);
            }
            Transmit::Message { index, .. } => {
                self.connection.not_sent();
                self.leave_sent(index);
                let entry = self.table.get_mut(index);
                entry.send_pending = false;
                entry.state = State::Queued;
                let queue = if entry.large { &mut self.large } else { &mut self.small };
                self.table.push_front(queue, index);
            }
        }
    }

    /// Does what is due by `now_ns`: window growth, timeouts, and retries.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.window.handle_timeout(now_ns);
        self.link.handle_timeout(now_ns);
        if let Some(over) = self.receiver_timeout.over(now_ns, self.waits_for_receiver()) {
            // The receiver may be stopped, its host may hang, or it may have lost what it was sent. The next
            // receiver that answers gets everything again.
            match over {
                Over::Silent => self.stats.receiver_timeouts += 1,
                Over::WithoutReason => self.stats.progress_timeouts += 1,
            }
            self.link.leave_in_vain();
        }
        if self.link.is_given_up() {
            self.give_up();
        }
        if self.next_retry_ns.is_some_and(|at| at <= now_ns) {
            self.requeue_due(now_ns);
        }
        self.keep_deadlines(now_ns);
    }

    /// Returns the time of the next call of [`Self::handle_timeout`].
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        // Whoever waits for an end asks before each look.
        let at = |time: Option<u64>| time.unwrap_or(u64::MAX);
        let of_messages = at(self.next_retry_ns).min(at(self.cancels.poll_timeout()));
        let of_connection = at(self.window.poll_timeout()).min(at(self.link.poll_timeout()));
        let receiver_timeout = at(self.receiver_timeout.poll_timeout().filter(|_| self.waits_for_receiver()));
        let next = of_messages.min(of_connection).min(receiver_timeout);
        (next != u64::MAX).then_some(next)
    }

    /// Whether the sender waits for an end or for credit, which only the receiver can give.
    fn waits_for_receiver(&self) -> bool {
        let queued = self.small.front().is_some() || self.large.front().is_some();
        self.link.may_send() && (self.sent > 0 || (queued && !self.connection.has_credit()))
    }

    /// Returns whether there is a request about the connection.
    pub fn has_action(&self) -> bool {
        self.link.has_action()
    }

    /// Returns the next request about the connection.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.closing && self.unfinished == 0 {
            self.link.close();
        }
        self.link.poll_action()
    }

    /// Returns the next SEND that is to be posted now, on the established connection.
    #[inline]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        loop {
            if !self.link.may_send() || self.sends_pending >= self.options.sends_max {
                return None;
            }
            if let Some((index, sequence)) = self.next_cancel() {
                return Some(Transmit::Cancel { index, sequence });
            }
            if !self.connection.has_credit() {
                return None;
            }
            if let Some(credit_limit) = self.connection.answer_recall() {
                self.note_send();
                return Some(Transmit::CreditReturn { credit_limit });
            }
            let index = self.next_to_send()?;
            let queue = if self.table.get(index).large { &mut self.large } else { &mut self.small };
            let popped = self.table.pop_front(queue);
            debug_assert_eq!(popped, Some(index), "only heads of queues are sent");
            let entry = self.table.get_mut(index);
            if self.link.message_bytes_max.is_some_and(|max| entry.bytes > max) {
                entry.end = Some(AckStatus::TooLarge);
                self.finish(index);
                continue;
            }
            if entry.gathered && !self.link.gathers {
                // An application may have consumed it on an earlier connection.
                entry.end = Some(entry.seen.unwrap_or(AckStatus::Denied));
                self.finish(index);
                continue;
            }
            entry.state = State::Sent;
            entry.send_pending = true;
            let transmit = Transmit::Message {
                id: u64::from(entry.generation) << 32 | u64::from(index),
                index,
                sequence: entry.sequence,
                redelivered: entry.redelivered,
            };
            self.sent += 1;
            if entry.large {
                self.sent_large += 1;
                self.sent_large_bytes += entry.bytes;
            }
            self.note_send();
            return Some(transmit);
        }
    }

    /// Returns a message's end. Each message has exactly one.
    #[inline]
    pub fn poll_end(&mut self) -> Option<End> {
        let index = self.table.pop_front(&mut self.ended)?;
        let entry = self.table.get(index);
        let status = entry.end.expect("what is ended has its end");
        let end = End { index, sequence: entry.sequence, status };
        self.table.remove(index);
        if self.options.sequence_span < u64::MAX {
            self.find_oldest();
        }
        Some(end)
    }

    /// Returns the protocol's counters.
    pub fn stats(&self) -> ProtocolStats {
        ProtocolStats { window: self.window.stats(), ..self.stats }
    }

    /// Returns the number of messages without an end.
    pub fn unfinished(&self) -> u32 {
        self.unfinished
    }

    /// Returns the number of messages whose end was not polled.
    pub fn in_flight(&self) -> usize {
        self.table.used()
    }

    /// Returns what the sender's messages wait for at the receiver, as its last heartbeat said it. `None`:
    /// nothing waits, something ended since, there was no heartbeat yet, or the receiver never says it.
    pub fn waits_for(&self) -> Option<WaitsFor> {
        self.connection.waits_for().filter(|_| self.waits_for_receiver())
    }

    /// Returns the share of its windows that the sender may use now, in thousandths, 1 to 1000.
    pub fn window_permille(&self) -> u32 {
        self.window.permille()
    }

    /// Returns the version of the wire format that the current connection has: SENDs on it have this version.
    #[inline]
    pub fn version(&self) -> u8 {
        self.connection.version
    }

    /// Whether no further attempt to connect is made by itself.
    pub(super) fn has_given_up(&self) -> bool {
        self.link.is_given_up()
    }

    /// Whether a connection is established.
    pub fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    /// Returns the reason that the receiver gave for ending the last connection, if it gave one.
    pub fn farewell(&self) -> Option<ByeReason> {
        self.link.farewell()
    }

    fn note_send(&mut self) {
        self.connection.sent();
        self.sends_pending += 1;
        self.stats.sends += 1;
    }

    #[inline]
    fn next_to_send(&self) -> Option<u32> {
        if u64::from(self.sent) >= self.window.share_of(u64::from(self.options.in_flight_max)) {
            return None;
        }
        let small = self.small.front();
        let large = self.large.front().filter(|&index| {
            let window_bytes = self.window.share_of(self.options.window_bytes);
            let requests_max = self.window.share_of(u64::from(self.connection.requests_max));
            let bytes = self.sent_large_bytes.saturating_add(self.table.get(index).bytes);
            self.sent_large == 0 || (u64::from(self.sent_large) < requests_max && bytes <= window_bytes)
        });
        match (small, large) {
            (Some(small), Some(large)) => {
                let (small_first, large_first) = (self.table.get(small), self.table.get(large));
                Some(if small_first.sequence < large_first.sequence { small } else { large })
            }
            (one, other) => one.or(other),
        }
    }

    fn handle_range(&mut self, range: AckRange, now_ns: u64) {
        let sequences = range.first..range.first.saturating_add(u64::from(range.count));
        if usize::from(range.count) <= self.table.capacity() {
            for sequence in sequences {
                self.handle_ack(self.table.find(sequence), range.status, now_ns);
            }
            return;
        }
        // The range has more sequences than the table has messages, so it is cheaper to go through the
        // messages.
        for index in self.table.indices() {
            let entry = self.table.get(index);
            if entry.state != State::Free && sequences.contains(&entry.sequence) {
                self.handle_ack(Some(index), range.status, now_ns);
            }
        }
    }

    #[inline]
    fn handle_ack(&mut self, index: Option<u32>, status: AckStatus, now_ns: u64) {
        let Some(index) = index.filter(|&index| self.awaits_end(index)) else {
            self.stats.acks_ignored += 1;
            return;
        };
        self.link.progressed();
        if self.table.get(index).send_pending {
            // The NIC may still read the payload. The end is reported when the SEND has completed.
            self.table.get_mut(index).end = Some(status);
            self.forget_cancel(index);
        } else {
            self.settle(index, status, now_ns);
        }
    }

    fn leave_sent(&mut self, index: u32) {
        self.forget_cancel(index);
        let entry = self.table.get(index);
        debug_assert_eq!(entry.state, State::Sent);
        self.sent -= 1;
        if entry.large {
            self.sent_large -= 1;
            self.sent_large_bytes -= entry.bytes;
        }
    }

    fn finish(&mut self, index: u32) {
        self.table.get_mut(index).state = State::Ended;
        self.table.push_back(&mut self.ended, index);
        self.unfinished -= 1;
    }

    fn give_up(&mut self) {
        for index in self.table.indices() {
            let entry = self.table.get_mut(index);
            if matches!(entry.state, State::Queued | State::Waiting) {
                entry.end = Some(AckStatus::PeerLost);
                self.finish(index);
            }
        }
        self.next_retry_ns = None;
        self.rebuild_queues();
    }
}

#[allow(clippy::cast_possible_truncation)] // each half is what is wanted
fn split_id(id: u64) -> (u32, u32) {
    (id as u32, (id >> 32) as u32)
}
