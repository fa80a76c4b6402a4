//! Two NICs without receiver and application: what a message costs in allocations and system calls, and how long one takes.

use crate::allocations;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, Event, MemoryKey, Nic, Payload, PrivateData, Qp, ReadRequest, SendRequest, Sge,
    SrqEntry, Status, Work,
};
use jet_fabric::verbs::{DeviceChoice, VerbsNic, VerbsOptions};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRIES: u32 = 64;
const SLAB: u32 = 4096;
/// SENDs given to the NIC at once.
pub const BURST: usize = 16;
/// READs given to the NIC at once.
pub const READ_BURST: u64 = 4;
const READ_BYTES: u32 = 256 << 10;

/// One end.
struct End {
    nic: VerbsNic,
    qp: Option<Qp>,
    headers: MemoryKey,
    slabs: MemoryKey,
    completions: [Completion; 64],
    sent: u64,
    received: u64,
    read: u64,
    polls: u64,
}

impl End {
    fn new(ip: IpAddr) -> Result<Self, Box<dyn Error>> {
        let options = VerbsOptions {
            qps_max: 4,
            srq_entries_max: ENTRIES,
            reads_max: 32,
            sends_max: 256,
            inline_places: 1,
            ..VerbsOptions::on(DeviceChoice::Reaching(ip))
        };
        let mut nic = VerbsNic::new(options)?;
        let headers = Arc::new(SharedMemory::new("bench-headers", ENTRIES as usize * HEADER_BYTES, false)?);
        let slabs = Arc::new(SharedMemory::new("bench-slabs", 8 * READ_BYTES as usize, false)?);
        let headers = nic.register(&headers, Access::LocalWrite)?;
        let slabs = nic.register(&slabs, Access::LocalWrite)?;
        let nothing = Completion {
            qp: Qp { index: 0, generation: 0 },
            work: Work::Send { id: 0 },
            status: Status::Flushed,
        };
        let mut end = Self {
            nic,
            qp: None,
            headers,
            slabs,
            completions: [nothing; 64],
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

    /// As long as nothing is received: an end waits for the other without a limit of its own, as `ib_send_lat` does.
    fn until_received(&mut self, count: u64) -> Result<(), Box<dyn Error>> {
        while self.received < count {
            self.step()?;
        }
        Ok(())
    }

    fn send_short(&mut self, id: u64) -> Result<(), Box<dyn Error>> {
        let qp = self.qp.ok_or("connected")?;
        let request = SendRequest { id, header: &HeaderBytes::ZERO, payload: Payload::Inline(&[7; 64]) };
        self.nic.post_send(qp, request)?;
        self.nic.flush();
        Ok(())
    }

    fn step(&mut self) -> Result<(), Box<dyn Error>> {
        self.polls += 1;
        let count = self.nic.poll(&mut self.completions);
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
        while let Some(event) = self.nic.poll_event() {
            match event {
                Event::ConnectRequest { qp, .. } => {
                    self.nic.accept(qp, &PrivateData::new(&[]).ok_or("nothing fits")?)?;
                    self.qp = Some(qp);
                }
                Event::Connected { qp, .. } => self.qp = Some(qp),
                other => return Err(format!("{other:?}").into()),
            }
        }
        self.nic.flush();
        Ok(())
    }
}

/// Allocations of the loops, and how many messages they carried.
pub struct Carried {
    pub sends: u64,
    pub reads: u64,
    pub send_allocations: u64,
    pub read_allocations: u64,
    /// Looks for completions meanwhile, of both ends.
    pub send_polls: u64,
    pub read_polls: u64,
}

/// The second end connects to the first.
fn connect(ip: IpAddr, ends: &mut [End; 2]) -> Result<(), Box<dyn Error>> {
    let address = ends[0].nic.listen(&format!("rdma:{}", std::net::SocketAddr::new(ip, 0)).parse()?)?;
    ends[1].nic.connect(&address, &PrivateData::new(&[]).ok_or("nothing fits")?)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while ends.iter().any(|end| end.qp.is_none()) {
        ends.iter_mut().try_for_each(End::step)?;
        if Instant::now() > deadline {
            return Err("the two ends did not connect".into());
        }
    }
    // The server has its QP before it knows that the connection stands.
    for _ in 0..10_000 {
        ends.iter_mut().try_for_each(End::step)?;
    }
    Ok(())
}

/// Half of what a message of 64 bytes and one back take, in microseconds, the median: two threads, each with one end, as
/// `ib_send_lat` has two processes. The header goes with each.
///
/// # Errors
/// What the NICs say.
pub fn half_round_trip(ip: IpAddr, trips: usize) -> Result<f64, Box<dyn Error>> {
    let mut ends = [End::new(ip)?, End::new(ip)?];
    connect(ip, &mut ends)?;
    let [mut echo, mut asker] = ends;
    let echoing = std::thread::spawn(move || -> Result<End, String> {
        for trip in 0..trips as u64 {
            echo.until_received(trip + 1).map_err(|error| error.to_string())?;
            echo.send_short(trip).map_err(|error| error.to_string())?;
        }
        while echo.sent < trips as u64 {
            echo.step().map_err(|error| error.to_string())?;
        }
        // Not ended here: the asker would hear of that before this thread is over, and call it an error.
        Ok(echo)
    });
    let mut spans = Vec::with_capacity(trips);
    for trip in 0..trips as u64 {
        let start = Instant::now();
        asker.send_short(trip)?;
        asker.until_received(trip + 1)?;
        spans.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    while !echoing.is_finished() {
        asker.step()?;
    }
    let _echo = echoing.join().map_err(|_| "the echoing end panicked")??;
    Ok(crate::report::median(&spans))
}

/// Carries messages, SENDs in chains of [`BURST`] and READs in chains of [`READ_BURST`]. Tells `mark` twice before, so that what
/// marking itself takes is known; then when the SENDs begin, when the READs begin, and when all is over.
///
/// # Errors
/// What the NICs say.
pub fn carry(ip: IpAddr, sends: u64, reads: u64, mut mark: impl FnMut()) -> Result<Carried, Box<dyn Error>> {
    let mut ends = [End::new(ip)?, End::new(ip)?];
    let source = Arc::new(SharedMemory::new("bench-source", READ_BYTES as usize, false)?);
    let source_key = ends[1].nic.register(&source, Access::RemoteRead)?;
    connect(ip, &mut ends)?;
    let header = HeaderBytes::ZERO;
    let payload = Payload::Registered(Sge { key: source_key, offset: 0, bytes: SLAB });
    let send = |ends: &mut [End; 2], until: u64| -> Result<(), Box<dyn Error>> {
        let qp = ends[1].qp.ok_or("connected")?;
        while ends[1].sent < until {
            for id in 0..BURST as u64 {
                ends[1].nic.post_send(qp, SendRequest { id, header: &header, payload })?;
            }
            ends[1].nic.flush();
            let target = ends[1].sent + BURST as u64;
            while ends[1].sent < target || ends[0].received < target {
                ends.iter_mut().try_for_each(End::step)?;
            }
        }
        Ok(())
    };
    let read = |ends: &mut [End; 2], until: u64| -> Result<(), Box<dyn Error>> {
        let qp = ends[0].qp.ok_or("connected")?;
        let from = ends[1].nic.remote_address(source_key, 0);
        let scatter = [Sge { key: ends[0].slabs, offset: 0, bytes: READ_BYTES }];
        while ends[0].read < until {
            for id in 0..READ_BURST {
                let request = ReadRequest { id, address: from, key: source_key.0, scatter: &scatter };
                ends[0].nic.post_read(qp, request)?;
            }
            ends[0].nic.flush();
            let target = ends[0].read + READ_BURST;
            while ends[0].read < target {
                ends.iter_mut().try_for_each(End::step)?;
            }
        }
        Ok(())
    };
    // Everything is used once before it is counted.
    send(&mut ends, BURST as u64)?;
    read(&mut ends, READ_BURST)?;
    mark();
    mark();
    let polls = |ends: &[End; 2]| ends.iter().map(|end| end.polls).sum::<u64>();
    let polls_before = polls(&ends);
    let before = allocations::count();
    send(&mut ends, BURST as u64 + sends)?;
    let between = allocations::count();
    let polls_between = polls(&ends);
    mark();
    let between_after = allocations::count();
    read(&mut ends, READ_BURST + reads)?;
    let after = allocations::count();
    mark();
    Ok(Carried {
        sends,
        reads,
        send_allocations: between - before,
        read_allocations: after - between_after,
        send_polls: polls_between - polls_before,
        read_polls: polls(&ends) - polls_between,
    })
}
