//! Part `sparse`: senders over `shm:` whose memory is holes, and who let the daemon read all of it.
//!
//! A hole that is filled stays filled for as long as the sender's file lives, and the kernel charges the page
//! to whoever filled it. So what holes cost the daemon is the pages that were added to the senders' files
//! meanwhile, and what its own memory grew by. Its pool and its escape memory have their own limits, and are
//! left out.
//!
//! The senders speak to their NIC by hand, since the library allocates the memory that it sends from.

use super::{LIMIT, PartRows, Plan};
use crate::report::{Bound, Row};
use crate::resident_memory::Resident;
use crate::rig::{APP, Rig};
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, MemoryKey, Payload, PrivateData, SendRequest, Sge, SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::{Address, Clock, Event, Nic, Qp};
use jet_wire::message::hello::{AppName, Hello, features};
use jet_wire::message::{
    AckStatus, FromReceiver, HEADER_BYTES, HeaderBytes, RequestFields, RequestHeader, Versions, WIRE_VERSION,
    parse_from_receiver,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Name of the senders' files: by it [`Resident`] knows them as the senders' memory, which is counted by the
/// pages of the files.
const FILE: &str = "jet-send";
/// Senders, each with a region of holes.
const SENDERS: usize = 3;
const SENDERS_BRIEF: usize = 1;
const REGION_BYTES: usize = 1 << 30;
const REGION_BYTES_BRIEF: usize = 64 << 20;
/// Messages in which each region is read.
const MESSAGES: usize = 8;
/// SENDs of the daemon that a sender takes at once.
const ENTRIES: u32 = 64;
/// Bound: MiB that the daemon's memory may grow by.
const GROWTH_MIB: f64 = 16.0;

/// A sender without data: a NIC with one connection, and a region of holes.
struct SparseSender {
    nic: SoftNic,
    clock: Clock,
    qp: Qp,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    holes: Arc<SharedMemory>,
    holes_key: MemoryKey,
    sequence: u64,
    is_connected: bool,
    /// End of the message `sequence`.
    ended: Option<AckStatus>,
}

impl SparseSender {
    fn connect(to: &Address, sender_id: u64, region_bytes: usize) -> Result<Self, Box<dyn Error>> {
        let mut nic = SoftNic::new(SoftOptions::default())?;
        let headers = Arc::new(SharedMemory::new("jet-headers", ENTRIES as usize * HEADER_BYTES, false)?);
        let holes = Arc::new(SharedMemory::lazy(FILE, region_bytes)?);
        holes.seal_future_writes()?;
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let holes_key = nic.register(&holes, Access::RemoteRead)?;
        let hello = Hello {
            versions: Versions::SUPPORTED,
            features: features::ALL,
            sender_id,
            receive_entries: u16::try_from(ENTRIES)?,
            app: AppName::new(APP)?,
        };
        let words = PrivateData::new(&hello.encode()).ok_or("a hello is short")?;
        let qp = nic.connect(to, &words)?;
        let (sequence, is_connected, ended) = (0, false, None);
        let clock = Clock::start();
        let mut sender =
            Self { nic, clock, qp, headers, headers_key, holes, holes_key, sequence, is_connected, ended };
        for entry in 0..ENTRIES {
            sender.post_receive(entry)?;
        }
        sender.until("its connection", |sender| sender.is_connected)?;
        Ok(sender)
    }

    fn post_receive(&mut self, id: u32) -> Result<(), Box<dyn Error>> {
        let bytes = u32::try_from(HEADER_BYTES)?;
        let header = Sge { key: self.headers_key, offset: u64::from(id * bytes), bytes };
        Ok(self.nic.post_srq(SrqEntry { id, header, payload: None })?)
    }

    /// Lets the daemon read the region, in messages one after the other.
    fn send_all(&mut self) -> Result<(), Box<dyn Error>> {
        let bytes = self.holes.bytes() / MESSAGES;
        for start in (0..self.holes.bytes()).step_by(bytes) {
            self.sequence += 1;
            self.ended = None;
            let fields = RequestFields {
                sequence: self.sequence,
                tag: self.sequence,
                length: bytes as u64,
                address: self.nic.remote_address(self.holes_key, start as u64),
                key: self.holes_key.0,
                class: 0,
                pieces: 0,
                crc32c: None,
                redelivered: false,
                wants_reply: false,
                user_header: b"",
            };
            let header = RequestHeader::encode(&fields);
            self.nic.post_send(self.qp, SendRequest { id: 1, header: &header, payload: Payload::None })?;
            self.until("its message's end", |sender| sender.ended.is_some())?;
            match self.ended {
                Some(AckStatus::Consumed) => {}
                other => return Err(format!("a message of holes ended {other:?}").into()),
            }
        }
        Ok(())
    }

    /// Returns the bytes of the region that have a page.
    fn allocated_bytes(&self) -> Result<u64, Box<dyn Error>> {
        Ok(u64::try_from(rustix::fs::fstat(&*self.holes)?.st_blocks)? * 512)
    }

    /// Lets the NIC work until the condition holds, and sleeps meanwhile.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        loop {
            self.turn()?;
            if is_so(self) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("a sender of holes waited {LIMIT:?} for {what}").into());
            }
            if self.nic.arm(self.clock.now_ns()) {
                let fd = PollFd::from_borrowed_fd(self.nic.wait_fd(), PollFlags::IN);
                poll(&mut [fd], Some(&Timespec::try_from(left)?))?;
            }
        }
    }

    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        let nothing = Completion { qp: self.qp, work: Work::Send { id: 0 }, status: Status::Flushed };
        let mut completions = [nothing; ENTRIES as usize];
        let now_ns = self.clock.now_ns();
        let count = self.nic.poll(now_ns, &mut completions);
        for completion in &completions[..count] {
            let Work::Receive { entry, .. } = completion.work else { continue };
            if completion.status == Status::Success {
                self.hear(entry)?;
            }
            self.post_receive(entry)?;
        }
        while let Some(event) = self.nic.poll_event(now_ns) {
            match event {
                Event::Connected { .. } => self.is_connected = true,
                event => return Err(format!("a sender of holes lost its connection: {event:?}").into()),
            }
        }
        self.nic.flush();
        Ok(())
    }

    /// Looks into what was received for the end of the message that waits for one.
    fn hear(&mut self, entry: u32) -> Result<(), Box<dyn Error>> {
        let mut header = HeaderBytes::ZERO;
        // SAFETY: the header lies within the header area. Its entry is completed, and posted again only after
        // this.
        unsafe {
            let from = self.headers.base().add(entry as usize * HEADER_BYTES);
            header.0.as_mut_ptr().copy_from_nonoverlapping(from, HEADER_BYTES);
        }
        match parse_from_receiver(WIRE_VERSION, &header, 0)? {
            FromReceiver::Ack(ack) => {
                let of_it = |first, count| (first..first + u64::from(count)).contains(&self.sequence);
                let mut ranges = ack.ranges();
                self.ended = ranges.find(|range| of_it(range.first, range.count)).map(|range| range.status);
                Ok(())
            }
            FromReceiver::Bye(bye) => Err(format!("the daemon says goodbye: {:?}", bye.reason()).into()),
            _ => Ok(()),
        }
    }
}

/// Runs the part `sparse` of the benchmark `others`.
///
/// # Errors
/// An error of the rig or a sender.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let region_bytes = plan.run_size.of(REGION_BYTES, REGION_BYTES_BRIEF);
    let (mut grown_mib, mut read_gb_per_s) = (Vec::new(), Vec::new());
    #[allow(clippy::cast_precision_loss)] // some gigabytes
    for _ in plan.turns("sparse") {
        let rig = Rig::start("shm", true, plan.settings)?;
        let to = rig.address_over("shm")?;
        let of_daemon = || Resident::of(rig.daemon_pid()).map(|resident| resident.beyond);
        let before = of_daemon()?;
        let (mut allocated, mut read, begin) = (0, 0, Instant::now());
        let mut senders = Vec::new();
        for sender_id in (1..).take(plan.run_size.of(SENDERS, SENDERS_BRIEF)) {
            let mut sender = SparseSender::connect(&to, sender_id, region_bytes)?;
            let pages_before = sender.allocated_bytes()?;
            sender.send_all()?;
            allocated += sender.allocated_bytes()? - pages_before;
            read += region_bytes;
            // It stays: what the daemon keeps for a sender shows only as long as the sender is there.
            senders.push(sender);
        }
        read_gb_per_s.push(read as f64 / 1e9 / begin.elapsed().as_secs_f64());
        let own_mib = (of_daemon()? - before).max(0.0);
        grown_mib.push(own_mib + allocated as f64 / f64::from(1 << 20));
        drop(senders);
    }
    let mut part = PartRows { rows, name: "sparse" };
    part.timed("shm: holes read", "GB/s", read_gb_per_s, Bound::None);
    let metric = "shm: growth of the daemon's memory beside senders of holes";
    let most = grown_mib.into_iter().fold(0.0, f64::max);
    part.exact(metric, "MiB", most, Bound::AtMost(GROWTH_MIB));
    Ok(())
}
