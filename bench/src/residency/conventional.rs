//! A receiver as RDMA applications are usually written: each connection has buffers of its own, as many as messages may be under
//! way on it, used in turn; whatever arrives lies in the next of them. It speaks to the same senders as Jet's, over the same NIC,
//! with the same two threads: one that drives the NIC, and one that reads what came.
//!
//! Messages that fit a SEND lie in receive entries, larger ones are READ. The software NIC has one receive queue for all
//! connections: their entries stand in it in turn, so that all of their buffers are gone through, as they are with a queue for
//! each connection.
//!
//! Nothing of Jet's receiver is in it but the bytes on the wire. It serves benchmarks: a peer that breaks the rules ends it.

use super::touched::Marks;
use super::traffic::Shape;
use crate::rig::read_all;
use crossbeam_queue::ArrayQueue;
use jet_cat::residency::{Region, WarmerOptions, WarmerThread};
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, Event, MemoryKey, Payload, PostError, PrivateData, Qp, ReadRequest, SendRequest, Sge,
    SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::{Address, Nic};
use jet_wire::message::hello::Welcome;
use jet_wire::message::{
    ACK_RANGES_MAX, AckHeader, AckRange, AckStatus, FromSender, HEADER_BYTES, HeaderBytes, parse_from_sender,
};
use jet_wire::sleep::Sleeper;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the buffers are called, and the daemon's pool, among a process's mappings.
pub const BUFFERS: &str = "jet-buffers";
/// The longest READ.
const PIECE_BYTES: usize = 256 << 10;
/// How long either thread looks in vain before it sleeps: as Jet's reactor and applications do.
const SPIN: Duration = Duration::from_micros(50);

/// A message in a buffer. Where messages come as SENDs, a buffer is the receive entry of its number.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    qp: Qp,
    sequence: u64,
    buffer: u32,
    bytes: u32,
}

/// A request whose READs are not all done.
#[derive(Clone, Copy, Debug)]
struct Running {
    arrived: Arrived,
    address: u64,
    key: u32,
    /// Bytes that are asked for, and that came.
    asked: usize,
    came: usize,
}

/// One connection.
struct Connection {
    qp: Qp,
    /// Its buffers, the one that was free for longest first.
    free: VecDeque<u32>,
    /// Ends that its sender was not told yet.
    ended: VecDeque<AckRange>,
}

impl Connection {
    /// A message was consumed.
    fn end(&mut self, sequence: u64) {
        match self.ended.back_mut() {
            Some(range) if range.first + u64::from(range.count) == sequence && range.count < u16::MAX => {
                range.count += 1;
            }
            _ => self.ended.push_back(AckRange { first: sequence, count: 1, status: AckStatus::Consumed }),
        }
    }
}

/// What the application's thread shares with the NIC's.
struct Shared {
    arrived: ArrayQueue<Arrived>,
    consumed: ArrayQueue<Arrived>,
    stop: AtomicBool,
    application: Sleeper,
}

/// Runs until the process is killed. Each line on standard input is answered by one of JSON: what of the buffers is in the cache,
/// a share, or why that is not known.
///
/// # Errors
/// What the NIC or the system says.
pub fn live(listen: &Address, shape: Shape, marks: Marks) -> Result<(), Box<dyn Error>> {
    let places = u32::try_from(shape.connections * shape.depth)?;
    let mut nic = SoftNic::new(SoftOptions {
        srq_entries_max: places,
        reads_max: places * 4,
        reads_per_qp_max: u32::try_from(shape.depth)? * 4,
        completions: places * 12,
        ..SoftOptions::default()
    })?;
    let stride = shape.message_bytes.next_multiple_of(SLAB_BYTES);
    let buffers = Arc::new(SharedMemory::new(BUFFERS, places as usize * stride, true)?);
    let headers = Arc::new(SharedMemory::new("jet-headers", places as usize * HEADER_BYTES, false)?);
    let buffers_key = nic.register(&buffers, Access::LocalWrite)?;
    let headers_key = nic.register(&headers, Access::LocalWrite)?;
    let meter = meter(&buffers);
    let address = nic.listen(listen)?;
    // Whoever started this waits for it.
    println!("{address}");
    std::thread::spawn(move || answer(&meter));
    let shared = Arc::new(Shared {
        arrived: ArrayQueue::new(places as usize),
        consumed: ArrayQueue::new(places as usize),
        stop: AtomicBool::new(false),
        application: Sleeper::awake(),
    });
    let application = {
        let (shared, buffers) = (Arc::clone(&shared), Arc::clone(&buffers));
        std::thread::spawn(move || consume(&shared, &buffers, stride, &marks))
    };
    let mut receiver = Conventional {
        nic,
        shape,
        stride,
        buffers_key,
        headers,
        headers_key,
        connections: Vec::new(),
        running: (0..places).map(|_| None).collect(),
        waiting: VecDeque::with_capacity(places as usize),
        shared,
    };
    (0..places).try_for_each(|entry| receiver.post(entry))?;
    let result = receiver.run(application.thread());
    receiver.shared.stop.store(true, Ordering::Release);
    application.thread().unpark();
    application.join().map_err(|_| "the application's thread panicked")?;
    result
}

/// What reads how much of the buffers is in the cache, as the daemon does of its pool.
fn meter(buffers: &Arc<SharedMemory>) -> Result<WarmerThread, String> {
    let keep: Arc<dyn std::any::Any + Send + Sync> = Arc::<SharedMemory>::clone(buffers);
    // SAFETY: the mapping lives as long as the memory, which is kept, and stays readable.
    let region = unsafe { Region::new(buffers.base(), buffers.bytes(), keep) };
    let region = region.map_err(|error| error.to_string())?;
    // Measured, not warmed: nobody warms a conventional receiver's buffers.
    let options = WarmerOptions { warm_in: false, ..WarmerOptions::default() };
    WarmerThread::start(region, options).map_err(|error| error.to_string())
}

/// Answers each line that is asked.
fn answer(meter: &Result<WarmerThread, String>) {
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        let share = match meter {
            Ok(meter) => meter.readings().resident.map(|resident| resident.share),
            Err(_) => None,
        };
        println!("{}", serde_json::json!({ "resident": share, "error": meter.as_ref().err() }));
    }
}

/// The application: reads every byte of what came, in order of arrival.
fn consume(shared: &Shared, buffers: &SharedMemory, stride: usize, marks: &Marks) {
    let mut sum = 0u64;
    let mut idle_since = None;
    while !shared.stop.load(Ordering::Acquire) {
        let Some(arrived) = shared.arrived.pop() else {
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() < SPIN {
                // Both threads may share a core, as they may with Jet's.
                std::thread::yield_now();
                continue;
            }
            shared.application.sleeps();
            if shared.arrived.is_empty() {
                std::thread::park();
            }
            shared.application.is_up();
            idle_since = None;
            continue;
        };
        idle_since = None;
        // SAFETY: within the buffers; the NIC has written it, and writes it again only after it was given back.
        let bytes = unsafe {
            let first = buffers.base().add(arrived.buffer as usize * stride);
            std::slice::from_raw_parts(first, arrived.bytes as usize)
        };
        marks.mark(bytes);
        sum = sum.wrapping_add(read_all(bytes));
        shared.consumed.push(arrived).expect("no more is given back than came");
    }
    std::hint::black_box(sum);
}

struct Conventional {
    nic: SoftNic,
    shape: Shape,
    /// Bytes from one buffer to the next.
    stride: usize,
    buffers_key: MemoryKey,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    connections: Vec<Connection>,
    /// By buffer.
    running: Vec<Option<Running>>,
    /// Buffers whose READs could not all be posted yet.
    waiting: VecDeque<u32>,
    shared: Arc<Shared>,
}

impl Conventional {
    fn run(&mut self, application: &std::thread::Thread) -> Result<(), Box<dyn Error>> {
        let nothing = Completion {
            qp: Qp { index: 0, generation: 0 },
            work: Work::Send { id: 0 },
            status: Status::Flushed,
        };
        let mut completions = [nothing; 64];
        let mut idle_since = None;
        loop {
            let mut worked = false;
            let taken = self.nic.poll(&mut completions);
            for completion in &completions[..taken] {
                worked = true;
                self.handle(completion)?;
            }
            while let Some(event) = self.nic.poll_event() {
                worked = true;
                self.handle_event(&event)?;
            }
            while let Some(buffer) = self.waiting.pop_front() {
                if !self.read(buffer)? {
                    break;
                }
            }
            worked |= self.acknowledge()?;
            self.nic.flush();
            if !self.shared.arrived.is_empty() && self.shared.application.must_be_woken() {
                application.unpark();
            }
            if worked {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            // What the application gives back rings no bell: while it has something the NIC's thread stays awake.
            if since.elapsed() > SPIN && self.shared.arrived.is_empty() && self.nic.arm() {
                let bound = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                poll(&mut [PollFd::from_borrowed_fd(self.nic.wait_fd(), PollFlags::IN)], Some(&bound))?;
                idle_since = None;
            } else {
                // What it waits for is the application's, which may be on this core.
                std::thread::yield_now();
            }
        }
    }

    fn post(&mut self, entry: u32) -> Result<(), PostError> {
        let bytes = u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX);
        let header = Sge { key: self.headers_key, offset: u64::from(entry) * u64::from(bytes), bytes };
        let payload = self.shape.is_small().then(|| Sge {
            key: self.buffers_key,
            offset: u64::from(entry) * u64::from(SLAB_BYTES_U32),
            bytes: SLAB_BYTES_U32,
        });
        self.nic.post_srq(SrqEntry { id: entry, header, payload })
    }

    fn handle_event(&mut self, event: &Event) -> Result<(), Box<dyn Error>> {
        match event {
            Event::ConnectRequest { qp, .. } => {
                let at = self.connections.len();
                if at == self.shape.connections {
                    return Err("more connections than there are buffers for".into());
                }
                let depth = u32::try_from(self.shape.depth)?;
                let first = u32::try_from(at)? * depth;
                let welcome = Welcome {
                    features: 0,
                    incarnation: 1,
                    credit_limit: u64::MAX,
                    message_bytes_max: self.shape.message_bytes as u64,
                    requests_max: depth,
                };
                let answer = PrivateData::new(&welcome.encode()).ok_or("a welcome fits")?;
                self.nic.accept(*qp, &answer)?;
                self.connections.push(Connection {
                    qp: *qp,
                    free: (first..first + depth).collect(),
                    ended: VecDeque::with_capacity(self.shape.depth),
                });
                Ok(())
            }
            Event::Connected { .. } | Event::Disconnected { .. } => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }

    fn handle(&mut self, completion: &Completion) -> Result<(), Box<dyn Error>> {
        match completion.work {
            _ if completion.status != Status::Success => Ok(()),
            Work::Receive { entry, payload_bytes } => self.take(completion.qp, entry, payload_bytes as usize),
            Work::Read { id } => {
                let buffer = usize::try_from(id & 0xffff_ffff)?;
                let running = self.running[buffer].as_mut().ok_or("a READ of nothing")?;
                running.came += usize::try_from(id >> 32)?;
                if running.came == running.arrived.bytes as usize {
                    let arrived = running.arrived;
                    self.running[buffer] = None;
                    self.deliver(arrived)?;
                }
                Ok(())
            }
            Work::Send { .. } | Work::SrqFlush { .. } => Ok(()),
        }
    }

    fn take(&mut self, qp: Qp, entry: u32, payload_bytes: usize) -> Result<(), Box<dyn Error>> {
        // SAFETY: the NIC completed the entry and leaves it alone until it is posted again.
        let header = unsafe { self.headers.base().cast::<HeaderBytes>().add(entry as usize).read_volatile() };
        match parse_from_sender(&header, payload_bytes).map_err(|error| format!("{error:?}"))? {
            FromSender::Small(small) => {
                // The entry is the message's until it is consumed.
                let bytes = small.payload_bytes.get();
                self.deliver(Arrived { qp, sequence: small.sequence.get(), buffer: entry, bytes })
            }
            FromSender::Request(request) => {
                self.post(entry)?;
                let connection = self.connections.iter_mut().find(|connection| connection.qp == qp);
                let free = connection.and_then(|connection| connection.free.pop_front());
                let buffer = free.ok_or("no buffer is free")?;
                let bytes = u32::try_from(request.length.get())?;
                let arrived = Arrived { qp, sequence: request.sequence.get(), buffer, bytes };
                let (address, key) = (request.address.get(), request.key.get());
                self.running[buffer as usize] = Some(Running { arrived, address, key, asked: 0, came: 0 });
                self.read(buffer).map(drop)
            }
            FromSender::CreditReturn(_) => Err("credit was given back that was not asked for".into()),
        }
    }

    fn deliver(&mut self, arrived: Arrived) -> Result<(), Box<dyn Error>> {
        self.shared.arrived.push(arrived).map_err(|_| "more came than there are buffers".into())
    }

    /// Posts what can be posted of a buffer's READs; whether that was all.
    fn read(&mut self, buffer: u32) -> Result<bool, Box<dyn Error>> {
        let Some(running) = &mut self.running[buffer as usize] else { return Ok(true) };
        while running.asked < running.arrived.bytes as usize {
            let bytes = PIECE_BYTES.min(running.arrived.bytes as usize - running.asked);
            let offset = (buffer as usize * self.stride + running.asked) as u64;
            let scatter = [Sge { key: self.buffers_key, offset, bytes: u32::try_from(bytes)? }];
            let request = ReadRequest {
                id: (bytes as u64) << 32 | u64::from(buffer),
                address: running.address + running.asked as u64,
                key: running.key,
                scatter: &scatter,
            };
            match self.nic.post_read(running.arrived.qp, request) {
                Ok(()) => running.asked += bytes,
                Err(PostError::QueueFull) => {
                    self.waiting.push_back(buffer);
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Has the buffers of what was consumed again, and tells the senders.
    fn acknowledge(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut worked = false;
        while let Some(Arrived { qp, sequence, buffer, .. }) = self.shared.consumed.pop() {
            worked = true;
            if self.shape.is_small() {
                self.post(buffer)?;
            }
            // A connection that hung up meanwhile needs no answer.
            let Some(of) = self.connections.iter_mut().find(|connection| connection.qp == qp) else {
                continue;
            };
            if !self.shape.is_small() {
                of.free.push_back(buffer);
            }
            of.end(sequence);
        }
        for Connection { qp, ended, .. } in &mut self.connections {
            while !ended.is_empty() {
                let count = ended.len().min(ACK_RANGES_MAX);
                let header = AckHeader::encode(u64::MAX, &ended.make_contiguous()[..count]);
                let request = SendRequest { id: 0, header: &header, payload: Payload::None };
                match self.nic.post_send(*qp, request) {
                    // Full for now: the next turn goes on.
                    Err(PostError::QueueFull) => break,
                    // Of a connection that is gone nobody waits for the rest.
                    Ok(()) | Err(_) => drop(ended.drain(..count)),
                }
            }
        }
        Ok(worked)
    }
}
