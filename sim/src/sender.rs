//! A sender's process: the real driver and protocol, on a simulated NIC.

use crate::checkers::Pace;
use crate::event::{Event, MessageName};
use crate::observer::Observer;
use crate::payload::{Payload, reply, user_header};
use crate::receiver::ADDRESS;
use crate::scenario::{Scenario, SenderPlan};
use fastrand::Rng;
use jet_client::send::{
    Driver, Envelope, NicSource, ProtocolStats, RetryPolicy, SendConnectError, SenderOptions, Ticket,
};
use jet_fabric::Address;
use jet_fabric::nic::Nic;
use jet_fabric::sim::{Network, NicId, Posted};
use jet_wire::SLAB_BYTES;
use jet_wire::message::{AckStatus, ByeReason, FromSender, USER_HEADER_MAX, parse_from_sender};
use std::cell::Cell;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Large messages that a sender has outstanding, at most: each has memory of its own.
const LARGE_MAX: u32 = 16;

/// Messages that a sender is about to take back, at most.
const TO_TAKE_BACK_MAX: usize = 16;
/// Deadlines of messages, in nanoseconds.
const DEADLINES_NS: [u64; 5] = [0, 20_000, 200_000, 3_000_000, 100_000_000];

/// NICs of one sender: each after the first takes the place of one whose device was removed.
struct Nics {
    network: Network,
    plan: SenderPlan,
    /// Number of the present NIC.
    current: Arc<AtomicU32>,
    /// Nanoseconds by which the sender's clock is ahead of the network's.
    ahead_ns: Arc<AtomicU64>,
}

impl Nics {
    fn make(&self) -> io::Result<Box<dyn Nic>> {
        let nic = self.network.nic(Scenario::sender_nic(&self.plan)).map_err(io::Error::other)?;
        // Only one thread uses it.
        self.current.store(nic.id().0, Ordering::Relaxed);
        self.network.set_clock_ahead(nic.id(), self.ahead_ns.load(Ordering::Relaxed));
        Ok(Box::new(nic))
    }
}

impl NicSource for Nics {
    fn open(&mut self) -> Result<Box<dyn Nic>, SendConnectError> {
        Ok(self.make()?)
    }

    fn stand_in(&mut self) -> io::Result<Box<dyn Nic>> {
        self.make()
    }
}

/// What is known of the replies to a sender's messages.
#[derive(Clone, Copy, Debug)]
pub struct RepliesPlan {
    /// Whether the receiver passes them on.
    pub passes: bool,
    /// Whether applications break their sessions.
    pub may_be_broken: bool,
}

/// A process of a sender.
pub struct SenderProcess {
    driver: Driver,
    network: Network,
    plan: SenderPlan,
    id: u64,
    app: u32,
    random: Rng,
    nic: Arc<AtomicU32>,
    ahead_ns: Arc<AtomicU64>,
    small: Box<[u8; SLAB_BYTES]>,
    /// Chances that decide which messages are taken back, and when.
    chances: Rng,
    /// Messages that will be taken back.
    to_take_back: Vec<Ticket>,
    /// Messages that were submitted.
    sent: u64,
    /// Messages that have no end.
    open: u32,
    /// Large ones of these.
    open_large: u32,
    /// Whether it was told to close its connection.
    is_leaving: bool,
    pace: Pace,
    /// Whether the receiver passes replies on.
    passes_replies: bool,
    /// Whether applications break their sessions.
    may_be_broken: bool,
    /// Length of the message that found no room.
    next: Cell<Option<(bool, usize)>>,
}

impl SenderProcess {
    /// Starts a process.
    ///
    /// # Errors
    /// The driver's error.
    pub fn start(
        plan: SenderPlan,
        id: u64,
        network: &Network,
        random: Rng,
        app_name: &str,
        replies: RepliesPlan,
    ) -> Result<Self, Box<dyn Error>> {
        let nic = Arc::new(AtomicU32::new(0));
        let ahead_ns = Arc::new(AtomicU64::new(0));
        let nics = Nics {
            network: network.clone(),
            plan,
            current: Arc::clone(&nic),
            ahead_ns: Arc::clone(&ahead_ns),
        };
        let largest = usize::try_from(plan.large_bytes)?.next_power_of_two();
        let patience = Duration::from_nanos(plan.patience_ns);
        let options = SenderOptions::new(Address::Rdma(ADDRESS.to_owned()), app_name)
            .in_flight_max(plan.depth)
            .reconnect_for(patience)
            .receiver_timeout(Duration::from_nanos(plan.receiver_timeout_ns))
            .retry(if plan.retries { RetryPolicy::all_for(patience) } else { RetryPolicy::NEVER })
            .crc(plan.checksums)
            .replies(plan.wants_replies)
            .region_bytes(largest.max(1 << 20));
        let first = nics.make()?;
        let driver = Driver::new(&options, id, first, Box::new(nics))?;
        Ok(Self {
            driver,
            network: network.clone(),
            plan,
            id,
            app: plan.app,
            random,
            // Apart, so that who takes nothing back does the same with or without it.
            chances: Rng::with_seed(id),
            to_take_back: Vec::with_capacity(TO_TAKE_BACK_MAX),
            nic,
            ahead_ns,
            small: Box::new([0; SLAB_BYTES]),
            sent: 0,
            open: 0,
            open_large: 0,
            is_leaving: false,
            pace: Pace::default(),
            passes_replies: replies.passes,
            may_be_broken: replies.may_be_broken,
            next: Cell::new(None),
        })
    }

    /// Returns the sender's identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns its present NIC.
    pub fn nic(&self) -> NicId {
        NicId(self.nic.load(Ordering::Relaxed))
    }

    /// Returns the share of its windows that it uses, in thousandths. Who has left has whole ones.
    pub fn window_permille(&self) -> u32 {
        if self.driver.is_closed() { 1000 } else { self.driver.window_permille() }
    }

    /// Returns the protocol's counters.
    pub fn stats(&self) -> ProtocolStats {
        self.driver.stats()
    }

    /// Returns whether everything was sent, every message has its end, and who leaves has left.
    pub fn is_done(&self) -> bool {
        self.has_all_ends() && (!self.plan.leaves || self.driver.is_closed())
    }

    fn has_all_ends(&self) -> bool {
        self.open == 0 && self.sent == self.plan.messages
    }

    /// Returns what it waits for, in words.
    pub fn state(&self) -> String {
        let Self { id, sent, open, driver, .. } = self;
        let (connected, window) = (driver.is_connected(), driver.window_permille());
        format!(
            "sender {id:x}: {sent} sent, {open} without an end, connected {connected}, window {window} of \
             1000, {:?}",
            driver.stats()
        )
    }

    /// Lets the process's clock jump ahead.
    pub fn jump(&mut self, span_ns: u64) {
        let ahead_ns = self.ahead_ns.load(Ordering::Relaxed) + span_ns;
        self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
        self.network.set_clock_ahead(self.nic(), ahead_ns);
    }

    /// Returns the time by the process's clock.
    fn clock_ns(&self, now_ns: u64) -> u64 {
        now_ns + self.ahead_ns.load(Ordering::Relaxed)
    }

    /// Runs once. Returns the time at which it must run again though nothing happens; `None`: not at all.
    pub fn run(&mut self, now_ns: u64, observer: &mut Observer) -> Option<u64> {
        self.drive(now_ns, observer);
        // What is taken back may end at once, and make room.
        while self.act(now_ns, observer) {
            self.drive(now_ns, observer);
        }
        let clock_ns = self.clock_ns(now_ns);
        if !self.driver.nic().arm(clock_ns) {
            return Some(now_ns);
        }
        let ahead_ns = clock_ns - now_ns;
        self.driver.next_timeout_ns().map(|timeout_ns| timeout_ns.saturating_sub(ahead_ns))
    }

    /// Submits messages, takes some back, and leaves when all have ended. Returns whether it did any of it.
    fn act(&mut self, now_ns: u64, observer: &mut Observer) -> bool {
        let mut acts = false;
        while self.submit(now_ns, observer) {
            acts = true;
        }
        acts |= self.take_back(now_ns, observer);
        if self.plan.leaves && self.has_all_ends() && !std::mem::replace(&mut self.is_leaving, true) {
            self.driver.close();
            acts = true;
        }
        acts
    }

    fn drive(&mut self, now_ns: u64, observer: &mut Observer) {
        let clock_ns = self.clock_ns(now_ns);
        self.driver.drive(clock_ns);
        let (stats, permille) = (self.driver.stats(), self.driver.window_permille());
        if let Err(what) = self.pace.note(clock_ns, &stats, permille) {
            observer.fail("congestion", format!("sender {:x}: {what}", self.id));
        }
        if stats.connections <= 1 && stats.acks_ignored > 0 {
            let what = format!("sender {:x} has one connection, and heard of an end a second time", self.id);
            observer.fail("fates", what);
        }
        if let Some(reason) = self.driver.farewell()
            && !matches!(reason, ByeReason::Draining | ByeReason::Unresponsive)
        {
            observer.fail("credit", format!("sender {:x} breaks no rule, and was told: {reason}", self.id));
        }
        self.note_sent(now_ns, observer);
        self.take_ends(now_ns, observer);
    }

    /// Notes which SENDs were posted.
    fn note_sent(&mut self, now_ns: u64, observer: &mut Observer) {
        while let Some(Posted { header, payload_bytes }) = self.network.take_posted(self.nic()) {
            let (sequence, redelivered) = match parse_from_sender(header.0[0], &header, payload_bytes) {
                Ok(FromSender::Small(small)) => (small.sequence.get(), small.redelivered()),
                Ok(FromSender::Request(request)) => (request.sequence.get(), request.redelivered()),
                Ok(FromSender::CreditReturn(_) | FromSender::Cancel(_)) => continue,
                Err(error) => {
                    observer.fail("sender", format!("{:x} sent a header that is wrong: {error}", self.id));
                    return;
                }
            };
            let message = MessageName { sender: self.id, sequence };
            observer.note(now_ns, &Event::Sent { message, redelivered });
        }
    }

    fn take_ends(&mut self, now_ns: u64, observer: &mut Observer) {
        while let Some(ended) = self.driver.poll_end() {
            self.open -= 1;
            self.open_large -= u32::from(ended.buffer.is_some());
            let message = MessageName { sender: self.id, sequence: ended.ticket.0 };
            let (status, retries) = (ended.status, self.plan.retries);
            self.check_reply(message, status, ended.reply.as_deref(), observer);
            observer.note(now_ns, &Event::Ended { message, status, retries });
        }
    }

    /// Returns whether a message wants a reply.
    fn wants_reply(&self, message: MessageName) -> bool {
        self.plan.wants_replies && message.sequence.is_multiple_of(2)
    }

    /// Checks the reply to a message, or that there is none.
    fn check_reply(
        &self,
        message: MessageName,
        status: AckStatus,
        found: Option<&[u8]>,
        observer: &mut Observer,
    ) {
        let is_replied = matches!(status, AckStatus::Consumed | AckStatus::Rejected(_));
        let wanted = if is_replied && self.wants_reply(message) { reply(message) } else { None };
        observer.counts().add(if found.is_some() { "replies" } else { "ends without a reply" });
        match (found, wanted) {
            (None, None) => {}
            (Some(found), Some(wanted)) if found == wanted => {}
            // Applications that break their sessions may say that they replied with anything, or with
            // nothing.
            (found, _) if self.passes_replies && !self.may_be_broken => {
                let found = found.map(<[u8]>::len);
                observer.fail("replies", format!("{message} ended {status:?} with {found:?} bytes"));
            }
            (Some(_), _) if !self.passes_replies => {
                observer.fail("replies", format!("{message} has a reply, and there are none"));
            }
            _ => {}
        }
    }

    /// Draws the next message: whether it is a large one, and its bytes.
    fn draw(&mut self) -> (bool, usize) {
        let large = self.random.u32(..1000) < self.plan.large_permille;
        let bytes = if large {
            usize::try_from(self.random.u64(1..=self.plan.large_bytes)).expect("a length")
        } else {
            self.random.usize(0..=self.plan.small_bytes as usize)
        };
        (large, bytes)
    }

    fn submit(&mut self, now_ns: u64, observer: &mut Observer) -> bool {
        if self.sent == self.plan.messages || self.open >= self.plan.depth {
            return false;
        }
        let (large, bytes) = self.next.take().unwrap_or_else(|| self.draw());
        if large && self.open_large == LARGE_MAX {
            return self.put_off(large, bytes);
        }
        let tag = self.sent + 1;
        let deadline = self.draw_deadline();
        let payload = Payload::of(self.id, tag);
        let message = MessageName { sender: self.id, sequence: tag };
        let place = &mut [0; USER_HEADER_MAX];
        let envelope = Envelope::new(tag)
            .user_header(user_header(message, large, place))
            .wants_reply(self.wants_reply(message))
            .deadline(deadline);
        let clock_ns = self.clock_ns(now_ns);
        let taken = if large {
            let Ok(mut buffer) = self.driver.buffer(bytes) else { return self.put_off(large, bytes) };
            payload.write(0, &mut buffer);
            let sent = self.driver.send(clock_ns, envelope.class(self.plan.class), buffer);
            sent.map_err(|not_sent| not_sent.error)
        } else {
            payload.write(0, &mut self.small[..bytes]);
            self.driver.send_small(clock_ns, envelope, &self.small[..bytes])
        };
        match taken {
            Ok(ticket) => {
                assert_eq!(ticket.0, tag, "a sender's sequence numbers count up");
                (self.sent, self.open) = (tag, self.open + 1);
                self.open_large += u32::from(large);
                let event = Event::Submitted { message, app: self.app, bytes: bytes as u64, large };
                observer.note(now_ns, &event);
                if deadline.is_some() {
                    observer.note(now_ns, &Event::TakenBack { message });
                } else if self.plan.takes_back && self.to_take_back.len() < TO_TAKE_BACK_MAX {
                    self.to_take_back.extend((self.chances.u8(..8) == 0).then_some(ticket));
                }
                true
            }
            Err(error) => {
                if !error.is_would_block() {
                    observer.fail("sender", format!("{message} was refused: {error}"));
                }
                self.put_off(large, bytes)
            }
        }
    }

    fn draw_deadline(&mut self) -> Option<Duration> {
        let has_one = self.plan.takes_back && self.chances.u8(..8) == 0;
        has_one.then(|| Duration::from_nanos(DEADLINES_NS[self.chances.usize(..DEADLINES_NS.len())]))
    }

    /// Takes one message back, now and then: whatever became of it since. Returns whether it did.
    fn take_back(&mut self, now_ns: u64, observer: &mut Observer) -> bool {
        if self.to_take_back.is_empty() || self.chances.u8(..3) > 0 {
            return false;
        }
        let ticket = self.to_take_back.swap_remove(self.chances.usize(..self.to_take_back.len()));
        let message = MessageName { sender: self.id, sequence: ticket.0 };
        observer.note(now_ns, &Event::TakenBack { message });
        self.driver.cancel(ticket);
        true
    }

    /// Keeps a message that found no room for the next run.
    fn put_off(&self, large: bool, bytes: usize) -> bool {
        self.next.set(Some((large, bytes)));
        false
    }
}
