//! The senders of all messages to one receiver: many connections of one NIC, each with a number of messages
//! under way.
//!
//! A network delivers bytes that do not come out of this host's memory. The senders' side must therefore not
//! affect the figures. So every message of every connection is the same stretch of memory, which stays in the
//! cache. `jet-client`'s sender has a buffer of its own for each message. Otherwise these senders behave as
//! that sender does, except that they only count congestion signals.

use super::arrivals::Arrival;
use crate::rig::APP;
use hdrhistogram::Histogram;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, Event, MemoryKey, Payload, PostError, PrivateData, Qp, SendRequest, Sge, SrqEntry,
    Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::{Address, CoarseClock, Nic};
use jet_wire::SLAB_BYTES;
use jet_wire::message::hello::{AppName, Hello, Welcome, features};
use jet_wire::message::{
    AckStatus, CreditReturn, FromReceiver, HEADER_BYTES, HeaderBytes, RequestFields, RequestHeader,
    SmallFields, SmallHeader, Versions, WIRE_VERSION, parse_from_receiver,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of receive entries of each connection, as many as a sender of `jet-client` has.
const RECEIVE_ENTRIES: u16 = 64;
/// Time for which the senders' thread polls without finding anything before it sleeps, the same as in Jet's
/// sender.
pub(super) const SPIN: Duration = Duration::from_micros(200);
/// Time without the end of any message after which the benchmark fails.
const STALL_LIMIT: Duration = Duration::from_secs(20);
/// Id of a SEND that carries no message.
const NO_MESSAGE: u64 = u64::MAX;
/// Number of places in [`Connection::begun_ns`] for each message that may be under way. One place for each
/// message would not do, since ends may come in any order.
const PLACES: usize = 4;
/// Value of a place in [`Connection::begun_ns`] that has no message.
const FREE: u64 = u64::MAX;

/// The shape of a load: the messages that may be under way at once.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of connections.
    pub connections: usize,
    /// Messages under way on each connection.
    pub depth: usize,
    /// Bytes of each message.
    pub message_bytes: usize,
}

impl Shape {
    /// Returns the number of bytes that may be under way at once.
    pub fn bytes(&self) -> usize {
        self.connections * self.depth * self.message_bytes
    }

    /// Returns whether the messages are small: their SENDs carry them.
    pub fn is_small(&self) -> bool {
        self.message_bytes <= SLAB_BYTES
    }
}

/// Figures of one receiver's turn, as the senders measured them.
#[derive(Clone, Copy, Debug)]
pub struct TurnFigures {
    /// Number of messages that ended as consumed.
    pub messages: u64,
    /// Time from the turn's beginning to the last message's end.
    pub elapsed: Duration,
    /// GB of payload that ended as consumed a second, up to the last end.
    pub gigabytes_per_s: f64,
    /// Median latency in microseconds. Latency runs to a message's end: from its submission in a closed loop,
    /// from its intended arrival in an open one.
    pub p50_us: f64,
    /// Latency that 99 % of the messages do not exceed, in microseconds.
    pub p99_us: f64,
    /// Latency that 99.9 % of the messages do not exceed, in microseconds.
    pub p999_us: f64,
    /// Time from a message's intended arrival until the senders' thread took it up, in microseconds: 99.9 %
    /// quantile. This value shows by how much the senders themselves are late. 0 in a closed loop.
    pub late_p999_us: f64,
}

struct Connection {
    qp: Qp,
    /// Whether the receiver's welcome has arrived.
    is_accepted: bool,
    credit_limit: u64,
    /// Number of SENDs posted on this connection so far.
    sends: u64,
    /// Credit limit to which the receiver has recalled unused credit, if a recall is unanswered.
    recalled_to: Option<u64>,
    /// Sequence number of this connection's next message; the first message has 1.
    sequence: u64,
    in_flight: usize,
    /// Intended arrivals of an open loop's messages that are not submitted yet, in nanoseconds of the turn's
    /// clock.
    arrived_ns: VecDeque<u64>,
    /// Times from which the latencies of the messages under way count, in nanoseconds of the turn's clock. A
    /// message's place is its sequence number modulo the places; [`FREE`]: no message.
    begun_ns: Box<[u64]>,
}

/// All senders of one receiver: the connections of one NIC, and the measurement of a turn.
pub struct Traffic {
    nic: SoftNic,
    shape: Shape,
    source_key: MemoryKey,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    connections: Vec<Connection>,
    completions: Box<[Completion]>,
    clock: Instant,
    /// Clock for the NIC; unlike the turn's clock, this one runs on from turn to turn.
    nic_clock: CoarseClock,
    latencies: Histogram<u64>,
    late: Histogram<u64>,
    ended: u64,
    /// Number of congestion signals received so far; the senders ignore the signals.
    pub signals: u64,
}

impl Traffic {
    /// Connects all connections to the receiver.
    ///
    /// # Errors
    /// An error of the NIC, or that the receiver does not accept all connections or the shape.
    pub fn connect(address: &Address, shape: Shape) -> Result<Self, Box<dyn Error>> {
        let entries = u32::try_from(shape.connections)? * u32::from(RECEIVE_ENTRIES);
        let mut nic = SoftNic::new(SoftOptions {
            qps_max: u32::try_from(shape.connections)? + 1,
            srq_entries_max: entries,
            completions: entries + u32::try_from(shape.connections * 256)?,
            ..SoftOptions::default()
        })?;
        let bytes = shape.message_bytes.next_multiple_of(SLAB_BYTES);
        let source = Arc::new(SharedMemory::new("jet-source", bytes, true)?);
        // SAFETY: nobody else knows of this memory yet.
        unsafe { source.base().write_bytes(0x5a, bytes) };
        let source_key = nic.register(&source, Access::RemoteRead)?;
        let headers = Arc::new(SharedMemory::new("jet-headers", entries as usize * HEADER_BYTES, false)?);
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let mut traffic = Self {
            nic,
            shape,
            source_key,
            headers,
            headers_key,
            connections: Vec::with_capacity(shape.connections),
            completions: vec![Completion::UNUSED; 64].into_boxed_slice(),
            clock: Instant::now(),
            nic_clock: CoarseClock::start(),
            latencies: Histogram::new_with_bounds(100, 60_000_000_000, 3)?,
            late: Histogram::new_with_bounds(100, 60_000_000_000, 3)?,
            ended: 0,
            signals: 0,
        };
        (0..entries).try_for_each(|entry| traffic.post_receive(entry))?;
        let app = AppName::new(APP)?;
        for at in 0..shape.connections {
            let hello = Hello {
                versions: Versions::SUPPORTED,
                features: features::ALL,
                sender_id: at as u64 + 1,
                receive_entries: RECEIVE_ENTRIES,
                app,
            };
            let hello = PrivateData::new(&hello.encode()).ok_or("a hello fits")?;
            let qp = traffic.nic.connect(address, &hello)?;
            traffic.connections.push(Connection {
                qp,
                is_accepted: false,
                credit_limit: 0,
                sends: 0,
                recalled_to: None,
                sequence: 1,
                in_flight: 0,
                arrived_ns: VecDeque::new(),
                begun_ns: vec![FREE; shape.depth * PLACES].into_boxed_slice(),
            });
        }
        let until = Instant::now() + STALL_LIMIT;
        while !traffic.connections.iter().all(|connection| connection.is_accepted) {
            if Instant::now() > until {
                return Err("the receiver did not accept every connection".into());
            }
            traffic.poll_nic()?;
            traffic.nic.flush();
            traffic.sleep()?;
        }
        Ok(traffic)
    }

    /// Runs a closed loop: keeps every connection busy for `span`, then waits for the messages under way.
    ///
    /// # Errors
    /// An error of the NIC, a message that was not consumed, or that messages stop ending.
    pub fn run(&mut self, span: Duration) -> Result<TurnFigures, Box<dyn Error>> {
        self.begin();
        let mut idle_since = None;
        loop {
            let goes_on = self.clock.elapsed() < span;
            let ended = self.ended;
            self.poll_nic()?;
            for at in 0..self.connections.len() {
                self.submit(at, goes_on)?;
            }
            self.nic.flush();
            if !goes_on && self.connections.iter().all(|connection| connection.in_flight == 0) {
                return Ok(self.figures());
            }
            let idle = self.idle(self.ended != ended, &mut idle_since)?;
            if idle > SPIN {
                self.sleep()?;
            }
        }
    }

    /// Runs an open loop: submits each message at its intended arrival, or as soon after that as its
    /// connection has room. After the last arrival this function waits for the last message's end. The loop
    /// does not sleep, so that it is not late with the next message.
    ///
    /// # Errors
    /// As of [`Self::run`].
    pub fn offer(
        &mut self,
        arrivals: impl IntoIterator<Item = Arrival>,
    ) -> Result<TurnFigures, Box<dyn Error>> {
        self.begin();
        let mut arrivals = arrivals.into_iter();
        let mut next = arrivals.next();
        let mut idle_since = None;
        loop {
            let mut worked = false;
            while let Some(Arrival { at_ns, connection }) = next {
                let now_ns = self.now_ns();
                if at_ns > now_ns {
                    break;
                }
                self.late.saturating_record(now_ns - at_ns);
                self.connections[connection].arrived_ns.push_back(at_ns);
                next = arrivals.next();
                worked = true;
            }
            let ended = self.ended;
            self.poll_nic()?;
            for at in 0..self.connections.len() {
                self.submit(at, false)?;
            }
            self.nic.flush();
            let done = |connection: &Connection| connection.in_flight + connection.arrived_ns.len() == 0;
            let all_done = self.connections.iter().all(done);
            if next.is_none() && all_done {
                return Ok(self.figures());
            }
            // Where nothing is under way, no end can come.
            self.idle(worked || self.ended != ended || all_done, &mut idle_since)?;
        }
    }

    fn begin(&mut self) {
        self.latencies.reset();
        self.late.reset();
        self.ended = 0;
        self.clock = Instant::now();
    }

    fn figures(&self) -> TurnFigures {
        let elapsed = self.clock.elapsed();
        #[allow(clippy::cast_precision_loss)] // a rate, and times
        let us = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
        #[allow(clippy::cast_precision_loss)] // a rate
        let bytes = (self.ended * self.shape.message_bytes as u64) as f64;
        TurnFigures {
            messages: self.ended,
            elapsed,
            gigabytes_per_s: bytes / 1e9 / elapsed.as_secs_f64(),
            p50_us: us(&self.latencies, 0.5),
            p99_us: us(&self.latencies, 0.99),
            p999_us: us(&self.latencies, 0.999),
            late_p999_us: us(&self.late, 0.999),
        }
    }

    /// Returns for how long the loop has found nothing to do. Fails after [`STALL_LIMIT`].
    fn idle(&self, worked: bool, since: &mut Option<Instant>) -> Result<Duration, Box<dyn Error>> {
        if worked {
            *since = None;
            return Ok(Duration::ZERO);
        }
        let idle = since.get_or_insert_with(Instant::now).elapsed();
        if idle > STALL_LIMIT { Err("nothing ends any more".into()) } else { Ok(idle) }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep(&mut self) -> Result<(), Box<dyn Error>> {
        if self.nic.arm(self.nic_clock.read()) {
            let bound = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::from_borrowed_fd(self.nic.wait_fd(), PollFlags::IN)], Some(&bound))?;
        }
        Ok(())
    }

    fn post_receive(&mut self, entry: u32) -> Result<(), PostError> {
        let bytes = u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX);
        let header = Sge { key: self.headers_key, offset: u64::from(entry) * u64::from(bytes), bytes };
        self.nic.post_srq(SrqEntry { id: entry, header, payload: None })
    }

    /// Polls the NIC once, and handles the completions and events that have arrived.
    fn poll_nic(&mut self) -> Result<(), Box<dyn Error>> {
        let now_ns = self.nic_clock.turn();
        let taken = self.nic.poll(now_ns, &mut self.completions);
        for at in 0..taken {
            let Completion { qp, work, status } = self.completions[at];
            if status != Status::Success {
                return Err(format!("{work:?} ended {status:?}").into());
            }
            if let Work::Receive { entry, payload_bytes } = work {
                self.take(qp, entry, payload_bytes as usize)?;
                self.post_receive(entry)?;
            }
        }
        while let Some(event) = self.nic.poll_event(now_ns) {
            match event {
                Event::Connected { qp, private_data, .. } => {
                    let welcome = Welcome::decode(private_data.as_slice())
                        .map_err(|error| format!("the welcome: {error:?}"))?;
                    let large = !self.shape.is_small();
                    if large && (welcome.requests_max as usize) < self.shape.depth {
                        return Err(format!("the receiver takes {} at once", welcome.requests_max).into());
                    }
                    let connection = self.connection(qp)?;
                    connection.is_accepted = true;
                    connection.credit_limit = connection.credit_limit.max(welcome.credit_limit);
                }
                other => return Err(format!("a connection ended: {other:?}").into()),
            }
        }
        Ok(())
    }

    fn connection(&mut self, qp: Qp) -> Result<&mut Connection, Box<dyn Error>> {
        let found = self.connections.iter_mut().find(|connection| connection.qp == qp);
        found.ok_or_else(|| "a connection that nobody made".into())
    }

    fn take(&mut self, qp: Qp, entry: u32, payload_bytes: usize) -> Result<(), Box<dyn Error>> {
        let now_ns = self.now_ns();
        // SAFETY: the NIC completed the entry and leaves it alone until it is posted again.
        let header: HeaderBytes =
            unsafe { self.headers.base().cast::<HeaderBytes>().add(entry as usize).read_volatile() };
        let places = (self.shape.depth * PLACES) as u64;
        let at = self.connections.iter().position(|connection| connection.qp == qp);
        let connection = &mut self.connections[at.ok_or("a connection that nobody made")?];
        match parse_from_receiver(WIRE_VERSION, &header, payload_bytes)
            .map_err(|error| format!("{error:?}"))?
        {
            FromReceiver::Ack(ack) => {
                connection.credit_limit = connection.credit_limit.max(ack.credit_limit.get());
                for range in ack.ranges() {
                    if range.status != AckStatus::Consumed {
                        return Err(format!("a message ended {}", range.status).into());
                    }
                    for sequence in range.first..range.first + u64::from(range.count) {
                        let place = usize::try_from(sequence % places)?;
                        let begun_ns = std::mem::replace(&mut connection.begun_ns[place], FREE);
                        if begun_ns == FREE {
                            return Err("a message ended twice".into());
                        }
                        self.latencies.saturating_record(now_ns.saturating_sub(begun_ns));
                        connection.in_flight -= 1;
                        self.ended += 1;
                    }
                }
            }
            FromReceiver::Credit(credit) if credit.recall() => {
                // With all credit used there is none to give back.
                let unused = connection.sends < connection.credit_limit;
                connection.recalled_to = unused.then_some(credit.credit_limit.get());
            }
            FromReceiver::Credit(credit) => {
                connection.credit_limit = connection.credit_limit.max(credit.credit_limit.get());
            }
            FromReceiver::Congestion(_) => self.signals += 1,
            FromReceiver::Bye(_) => return Err("the receiver said goodbye".into()),
            FromReceiver::Reply(_) => return Err("the receiver replied to what wants no reply".into()),
        }
        Ok(())
    }

    /// Submits the messages that connection `at` may send now. In an open loop these are the messages that
    /// have arrived; while a closed loop goes on, as many as there is room for.
    fn submit(&mut self, at: usize, goes_on: bool) -> Result<(), Box<dyn Error>> {
        let Shape { depth, message_bytes, .. } = self.shape;
        loop {
            let now_ns = self.now_ns();
            let connection = &mut self.connections[at];
            let credit = connection.sends < connection.credit_limit;
            let place = usize::try_from(connection.sequence % (depth * PLACES) as u64)?;
            let room = connection.in_flight < depth && connection.begun_ns[place] == FREE;
            // Timed from its arrival: the receiver causes a message's wait for room.
            let begins_ns = if goes_on { Some(now_ns) } else { connection.arrived_ns.front().copied() };
            let (header, payload, id) = if let Some(asked) = connection.recalled_to.take_if(|_| credit) {
                connection.credit_limit = connection.credit_limit.min(asked.max(connection.sends + 1));
                (CreditReturn::encode(connection.credit_limit), Payload::None, NO_MESSAGE)
            } else if begins_ns.is_some() && credit && room {
                let sequence = connection.sequence;
                let bytes = u32::try_from(message_bytes)?;
                if self.shape.is_small() {
                    let header = SmallHeader::encode(&SmallFields {
                        sequence,
                        tag: 0,
                        payload_bytes: bytes,
                        crc32c: None,
                        redelivered: false,
                        wants_reply: false,
                        user_header: b"",
                    });
                    (header, Payload::Registered(Sge { key: self.source_key, offset: 0, bytes }), sequence)
                } else {
                    let header = RequestHeader::encode(&RequestFields {
                        sequence,
                        tag: 0,
                        length: message_bytes as u64,
                        address: self.nic.remote_address(self.source_key, 0),
                        key: self.source_key.0,
                        class: 0,
                        pieces: 0,
                        crc32c: None,
                        redelivered: false,
                        wants_reply: false,
                        user_header: b"",
                    });
                    (header, Payload::None, sequence)
                }
            } else {
                return Ok(());
            };
            match self.nic.post_send(connection.qp, SendRequest { id, header: &header, payload }) {
                Ok(()) => {
                    connection.sends += 1;
                    if let Some(begins_ns) = begins_ns.filter(|_| id != NO_MESSAGE) {
                        connection.begun_ns[place] = begins_ns;
                        if !goes_on {
                            connection.arrived_ns.pop_front();
                        }
                        connection.sequence += 1;
                        connection.in_flight += 1;
                    }
                }
                Err(PostError::QueueFull) => {
                    if id == NO_MESSAGE {
                        connection.recalled_to = Some(0);
                    }
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
