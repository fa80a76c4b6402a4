//! A NIC in memory, whose completions and events come in an order that a test chooses.

use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, ConnectError, Counters, DisconnectReason, Limits, ListenError, MemoryKey, Payload,
    PostError, PrivateData, ReadRequest, RegisterError, SendRequest, SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::{Address, Event, Nic, Qp};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// Script of a NIC: what the NIC reports next, and what was asked of it.
#[derive(Default)]
pub(super) struct Script {
    pub completions: VecDeque<Completion>,
    pub events: VecDeque<Event>,
    pub srq: VecDeque<SrqEntry>,
    pub registered: Vec<Arc<SharedMemory>>,
    /// Part of `registered` that the peer may READ, and that may be passed to it.
    pub shown: Vec<Arc<SharedMemory>>,
    /// Number of attempts to connect.
    pub connects: u16,
    /// Header and payload of each SEND. A SEND completes only when the test says so.
    pub sent: Vec<(HeaderBytes, Vec<u8>)>,
    /// Memory that was offered: its region's number, its place there, and its bytes.
    pub offered: Vec<(u32, u64, u32)>,
    /// SENDs that have not completed.
    pub sending: VecDeque<(Qp, u64)>,
    /// Error with which every SEND is refused.
    pub refuses: Option<PostError>,
    pub disconnects: Vec<Qp>,
    /// What happens with each attempt to connect.
    pub at_connect: Option<fn(&mut Script, Qp)>,
}

impl Script {
    /// Completes every SEND that was posted.
    pub(super) fn complete_sends(&mut self, status: Status) {
        while let Some((qp, id)) = self.sending.pop_front() {
            self.completions.push_back(Completion { qp, work: Work::Send { id }, status });
        }
    }

    /// Ends a connection: flushes what was under way, then reports the end.
    pub(super) fn lose(&mut self, qp: Qp) {
        self.complete_sends(Status::Flushed);
        self.events.push_back(Event::Disconnected { qp, reason: DisconnectReason::Peer });
    }

    /// Gives the next entry of the SRQ back without a SEND.
    pub(super) fn flush_entry(&mut self, qp: Qp, work: impl FnOnce(u32) -> Work) {
        let entry = self.srq.pop_front().expect("an entry");
        self.completions.push_back(Completion { qp, work: work(entry.id), status: Status::Flushed });
    }

    /// Puts a header into the next entry of the SRQ.
    pub(super) fn receive(&mut self, qp: Qp, header: &HeaderBytes) {
        let entry = self.srq.pop_front().expect("an entry");
        let memory = &self.registered[entry.header.key.0 as usize];
        let offset = usize::try_from(entry.header.offset).unwrap();
        assert!(offset + HEADER_BYTES <= memory.bytes());
        // SAFETY: within the header area (checked above), whose entry the driver gave to the NIC.
        unsafe { memory.base().add(offset).cast::<HeaderBytes>().write(*header) };
        let work = Work::Receive { entry: entry.id, payload_bytes: 0 };
        self.completions.push_back(Completion { qp, work, status: Status::Success });
    }
}

pub(super) struct ScriptedNic {
    script: Arc<Mutex<Script>>,
    limits: Limits,
    /// File that is never readable: nobody waits for this NIC.
    nothing: File,
}

impl ScriptedNic {
    pub(super) fn new(script: &Arc<Mutex<Script>>) -> Self {
        let limits = SoftNic::new(SoftOptions::default()).unwrap().limits();
        Self { script: Arc::clone(script), limits, nothing: File::open("/dev/null").unwrap() }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }
}

impl Nic for ScriptedNic {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError> {
        let mut script = self.script();
        if access == Access::RemoteRead {
            script.shown.push(Arc::clone(memory));
        }
        script.registered.push(Arc::clone(memory));
        Ok(MemoryKey(u32::try_from(script.registered.len() - 1).unwrap()))
    }

    fn deregister(&mut self, _: MemoryKey) {}

    fn remote_address(&self, _: MemoryKey, offset: u64) -> u64 {
        offset
    }

    fn listen(&mut self, address: &Address) -> Result<Address, ListenError> {
        panic!("a sender listens at {address}")
    }

    fn stop_listening(&mut self) {}

    fn connect(&mut self, _: &Address, _: &PrivateData) -> Result<Qp, ConnectError> {
        let mut script = self.script();
        script.connects += 1;
        let qp = qp(script.connects);
        if let Some(happen) = script.at_connect {
            happen(&mut script, qp);
        }
        Ok(qp)
    }

    fn accept(&mut self, qp: Qp, _: &PrivateData) -> Result<(), PostError> {
        panic!("a sender accepts {qp:?}")
    }

    fn reject(&mut self, _: Qp, _: &PrivateData) {}

    fn disconnect(&mut self, qp: Qp) {
        self.script().disconnects.push(qp);
    }

    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        self.script().srq.push_back(entry);
        Ok(())
    }

    fn post_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        let mut script = self.script();
        script.refuses.map_or(Ok(()), Err)?;
        let payload = match request.payload {
            Payload::None => Vec::new(),
            Payload::Inline(bytes) => bytes.to_vec(),
            Payload::Registered(sge) => {
                let memory = &script.registered[sge.key.0 as usize];
                let (offset, bytes) = (usize::try_from(sge.offset).unwrap(), sge.bytes as usize);
                assert!(offset + bytes <= memory.bytes());
                // SAFETY: within the memory (checked above), which the sender does not change until the SEND
                // has completed.
                unsafe { std::slice::from_raw_parts(memory.base().add(offset), bytes) }.to_vec()
            }
        };
        script.sent.push((*request.header, payload));
        script.sending.push_back((qp, request.id));
        Ok(())
    }

    fn post_read(&mut self, qp: Qp, _: ReadRequest<'_>) -> Result<(), PostError> {
        panic!("a sender reads from {qp:?}")
    }

    fn offer(&mut self, _: Qp, address: u64, key: u32, bytes: u32) {
        self.script().offered.push((key, address, bytes));
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _: u64, completions: &mut [Completion]) -> usize {
        let mut script = self.script();
        let taken = completions.len().min(script.completions.len());
        completions.iter_mut().zip(script.completions.drain(..taken)).for_each(|(to, from)| *to = from);
        taken
    }

    fn poll_event(&mut self, _: u64) -> Option<Event> {
        self.script().events.pop_front()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.nothing.as_fd()
    }

    fn arm(&mut self, _: u64) -> bool {
        true
    }
}

/// Returns the connection of attempt number `attempt`.
pub(super) fn qp(attempt: u16) -> Qp {
    Qp { index: 0, generation: attempt.into() }
}
