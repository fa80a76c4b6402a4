//! The NIC under test with its memory: what it may write, and what it has to complete.

use crate::stream::HEADER_BYTES;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, DisconnectReason, Event, MemoryKey, Nic, Payload, PrivateData, Qp, ReadRequest,
    SendRequest, Sge, SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_wire::message::HeaderBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

pub const SLAB: u32 = 4096;
/// SRQ entries, with a header and a slab each.
pub const ENTRIES: u32 = 16;
/// Slabs for READs, behind those of the SRQ.
pub const READ_SLABS: u32 = 16;
pub const SOURCE_BYTES: u32 = 64 << 10;
const HEADERS: usize = ENTRIES as usize * HEADER_BYTES;
const POOL_BYTES: usize = HEADERS + (ENTRIES + READ_SLABS) as usize * SLAB as usize;
/// What the pool has before anything arrives.
const UNTOUCHED: u8 = 0xa5;
/// Most memory that the NIC takes once it is made, whatever one peer says: the buffers of a connection.
const MEMORY_MAX: isize = 1 << 20;
/// READs that a NIC has in flight on one connection.
const READS_MAX: u32 = 8;

/// The byte of the source at this offset.
pub fn source_byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 11) as u8
}

/// The byte with which a peer that keeps the protocol answers a READ.
pub fn answer_byte(id: u64, offset: usize) -> u8 {
    (id as u8).wrapping_mul(31).wrapping_add(offset as u8) | 1
}

static POOL: LazyLock<Arc<SharedMemory>> =
    LazyLock::new(|| Arc::new(SharedMemory::new("jet-fuzz-pool", POOL_BYTES, false).expect("memory")));

/// Memory that the peer may read.
static SOURCE: LazyLock<Arc<SharedMemory>> = LazyLock::new(|| {
    let memory = SharedMemory::new("jet-fuzz-source", SOURCE_BYTES as usize, false).expect("memory");
    for offset in 0..SOURCE_BYTES as usize {
        // SAFETY: within the mapping, which nobody else uses yet.
        unsafe { memory.base().add(offset).write(source_byte(offset as u64)) };
    }
    Arc::new(memory)
});

fn pool() -> &'static mut [u8] {
    // SAFETY: the NIC writes only while it is polled, by this thread, and no other reference is kept.
    unsafe { std::slice::from_raw_parts_mut(POOL.base(), POOL.bytes().min(POOL_BYTES)) }
}

fn is_untouched(bytes: &[u8]) -> bool {
    // At once, and not byte by byte: the fuzzer counts each branch.
    *bytes == [UNTOUCHED; SLAB as usize][..bytes.len()]
}

/// A READ that was posted.
struct PostedRead {
    /// Its place in the order of READs.
    order: u64,
    slabs: Vec<u32>,
    bytes: usize,
}

pub struct Host {
    nic: SoftNic,
    /// Bytes that the NIC took since it was made.
    nic_bytes: isize,
    pub pool: MemoryKey,
    pub source: MemoryKey,
    pub now_ns: u64,
    /// Connections that the NIC reported or began, and whether they ended.
    pub qps: BTreeMap<Qp, Option<DisconnectReason>>,
    pub requested: Option<(Qp, PrivateData)>,
    given_up: Option<Qp>,
    pub connected: Option<Qp>,
    posted: BTreeSet<u32>,
    /// Entries that SENDs took, in the order in which they arrived, with the bytes of payload.
    pub received: Vec<(u32, u32)>,
    /// Slabs that the NIC may have written.
    written: BTreeSet<u32>,
    sends: BTreeSet<u64>,
    reads: BTreeMap<u64, PostedRead>,
    next_id: u64,
    next_read: u64,
    /// READs that completed well, by their order.
    pub reads_done: Vec<u64>,
}

impl Host {
    pub fn new(rnr_ms: Option<u64>) -> Self {
        let options = SoftOptions {
            qps_max: 4,
            strangers_max: 4,
            srq_entries_max: ENTRIES,
            reads_max: READS_MAX,
            reads_per_qp_max: READS_MAX,
            reads_answered_per_qp_max: 64,
            sends_per_qp_max: 16,
            completions: 64,
            regions_max: 4,
            rnr_timeout: rnr_ms.map(std::time::Duration::from_millis),
            ..SoftOptions::default()
        };
        let mut nic = SoftNic::new(options).expect("a NIC");
        let pool_key = nic.register(&POOL, Access::LocalWrite).expect("room for it");
        let source = nic.register(&SOURCE, Access::RemoteRead).expect("room for it");
        pool().fill(UNTOUCHED);
        Self {
            nic,
            nic_bytes: 0,
            pool: pool_key,
            source,
            now_ns: 0,
            qps: BTreeMap::new(),
            requested: None,
            given_up: None,
            connected: None,
            posted: BTreeSet::new(),
            received: Vec::new(),
            written: BTreeSet::new(),
            sends: BTreeSet::new(),
            reads: BTreeMap::new(),
            next_id: 0,
            next_read: 0,
            reads_done: Vec::new(),
        }
    }

    /// Calls the NIC, and checks how much memory it takes.
    pub fn nic<T>(&mut self, call: impl FnOnce(&mut SoftNic) -> T) -> T {
        let (value, bytes, bytes_max) = jet_fuzz_memory::of(|| call(&mut self.nic));
        let bytes_max = self.nic_bytes + bytes_max;
        assert!(bytes_max <= MEMORY_MAX, "the NIC took {bytes_max} bytes");
        self.nic_bytes += bytes;
        value
    }

    fn slab(&self, slab: u32) -> Sge {
        let offset = HEADERS as u64 + u64::from(slab) * u64::from(SLAB);
        Sge { key: self.pool, offset, bytes: SLAB }
    }

    pub fn post_srq(&mut self, has_slab: bool) {
        let Some(entry) =
            (0..ENTRIES).find(|entry| !self.posted.contains(entry) && !self.written.contains(entry))
        else {
            return;
        };
        let bytes = HEADER_BYTES as u32;
        let header = Sge { key: self.pool, offset: u64::from(entry) * HEADER_BYTES as u64, bytes };
        let payload = has_slab.then(|| self.slab(entry));
        if self.nic(|nic| nic.post_srq(SrqEntry { id: entry, header, payload })).is_ok() {
            self.posted.insert(entry);
        }
    }

    pub fn post_send(&mut self, payload: &[u8]) {
        let Some(qp) = self.connected else { return };
        let id = self.next_id;
        let header = HeaderBytes([id as u8; HEADER_BYTES]);
        let request = SendRequest { id, header: &header, payload: Payload::Inline(payload) };
        if self.nic(|nic| nic.post_send(qp, request)).is_ok() {
            self.next_id += 1;
            self.sends.insert(id);
        }
    }

    /// Posts a READ into so many slabs, of which the last is filled to `last_bytes`.
    pub fn post_read(&mut self, slabs: u32, last_bytes: u32, address: u64, key: u32) {
        let Some(qp) = self.connected else { return };
        let free = ENTRIES..ENTRIES + READ_SLABS;
        let slabs: Vec<u32> = free.filter(|slab| !self.written.contains(slab)).take(slabs as usize).collect();
        let mut scatter: Vec<Sge> = slabs.iter().map(|&slab| self.slab(slab)).collect();
        if let Some(last) = scatter.last_mut() {
            last.bytes = last_bytes.min(SLAB);
        }
        let bytes = scatter.iter().map(|place| place.bytes as usize).sum();
        let id = self.next_id;
        if self.nic(|nic| nic.post_read(qp, ReadRequest { id, address, key, scatter: &scatter })).is_ok() {
            self.next_id += 1;
            self.written.extend(&slabs);
            self.reads.insert(id, PostedRead { order: self.next_read, slabs, bytes });
            self.next_read += 1;
        }
    }

    /// Lets the NIC work until it would sleep. `is_honest`: the peer keeps the protocol.
    pub fn work(&mut self, is_honest: bool) {
        for _ in 0..2000 {
            let mut some = [Completion::UNUSED; 16];
            let now_ns = self.now_ns;
            let count = self.nic(|nic| nic.poll(now_ns, &mut some));
            for completion in &some[..count] {
                self.completed(completion, is_honest);
            }
            let mut events = 0;
            while let Some(event) = self.nic(|nic| nic.poll_event(now_ns)) {
                self.happened(&event, is_honest);
                events += 1;
                assert!(events < 100, "events without an end");
            }
            if count == 0 && events == 0 {
                if self.nic(|nic| nic.arm(now_ns)) {
                    return;
                }
                // What was pushed waits for its READ for 100 us.
                self.now_ns += 10_000;
            }
        }
        // Bytes that wait for a READ's turn or an SRQ entry are no work; what there is ends before this.
        panic!("the NIC finds work without an end");
    }

    fn completed(&mut self, completion: &Completion, is_honest: bool) {
        match completion.work {
            Work::Receive { entry, payload_bytes } => {
                assert!(self.posted.remove(&entry), "entry {entry} completes, and is not posted");
                assert!(payload_bytes <= SLAB);
                self.written.insert(entry);
                if completion.status == Status::Success {
                    self.received.push((entry, payload_bytes));
                }
            }
            Work::Send { id } => assert!(self.sends.remove(&id), "SEND {id} completes, and is not posted"),
            Work::Read { id } => {
                let read = self.reads.remove(&id).expect("a READ that was posted");
                if completion.status == Status::Success {
                    self.reads_done.push(read.order);
                    if is_honest {
                        for at in 0..read.bytes {
                            let slab = read.slabs[at / SLAB as usize] as usize;
                            let found = pool()[HEADERS + slab * SLAB as usize + at % SLAB as usize];
                            assert_eq!(found, answer_byte(read.order, at), "byte {at} of READ {id}");
                        }
                    }
                }
            }
            Work::SrqFlush { entry } => panic!("entry {entry} comes back from an SRQ that is in use"),
        }
    }

    fn happened(&mut self, event: &Event, is_honest: bool) {
        match *event {
            Event::ConnectRequest { qp, private_data, .. } => {
                assert!(self.qps.insert(qp, None).is_none(), "one request for a connection");
                self.requested = Some((qp, private_data));
            }
            Event::Connected { qp, reads_max, .. } => {
                assert_eq!(self.qps.get(&qp), Some(&None), "a connection that is there");
                assert!(reads_max <= READS_MAX);
                self.connected = Some(qp);
            }
            Event::Rejected { qp, .. } => self.ended(qp, DisconnectReason::Peer),
            Event::Disconnected { qp, reason } => {
                assert!(!is_honest || reason != DisconnectReason::Protocol, "the peer kept the protocol");
                self.ended(qp, reason);
            }
            Event::Gone => panic!("a software NIC has no device"),
        }
    }

    /// Notes that a connection could not be accepted: its peer has gone. Its end may follow.
    pub fn gave_up(&mut self, qp: Qp) {
        self.qps.remove(&qp);
        self.given_up = Some(qp);
    }

    fn ended(&mut self, qp: Qp, reason: DisconnectReason) {
        if self.given_up.take_if(|given_up| *given_up == qp).is_some() {
            return;
        }
        assert_eq!(self.qps.insert(qp, Some(reason)), Some(None), "a connection ends once");
        if self.connected == Some(qp) {
            self.connected = None;
            assert!(self.sends.is_empty(), "SENDs {:?} never completed", self.sends);
            assert!(self.reads.is_empty(), "{} READs never completed", self.reads.len());
        }
        if self.requested.is_some_and(|(requested, _)| requested == qp) {
            self.requested = None;
        }
    }

    /// Compares what arrived with the SENDs of the peer's stream, and the rest of the pool with what it was.
    pub fn check(&self, sends: &[&[u8]]) {
        let pool = pool();
        assert!(self.received.len() <= sends.len(), "more SENDs arrived than there were");
        for (&(entry, payload_bytes), send) in self.received.iter().zip(sends) {
            let (header, payload) = send.split_at(HEADER_BYTES);
            assert_eq!(&pool[entry as usize * HEADER_BYTES..][..HEADER_BYTES], header);
            assert_eq!(payload_bytes as usize, payload.len());
            let (arrived, behind) =
                pool[HEADERS + (entry * SLAB) as usize..][..SLAB as usize].split_at(payload.len());
            assert_eq!(arrived, payload);
            assert!(is_untouched(behind), "bytes behind the payload of {entry}");
        }
        for slab in (0..ENTRIES + READ_SLABS).filter(|slab| !self.written.contains(slab)) {
            let bytes = &pool[HEADERS + (slab * SLAB) as usize..][..SLAB as usize];
            assert!(is_untouched(bytes), "slab {slab} was given to nobody");
            if slab < ENTRIES {
                let header = &pool[slab as usize * HEADER_BYTES..][..HEADER_BYTES];
                assert!(is_untouched(header), "header {slab} was given to nobody");
            }
        }
    }
}
