//! A sender that breaks the rules. It speaks to the receiver's NIC itself, beside what `jet-client` would do.
//!
//! Whatever it does, the others lose nothing: its own connection is all that may end, and its own messages
//! are all that may be wrong.

mod plan;

pub use plan::{Cheat, CheatPlan};

use crate::event::{CHEAT, Event, WRONG_CHECKSUM};
use crate::observer::Observer;
use crate::payload::{CHEAT_BYTES, Payload};
use crate::receiver::ADDRESS;
use crate::simulation::app_number;
use fastrand::Rng;
use jet_fabric::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    self, Access, Completion, Event as NicEvent, MemoryKey, Nic, PostError, PrivateData, Qp, SendRequest,
    Sge, SrqEntry, Status, Work,
};
use jet_fabric::sim::{Network, SimNic};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::hello::{AppName, HELLO_BYTES, Hello, Welcome, features};
use jet_wire::message::{
    CreditReturn, FromReceiver, HEADER_BYTES, HeaderBytes, REQUEST_INLINE_USER_HEADER_MAX, RequestFields,
    RequestHeader, SmallFields, SmallHeader, USER_HEADER_MAX, Versions, parse_from_receiver,
};
use std::error::Error;
use std::sync::Arc;

/// SENDs beyond its credit, at most.
const OVERSPENT_MAX: u64 = 48;
/// Nanoseconds until it looks again whether its connection has ended.
const LOOK_NS: u64 = 1_000_000;

/// What it knows of its connection.
#[derive(Clone, Copy, Debug)]
enum Connection {
    None,
    /// It has asked for one.
    Asked(Qp),
    Up {
        qp: Qp,
        version: u8,
        /// SENDs that it made, and that it may make.
        sent: u64,
        limit: u64,
        /// Bytes of the longest message that the receiver takes.
        message_bytes_max: u64,
    },
    /// It has left, and the connection has not ended.
    Left,
}

/// A cheat's process.
pub struct CheatProcess {
    nic: SimNic,
    plan: CheatPlan,
    app_name: String,
    random: Rng,
    source: Arc<SharedMemory>,
    source_key: MemoryKey,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    connection: Connection,
    /// Low bits of its identities: each connection has one of its own.
    number: u64,
    sequence: u64,
    /// Whether the next message is to be changed: then its checksum may be left out.
    is_scrambling: bool,
    /// Last header that it sent, and the bytes of its payload.
    last: Option<(HeaderBytes, u32)>,
    is_calm: bool,
}

impl CheatProcess {
    /// Starts a process. `number`: which of the cheats it is.
    ///
    /// # Errors
    /// The NIC's error.
    pub fn start(
        plan: CheatPlan,
        number: u64,
        network: &Network,
        random: Rng,
        app_name: String,
    ) -> Result<Self, Box<dyn Error>> {
        let mut nic = network.nic(plan.nic())?;
        let source = Arc::new(SharedMemory::lazy("sim-cheat", CHEAT_BYTES)?);
        // SAFETY: the mapping is of so many bytes, and nobody else has it yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(source.base(), CHEAT_BYTES) };
        Payload::of_cheat(number).write(0, bytes);
        let source_key = nic.register(&source, Access::RemoteRead)?;
        let entries = if plan.is_deaf { 0 } else { nic.limits().srq_entries_max.min(32) };
        let headers = Arc::new(SharedMemory::lazy("sim-cheat-headers", 32 * HEADER_BYTES)?);
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let mut cheat = Self {
            nic,
            plan,
            app_name,
            random,
            source,
            source_key,
            headers,
            headers_key,
            connection: Connection::None,
            number,
            sequence: 0,
            is_scrambling: false,
            last: None,
            is_calm: false,
        };
        (0..entries).for_each(|entry| cheat.post_entry(entry));
        Ok(cheat)
    }

    /// Lets it leave for good.
    pub fn calm(&mut self) {
        self.is_calm = true;
    }

    /// Runs once. Returns the time at which it runs again; `None`: it does nothing more by itself.
    pub fn run(&mut self, now_ns: u64, observer: &mut Observer) -> Option<u64> {
        self.poll(now_ns, observer);
        if self.is_calm {
            self.leave();
            let is_gone = matches!(self.connection, Connection::None);
            return (!is_gone).then_some(now_ns + LOOK_NS);
        }
        if self.plan.actions == 0 {
            // It is silent, and still there.
            return None;
        }
        match self.connection {
            Connection::None => {
                self.plan.actions -= 1;
                self.connect(now_ns, observer);
            }
            Connection::Asked(_) | Connection::Left => {}
            Connection::Up { .. } => {
                self.plan.actions -= 1;
                let breaks = self.random.u32(..1000) < self.plan.cheats_permille;
                // Its first words are long said.
                let cheat =
                    self.random.choice(&self.plan.cheats).copied().filter(|cheat| *cheat != Cheat::Hello);
                match cheat.filter(|_| breaks) {
                    Some(cheat) => {
                        if self.cheat(cheat) {
                            observer.counts().add(cheat.name());
                        }
                    }
                    None => self.send_as_it_must_be(),
                }
            }
        }
        self.nic.flush();
        Some(now_ns + self.random.u64(1..=self.plan.pause_ns))
    }

    fn post_entry(&mut self, entry: u32) {
        let header = Sge {
            key: self.headers_key,
            offset: u64::from(entry) * HEADER_BYTES as u64,
            bytes: u32::try_from(HEADER_BYTES).expect("a header is short"),
        };
        // Without an entry it is deaf for a while, which is as good.
        let _ = self.nic.post_srq(SrqEntry { id: entry, header, payload: None });
    }

    fn poll(&mut self, now_ns: u64, observer: &mut Observer) {
        let mut completions = [Completion::UNUSED; 16];
        loop {
            let count = self.nic.poll(now_ns, &mut completions);
            for done in &completions[..count] {
                match done.work {
                    Work::Receive { entry, .. } => {
                        if done.status == Status::Success {
                            self.take_header(entry, observer);
                        }
                        self.post_entry(entry);
                    }
                    Work::SrqFlush { entry, .. } => self.post_entry(entry),
                    Work::Send { .. } | Work::Read { .. } => {}
                }
            }
            if count < completions.len() {
                break;
            }
        }
        while let Some(event) = self.nic.poll_event(now_ns) {
            match event {
                NicEvent::Connected { qp, private_data, .. } => {
                    match Welcome::decode(private_data.as_slice()) {
                        Ok(welcome) => {
                            self.connection = Connection::Up {
                                qp,
                                version: welcome.agreed_version(),
                                sent: 0,
                                limit: welcome.credit_limit,
                                message_bytes_max: welcome.message_bytes_max,
                            };
                        }
                        Err(error) => observer.fail("cheat", format!("a welcome that is wrong: {error}")),
                    }
                }
                NicEvent::Rejected { .. } | NicEvent::Disconnected { .. } => {
                    self.connection = Connection::None;
                }
                NicEvent::ConnectRequest { .. } | NicEvent::Gone => {}
            }
        }
    }

    fn take_header(&mut self, entry: u32, observer: &mut Observer) {
        let Connection::Up { version, sent, limit, .. } = &mut self.connection else { return };
        let mut header = HeaderBytes::ZERO;
        let from = entry as usize * HEADER_BYTES;
        // SAFETY: within the mapping; its completion was polled, and nobody writes there before it is posted
        // again.
        unsafe {
            let at = self.headers.base().add(from);
            std::ptr::copy_nonoverlapping(at, header.0.as_mut_ptr(), HEADER_BYTES);
        }
        match parse_from_receiver(*version, &header, 0) {
            Ok(FromReceiver::Ack(ack)) => *limit = ack.credit_limit.get(),
            Ok(FromReceiver::Credit(credit)) if credit.recall() => {
                // It answers as it must where it has credit for the answer, or where it does not lie here.
                if *sent < *limit && !self.plan.cheats.contains(&Cheat::ReturnCredit) {
                    *limit = (*limit).min(credit.credit_limit.get().max(*sent + 1));
                    let answer = CreditReturn::encode(*limit);
                    self.post(&answer, 0);
                }
            }
            Ok(FromReceiver::Credit(credit)) => *limit = credit.credit_limit.get(),
            Ok(FromReceiver::Congestion(_) | FromReceiver::Bye(_)) => {}
            Ok(FromReceiver::Reply(_)) => {
                observer.fail("cheat", "the receiver replied to what wanted no reply".to_owned());
            }
            Err(error) => {
                observer.fail("cheat", format!("the receiver sent a header that is wrong: {error}"))
            }
        }
    }

    fn connect(&mut self, now_ns: u64, observer: &mut Observer) {
        self.number += 1 << 16;
        let sender = self.number | CHEAT;
        let hello = Hello {
            versions: if self.random.u8(..4) == 0 { Versions::FIRST } else { Versions::SUPPORTED },
            features: features::ALL,
            sender_id: sender,
            receive_entries: u16::from(self.random.u8(..)),
            app: AppName::new(&self.app_name).expect("a short name"),
        };
        let mut bytes = hello.encode();
        if self.plan.cheats.contains(&Cheat::Hello) && self.random.bool() {
            observer.counts().add(Cheat::Hello.name());
            // Its identity stays, so that it takes nobody else's.
            for _ in 0..self.random.usize(1..4) {
                let at = [self.random.usize(..12), self.random.usize(20..HELLO_BYTES)];
                bytes[at[usize::from(self.random.bool())]] = self.random.u8(..);
            }
        }
        // A byte that was changed may have named another application, or none.
        let app = Hello::decode(&bytes).ok().and_then(|hello| app_number(hello.app.as_str()));
        observer.note(now_ns, &Event::CheatBegan { sender, app });
        let address = Address::Rdma(ADDRESS.to_owned());
        let data = PrivateData::new(&bytes).expect("a hello fits");
        // Without a receiver there is nobody to cheat.
        if let Ok(qp) = self.nic.connect(&address, &data) {
            self.connection = Connection::Asked(qp);
        }
        self.sequence = 0;
        self.last = None;
    }

    fn leave(&mut self) {
        if let Connection::Asked(qp) | Connection::Up { qp, .. } = self.connection {
            self.nic.disconnect(qp);
            self.connection = Connection::Left;
        }
    }

    /// Posts a SEND in the version that was agreed on. Returns whether there was room.
    fn post(&mut self, header: &HeaderBytes, payload_bytes: u32) -> bool {
        let Connection::Up { version, .. } = self.connection else { return false };
        let mut header = *header;
        header.set_version(version);
        self.post_as_it_is(&header, payload_bytes)
    }

    /// Posts a SEND with exactly this header. Returns whether there was room.
    fn post_as_it_is(&mut self, header: &HeaderBytes, payload_bytes: u32) -> bool {
        let Connection::Up { qp, sent, .. } = &mut self.connection else { return false };
        let payload = match payload_bytes {
            0 => nic::Payload::None,
            bytes => nic::Payload::Registered(Sge { key: self.source_key, offset: 0, bytes }),
        };
        match self.nic.post_send(*qp, SendRequest { id: *sent, header, payload }) {
            Ok(()) => {
                *sent += 1;
                self.last = Some((*header, payload_bytes));
                true
            }
            Err(PostError::Stale) => {
                self.connection = Connection::Left;
                false
            }
            Err(_) => false,
        }
    }

    /// Returns the checksum of the next message, which is a wrong one where there is one, and the message's
    /// number, which says so.
    fn checksum(&mut self) -> (Option<u32>, u64) {
        let is_wrong = self.random.u8(..4) == 0 && !self.is_scrambling;
        let crc32c = is_wrong.then(|| self.random.u32(..));
        (crc32c, if is_wrong { self.sequence | WRONG_CHECKSUM } else { self.sequence })
    }

    fn small(&mut self) -> (HeaderBytes, u32) {
        self.sequence += 1;
        let payload_bytes = self.random.u32(..=SLAB_BYTES_U32);
        let (crc32c, sequence) = self.checksum();
        let tag = sequence;
        let header = SmallHeader::encode(&SmallFields {
            sequence,
            tag,
            payload_bytes,
            crc32c,
            redelivered: self.random.u8(..8) == 0,
            wants_reply: false,
            user_header: &[7; 8],
        });
        (header, payload_bytes)
    }

    /// Returns a request, and the bytes of the user header behind it, where that is a long one.
    fn request(&mut self, length: u64, address: u64, key: u32) -> (HeaderBytes, u32) {
        self.sequence += 1;
        let is_long = self.random.u8(..4) == 0;
        let user_header_bytes =
            if is_long { self.random.usize(REQUEST_INLINE_USER_HEADER_MAX + 1..=USER_HEADER_MAX) } else { 8 };
        let (crc32c, sequence) = self.checksum();
        let header = RequestHeader::encode(&RequestFields {
            sequence,
            tag: sequence,
            length,
            address,
            key,
            class: self.random.u8(..8),
            pieces: 0,
            crc32c,
            redelivered: self.random.u8(..8) == 0,
            wants_reply: false,
            user_header: &[7; USER_HEADER_MAX][..user_header_bytes],
        });
        (header, if is_long { u32::try_from(user_header_bytes).expect("it is short") } else { 0 })
    }

    /// Asks for a message of its memory.
    fn request_of_memory(&mut self) -> (HeaderBytes, u32) {
        let length = self.random.u64(1..=CHEAT_BYTES as u64);
        let address = self.nic.remote_address(self.source_key, 0);
        self.request(length, address, self.source_key.0)
    }

    /// Sends what any sender might send, where it has credit.
    fn send_as_it_must_be(&mut self) {
        let Connection::Up { sent, limit, .. } = self.connection else { return };
        if sent >= limit {
            return;
        }
        let (header, bytes) = if self.random.bool() { self.small() } else { self.request_of_memory() };
        self.post(&header, bytes);
    }

    /// Breaks a rule. Returns whether anybody can notice.
    fn cheat(&mut self, cheat: Cheat) -> bool {
        let Connection::Up { sent, limit, version, message_bytes_max, .. } = self.connection else {
            return false;
        };
        let address = self.nic.remote_address(self.source_key, 0);
        match cheat {
            Cheat::Overspend => {
                let more = self.random.u64(1..=OVERSPENT_MAX);
                let mut posted = 0;
                while posted < more {
                    let (header, bytes) = self.small();
                    if !self.post(&header, bytes) {
                        break;
                    }
                    posted += 1;
                }
                sent + posted > limit
            }
            Cheat::Sizes => {
                let lengths = [0, CHEAT_BYTES as u64 + 1, message_bytes_max, message_bytes_max + 1, u64::MAX];
                let length = lengths[self.random.usize(..lengths.len())];
                // A header of no length cannot be made; one of a byte is made so.
                let (mut header, bytes) = self.request(length.max(1), address, self.source_key.0);
                if length == 0 {
                    header.0[LENGTH_AT..][..8].fill(0);
                }
                self.post(&header, bytes)
            }
            Cheat::Keys => {
                let (length, offset) = (self.random.u64(1..=1 << 20), self.random.u64(..));
                let (header, bytes) = if self.random.bool() {
                    let key = self.random.u32(..);
                    self.request(length, address, key)
                } else {
                    self.request(length, address.wrapping_add(offset), self.source_key.0)
                };
                self.post(&header, bytes)
            }
            Cheat::Deregister => {
                self.nic.deregister(self.source_key);
                if let Ok(key) = self.nic.register(&self.source, Access::RemoteRead) {
                    self.source_key = key;
                }
                true
            }
            Cheat::Repeat => self.last.is_some_and(|(header, bytes)| self.post(&header, bytes)),
            Cheat::Scramble => {
                self.is_scrambling = true;
                let (mut header, bytes) = match self.random.u8(..4) {
                    0 => self.request_of_memory(),
                    1 => (CreditReturn::encode(sent + 1), 0),
                    _ => self.small(),
                };
                self.is_scrambling = false;
                header.set_version(version);
                for _ in 0..self.random.usize(1..6) {
                    // What is not a user header's bytes is at the front.
                    let until = if self.random.bool() { FIELDS_BYTES } else { HEADER_BYTES };
                    header.0[self.random.usize(..until)] = self.random.u8(..);
                }
                self.post_as_it_is(&header, bytes)
            }
            Cheat::Mismatch => {
                let (header, _) = self.small();
                let bytes = self.random.u32(..=SLAB_BYTES_U32);
                self.post(&header, bytes)
            }
            Cheat::ReturnCredit => {
                let limit = if self.random.bool() { self.random.u64(..64) } else { self.random.u64(..) };
                self.post(&CreditReturn::encode(limit), 0)
            }
            Cheat::Leave => {
                self.leave();
                true
            }
            // When it connects.
            Cheat::Hello => false,
        }
    }
}

/// Place of the length in the header of a request.
const LENGTH_AT: usize = std::mem::offset_of!(RequestHeader, length);
/// Bytes of the fields at a header's front.
const FIELDS_BYTES: usize = 56;
