//! The thread of a conventional receiver that drives the NIC.

use super::{Arrived, Counting, NIC_SPIN, Shared};
use crate::residency::buffers::Buffers;
use crate::residency::traffic::Shape;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, Event, MemoryKey, Payload, PostError, PrivateData, Qp, ReadRequest, SendRequest, Sge,
    SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::{Address, CoarseClock, Nic};
use jet_wire::message::hello::Welcome;
use jet_wire::message::{
    ACK_RANGES_MAX, AckHeader, AckRange, AckStatus, FromSender, HEADER_BYTES, HeaderBytes, Versions,
    WIRE_VERSION, parse_from_sender,
};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Bytes of the longest READ that is posted, the same as in Jet.
const PIECE_BYTES: usize = 256 << 10;

/// One connection to a sender.
struct Connection {
    qp: Qp,
    /// Messages that were consumed and are not yet acknowledged to the sender.
    ended: VecDeque<AckRange>,
}

impl Connection {
    /// Notes that the message `sequence` was consumed and is to be acknowledged.
    fn end(&mut self, sequence: u64) {
        match self.ended.back_mut() {
            Some(range) if range.first + u64::from(range.count) == sequence && range.count < u16::MAX => {
                range.count += 1;
            }
            _ => self.ended.push_back(AckRange { first: sequence, count: 1, status: AckStatus::Consumed }),
        }
    }
}

/// A large message that is to be READ, and where it lies in its sender's memory.
struct Requested {
    arrived: Arrived,
    address: u64,
    key: u32,
    /// Bytes of the message for which READs are posted so far.
    asked: usize,
    /// Bytes of the message that have arrived so far.
    came: usize,
}

/// The NIC of a conventional receiver, and the messages that it reads.
pub struct Driver {
    nic: SoftNic,
    shape: Shape,
    buffers: Buffers,
    buffers_key: MemoryKey,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    connections: Vec<Connection>,
    /// Buffers of each receive entry, where SENDs carry payload.
    entry_buffers: Vec<Vec<u32>>,
    /// Large messages that have no buffers yet, in the order in which their headers arrived.
    requested: VecDeque<Requested>,
    /// Large messages that have buffers and are being READ, by their place in this list.
    reading: Vec<Option<Requested>>,
    /// Free places in the list of messages that are being READ.
    places: Vec<u32>,
    /// Places of the messages whose READs are not all posted yet, in the order in which their headers
    /// arrived.
    to_post: VecDeque<u32>,
    /// Empty lists for buffers, kept for the next messages.
    lists: Vec<Vec<u32>>,
    reads: u32,
    reads_max: u32,
    shared: Arc<Shared>,
    counting: Arc<Counting>,
}

impl Driver {
    /// Opens a NIC and posts the receive entries.
    ///
    /// # Errors
    /// An error of the NIC or the system.
    pub fn new(
        shape: Shape,
        buffers: Buffers,
        reads_max: Option<u32>,
        memory: &Arc<SharedMemory>,
        shared: Arc<Shared>,
        counting: Arc<Counting>,
    ) -> Result<Self, Box<dyn Error>> {
        let places = u32::try_from(shape.connections * shape.depth)?;
        let pieces = u32::try_from(shape.message_bytes.div_ceil(PIECE_BYTES))?;
        let mut nic = SoftNic::new(SoftOptions {
            srq_entries_max: places,
            reads_max: places * pieces,
            reads_per_qp_max: u32::try_from(shape.depth)? * pieces,
            completions: places * (pieces + 8),
            ..SoftOptions::default()
        })?;
        let headers = Arc::new(SharedMemory::new("jet-headers", places as usize * HEADER_BYTES, false)?);
        let buffers_key = nic.register(memory, Access::LocalWrite)?;
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let mut driver = Self {
            nic,
            shape,
            buffers,
            buffers_key,
            headers,
            headers_key,
            connections: Vec::new(),
            entry_buffers: (0..places).map(|_| Vec::with_capacity(1)).collect(),
            requested: VecDeque::with_capacity(places as usize),
            reading: (0..places).map(|_| None).collect(),
            places: (0..places).rev().collect(),
            to_post: VecDeque::with_capacity(places as usize),
            lists: (0..places).map(|_| Vec::with_capacity(shape.message_bytes / SLAB_BYTES + 1)).collect(),
            reads: 0,
            reads_max: reads_max.unwrap_or(u32::MAX),
            shared,
            counting,
        };
        (0..places).try_for_each(|entry| driver.post(entry))?;
        Ok(driver)
    }

    /// Accepts connections from now on. Returns the address with all its parts filled in.
    ///
    /// # Errors
    /// An error of the NIC.
    pub fn listen(&mut self, address: &Address) -> Result<Address, Box<dyn Error>> {
        Ok(self.nic.listen(address)?)
    }

    /// Returns the number of bytes of each of the receiver's buffers.
    pub fn buffer_bytes(&self) -> usize {
        self.buffers.buffer_bytes()
    }

    /// Receives messages until the NIC or the system fails.
    ///
    /// # Errors
    /// An error of the NIC or the system.
    pub fn run(&mut self, application: &std::thread::Thread) -> Result<(), Box<dyn Error>> {
        let mut completions = [Completion::UNUSED; 64];
        let mut idle_since = None;
        let mut clock = CoarseClock::start();
        loop {
            let mut worked = false;
            let now_ns = clock.turn();
            let taken = self.nic.poll(now_ns, &mut completions);
            for completion in &completions[..taken] {
                worked = true;
                self.handle(completion)?;
            }
            while let Some(event) = self.nic.poll_event(now_ns) {
                worked = true;
                self.handle_event(&event)?;
            }
            worked |= self.acknowledge()?;
            self.read()?;
            self.nic.flush();
            if !self.shared.arrived.is_empty() && self.shared.application.must_be_woken() {
                application.unpark();
            }
            if worked {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            // The application gives messages back without a wake-up. So this thread stays awake while the
            // application has something.
            if since.elapsed() > NIC_SPIN && self.shared.arrived.is_empty() && self.nic.arm(clock.read()) {
                let bound = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                poll(&mut [PollFd::from_borrowed_fd(self.nic.wait_fd(), PollFlags::IN)], Some(&bound))?;
                idle_since = None;
            } else {
                // It waits for the application, which may be on this core.
                std::thread::yield_now();
            }
        }
    }

    /// Gives a receive entry to the NIC, with buffers where SENDs carry the messages.
    fn post(&mut self, entry: u32) -> Result<(), Box<dyn Error>> {
        let bytes = u32::try_from(HEADER_BYTES)?;
        let header = Sge { key: self.headers_key, offset: u64::from(entry) * u64::from(bytes), bytes };
        let payload = if self.shape.is_small() {
            // The next message's connection is not known yet, so the entries of all connections stand in the
            // queue in turn.
            let own = entry as usize / self.shape.depth;
            let buffers = &mut self.entry_buffers[entry as usize];
            if !self.buffers.take(own, SLAB_BYTES, buffers) {
                return Err("there are fewer buffers than receive entries".into());
            }
            self.counting.buffer_bytes.fetch_max(self.buffers.in_use_bytes(), Ordering::Relaxed);
            let offset = u64::from(buffers[0]) * self.buffers.buffer_bytes() as u64;
            Some(Sge { key: self.buffers_key, offset, bytes: SLAB_BYTES_U32 })
        } else {
            None
        };
        Ok(self.nic.post_srq(SrqEntry { id: entry, header, payload })?)
    }

    fn handle_event(&mut self, event: &Event) -> Result<(), Box<dyn Error>> {
        match event {
            Event::ConnectRequest { qp, .. } => {
                if self.connections.len() == self.shape.connections {
                    return Err("more connections than there are buffers for".into());
                }
                let welcome = Welcome {
                    versions: Versions::SUPPORTED,
                    features: 0,
                    incarnation: 1,
                    credit_limit: u64::MAX,
                    message_bytes_max: self.shape.message_bytes as u64,
                    requests_max: u32::try_from(self.shape.depth)?,
                    heartbeat_ms: 0,
                };
                let answer = PrivateData::new(&welcome.encode()).ok_or("a welcome fits")?;
                self.nic.accept(*qp, &answer)?;
                self.connections
                    .push(Connection { qp: *qp, ended: VecDeque::with_capacity(self.shape.depth) });
                Ok(())
            }
            Event::Connected { .. } | Event::Disconnected { .. } => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }

    fn handle(&mut self, completion: &Completion) -> Result<(), Box<dyn Error>> {
        match completion.work {
            Work::Receive { entry, payload_bytes } if completion.status == Status::Success => {
                self.take(completion.qp, entry, payload_bytes as usize)
            }
            Work::Read { id } => {
                self.reads -= 1;
                if completion.status != Status::Success {
                    // Its message would never end, and the senders would wait for it.
                    return Err(format!("a READ of a message failed: {:?}", completion.status).into());
                }
                let place = usize::try_from(id & 0xffff_ffff)?;
                let requested = self.reading[place].as_mut().ok_or("a READ of nothing")?;
                requested.came += usize::try_from(id >> 32)?;
                if requested.came == requested.arrived.bytes {
                    let requested = self.reading[place].take().ok_or("a READ of nothing")?;
                    self.deliver(requested.arrived)?;
                }
                Ok(())
            }
            Work::Receive { .. } | Work::Send { .. } | Work::SrqFlush { .. } => Ok(()),
        }
    }

    fn take(&mut self, qp: Qp, entry: u32, payload_bytes: usize) -> Result<(), Box<dyn Error>> {
        let found = self.connections.iter().position(|connection| connection.qp == qp);
        let connection = found.ok_or("a message of nobody")?;
        // SAFETY: the NIC completed the entry and leaves it alone until it is posted again.
        let header = unsafe { self.headers.base().cast::<HeaderBytes>().add(entry as usize).read_volatile() };
        match parse_from_sender(WIRE_VERSION, &header, payload_bytes).map_err(|error| format!("{error:?}"))? {
            FromSender::Small(small) => {
                // The entry and its buffer belong to the message until the message is consumed.
                let buffers = std::mem::take(&mut self.entry_buffers[entry as usize]);
                let (sequence, bytes) = (small.sequence.get(), small.payload_bytes.get() as usize);
                self.deliver(Arrived { qp, connection, sequence, at: entry, bytes, buffers })
            }
            FromSender::Request(request) => {
                let at = self.places.pop().ok_or("more messages than were allowed")?;
                let buffers = self.lists.pop().ok_or("more messages than were allowed")?;
                let bytes = usize::try_from(request.length.get())?;
                let sequence = request.sequence.get();
                let arrived = Arrived { qp, connection, sequence, at, bytes, buffers };
                let (address, key) = (request.address.get(), request.key.get());
                self.requested.push_back(Requested { arrived, address, key, asked: 0, came: 0 });
                self.post(entry)
            }
            FromSender::CreditReturn(_) => Err("credit was given back that was not asked for".into()),
            FromSender::Cancel(_) => Err("a message was taken back, and none can be".into()),
        }
    }

    fn deliver(&mut self, arrived: Arrived) -> Result<(), Box<dyn Error>> {
        self.shared.arrived.push(arrived).map_err(|_| "more came than there are buffers".into())
    }

    /// Posts READs up to the limit, those of the message that has waited longest first. A message gets its
    /// buffers with its first READ.
    fn read(&mut self) -> Result<(), Box<dyn Error>> {
        while self.reads < self.reads_max {
            if let Some(&place) = self.to_post.front() {
                if !self.post_reads(place)? {
                    return Ok(());
                }
                self.to_post.pop_front();
                continue;
            }
            let Some(next) = self.requested.front_mut() else { return Ok(()) };
            let Arrived { connection, bytes, buffers, .. } = &mut next.arrived;
            if !self.buffers.take(*connection, *bytes, buffers) {
                return Ok(());
            }
            self.counting.buffer_bytes.fetch_max(self.buffers.in_use_bytes(), Ordering::Relaxed);
            let next = self.requested.pop_front().ok_or("the first of them")?;
            let place = next.arrived.at;
            self.reading[place as usize] = Some(next);
            self.to_post.push_back(place);
        }
        Ok(())
    }

    /// Posts READs of one message until all are posted, or the limit or a full queue stops it. Returns
    /// whether all of them are posted now.
    fn post_reads(&mut self, place: u32) -> Result<bool, Box<dyn Error>> {
        let requested = self.reading[place as usize].as_mut().ok_or("a READ of nothing")?;
        let buffer_bytes = self.buffers.buffer_bytes();
        while requested.asked < requested.arrived.bytes {
            if self.reads >= self.reads_max {
                return Ok(false);
            }
            let from = requested.asked;
            let bytes = PIECE_BYTES.min(requested.arrived.bytes - from);
            // A piece lies in one buffer, or in several that are whole except the message's last.
            let mut scatter = [Sge { key: self.buffers_key, offset: 0, bytes: 0 }; PIECE_BYTES / (8 << 10)];
            let (mut entries, mut placed) = (0, 0);
            while placed < bytes {
                let (buffer, within) = ((from + placed) / buffer_bytes, (from + placed) % buffer_bytes);
                let part = (buffer_bytes - within).min(bytes - placed);
                let offset = requested.arrived.buffers[buffer] as usize * buffer_bytes + within;
                scatter[entries] =
                    Sge { key: self.buffers_key, offset: offset as u64, bytes: u32::try_from(part)? };
                (entries, placed) = (entries + 1, placed + part);
            }
            let request = ReadRequest {
                id: (bytes as u64) << 32 | u64::from(place),
                address: requested.address + from as u64,
                key: requested.key,
                scatter: &scatter[..entries],
            };
            match self.nic.post_read(requested.arrived.qp, request) {
                Ok(()) => requested.asked += bytes,
                Err(PostError::QueueFull) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            self.reads += 1;
            self.counting.reads.fetch_max(self.reads, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Makes the buffers of consumed messages free again, and acknowledges the messages to their senders.
    fn acknowledge(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut worked = false;
        while let Some(Arrived { connection, sequence, at, mut buffers, .. }) = self.shared.consumed.pop() {
            worked = true;
            if self.shape.is_small() {
                self.buffers.give(at as usize / self.shape.depth, &mut buffers);
                self.entry_buffers[at as usize] = buffers;
                self.post(at)?;
            } else {
                self.buffers.give(connection, &mut buffers);
                self.lists.push(buffers);
                self.places.push(at);
            }
            self.connections[connection].end(sequence);
        }
        for Connection { qp, ended } in &mut self.connections {
            while !ended.is_empty() {
                let count = ended.len().min(ACK_RANGES_MAX);
                let header = AckHeader::encode(u64::MAX, &ended.make_contiguous()[..count]);
                let request = SendRequest { id: 0, header: &header, payload: Payload::None };
                match self.nic.post_send(*qp, request) {
                    // The queue is full: the next turn continues.
                    Err(PostError::QueueFull) => break,
                    // No sender waits for the rest where the connection is gone.
                    Ok(()) | Err(_) => drop(ended.drain(..count)),
                }
            }
        }
        Ok(worked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::buffers::Kind;
    use crossbeam_queue::ArrayQueue;
    use jet_wire::sleep::Sleeper;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_read_that_fails_ends_the_receiver_with_the_reason() {
        let shape = Shape { connections: 1, depth: 1, message_bytes: 8192 };
        let buffers = Buffers::new(Kind::Own, shape);
        let memory = Arc::new(SharedMemory::new("jet-buffers", buffers.bytes(), true).unwrap());
        let shared = Arc::new(Shared {
            arrived: ArrayQueue::new(1),
            consumed: ArrayQueue::new(1),
            stop: AtomicBool::new(false),
            application: Sleeper::awake(),
        });
        let mut driver = Driver::new(shape, buffers, None, &memory, shared, Arc::default()).unwrap();
        for status in [Status::RemoteAccess, Status::Flushed] {
            driver.reads = 1;
            let qp = Qp { index: 0, generation: 0 };
            let failed = driver.handle(&Completion { qp, work: Work::Read { id: 8192 << 32 }, status });
            let reason = failed.unwrap_err().to_string();
            assert!(reason.contains(&format!("{status:?}")), "{reason}");
        }
    }
}
