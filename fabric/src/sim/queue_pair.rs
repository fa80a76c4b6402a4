//! One end of a connection: its state, and the requests that it has under way.

use crate::Qp;
use crate::nic::{DisconnectReason, Payload, PrivateData, ReadRequest, SendRequest, Sge, Status};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::collections::VecDeque;

/// One end of a connection: its NIC, and the connection's handle there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End {
    pub nic: u32,
    pub qp: Qp,
}

/// State of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is no connection at this place of the table.
    Free,
    /// It asked the other end to connect.
    Asking,
    /// It was asked, and its user has not answered.
    Asked,
    /// Its user accepted, and the other end has not said that it knows.
    Answered,
    /// It is ready for work.
    Up,
    /// Its user asked to end it. It waits until its SENDs are taken.
    Leaving,
    /// It has ended. Its work is flushed soon.
    Ended(DisconnectReason),
    /// Its work was flushed. The device may still take SRQ entries for it.
    Flushed(DisconnectReason),
    /// Nothing follows but its end, once its completions were polled.
    Over(DisconnectReason),
    /// Its end, or its refusal, was reported and not polled.
    Reported,
}

impl State {
    /// Returns whether requests of the other end are carried out.
    pub fn takes_requests(self) -> bool {
        matches!(self, Self::Answered | Self::Up | Self::Leaving)
    }

    /// Returns whether the connection stands, or is being set up.
    pub fn stands(self) -> bool {
        matches!(self, Self::Asking | Self::Asked | Self::Answered | Self::Up | Self::Leaving)
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send { payload: SendPayload },
    Read { address: u64, key: u32, bytes: u64 },
}

/// Where a SEND's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendPayload {
    /// In the request itself, or nowhere.
    Inline,
    Registered(Sge),
}

/// A request that was posted and has not completed. Its buffers are used again by later requests.
#[derive(Clone, Debug)]
pub(super) struct Wqe {
    pub id: u64,
    pub kind: Kind,
    /// Outcome, once it is known.
    pub outcome: Option<Status>,
    pub header: HeaderBytes,
    pub inline: Vec<u8>,
    pub scatter: Vec<Sge>,
}

impl Wqe {
    const EMPTY: Self = Self {
        id: 0,
        kind: Kind::Send { payload: SendPayload::Inline },
        outcome: None,
        header: HeaderBytes([0; HEADER_BYTES]),
        inline: Vec::new(),
        scatter: Vec::new(),
    };

    /// Returns the bytes that the request takes on the way to the other end. A READ's are its answer's.
    pub fn bytes_out(&self) -> u64 {
        match self.kind {
            Kind::Send { payload: SendPayload::Inline } => (HEADER_BYTES + self.inline.len()) as u64,
            Kind::Send { payload: SendPayload::Registered(sge) } => {
                HEADER_BYTES as u64 + u64::from(sge.bytes)
            }
            Kind::Read { .. } => 32,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub generation: u32,
    pub state: State,
    pub peer: Option<End>,
    /// Number of the address that it asks to connect to.
    pub address: u32,
    /// What this end said when it asked.
    pub said: PrivateData,
    /// What the other end answered.
    pub answer: PrivateData,
    /// READs that this end may have outstanding.
    pub reads_max: u32,
    /// READs whose completions were not polled.
    pub reads: u32,
    /// SENDs whose completions were not polled.
    pub sends: u32,
    /// Completions of this end that were not polled.
    pub unpolled: u32,
    /// Requests, each at its number modulo the ring's length.
    ring: Vec<Wqe>,
    /// Number of the first request that has not completed.
    pub head: u64,
    /// Number of the first request that is not on its way.
    pub issued: u64,
    /// Number that the next request gets.
    pub tail: u64,
    /// Requests of the other end that arrived and were not carried out, by their numbers there.
    pub inbound: VecDeque<u64>,
    /// Time since which the first of them has waited for an SRQ entry.
    pub rnr_since_ns: Option<u64>,
    /// Earliest times at which further requests and outcomes from this end may arrive at the other.
    pub requests_from_ns: u64,
    pub outcomes_from_ns: u64,
    /// Whether requests were posted since the doorbell was rung.
    pub is_rung: bool,
    /// Whether nothing comes from the other end any more.
    pub is_cut: bool,
    /// Whether the device never tells that it takes no more SRQ entries for it, or too late.
    pub is_untold: bool,
}

impl QueuePair {
    pub fn new() -> Self {
        let nothing = PrivateData::new(&[]).expect("empty private data");
        Self {
            generation: 0,
            state: State::Free,
            peer: None,
            address: 0,
            said: nothing,
            answer: nothing,
            reads_max: 0,
            reads: 0,
            sends: 0,
            unpolled: 0,
            ring: Vec::new(),
            head: 0,
            issued: 0,
            tail: 0,
            inbound: VecDeque::new(),
            rnr_since_ns: None,
            requests_from_ns: 0,
            outcomes_from_ns: 0,
            is_rung: false,
            is_cut: false,
            is_untold: false,
        }
    }

    /// Begins a connection at this place. `requests`: how many may be under way.
    pub fn begin(&mut self, state: State, requests: u32) {
        let ring = std::mem::take(&mut self.ring);
        *self = Self { generation: self.generation + 1, state, ring, ..Self::new() };
        self.ring.resize(requests as usize, Wqe::EMPTY);
    }

    fn place(&self, number: u64) -> usize {
        usize::try_from(number % self.ring.len() as u64).expect("less than a usize")
    }

    /// Returns a request that has not completed.
    pub fn request(&self, number: u64) -> Option<&Wqe> {
        (self.head..self.tail).contains(&number).then(|| &self.ring[self.place(number)])
    }

    pub fn request_mut(&mut self, number: u64) -> Option<&mut Wqe> {
        let place = (self.head..self.tail).contains(&number).then(|| self.place(number))?;
        Some(&mut self.ring[place])
    }

    /// Returns whether there is a place for another request.
    pub fn has_room(&self) -> bool {
        self.tail - self.head < self.ring.len() as u64
    }

    fn push(&mut self) -> &mut Wqe {
        debug_assert!(self.has_room());
        let place = self.place(self.tail);
        self.tail += 1;
        let wqe = &mut self.ring[place];
        wqe.outcome = None;
        wqe.inline.clear();
        wqe.scatter.clear();
        wqe
    }

    pub fn push_send(&mut self, request: &SendRequest<'_>) {
        self.sends += 1;
        let wqe = self.push();
        wqe.id = request.id;
        wqe.header = *request.header;
        let payload = match request.payload {
            Payload::None => SendPayload::Inline,
            Payload::Inline(bytes) => {
                wqe.inline.extend_from_slice(bytes);
                SendPayload::Inline
            }
            Payload::Registered(sge) => SendPayload::Registered(sge),
        };
        wqe.kind = Kind::Send { payload };
    }

    pub fn push_read(&mut self, request: &ReadRequest<'_>, bytes: u64) {
        self.reads += 1;
        let wqe = self.push();
        wqe.id = request.id;
        wqe.scatter.extend_from_slice(request.scatter);
        wqe.kind = Kind::Read { address: request.address, key: request.key, bytes };
    }

    /// Returns whether SENDs are among the requests that have not completed.
    pub fn has_sends(&self) -> bool {
        (self.head..self.tail).any(|number| matches!(self.ring[self.place(number)].kind, Kind::Send { .. }))
    }

    /// Takes the first request, if its outcome is known.
    pub fn pop_done(&mut self) -> Option<(u64, Kind, Status)> {
        let wqe = self.request(self.head)?;
        let done = (wqe.id, wqe.kind, wqe.outcome?);
        self.head += 1;
        self.issued = self.issued.max(self.head);
        Some(done)
    }

    /// Returns when something that leaves at `leaves_ns` arrives at the other end, behind what left before.
    pub fn arrives_ns(&mut self, leaves_ns: u64, is_outcome: bool) -> u64 {
        let from = if is_outcome { &mut self.outcomes_from_ns } else { &mut self.requests_from_ns };
        let at_ns = leaves_ns.max(*from);
        *from = at_ns + 1;
        at_ns
    }
}
