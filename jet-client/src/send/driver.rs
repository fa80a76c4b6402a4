//! Carries out on a NIC what the protocol says, and tells the protocol what happened.

use super::buffer::BufferPool;
use super::error::SendConnectError;
use super::nic::{RECEIVE_ENTRIES, nic_for, stand_in};
use super::options::{ProtocolOptions, RdmaOptions};
use super::protocol::{Action, CREDIT_RETURN_ID, Protocol, Transmit};
use super::sender::{Completion, Pending, SenderOptions, Ticket};
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion as NicCompletion, ConnectError, DisconnectReason, MemoryKey, Payload, PostError,
    PrivateData, SendRequest, Sge, SrqEntry, Status, Work,
};
use jet_fabric::{Address, Event, Nic, Qp};
use jet_wire::message::hello::{AppName, Hello, Refusal, Welcome, features};
use jet_wire::message::{
    CreditReturn, HEADER_BYTES, HeaderBytes, REQUEST_INLINE_USER_HEADER_MAX, RequestFields, RequestHeader,
    SMALL_USER_HEADER_MAX, SmallFields, SmallHeader, Versions,
};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HEADER_BYTES_U32: u32 = 128;
const _: () = assert!(HEADER_BYTES == HEADER_BYTES_U32 as usize);
/// Completions taken at once.
const BATCH: usize = 64;
/// SENDs that are posted before the doorbell is rung for them: so many that ringing costs little, so few that the
/// receiver works on them while the next are written.
const SENDS_PER_RING: u32 = 8;
/// Whoever drives the NIC less often than this is to learn of a connection's end, or of its return, by one call.
const SELDOM_NS: u64 = 1_000_000;
/// Over `shm:`, payloads of more bytes are left where they lie, for the receiver's NIC to take them from there; copying
/// fewer costs no more than finding them.
const COPIED_BYTES_MAX: u32 = 512;

/// Where copied payloads and long user headers lie: 4 KiB for each message that may be in flight.
#[derive(Debug)]
pub(super) struct CopyArea {
    memory: Arc<SharedMemory>,
    key: MemoryKey,
}

impl CopyArea {
    fn new(nic: &mut dyn Nic, places: u32, access: Access) -> Result<Self, SendConnectError> {
        let memory = Arc::new(SharedMemory::new("jet-copies", places as usize * SLAB_BYTES, false)?);
        // It may be passed to the peer, which only reads it.
        memory.seal_future_writes()?;
        let key = nic.register(&memory, access)?;
        Ok(Self { memory, key })
    }

    /// Copies bytes into a message's place.
    ///
    /// # Panics
    /// Where there is no such place or the bytes exceed it.
    #[inline]
    pub(super) fn write(&mut self, index: u32, bytes: &[u8]) {
        let start = index as usize * SLAB_BYTES;
        assert!(
            bytes.len() <= SLAB_BYTES && start < self.memory.bytes(),
            "place {index} takes no {}",
            bytes.len()
        );
        // SAFETY: within the area, which is this sender's alone; the message of this place is new, so no SEND of it
        // is outstanding and the NIC does not read it.
        unsafe {
            self.memory.base().add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    fn payload(&self, index: u32, bytes: u32, inline_bytes_max: u32) -> Payload<'_> {
        let offset = u64::from(index) * u64::from(SLAB_BYTES_U32);
        if bytes == 0 {
            return Payload::None;
        }
        if bytes > inline_bytes_max {
            return Payload::Registered(Sge { key: self.key, offset, bytes });
        }
        // SAFETY: within the area (checked by `write`), and only `write`, which borrows mutably, changes it.
        Payload::Inline(unsafe {
            std::slice::from_raw_parts(self.memory.base().add(index as usize * SLAB_BYTES), bytes as usize)
        })
    }
}

/// How copied payloads reach the receiver at this address: who may read where they lie, and the most bytes that the NIC
/// copies once more when they are posted. Over `shm:` the receiver's NIC reads them itself, which saves that copy; it is
/// shown nothing but what is sent to it. Other NICs send from their own memory.
fn copies_travel(address: &Address, nic: &dyn Nic) -> (Access, u32) {
    let inline_bytes_max = nic.limits().inline_bytes_max;
    match address {
        Address::Shm(_) => (Access::RemoteRead, inline_bytes_max.min(COPIED_BYTES_MAX)),
        Address::Tcp(_) | Address::Rdma(_) => (Access::LocalWrite, inline_bytes_max),
    }
}

/// Whether the NIC's device is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceState {
    There,
    /// It was removed; the connection is ending.
    Leaving,
    /// A NIC without connections stands in.
    Gone,
}

/// The protocol, the NIC below it and the messages above it.
pub(super) struct Driver {
    pub nic: Box<dyn Nic>,
    pub protocol: Protocol,
    pub pending: Box<[Pending]>,
    pub copy_area: CopyArea,
    pub buffers: BufferPool,
    pub sender_id: u64,
    address: Address,
    source: Option<IpAddr>,
    rdma: RdmaOptions,
    hello: PrivateData,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    qp: Option<Qp>,
    device: DeviceState,
    /// The receiver's welcome on `qp` was handled.
    welcomed: bool,
    /// Headers that came before their connection's welcome was told, in their order: entry and payload bytes. Their
    /// entries stay taken, so there are at most [`RECEIVE_ENTRIES`].
    early: Vec<(u32, u32)>,
    /// SENDs posted since the NIC's doorbell was rung.
    unflushed: u32,
    inline_bytes_max: u32,
    completions: Box<[NicCompletion]>,
    /// When [`Self::drive`] was called last.
    driven_ns: u64,
    /// Why the newest attempt to connect failed.
    failure: Option<SendConnectError>,
    start: Instant,
}

impl Driver {
    pub(super) fn new(options: &SenderOptions, mut nic: Box<dyn Nic>) -> Result<Self, SendConnectError> {
        if !(1..=1 << 16).contains(&options.in_flight_max) {
            return Err(SendConnectError::Option("in_flight_max must be 1 to 65,536"));
        }
        let app = AppName::new(&options.app)?;
        // Random, as its keys are; no cipher hangs on it.
        let sender_id = std::hash::RandomState::new().build_hasher().finish();
        let hello = Hello {
            versions: Versions::SPOKEN,
            features: features::ALL,
            sender_id,
            receive_entries: RECEIVE_ENTRIES,
            app,
        };
        let hello = PrivateData::new(&hello.encode()).expect("a hello fits the private data");
        let limits = nic.limits();
        let headers =
            Arc::new(SharedMemory::new("jet-headers", usize::from(RECEIVE_ENTRIES) * HEADER_BYTES, false)?);
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let (access, inline_bytes_max) = copies_travel(&options.address, nic.as_ref());
        let copy_area = CopyArea::new(nic.as_mut(), options.in_flight_max, access)?;
        let protocol = Protocol::new(ProtocolOptions {
            sender_id,
            in_flight_max: options.in_flight_max,
            sends_max: limits.sends_per_qp_max.max(1),
            window_bytes: options.window_bytes,
            reconnect_for_ns: nanoseconds(options.reconnect_for),
            silence_ns: nanoseconds(options.silence_max),
            backoff: options.backoff,
            retry: options.retry,
            ..ProtocolOptions::default()
        });
        let pending = || Pending {
            tag: 0,
            class: 0,
            large: false,
            length: 0,
            crc32c: None,
            submitted_ns: 0,
            buffer: None,
            user_header_bytes: 0,
            user_header: [0; SMALL_USER_HEADER_MAX],
        };
        let unused = NicCompletion {
            qp: Qp { index: 0, generation: 0 },
            work: Work::Send { id: 0 },
            status: Status::Flushed,
        };
        let mut driver = Self {
            nic,
            protocol,
            pending: (0..options.in_flight_max).map(|_| pending()).collect(),
            copy_area,
            buffers: BufferPool::new(options.region_bytes),
            sender_id,
            address: options.address.clone(),
            source: options.source,
            rdma: options.rdma,
            hello,
            headers,
            headers_key,
            qp: None,
            device: DeviceState::There,
            welcomed: false,
            early: Vec::with_capacity(usize::from(RECEIVE_ENTRIES)),
            unflushed: 0,
            inline_bytes_max,
            completions: vec![unused; BATCH].into_boxed_slice(),
            failure: None,
            driven_ns: 0,
            start: Instant::now(),
        };
        driver.post_receives();
        Ok(driver)
    }

    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        nanoseconds(self.start.elapsed())
    }

    /// Prepares to sleep on the NIC; `false` where it has work.
    pub(super) fn arm(&mut self) -> bool {
        let now_ns = self.now_ns();
        self.nic.arm(now_ns)
    }

    /// How long until the protocol wants to be told the time.
    pub(super) fn until_timeout(&self) -> Option<Duration> {
        let at = self.protocol.poll_timeout()?;
        Some(Duration::from_nanos(at.saturating_sub(self.now_ns())))
    }

    /// Why the newest attempt to connect failed.
    pub(super) fn take_failure(&mut self) -> Option<SendConnectError> {
        self.failure.take()
    }

    /// Does everything that can be done now.
    pub(super) fn drive(&mut self) {
        let now_ns = self.now_ns();
        let idle_ns = now_ns - std::mem::replace(&mut self.driven_ns, now_ns);
        if idle_ns > SELDOM_NS && !matches!(self.address, Address::Rdma(_)) {
            // A software NIC looks at its sockets once in many polls, and at once after it was armed. Whether there is
            // something already does not matter: the poll that follows sees it.
            let _ = self.nic.arm(now_ns);
        }
        self.take_completions(now_ns);
        while let Some(event) = self.nic.poll_event(now_ns) {
            self.handle_event(event, now_ns);
        }
        if self.device == DeviceState::Leaving && self.qp.is_none() {
            self.let_go_of_the_device();
        }
        if self.protocol.poll_timeout().is_some_and(|at| at <= now_ns) {
            self.protocol.handle_timeout(now_ns);
        }
        while let Some(action) = self.protocol.poll_action() {
            self.act(action, now_ns);
        }
        self.transmit();
        self.ring();
    }

    /// Rings the NIC's doorbell for what was posted.
    #[inline]
    fn ring(&mut self) {
        self.unflushed = 0;
        self.nic.flush();
    }

    /// The next message's end.
    #[inline]
    pub(super) fn take_end(&mut self) -> Option<Completion> {
        let end = self.protocol.poll_end()?;
        if self.unflushed > 0 {
            self.ring();
        }
        let now_ns = self.now_ns();
        let pending = &mut self.pending[end.index as usize];
        Some(Completion {
            ticket: Ticket(end.sequence),
            status: end.status,
            buffer: pending.buffer.take(),
            latency_ns: now_ns.saturating_sub(pending.submitted_ns),
        })
    }

    fn take_completions(&mut self, now_ns: u64) {
        loop {
            let taken = self.nic.poll(now_ns, &mut self.completions);
            for at in 0..taken {
                let NicCompletion { qp, work, status } = self.completions[at];
                match work {
                    Work::Receive { entry, payload_bytes } if status == Status::Success => {
                        self.take_header(qp, entry, payload_bytes, now_ns);
                    }
                    Work::Receive { entry, .. } => self.post_receive(entry),
                    Work::Send { id } => {
                        self.protocol.handle_send_completed(id, status == Status::Success, now_ns);
                    }
                    // A sender posts no READs, and tears its SRQ down with the NIC.
                    Work::Read { .. } | Work::SrqFlush { .. } => {}
                }
            }
            if taken < self.completions.len() {
                return;
            }
        }
    }

    #[inline]
    fn take_header(&mut self, qp: Qp, entry: u32, payload_bytes: u32, now_ns: u64) {
        if self.qp != Some(qp) {
            // An earlier connection's: nothing of it holds for this one.
            self.protocol.handle_stray_header();
        } else if self.welcomed {
            let header = self.header(entry);
            self.protocol.handle_header(&header, payload_bytes as usize, now_ns);
        } else {
            // Completions and events come over different queues, in no order between the two.
            return self.early.push((entry, payload_bytes));
        }
        self.post_receive(entry);
    }

    /// The welcome was handled: so is what came before it was told.
    fn handle_early(&mut self, now_ns: u64) {
        for at in 0..self.early.len() {
            let (entry, payload_bytes) = self.early[at];
            let header = self.header(entry);
            self.protocol.handle_header(&header, payload_bytes as usize, now_ns);
            self.post_receive(entry);
        }
        self.early.clear();
    }

    /// The connection is over, or never was: what came before its welcome belongs to nothing.
    fn forget_connection(&mut self) {
        self.qp = None;
        self.welcomed = false;
        while let Some((entry, _)) = self.early.pop() {
            self.protocol.handle_stray_header();
            self.post_receive(entry);
        }
    }

    fn header(&self, entry: u32) -> HeaderBytes {
        assert!(
            entry < u32::from(RECEIVE_ENTRIES),
            "the NIC completed entry {entry}, which was never posted"
        );
        // SAFETY: within the header area; the NIC wrote it before it completed the entry and leaves it alone until the
        // entry is posted again. Read once, so that what is checked is what is used.
        unsafe {
            self.headers.base().add(entry as usize * HEADER_BYTES).cast::<HeaderBytes>().read_volatile()
        }
    }

    fn post_receives(&mut self) {
        (0..u32::from(RECEIVE_ENTRIES)).for_each(|entry| self.post_receive(entry));
    }

    fn post_receive(&mut self, entry: u32) {
        let header = Sge {
            key: self.headers_key,
            offset: u64::from(entry) * u64::from(HEADER_BYTES_U32),
            bytes: HEADER_BYTES_U32,
        };
        self.nic
            .post_srq(SrqEntry { id: entry, header, payload: None })
            .expect("the SRQ takes as many entries as it gave back, in registered memory");
    }

    fn handle_event(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Connected { qp, private_data, .. } if self.qp == Some(qp) => {
                match Welcome::decode(private_data.as_slice()) {
                    Ok(welcome) => {
                        self.failure = None;
                        self.protocol.handle_connected(&welcome, now_ns);
                        self.welcomed = true;
                        self.handle_early(now_ns);
                    }
                    Err(source) => {
                        let address = self.address.clone();
                        self.failure = Some(SendConnectError::Welcome { address, source });
                        // Its end comes as an event, and counts as an attempt that failed.
                        self.nic.disconnect(qp);
                    }
                }
            }
            Event::Rejected { qp, private_data } if self.qp == Some(qp) => {
                let refusal = Refusal::decode(private_data.as_slice());
                let address = self.address.clone();
                self.failure = Some(match refusal {
                    Some(refusal) => SendConnectError::Refused { address, refusal },
                    None => SendConnectError::Lost { address, reason: DisconnectReason::Peer },
                });
                self.forget_connection();
                self.protocol.handle_refused(refusal, now_ns);
            }
            Event::Disconnected { qp, reason } if self.qp == Some(qp) => {
                if !self.protocol.is_connected() && self.failure.is_none() {
                    self.failure = Some(self.failure_of(reason));
                }
                self.forget_connection();
                self.protocol.handle_disconnected(now_ns);
            }
            // Nobody connects to a sender; what is not this connection's is over.
            Event::ConnectRequest { qp, .. } => {
                let nothing = PrivateData::new(&[]).expect("nothing fits");
                self.nic.reject(qp, &nothing);
            }
            Event::Gone => self.device = DeviceState::Leaving,
            Event::Connected { .. } | Event::Rejected { .. } | Event::Disconnected { .. } => {}
        }
    }

    /// A device can leave only when nobody holds anything of it. Until another is there, a NIC without connections stands
    /// in: what is done meanwhile with memory is done again when the next is set up.
    fn let_go_of_the_device(&mut self) {
        // Where even that is refused, the next turn tries again.
        if let Ok(stand_in) = stand_in() {
            self.nic = stand_in;
            self.device = DeviceState::Gone;
        }
    }

    /// Sets everything up on the device that is there now.
    fn take_another_device(&mut self) -> Result<(), SendConnectError> {
        let mut nic = nic_for(&self.address, self.source, self.rdma)?;
        let headers_key = nic.register(&self.headers, Access::LocalWrite)?;
        let (access, inline_bytes_max) = copies_travel(&self.address, nic.as_ref());
        let copies_key = nic.register(&self.copy_area.memory, access)?;
        self.buffers.move_to(nic.as_mut())?;
        (self.headers_key, self.copy_area.key) = (headers_key, copies_key);
        self.inline_bytes_max = inline_bytes_max;
        (self.nic, self.device) = (nic, DeviceState::There);
        self.post_receives();
        Ok(())
    }

    fn connect(&mut self) -> Result<Qp, SendConnectError> {
        if self.device == DeviceState::Gone {
            self.take_another_device()?;
        }
        self.nic.connect(&self.address, &self.hello).map_err(|source| {
            let address = self.address.clone();
            match source {
                ConnectError::WrongFabric { .. } => SendConnectError::WrongFabric { address },
                source => SendConnectError::Nobody { address, source },
            }
        })
    }

    fn failure_of(&self, reason: DisconnectReason) -> SendConnectError {
        let address = self.address.clone();
        match reason {
            DisconnectReason::Transport(errno) if errno == rustix::io::Errno::MSGSIZE.raw_os_error() => {
                SendConnectError::Packets { address }
            }
            DisconnectReason::Transport(errno) => {
                let source = std::io::Error::from_raw_os_error(errno);
                let source = ConnectError::System { address: address.clone(), source };
                SendConnectError::Nobody { address, source }
            }
            reason => SendConnectError::Lost { address, reason },
        }
    }

    fn act(&mut self, action: Action, now_ns: u64) {
        match (action, self.qp) {
            (Action::Connect, _) => match self.connect() {
                Ok(qp) => self.qp = Some(qp),
                Err(failure) => {
                    self.failure = Some(failure);
                    self.protocol.handle_disconnected(now_ns);
                }
            },
            (Action::Disconnect, Some(qp)) => self.nic.disconnect(qp),
            (Action::Disconnect, None) => self.protocol.handle_disconnected(now_ns),
        }
    }

    /// Posts what may be sent now. The NIC's doorbell is rung for every few SENDs; for the last ones by `drive`.
    #[inline]
    pub(super) fn transmit(&mut self) {
        let Some(qp) = self.qp else { return };
        while let Some(transmit) = self.protocol.poll_transmit() {
            match self.post(qp, transmit) {
                Ok(()) => {
                    self.unflushed += 1;
                    if self.unflushed >= SENDS_PER_RING {
                        self.ring();
                    }
                }
                // Full for now, or the connection is gone and its event about to come.
                Err(PostError::QueueFull | PostError::Stale) => {
                    self.protocol.handle_not_sent(transmit);
                    return;
                }
                // It would be refused as often as it is posted. The connection ends, and its messages go again over the next:
                // whoever uses the sender does not end with it.
                Err(PostError::LocalProtection | PostError::Limit) => {
                    self.protocol.handle_not_sent(transmit);
                    self.nic.disconnect(qp);
                    return;
                }
            }
        }
    }

    #[inline]
    fn post(&mut self, qp: Qp, transmit: Transmit) -> Result<(), PostError> {
        let (id, index, sequence, redelivered) = match transmit {
            Transmit::Message { id, index, sequence, redelivered } => (id, index, sequence, redelivered),
            Transmit::CreditReturn { credit_limit } => {
                let mut header = CreditReturn::encode(credit_limit);
                header.set_version(self.protocol.version());
                let request = SendRequest { id: CREDIT_RETURN_ID, header: &header, payload: Payload::None };
                return self.nic.post_send(qp, request);
            }
        };
        let pending = &self.pending[index as usize];
        let inline_max = self.inline_bytes_max;
        let (mut header, payload) = if pending.large {
            let buffer = pending.buffer.as_ref().expect("a large message has its buffer");
            let long = pending.user_header_bytes > REQUEST_INLINE_USER_HEADER_MAX;
            let header = RequestHeader::encode(&RequestFields {
                sequence,
                tag: pending.tag,
                length: pending.length,
                address: self.nic.remote_address(buffer.key(), buffer.offset()),
                key: buffer.key().0,
                class: pending.class,
                crc32c: pending.crc32c,
                redelivered,
                user_header: pending.header_or_filler(),
            });
            let bytes = if long { pending.user_header_bytes } else { 0 };
            let bytes = u32::try_from(bytes).expect("at most 256");
            (header, self.copy_area.payload(index, bytes, inline_max))
        } else {
            let payload_bytes = u32::try_from(pending.length).expect("checked when it was accepted");
            let header = SmallHeader::encode(&SmallFields {
                sequence,
                tag: pending.tag,
                payload_bytes,
                crc32c: pending.crc32c,
                redelivered,
                user_header: pending.header_or_filler(),
            });
            let payload = match &pending.buffer {
                None => self.copy_area.payload(index, payload_bytes, inline_max),
                Some(_) if payload_bytes == 0 => Payload::None,
                Some(buffer) => Payload::Registered(buffer.sge(payload_bytes)),
            };
            (header, payload)
        };
        header.set_version(self.protocol.version());
        self.nic.post_send(qp, SendRequest { id, header: &header, payload })
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
