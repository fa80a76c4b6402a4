//! The sender's driver: it carries out on a NIC what the protocol asks for, and reports to the protocol what
//! happened.
//!
//! The driver opens no NIC, does not sleep, has no thread and reads no clock. NICs are handed in, and time is
//! a number of nanoseconds of any clock that does not go back. So a simulator can use it as [`super::Sender`]
//! does. Call [`Driver::drive`] after every submission, whenever the NIC has something, and at
//! [`Driver::next_timeout_ns`]. Then call [`Driver::poll_end`] until it returns `None`.

use super::buffer::{BufferPool, SendBuffer};
use super::copies::CopyArea;
use super::error::SendConnectError;
use super::exchange::{Action, ProtocolStats, Replied};
use super::options::{Identity, ProtocolOptions, SenderOptions};
use super::protocol::Protocol;
use super::replies::{Replies, Reply};
use super::submission::{Pending, Ticket};
use crate::exactly_once::SEQUENCE_SPAN;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, ConnectError, DisconnectReason, MemoryKey, PrivateData, Sge, SrqEntry, Status, Work,
};
use jet_fabric::{Address, Event, Nic, Qp};
use jet_wire::message::hello::{AppName, Hello, Refusal, Welcome, features};
use jet_wire::message::{AckStatus, ByeReason, HEADER_BYTES, HeaderBytes, Versions, WaitsFor};
use jet_wire::ring::copy_once;
use std::io;
use std::sync::Arc;

/// Receive entries for acknowledgements; each carries up to six ranges of ends. A NIC that is handed in must
/// take as many.
pub const RECEIVE_ENTRIES: u16 = 64;

const HEADER_BYTES_U32: u32 = 128;
const _: () = assert!(HEADER_BYTES == HEADER_BYTES_U32 as usize);
/// The most completions taken at once.
const BATCH: usize = 64;
/// Pause between two calls of [`Driver::drive`], in nanoseconds, after which one call must notice that the
/// connection ended or was made.
const RARE_DRIVE_NS: u64 = 1_000_000;
/// State of the NIC's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceState {
    There,
    /// The device was removed; the connection is ending.
    Leaving,
    /// The device is gone. A NIC without connections stands in for it.
    Gone,
}

/// Source of a driver's NICs after the first one.
pub trait NicSource: Send {
    /// Opens another NIC that reaches the same receiver, because the device of the last one was removed.
    ///
    /// # Errors
    /// [`SendConnectError`]: there is no device yet. The error counts as a failed attempt to connect.
    fn open(&mut self) -> Result<Box<dyn Nic>, SendConnectError>;

    /// Makes a NIC without connections, for the time without a device. A device can be removed only when
    /// nobody holds anything of it.
    ///
    /// # Errors
    /// The system's error; the next call of [`Driver::drive`] asks again.
    fn stand_in(&mut self) -> io::Result<Box<dyn Nic>>;
}

/// A message's end, as [`Driver::poll_end`] returns it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ended {
    /// Ticket of the message.
    pub ticket: Ticket,
    /// Tag of the message.
    pub tag: u64,
    /// Status that the message ended with.
    pub status: AckStatus,
    /// The message's buffer, to be used again. `None` for a message that was copied.
    pub buffer: Option<SendBuffer>,
    /// The buffers of a message in pieces, to be used again. None of any other message.
    pub pieces: Vec<SendBuffer>,
    /// The bytes of a message that was sent from where they lie.
    #[cfg(feature = "bytes")]
    pub bytes: Option<bytes::Bytes>,
    /// The application's reply, where the message wanted one and the application gave one.
    pub reply: Option<Reply>,
    /// Time of the submission, in nanoseconds.
    pub submitted_ns: u64,
}

/// A sender without a clock: the protocol, the NIC below it and the messages above it.
pub struct Driver {
    pub(super) nic: Box<dyn Nic>,
    pub(super) protocol: Protocol,
    pub(super) pending: Box<[Pending]>,
    pub(super) copy_area: CopyArea,
    pub(super) buffers: BufferPool,
    /// Memory for replies, where the options ask for it.
    pub(super) replies: Option<Replies>,
    pub(super) crc: bool,
    /// Messages without a checksum though one was asked for.
    pub(super) unchecked: u64,
    sender_id: u64,
    address: Address,
    nics: Box<dyn NicSource>,
    hello: PrivateData,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    pub(super) qp: Option<Qp>,
    device: DeviceState,
    /// How often another NIC took the place of the present one.
    devices: u32,
    /// Whether the receiver's welcome on `qp` was handled.
    welcomed: bool,
    /// Headers that arrived before the welcome of their connection, in their order: entry and payload bytes.
    /// Their entries are not posted meanwhile, so there are at most [`RECEIVE_ENTRIES`].
    early: Vec<(u32, u32)>,
    /// SENDs posted since the NIC's doorbell was rung.
    pub(super) unflushed: u32,
    completions: Box<[Completion]>,
    /// Time of the last call of [`Self::drive`], in nanoseconds.
    driven_ns: u64,
    /// Reason why the newest attempt to connect failed.
    failure: Option<SendConnectError>,
}

impl Driver {
    /// Makes a driver over a NIC. It wants to connect. `sender_id` is the sender's identity, which the
    /// application sees with every message, where the options name none: no two senders have the same.
    ///
    /// # Errors
    /// [`SendConnectError`]: an option is invalid, or memory cannot be allocated or registered.
    pub fn new(
        options: &SenderOptions,
        sender_id: u64,
        mut nic: Box<dyn Nic>,
        nics: Box<dyn NicSource>,
    ) -> Result<Self, SendConnectError> {
        if !(1..=1 << 16).contains(&options.in_flight_max) {
            return Err(SendConnectError::Option("in_flight_max must be 1 to 65,536"));
        }
        let (sender_id, first_sequence, sequence_span) = match options.identity {
            None => (sender_id, 1, u64::MAX),
            Some(_) if u64::from(options.in_flight_max) > SEQUENCE_SPAN => {
                return Err(SendConnectError::Option("with an identity in_flight_max must be 1 to 1024"));
            }
            Some(Identity { id, first_sequence }) => (id, first_sequence, SEQUENCE_SPAN),
        };
        if !(1..=1 << 62).contains(&first_sequence) {
            return Err(SendConnectError::Option("first_sequence must be 1 to 2^62"));
        }
        let app = AppName::new(&options.app)?;
        let hello = Hello {
            versions: Versions::SUPPORTED,
            features: if options.replies { features::ALL } else { features::ALL & !features::REPLIES },
            sender_id,
            receive_entries: RECEIVE_ENTRIES,
            app,
        };
        let hello = PrivateData::new(&hello.encode()).expect("a hello fits the private data");
        let limits = nic.limits();
        let headers =
            Arc::new(SharedMemory::new("jet-headers", usize::from(RECEIVE_ENTRIES) * HEADER_BYTES, false)?);
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let replies = options.replies.then(|| Replies::new(nic.as_mut(), options.in_flight_max));
        let replies = replies.transpose()?;
        let copy_area = CopyArea::new(nic.as_mut(), options.in_flight_max, &options.address)?;
        let protocol = Protocol::new(ProtocolOptions {
            sender_id,
            first_sequence,
            sequence_span,
            in_flight_max: options.in_flight_max,
            sends_max: limits.sends_per_qp_max.max(1),
            window_bytes: options.window_bytes,
            reconnect_for: options.reconnect_for,
            receiver_timeout: options.receiver_timeout,
            backoff: options.backoff,
            retry: options.retry,
            ..ProtocolOptions::default()
        });
        let mut driver = Self {
            nic,
            protocol,
            pending: (0..options.in_flight_max).map(|_| Pending::NONE).collect(),
            copy_area,
            buffers: BufferPool::new(options.region_bytes),
            replies,
            crc: options.crc,
            unchecked: 0,
            sender_id,
            address: options.address.clone(),
            nics,
            hello,
            headers,
            headers_key,
            qp: None,
            device: DeviceState::There,
            devices: 0,
            welcomed: false,
            early: Vec::with_capacity(usize::from(RECEIVE_ENTRIES)),
            unflushed: 0,
            completions: vec![Completion::UNUSED; BATCH].into_boxed_slice(),
            failure: None,
            driven_ns: 0,
        };
        driver.post_receives();
        Ok(driver)
    }

    /// Returns the latest time of the next call of [`Self::drive`], in nanoseconds, if nothing else happens.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.protocol.poll_timeout()
    }

    /// Whether the next call of [`Self::drive`] connects or disconnects.
    pub(super) fn has_action(&self) -> bool {
        self.protocol.has_action()
    }

    /// Whether no further attempt to connect is made by itself.
    pub(super) fn has_given_up(&self) -> bool {
        self.protocol.has_given_up()
    }

    /// Takes the reason why the newest attempt to connect failed, or why the receiver ended a connection for
    /// this sender's memory, also after that connection stood.
    pub fn take_failure(&mut self) -> Option<SendConnectError> {
        self.failure.take()
    }

    /// Does everything that can be done now: takes completions and events, and posts what may be sent.
    pub fn drive(&mut self, now_ns: u64) {
        let idle_ns = now_ns.saturating_sub(std::mem::replace(&mut self.driven_ns, now_ns));
        if idle_ns > RARE_DRIVE_NS && !matches!(self.address, Address::Rdma(_)) {
            // A software NIC checks its sockets once in many polls, and at the first poll after it was armed.
            // The result does not matter: the poll that follows sees what is there.
            let _ = self.nic.arm(now_ns);
        }
        // What was posted at its submission goes before the NIC is polled, which takes as long as a SEND.
        if self.unflushed > 0 {
            self.ring();
        }
        self.take_completions(now_ns);
        while let Some(event) = self.nic.poll_event(now_ns) {
            self.handle_event(event, now_ns);
        }
        if self.device == DeviceState::Leaving && self.qp.is_none() {
            self.drop_device();
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

    /// Returns the next message's end.
    #[inline]
    pub fn poll_end(&mut self) -> Option<Ended> {
        let end = self.protocol.poll_end()?;
        if self.unflushed > 0 {
            self.ring();
        }
        let pending = &mut self.pending[end.index as usize];
        let reply = pending.reply.take();
        let given_back = std::mem::take(&mut pending.held).given_back();
        Some(Ended {
            ticket: Ticket(end.sequence),
            tag: pending.tag,
            status: end.status,
            buffer: given_back.buffer,
            pieces: given_back.pieces,
            #[cfg(feature = "bytes")]
            bytes: given_back.bytes,
            reply,
            submitted_ns: pending.submitted_ns,
        })
    }

    /// Accepts no further messages, lets those in flight end, then disconnects.
    pub fn close(&mut self) {
        self.protocol.close();
    }

    /// Whether the driver was closed, every message has its end, and there is no connection. Ends may still
    /// be polled.
    pub fn is_closed(&self) -> bool {
        self.protocol.is_closed()
    }

    /// Whether the driver is connected.
    pub fn is_connected(&self) -> bool {
        self.protocol.is_connected()
    }

    /// Returns the number of messages without an end.
    pub fn unfinished(&self) -> u32 {
        self.protocol.unfinished()
    }

    /// Whether another message would be accepted, as far as room is concerned.
    pub(super) fn has_room(&self) -> bool {
        self.protocol.has_room()
    }

    /// Returns the number of messages whose end was not polled.
    pub fn in_flight(&self) -> usize {
        self.protocol.in_flight()
    }

    /// Returns the reason that the receiver gave for ending the last connection, if it gave one.
    pub fn farewell(&self) -> Option<ByeReason> {
        self.protocol.farewell()
    }

    /// Returns what the messages wait for at the receiver, as its last heartbeat said it. `None`: nothing
    /// waits, something ended since, there was no heartbeat yet, or the receiver never says it.
    pub fn waits_for(&self) -> Option<WaitsFor> {
        self.protocol.waits_for()
    }

    /// Returns the protocol's counters.
    pub fn stats(&self) -> ProtocolStats {
        self.protocol.stats()
    }

    /// Returns the share of its windows that the driver may use after congestion signals, in thousandths.
    pub fn window_permille(&self) -> u32 {
        self.protocol.window_permille()
    }

    /// Returns the sender's identity.
    pub fn id(&self) -> u64 {
        self.sender_id
    }

    /// Returns how often the NIC became another one, and its descriptor with it.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Returns the NIC, to be armed and waited for.
    pub fn nic(&mut self) -> &mut dyn Nic {
        self.nic.as_mut()
    }

    fn take_completions(&mut self, now_ns: u64) {
        loop {
            let taken = self.nic.poll(now_ns, &mut self.completions);
            for at in 0..taken {
                let Completion { qp, work, status } = self.completions[at];
                match work {
                    Work::Receive { entry, payload_bytes } if status == Status::Success => {
                        self.take_header(qp, entry, payload_bytes, now_ns);
                    }
                    Work::Receive { entry, .. } => self.post_receive(entry),
                    // A connection that ended had taken it.
                    Work::SrqFlush { entry } if status == Status::Flushed => self.post_receive(entry),
                    Work::Send { id } => {
                        self.protocol.handle_send_completed(id, status == Status::Success, now_ns);
                    }
                    // A sender posts no READs. An entry that the NIC refused would be refused again.
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
            // The header belongs to an earlier connection, so nothing in it holds for this one.
            self.protocol.handle_stray_header();
        } else if self.welcomed {
            self.hear(entry, payload_bytes, now_ns);
        } else {
            // Completions and events come over different queues, in no order between the two.
            return self.early.push((entry, payload_bytes));
        }
        self.post_receive(entry);
    }

    /// Handles the headers that arrived before the welcome did.
    fn handle_early(&mut self, now_ns: u64) {
        for at in 0..self.early.len() {
            let (entry, payload_bytes) = self.early[at];
            self.hear(entry, payload_bytes, now_ns);
            self.post_receive(entry);
        }
        self.early.clear();
    }

    /// Handles a header of the present connection, and takes the reply that it may bring.
    #[inline]
    fn hear(&mut self, entry: u32, payload_bytes: u32, now_ns: u64) {
        let header = self.header(entry);
        let replied = self.protocol.handle_header(&header, payload_bytes as usize, now_ns);
        if let Some(Replied { index, bytes }) = replied {
            let Self { pending, replies, .. } = self;
            let pending = &mut pending[index as usize];
            // A receiver that replies to what wanted none is heard for the end alone.
            if let Some(replies) = replies.as_ref().filter(|_| pending.wants_reply) {
                pending.reply = Some(replies.take(entry, bytes));
            }
        }
    }

    /// Forgets a connection that ended, or was never made. Headers that arrived before its welcome are only
    /// counted.
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
        // SAFETY: within the header area, whose headers are 128 bytes each from a page's begin on. The NIC
        // wrote the header before it completed the entry, and leaves it alone until the entry is posted
        // again. The header is read once, so that what is checked is what is used.
        unsafe { copy_once(self.headers.base().add(entry as usize * HEADER_BYTES).cast::<HeaderBytes>()) }
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
        let payload = self.replies.as_ref().map(|replies| replies.sge(entry));
        self.nic
            .post_srq(SrqEntry { id: entry, header, payload })
            .expect("the SRQ takes as many entries as it gave back, in registered memory");
    }

    fn handle_event(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Connected { qp, private_data, .. } if self.qp == Some(qp) => {
                match Welcome::decode(private_data.as_slice()) {
                    Ok(welcome) => {
                        // A region that was not taken is not taken by the next connection either.
                        self.failure.take_if(|failure| !matches!(failure, SendConnectError::Region { .. }));
                        self.protocol.handle_connected(&welcome, now_ns);
                        self.welcomed = true;
                        self.handle_early(now_ns);
                    }
                    Err(source) => {
                        let address = self.address.clone();
                        self.failure = Some(SendConnectError::Welcome { address, source });
                        // The connection's end arrives as an event, and counts as a failed attempt.
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
                // Why a region was not taken says more than that an earlier attempt found nobody.
                let is_region = matches!(reason, DisconnectReason::Region(_));
                if is_region && self.copy_area.withdraw(self.nic.as_mut()) {
                    // The next connection has one region less. If that is still too many, it says so.
                } else if is_region || (!self.protocol.is_connected() && self.failure.is_none()) {
                    self.failure = Some(self.failure_of(reason));
                }
                self.forget_connection();
                self.protocol.handle_disconnected(now_ns);
            }
            // Nobody connects to a sender. The remaining events are about earlier connections.
            Event::ConnectRequest { qp, .. } => {
                let nothing = PrivateData::new(&[]).expect("nothing fits");
                self.nic.reject(qp, &nothing);
            }
            Event::Gone => self.device = DeviceState::Leaving,
            Event::Connected { .. } | Event::Rejected { .. } | Event::Disconnected { .. } => {}
        }
    }

    /// Drops the NIC of a removed device. A device can be removed only when no program holds a resource of
    /// it. A NIC without connections takes its place until another device is there. Memory that is registered
    /// meanwhile is registered again with the next device.
    fn drop_device(&mut self) {
        // Where the stand-in cannot be made, either, the next turn tries again.
        if let Ok(stand_in) = self.nics.stand_in() {
            self.nic = stand_in;
            self.devices = self.devices.wrapping_add(1);
            self.device = DeviceState::Gone;
        }
    }

    /// Registers all memory with the device that is there now, and posts the receive entries.
    fn take_another_device(&mut self) -> Result<(), SendConnectError> {
        let mut nic = self.nics.open()?;
        let headers_key = nic.register(&self.headers, Access::LocalWrite)?;
        self.copy_area.move_to(nic.as_mut(), &self.address)?;
        self.buffers.move_to(nic.as_mut())?;
        if let Some(replies) = &mut self.replies {
            replies.move_to(nic.as_mut())?;
        }
        self.headers_key = headers_key;
        (self.nic, self.device) = (nic, DeviceState::There);
        self.devices = self.devices.wrapping_add(1);
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
                source @ ConnectError::Busy { .. } => SendConnectError::Busy(source),
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
            DisconnectReason::Region(source) => SendConnectError::Region { address, source },
            reason => SendConnectError::Lost { address, reason },
        }
    }

    fn act(&mut self, action: Action, now_ns: u64) {
        match (action, self.qp) {
            (Action::Connect, _) => match self.connect() {
                Ok(qp) => self.qp = Some(qp),
                Err(failure) => {
                    if !matches!(self.failure, Some(SendConnectError::Region { .. })) {
                        self.failure = Some(failure);
                    }
                    self.protocol.handle_disconnected(now_ns);
                }
            },
            (Action::Disconnect, Some(qp)) => self.nic.disconnect(qp),
            (Action::Disconnect, None) => self.protocol.handle_disconnected(now_ns),
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("id", &self.sender_id)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
