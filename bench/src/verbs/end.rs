//! One end of the connections between two verbs NICs, without receiver and application.

use jet_fabric::CoarseClock;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, Event, MemoryKey, Nic, Payload, PrivateData, Qp, SendRequest, Sge, SrqEntry, Status,
    Work,
};
use jet_fabric::verbs::{VerbsNic, VerbsOptions};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of SRQ entries that an end posts.
pub const ENTRIES: u32 = 64;
pub const SLAB: u32 = 4096;
/// Bytes of the memory that READs fill.
pub const AREA_BYTES: u32 = 2 << 20;
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// One end of the connections between two NICs: a NIC, its memory, and counts of completed operations.
pub struct End {
    pub nic: VerbsNic,
    clock: CoarseClock,
    /// Connections of this end, in the order in which they were requested or accepted.
    pub qps: Vec<Qp>,
    connected: usize,
    headers: MemoryKey,
    pub slabs: MemoryKey,
    completions: [Completion; 64],
    /// Number of this end's SENDs that its NIC has completed so far.
    pub sent: u64,
    /// Number of the other end's SENDs that have arrived so far.
    pub received: u64,
    /// Number of this end's READs that have completed so far.
    pub read: u64,
    /// Number of polls for completions so far.
    pub polls: u64,
}

impl End {
    /// Opens a NIC with `options`, and posts all SRQ entries.
    pub fn new(options: VerbsOptions) -> Result<Self, Box<dyn Error>> {
        let room = options.qps_max as usize;
        let mut nic = VerbsNic::new(options)?;
        let headers = Arc::new(SharedMemory::new("bench-headers", ENTRIES as usize * HEADER_BYTES, false)?);
        let slabs = Arc::new(SharedMemory::new("bench-slabs", AREA_BYTES as usize, false)?);
        let headers = nic.register(&headers, Access::LocalWrite)?;
        let slabs = nic.register(&slabs, Access::LocalWrite)?;
        let mut end = Self {
            nic,
            clock: CoarseClock::start(),
            qps: Vec::with_capacity(room),
            connected: 0,
            headers,
            slabs,
            completions: [Completion::UNUSED; 64],
            sent: 0,
            received: 0,
            read: 0,
            polls: 0,
        };
        (0..ENTRIES).try_for_each(|entry| end.post_entry(entry))?;
        Ok(end)
    }

    fn post_entry(&mut self, entry: u32) -> Result<(), Box<dyn Error>> {
        let header_bytes = u32::try_from(HEADER_BYTES)?;
        let header = Sge { key: self.headers, offset: u64::from(entry * header_bytes), bytes: header_bytes };
        let payload = Some(Sge { key: self.slabs, offset: u64::from(entry * SLAB), bytes: SLAB });
        Ok(self.nic.post_srq(SrqEntry { id: entry, header, payload })?)
    }

    /// Posts a SEND of a header with a payload, or without one.
    pub fn send(&mut self, qp: Qp, id: u64, payload: Payload<'_>) -> Result<(), Box<dyn Error>> {
        Ok(self.nic.post_send(qp, SendRequest { id, header: &HeaderBytes::ZERO, payload })?)
    }

    /// Polls the NIC once and handles its completions and events.
    pub fn step(&mut self) -> Result<(), Box<dyn Error>> {
        self.polls += 1;
        let now_ns = self.clock.turn();
        let count = self.nic.poll(now_ns, &mut self.completions);
        for at in 0..count {
            let completion = self.completions[at];
            if completion.status != Status::Success {
                return Err(format!("{completion:?}").into());
            }
            match completion.work {
                Work::Receive { entry, .. } => {
                    self.received += 1;
                    self.post_entry(entry)?;
                }
                Work::Send { .. } => self.sent += 1,
                Work::Read { .. } => self.read += 1,
                Work::SrqFlush { .. } => {}
            }
        }
        while let Some(event) = self.nic.poll_event(now_ns) {
            match event {
                Event::ConnectRequest { qp, .. } => {
                    self.nic.accept(qp, &nothing()?)?;
                    self.qps.push(qp);
                }
                Event::Connected { .. } => self.connected += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
        self.nic.flush();
        Ok(())
    }
}

fn nothing() -> Result<PrivateData, Box<dyn Error>> {
    Ok(PrivateData::new(&[]).ok_or("nothing fits")?)
}

/// Makes `count` connections from the second of two ends to the first, one after the other.
///
/// # Errors
/// An error of the NICs, or that they take longer than a minute.
pub fn connect(ip: IpAddr, ends: &mut [End; 2], count: usize) -> Result<(), Box<dyn Error>> {
    let address = ends[0].nic.listen(&format!("rdma:{}", SocketAddr::new(ip, 0)).parse()?)?;
    let deadline = Instant::now() + CONNECT_LIMIT;
    for wanted in 1..=count {
        let qp = ends[1].nic.connect(&address, &nothing()?)?;
        ends[1].qps.push(qp);
        while ends.iter().any(|end| end.connected < wanted) {
            ends.iter_mut().try_for_each(End::step)?;
            if Instant::now() > deadline {
                return Err(format!("two ends did not connect {count} times in {CONNECT_LIMIT:?}").into());
            }
        }
    }
    Ok(())
}
