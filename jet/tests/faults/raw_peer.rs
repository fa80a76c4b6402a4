//! Sender that follows no rules: the test speaks to the NIC by hand and sends whatever it wants.

use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, DisconnectReason, MemoryKey, Payload, PostError, PrivateData, SendRequest, Sge,
    SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::{Address, Clock, Event, Nic, Qp};
use jet_test_support::waiting::WAIT_LIMIT;
use jet_wire::message::hello::{AppName, Hello, Refusal, Welcome, features};
use jet_wire::message::{
    AckStatus, ByeReason, FromReceiver, HEADER_BYTES, HeaderBytes, RequestFields, SmallFields, Versions,
    WIRE_VERSION, parse_from_receiver,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::Instant;

const ENTRIES: u32 = 64;
const ENTRY_BYTES: u32 = 128;
const _: () = assert!(ENTRY_BYTES as usize == HEADER_BYTES);

/// One connection, over a NIC of its own.
pub struct RawPeer {
    nic: Box<dyn Nic>,
    clock: Clock,
    qp: Qp,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    /// Memory that the receiver may READ.
    pub memory: Arc<SharedMemory>,
    pub key: MemoryKey,
    heard: Vec<HeaderBytes>,
    connected: Option<PrivateData>,
    rejected: Option<PrivateData>,
    ended: Option<DisconnectReason>,
}

/// A small message without payload.
pub const SMALL: SmallFields<'static> = SmallFields {
    sequence: 1,
    tag: 1,
    payload_bytes: 0,
    crc32c: None,
    redelivered: false,
    wants_reply: false,
    user_header: b"",
};
/// A request for a large message that lies at the beginning of a region with the key 0.
pub const REQUEST: RequestFields<'static> = RequestFields {
    sequence: 1,
    tag: 1,
    length: 1 << 16,
    address: 0,
    key: 0,
    class: 0,
    pieces: 0,
    crc32c: None,
    redelivered: false,
    wants_reply: false,
    user_header: b"",
};

/// Makes a correct hello.
pub fn hello(app: &str) -> Hello {
    Hello {
        versions: Versions::SUPPORTED,
        features: features::ALL,
        sender_id: 0xbad,
        receive_entries: 64,
        app: AppName::new(app).expect("a name"),
    }
}

fn nic_for(address: &Address) -> Box<dyn Nic> {
    match address {
        #[cfg(feature = "verbs")]
        Address::Rdma(text) => {
            use jet_fabric::verbs::{DeviceChoice, VerbsNic, VerbsOptions};
            let source = jet_test_support::device::source_for(address);
            let defaults = match source {
                Some(ip) => VerbsOptions::on(DeviceChoice::Reaching(ip)),
                None => VerbsOptions::reaching(text).expect("an address"),
            };
            let options = VerbsOptions { qps_max: 4, source, ..defaults };
            Box::new(VerbsNic::new(options).expect("a NIC"))
        }
        _ => Box::new(SoftNic::new(SoftOptions::default()).expect("a NIC")),
    }
}

impl RawPeer {
    /// Asks to connect with these bytes as the hello, and registers `bytes` bytes of memory.
    pub fn knock(address: &Address, words: &[u8], bytes: usize) -> Self {
        Self::knock_with(address, words, SharedMemory::new("jet-raw", bytes, false).expect("memory"))
    }

    fn knock_with(address: &Address, words: &[u8], memory: SharedMemory) -> Self {
        let mut nic = nic_for(address);
        let headers = SharedMemory::new("jet-raw", (ENTRIES * ENTRY_BYTES) as usize, false)
            .map(Arc::new)
            .expect("memory");
        let memory = Arc::new(memory);
        let headers_key = nic.register(&headers, Access::LocalWrite).expect("registered");
        let key = nic.register(&memory, Access::RemoteRead).expect("registered");
        let words = PrivateData::new(words).expect("short");
        let qp = nic.connect(address, &words).expect("somebody listens");
        let mut peer = Self {
            nic,
            clock: Clock::start(),
            qp,
            headers,
            headers_key,
            memory,
            key,
            heard: Vec::new(),
            connected: None,
            rejected: None,
            ended: None,
        };
        (0..ENTRIES).for_each(|entry| peer.post_receive(entry));
        peer
    }

    /// Connects with a correct hello.
    pub fn connect(address: &Address, app: &str, bytes: usize) -> Self {
        Self::connect_with(address, app, SharedMemory::new("jet-raw", bytes, false).expect("memory"))
    }

    /// Connects with a correct hello, and registers this memory.
    pub fn connect_with(address: &Address, app: &str, memory: SharedMemory) -> Self {
        Self::try_connect_with(address, app, memory).expect("it stands")
    }

    /// Connects like [`Self::connect_with`], unless the daemon ends the connection instead.
    pub fn try_connect_with(
        address: &Address,
        app: &str,
        memory: SharedMemory,
    ) -> Result<Self, DisconnectReason> {
        let mut peer = Self::knock_with(address, &hello(app).encode(), memory);
        let welcome =
            peer.until("a welcome", |peer| peer.connected.map(Ok).or_else(|| peer.ended.map(Err)))?;
        Welcome::decode(welcome.as_slice()).expect("a welcome");
        Ok(peer)
    }

    fn post_receive(&mut self, entry: u32) {
        let header =
            Sge { key: self.headers_key, offset: u64::from(entry * ENTRY_BYTES), bytes: ENTRY_BYTES };
        self.nic.post_srq(SrqEntry { id: entry, header, payload: None }).expect("room");
    }

    /// Registers one more region that the receiver may READ.
    pub fn register(&mut self, memory: SharedMemory) {
        self.nic.register(&Arc::new(memory), Access::RemoteRead).expect("registered");
    }

    /// Returns the reason why the connection has ended.
    pub fn ended(&self) -> Option<DisconnectReason> {
        self.ended
    }

    /// Posts a SEND without any check.
    pub fn try_send(&mut self, header: &HeaderBytes, payload: &[u8]) -> Result<(), PostError> {
        let payload = if payload.is_empty() { Payload::None } else { Payload::Inline(payload) };
        self.nic.post_send(self.qp, SendRequest { id: 1, header, payload })
    }

    pub fn send(&mut self, header: &HeaderBytes, payload: &[u8]) {
        self.try_send(header, payload).expect("posted");
    }

    /// Returns the address at which the receiver finds this peer's memory.
    pub fn address(&self) -> u64 {
        self.nic.remote_address(self.key, 0)
    }

    /// Lets the NIC work once, and keeps what it received.
    pub fn turn(&mut self) {
        let nothing = Completion { qp: self.qp, work: Work::Send { id: 0 }, status: Status::Flushed };
        let mut completions = [nothing; 64];
        let now_ns = self.clock.now_ns();
        let count = self.nic.poll(now_ns, &mut completions);
        for completion in &completions[..count] {
            if let Work::Receive { entry, payload_bytes } = completion.work {
                if completion.status == Status::Success {
                    assert_eq!(payload_bytes, 0, "a receiver sends headers only");
                    let mut header = HeaderBytes::ZERO;
                    // SAFETY: the header lies within the header area. The entry is completed, and posted
                    // again only below.
                    unsafe {
                        let from = self.headers.base().add((entry * ENTRY_BYTES) as usize);
                        header.0.as_mut_ptr().copy_from_nonoverlapping(from, HEADER_BYTES);
                    }
                    self.heard.push(header);
                }
                self.post_receive(entry);
            }
        }
        while let Some(event) = self.nic.poll_event(now_ns) {
            match event {
                Event::Connected { private_data, .. } => self.connected = Some(private_data),
                Event::Rejected { private_data, .. } => self.rejected = Some(private_data),
                Event::Disconnected { reason, .. } => self.ended = Some(reason),
                Event::ConnectRequest { .. } | Event::Gone => panic!("{event:?}"),
            }
        }
        self.nic.flush();
    }

    /// Lets the NIC work until `find` finds something, and sleeps on the NIC meanwhile.
    #[track_caller]
    fn until<T>(&mut self, what: &str, find: impl Fn(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            self.turn();
            if let Some(found) = find(self) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited {WAIT_LIMIT:?} for {what}");
            if self.nic.arm(self.clock.now_ns()) {
                let left = Timespec::try_from(left).expect("short");
                poll(&mut [PollFd::from_borrowed_fd(self.nic.wait_fd(), PollFlags::IN)], Some(&left))
                    .expect("poll");
            }
        }
    }

    /// Waits until the daemon hangs up, and returns the reason that it gave, if it gave one.
    #[track_caller]
    pub fn wait_ended(&mut self) -> Option<ByeReason> {
        self.until("the daemon to hang up", |peer| peer.ended);
        self.heard.iter().find_map(|header| {
            match parse_from_receiver(WIRE_VERSION, header, 0).expect("well-formed") {
                FromReceiver::Bye(bye) => bye.reason(),
                _ => None,
            }
        })
    }

    /// Waits until the daemon refuses the connection, and returns the reason if it can be read.
    #[track_caller]
    pub fn wait_refused(&mut self) -> Option<Refusal> {
        let words = self.until("the daemon to refuse", |peer| {
            assert!(peer.connected.is_none(), "it was let in");
            assert!(peer.rejected.is_some() || peer.ended.is_none(), "no refusal, but {:?}", peer.ended);
            peer.rejected
        });
        Refusal::decode(words.as_slice())
    }

    pub fn is_connected(&self) -> bool {
        self.ended.is_none()
    }

    /// Returns the end of a message, if it was received.
    fn heard_end(&self, sequence: u64) -> Option<AckStatus> {
        let ends =
            self.heard.iter().filter_map(|header| match parse_from_receiver(WIRE_VERSION, header, 0) {
                Ok(FromReceiver::Ack(ack)) => ack
                    .ranges()
                    .find(|range| (range.first..range.first + u64::from(range.count)).contains(&sequence)),
                _ => None,
            });
        let ends: Vec<_> = ends.map(|range| range.status).collect();
        assert!(ends.len() <= 1, "message {sequence} ended {} times: {ends:?}", ends.len());
        ends.first().copied()
    }

    /// Waits for the end of a message.
    #[track_caller]
    pub fn wait_end(&mut self, sequence: u64) -> AckStatus {
        self.until("the message's end", |peer| peer.heard_end(sequence))
    }
}
