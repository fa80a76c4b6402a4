//! Harness of the suite: two or more ends of a fabric, driven by polling, with the trait's rules checked at
//! every step.

pub use crate::fabrics::Fabric;
use jet_fabric::Clock;
use jet_fabric::address::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, DisconnectReason, Event, MemoryKey, Nic, Payload, PostError, PrivateData, Qp,
    ReadRequest, SendRequest, Sge, SrqEntry, Status, Work,
};
use jet_fabric::soft::SoftOptions;
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns the time after which an operation counts as lost. Where packets are lost, RDMA CM's own timers
/// make it long.
pub fn deadline() -> Duration {
    // Long enough for a machine that compiles meanwhile, too.
    Duration::from_secs(60)
}

/// Whether the network between the ends loses packets, as `JET_RDMA_LOSS` says, in per cent.
pub fn packets_are_lost() -> bool {
    std::env::var("JET_RDMA_LOSS").is_ok_and(|percent| percent != "0")
}

/// Status of work that the peer never acknowledges: verbs' `IBV_WC_RETRY_EXC_ERR`.
pub const UNACKNOWLEDGED: Status = Status::Other(12);

/// Whether a connection timed out at one end because the message that the other end ended it was lost.
///
/// RDMA CM sends that message again 4.3 s later. Work without an acknowledgement fails before that, after 1.9
/// s.
pub fn went_unheard(reason: Option<DisconnectReason>, at_the_other: Option<DisconnectReason>) -> bool {
    packets_are_lost()
        && reason == Some(DisconnectReason::Transport(libc::ETIMEDOUT))
        && at_the_other == Some(DisconnectReason::Local)
}

pub const SLAB: usize = 4096;
/// Byte that memory has where nothing was written.
pub const UNTOUCHED: u8 = 0xa5;
/// Bytes that READs may fill at an end, behind its slabs.
pub const READ_AREA: usize = 1 << 20;
/// Bytes that peers may READ at an end.
pub const SOURCE_BYTES: usize = 1 << 20;

/// Whether the private data that arrived is what was sent. RDMA CM pads it with zeros.
pub fn says(arrived: &PrivateData, said: &[u8]) -> bool {
    let (arrived, padding) = arrived.as_slice().split_at_checked(said.len()).unwrap_or((&[], &[1]));
    arrived == said && padding.iter().all(|byte| *byte == 0)
}

/// Returns options for a few connections and little memory; most cases need no more.
pub fn small_options() -> SoftOptions {
    SoftOptions { qps_max: 32, srq_entries_max: 512, completions: 2048, ..SoftOptions::default() }
}

/// SEND that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub qp: Qp,
    pub header: [u8; HEADER_BYTES],
    pub payload: Vec<u8>,
}

/// One NIC with memory, and all that was polled from it.
pub struct End {
    pub name: &'static str,
    nic: Option<Box<dyn Nic>>,
    clock: Clock,
    slabs: Arc<SharedMemory>,
    headers: Arc<SharedMemory>,
    source: Arc<SharedMemory>,
    pub slab_key: MemoryKey,
    pub header_key: MemoryKey,
    pub source_key: MemoryKey,
    pub entries: u32,
    /// Whether an SRQ entry is posted again as soon as it was used.
    pub repost: bool,
    pub poll_max: usize,
    next_id: u64,
    pub sends: HashMap<u64, Qp>,
    pub reads: HashMap<u64, Qp>,
    read_order: HashMap<Qp, VecDeque<u64>>,
    posted_entries: HashMap<u32, SrqEntry>,
    pub completions: Vec<Completion>,
    pub received: Vec<Received>,
    pub events: VecDeque<Event>,
    pub ended: HashMap<Qp, DisconnectReason>,
    reads_max: HashMap<Qp, u32>,
}

/// Returns the byte of a source at a place. It depends on the place, so that a byte at a wrong place is
/// noticed.
pub fn source_byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn source_bytes(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(source_byte).collect()
}

pub fn header(number: u64) -> HeaderBytes {
    let mut header = HeaderBytes([0; HEADER_BYTES]);
    for (at, byte) in header.0.iter_mut().enumerate() {
        *byte = source_byte(at + usize::try_from(number).unwrap() * 131);
    }
    header.0[..8].copy_from_slice(&number.to_le_bytes());
    header
}

/// Returns the number that [`header`] was made with.
pub fn number_of(received: &Received) -> u64 {
    let number = u64::from_le_bytes(received.header[..8].try_into().unwrap());
    assert_eq!(received.header, header(number).0, "header {number} did not arrive intact");
    number
}

fn fill(memory: &SharedMemory, from: usize, bytes: usize, byte: impl Fn(usize) -> u8) {
    assert!(from + bytes <= memory.bytes());
    for at in from..from + bytes {
        // SAFETY: within the mapping; no request that names these bytes is in flight.
        unsafe { memory.base().add(at).write(byte(at)) };
    }
}

fn copy(memory: &SharedMemory, from: usize, bytes: usize) -> Vec<u8> {
    assert!(from + bytes <= memory.bytes());
    // SAFETY: within the mapping; no request that names these bytes is in flight.
    unsafe { std::slice::from_raw_parts(memory.base().add(from), bytes).to_vec() }
}

impl End {
    pub fn new(fabric: &dyn Fabric, name: &'static str, options: SoftOptions, entries: u32) -> Self {
        // If the environment names a device, the suite must run on that device.
        assert!(
            cfg!(feature = "verbs") || std::env::var_os("JET_RDMA_ADDRESS").is_none(),
            "JET_RDMA_ADDRESS names a device, and this suite was built without verbs: \
             cargo test -p jet-fabric --features verbs --test conformance"
        );
        let mut nic = fabric.nic(name, options);
        let memory = |what: &str, bytes: usize| Arc::new(SharedMemory::new(what, bytes, false).unwrap());
        let slabs = memory("slabs", entries as usize * SLAB + READ_AREA);
        let headers = memory("headers", (entries as usize).max(1) * HEADER_BYTES);
        let source = memory("source", SOURCE_BYTES);
        fill(&slabs, entries as usize * SLAB, READ_AREA, |_| UNTOUCHED);
        fill(&source, 0, SOURCE_BYTES, source_byte);
        let slab_key = nic.register(&slabs, Access::LocalWrite).unwrap();
        let header_key = nic.register(&headers, Access::LocalWrite).unwrap();
        let source_key = nic.register(&source, Access::RemoteRead).unwrap();
        let mut end = Self {
            name,
            nic: Some(nic),
            clock: Clock::start(),
            slabs,
            headers,
            source,
            slab_key,
            header_key,
            source_key,
            entries,
            repost: true,
            poll_max: 16,
            next_id: 1,
            sends: HashMap::new(),
            reads: HashMap::new(),
            read_order: HashMap::new(),
            posted_entries: HashMap::new(),
            completions: Vec::new(),
            received: Vec::new(),
            events: VecDeque::new(),
            ended: HashMap::new(),
            reads_max: HashMap::new(),
        };
        (0..entries).for_each(|entry| end.post_entry(entry));
        end
    }

    pub fn nic(&mut self) -> &mut dyn Nic {
        self.nic.as_deref_mut().expect("the NIC was dropped")
    }

    /// Drops the NIC without ending its connections, as in a process that exits.
    pub fn drop_nic(&mut self) {
        self.nic = None;
    }

    pub fn entry(&self, entry: u32) -> SrqEntry {
        SrqEntry {
            id: entry,
            header: Sge {
                key: self.header_key,
                offset: u64::from(entry) * HEADER_BYTES as u64,
                bytes: HEADER_BYTES as u32,
            },
            payload: Some(Sge {
                key: self.slab_key,
                offset: u64::from(entry) * SLAB as u64,
                bytes: SLAB as u32,
            }),
        }
    }

    pub fn post_entry(&mut self, entry: u32) {
        let place = entry as usize;
        fill(&self.slabs, place * SLAB, SLAB, |_| UNTOUCHED);
        fill(&self.headers, place * HEADER_BYTES, HEADER_BYTES, |_| UNTOUCHED);
        let posted = self.entry(entry);
        assert!(self.posted_entries.insert(entry, posted).is_none(), "the test posts entry {entry} twice");
        self.nic().post_srq(posted).unwrap();
    }

    /// Posts an entry that the test itself made.
    pub fn post_other_entry(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        self.nic().post_srq(entry)?;
        assert!(
            self.posted_entries.insert(entry.id, entry).is_none(),
            "the test posts entry {} twice",
            entry.id
        );
        Ok(())
    }

    pub fn try_send(&mut self, qp: Qp, header: &HeaderBytes, payload: Payload<'_>) -> Result<u64, PostError> {
        let id = self.next_id;
        self.nic().post_send(qp, SendRequest { id, header, payload })?;
        self.next_id += 1;
        self.sends.insert(id, qp);
        Ok(id)
    }

    pub fn send(&mut self, qp: Qp, number: u64, payload: Payload<'_>) -> u64 {
        self.try_send(qp, &header(number), payload).unwrap_or_else(|error| panic!("SEND {number}: {error}"))
    }

    pub fn try_read(&mut self, qp: Qp, address: u64, key: u32, scatter: &[Sge]) -> Result<u64, PostError> {
        let id = self.next_id;
        self.nic().post_read(qp, ReadRequest { id, address, key, scatter })?;
        self.next_id += 1;
        self.reads.insert(id, qp);
        self.read_order.entry(qp).or_default().push_back(id);
        Ok(id)
    }

    /// Returns how many READs a connection may have under way, as its event said.
    pub fn depth(&self, qp: Qp) -> usize {
        self.reads_max[&qp] as usize
    }

    /// Returns a stretch of this end's READ area.
    pub fn read_area(&self, offset: usize, bytes: usize) -> Sge {
        assert!(offset + bytes <= READ_AREA);
        let offset = (self.entries as usize * SLAB + offset) as u64;
        Sge { key: self.slab_key, offset, bytes: u32::try_from(bytes).unwrap() }
    }

    /// Returns a stretch of this end's source, for SENDs.
    pub fn source_area(&self, offset: usize, bytes: usize) -> Sge {
        Sge { key: self.source_key, offset: offset as u64, bytes: u32::try_from(bytes).unwrap() }
    }

    /// Writes over this end's source, as a program does with memory that it uses again.
    pub fn overwrite_source(&self) {
        fill(&self.source, 0, SOURCE_BYTES, |at| !source_byte(at));
    }

    /// Returns the address and key that a peer names to read this end's source.
    pub fn source_address(&mut self, offset: u64) -> (u64, u32) {
        let key = self.source_key;
        (self.nic().remote_address(key, offset), key.0)
    }

    pub fn area_bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        copy(&self.slabs, self.entries as usize * SLAB + offset, bytes)
    }

    pub fn clear_area(&self) {
        fill(&self.slabs, self.entries as usize * SLAB, READ_AREA, |_| UNTOUCHED);
    }

    /// Returns the status of a request, if it has completed.
    pub fn status(&self, id: u64) -> Option<Status> {
        self.completions
            .iter()
            .find(|done| matches!(done.work, Work::Send { id: of } | Work::Read { id: of } if of == id))
            .map(|done| done.status)
    }

    pub fn idle(&self) -> bool {
        self.sends.is_empty() && self.reads.is_empty()
    }

    pub fn in_flight_on(&self, qp: Qp) -> usize {
        self.sends.values().chain(self.reads.values()).filter(|of| **of == qp).count()
    }

    /// Prepares to sleep. `false` where there is work.
    pub fn arm(&mut self) -> bool {
        let now_ns = self.clock.now_ns();
        self.nic().arm(now_ns)
    }

    /// Polls once, and returns whether anything came.
    pub fn step(&mut self) -> bool {
        let Some(nic) = self.nic.as_deref_mut() else { return false };
        let unused = Completion {
            qp: Qp { index: 0, generation: 0 },
            work: Work::Send { id: 0 },
            status: Status::Success,
        };
        let mut completions = [unused; 16];
        let now_ns = self.clock.now_ns();
        let polled = nic.poll(now_ns, &mut completions[..self.poll_max]);
        completions[..polled].iter().for_each(|done| self.check_completion(done));
        let mut any = polled > 0;
        while let Some(event) = self.nic().poll_event(now_ns) {
            any = true;
            self.check_event(event);
        }
        any
    }

    fn check_completion(&mut self, done: &Completion) {
        let name = self.name;
        if !matches!(done.work, Work::SrqFlush { .. }) {
            assert!(!self.ended.contains_key(&done.qp), "{name}: {done:?} after the end of its QP");
        }
        match done.work {
            Work::Receive { entry, payload_bytes } => {
                let posted = self.posted_entries.remove(&entry);
                let posted = posted.unwrap_or_else(|| panic!("{name}: entry {entry} completed twice"));
                if done.status == Status::Success {
                    self.check_receive(done.qp, &posted, payload_bytes as usize);
                } else {
                    self.completions.push(*done);
                }
                if self.repost {
                    self.post_entry(entry);
                }
            }
            Work::Send { id } => {
                assert_eq!(
                    self.sends.remove(&id),
                    Some(done.qp),
                    "{name}: {done:?} out of nowhere, or twice"
                );
                self.completions.push(*done);
            }
            Work::Read { id } => {
                assert_eq!(
                    self.reads.remove(&id),
                    Some(done.qp),
                    "{name}: {done:?} out of nowhere, or twice"
                );
                let order = self.read_order.get_mut(&done.qp).unwrap();
                if done.status == Status::LocalProtection {
                    order.retain(|of| *of != id); // refused before it was queued
                } else {
                    assert_eq!(order.pop_front(), Some(id), "{name}: {done:?} out of order");
                }
                self.completions.push(*done);
            }
            Work::SrqFlush { entry } => {
                assert!(
                    self.posted_entries.remove(&entry).is_some(),
                    "{name}: entry {entry} completed twice"
                );
                self.completions.push(*done);
            }
        }
    }

    fn check_receive(&mut self, qp: Qp, entry: &SrqEntry, payload_bytes: usize) {
        let name = self.name;
        let slab = entry.payload.map_or(Vec::new(), |payload| {
            copy(&self.slabs, usize::try_from(payload.offset).unwrap(), payload.bytes as usize)
        });
        assert!(payload_bytes <= slab.len(), "{name}: {payload_bytes} bytes do not fit the entry");
        assert!(
            slab[payload_bytes..].iter().all(|byte| *byte == UNTOUCHED),
            "{name}: bytes behind the {payload_bytes} of the payload were written"
        );
        let header = copy(&self.headers, usize::try_from(entry.header.offset).unwrap(), HEADER_BYTES);
        let header = header.try_into().unwrap();
        self.received.push(Received { qp, header, payload: slab[..payload_bytes].to_vec() });
    }

    fn check_event(&mut self, event: Event) {
        if let Event::Disconnected { qp, reason } = event {
            let name = self.name;
            assert_eq!(self.in_flight_on(qp), 0, "{name}: {qp:?} ended before its work");
            assert!(self.ended.insert(qp, reason).is_none(), "{name}: {qp:?} ended twice");
            let stale = self.try_send(qp, &header(0), Payload::None);
            assert_eq!(stale, Err(PostError::Stale), "{name}: {qp:?} lives after its end");
            assert_eq!(self.try_read(qp, 0, 0, &[]), Err(PostError::Stale), "{name}");
        }
        if let Event::Connected { qp, reads_max, .. } = event {
            let (name, most) = (self.name, self.nic().limits().reads_per_qp_max);
            assert!(reads_max <= most, "{name}: a connection has {reads_max} READs, the NIC {most}");
            self.reads_max.insert(qp, reads_max);
        }
        self.events.push_back(event);
    }
}

/// Polls all ends until the condition holds.
pub fn until(ends: &mut [End], what: &str, mut done: impl FnMut(&mut [End]) -> bool) {
    let give_up = Instant::now() + deadline();
    loop {
        let any = ends.iter_mut().fold(false, |any, end| end.step() | any);
        if done(ends) {
            return;
        }
        if !any {
            if Instant::now() > give_up {
                let state: Vec<_> = ends
                    .iter()
                    .map(|end| {
                        format!(
                            "{}: {} SENDs and {} READs in flight, {} received, {} completed, {} events, \
                             first {:?}",
                            end.name,
                            end.sends.len(),
                            end.reads.len(),
                            end.received.len(),
                            end.completions.len(),
                            end.events.len(),
                            end.events.iter().take(8).collect::<Vec<_>>()
                        )
                    })
                    .collect();
                panic!("still not in time: {what}\n{}", state.join("\n"));
            }
            std::thread::yield_now();
        }
    }
}

/// Ends of a case, of which the first listens, and its address.
pub struct World {
    pub ends: Vec<End>,
    pub address: Address,
    _place: tempfile::TempDir,
}

pub const SERVER: usize = 0;
pub const CLIENT: usize = 1;

impl World {
    pub fn new(fabric: &dyn Fabric) -> Self {
        Self::with(fabric, small_options(), 64)
    }

    pub fn with(fabric: &dyn Fabric, options: SoftOptions, entries: u32) -> Self {
        Self::with_each(fabric, [options, options], entries)
    }

    /// Makes a world with different options for the server and the client.
    pub fn with_each(fabric: &dyn Fabric, options: [SoftOptions; 2], entries: u32) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut server = End::new(fabric, "server", options[SERVER], entries);
        let client = End::new(fabric, "client", options[CLIENT], entries);
        let address = server.nic().listen(&fabric.address(&place)).unwrap();
        Self { ends: vec![server, client], address, _place: place }
    }

    pub fn until(&mut self, what: &str, done: impl FnMut(&mut [End]) -> bool) {
        until(&mut self.ends, what, done);
    }

    pub fn server(&mut self) -> &mut End {
        &mut self.ends[SERVER]
    }

    pub fn client(&mut self) -> &mut End {
        &mut self.ends[CLIENT]
    }

    /// Polls both ends once.
    pub fn step(&mut self) {
        for end in &mut self.ends {
            end.step();
        }
    }

    /// Connects the client to the server. Returns the client's QP and the server's.
    pub fn connect(&mut self) -> (Qp, Qp) {
        let address = self.address.clone();
        connect(&mut self.ends, CLIENT, SERVER, &address)
    }

    /// Waits until both ends have nothing in flight.
    pub fn settle(&mut self) {
        self.until("everything completed", |ends| ends.iter().all(End::idle));
    }
}

/// Connects one end to another. Returns the client's QP and the server's.
pub fn connect(ends: &mut [End], client: usize, server: usize, address: &Address) -> (Qp, Qp) {
    let ours = ends[client].nic().connect(address, &PrivateData::new(b"hello").unwrap()).unwrap();
    until(ends, "a connection request", |ends| !ends[server].events.is_empty());
    let Some(Event::ConnectRequest { qp: theirs, private_data, .. }) = ends[server].events.pop_front() else {
        panic!("not a connection request")
    };
    assert!(says(&private_data, b"hello"), "{private_data:?}");
    ends[server].nic().accept(theirs, &PrivateData::new(b"welcome").unwrap()).unwrap();
    until(ends, "the connection", |ends| !ends[client].events.is_empty() && !ends[server].events.is_empty());
    let (at_client, at_server) = (ends[client].events.pop_front(), ends[server].events.pop_front());
    let Some(Event::Connected { qp, private_data, .. }) = at_client else { panic!("client: {at_client:?}") };
    assert!(qp == ours && says(&private_data, b"welcome"), "{qp:?} {private_data:?}");
    let Some(Event::Connected { qp, private_data, .. }) = at_server else { panic!("server: {at_server:?}") };
    assert!(qp == theirs && says(&private_data, b""), "{qp:?} {private_data:?}");
    (ours, theirs)
}
