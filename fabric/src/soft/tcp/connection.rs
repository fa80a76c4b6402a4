//! One connection: its phases, what it has outstanding, its writing side and its end. What arrives is read in
//! [`super::input`].

use super::WATCHED;
use super::frame::{FRAME_BYTES, Fault, Frame, READ_PIECE_MAX};
use super::input::{Input, READ_BUDGET, STAGING_BYTES};
use super::output::{Lookup, Output, Revoked, Urgency, no_stretches};
use super::socket::{self, Moved};
use crate::later::later;
use crate::nic::{
    DisconnectReason, MemoryKey, Payload, PostError, PrivateData, Qp, SendRequest, Sge, Status,
};
use crate::soft::options::{PAYLOAD_BYTES_MAX, READS_ANSWERED_MAX, SENDS_PER_QP_MAX};
use crate::soft::tables::Tables;
use crate::soft::tables::regions::Regions;
use crate::soft::transport::{Kind, QpState, Token};
use jet_wire::message::HEADER_BYTES;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes written by one connection before another has its turn.
const WRITE_BUDGET: usize = 1 << 20;
/// Queued bytes that are written without waiting for a doorbell, so that the queue stays in the cache.
const WRITE_EARLY: usize = 64 << 10;
/// The queue of frames holds a full send queue of inline payloads. Pages that are not needed are not touched.
const RING_BYTES: usize =
    SENDS_PER_QP_MAX as usize * (FRAME_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX as usize) + (16 << 10);
/// A frame and a stretch of memory for each SEND and each piece of an answer, and the reserve.
const PIECES_MAX: usize = 2 * SENDS_PER_QP_MAX as usize + 64;

/// Turns that read all SENDs which a peer may have put in front of an answer, and what follows them.
const TURNS_BEHIND_SENDS: usize = RING_BYTES.div_ceil(READ_BUDGET) + 1;

/// Where a connection stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// The socket connects; further addresses of the same name follow in this order (last first).
    Connecting { others: Vec<SocketAddr>, private_data: PrivateData },
    /// This end has asked.
    AwaitAccept,
    /// A socket came and has said nothing yet.
    AwaitConnect,
    /// The peer has asked, the user has not answered.
    Requested,
    /// It stands.
    Open,
    /// It ends for this reason, once what is queued is written.
    Draining { reason: DisconnectReason },
}

/// How a connection ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    /// Why.
    pub(super) reason: DisconnectReason,
    /// The SEND, by its place in the order, that does not end flushed.
    pub(super) send: Option<(u64, Status)>,
    /// How the oldest READ ends, if not flushed.
    pub(super) read: Option<Status>,
}

impl Fate {
    pub(super) fn of(reason: DisconnectReason) -> Self {
        Self { reason, send: None, read: None }
    }

    /// The peer spoke out of turn.
    pub(super) const PROTOCOL: Self = Self { reason: DisconnectReason::Protocol, send: None, read: None };

    /// What a socket's error says.
    pub(super) fn of_errno(errno: i32) -> Self {
        Self::of(match errno {
            // The peer's process died or closed: not the transport's doing.
            libc::ECONNRESET | libc::EPIPE => DisconnectReason::Peer,
            errno => DisconnectReason::Transport(errno),
        })
    }
}

/// A SEND that was posted and not yet acknowledged.
#[derive(Clone, Copy, Debug)]
struct PostedSend {
    id: u64,
    /// Bytes written since the connection began when it is written whole.
    written_at: u64,
}

/// A READ of the peer that waits to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) id: u64,
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) bytes: u32,
    pub(super) done: u32,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) qp: Qp,
    pub(super) socket: Option<OwnedFd>,
    pub(super) phase: Phase,
    pub(super) input: Input,
    output: Output,
    /// It has ended; the user knows.
    is_over: bool,
    /// The socket takes no more until epoll says so.
    pub(super) blocked: bool,
    /// Writing failed; what the peer said before is still read.
    broken: Option<i32>,
    /// Nothing more comes from the peer.
    pub(super) peer_done: bool,
    /// Handshake, farewell, or wait for an SRQ entry must be over by then.
    pub(super) deadline: Option<Instant>,
    /// Bytes of a READ must have come by then. Not set while a deadline is: who waits for an SRQ entry reads nothing.
    pub(super) reads_due: Option<Instant>,
    /// Bytes of a READ came since `reads_due` was set.
    pub(super) reads_moved: bool,
    sends: VecDeque<PostedSend>,
    sends_done: u64,
    bytes_pushed: u64,
    /// SENDs of the peer that landed here, and how many of them it was told of.
    pub(super) taken: u64,
    acknowledged: u64,
    /// Slots of our READs, oldest first; the first `reads_asked` were asked for.
    reads: VecDeque<u32>,
    reads_asked: usize,
    reads_done: u64,
    pub(super) served: VecDeque<Served>,
    pub(super) served_next: u64,
    /// READs that the peer answers at once, as it said when it asked.
    pub(super) peer_answers: u32,
}

impl Lookup for Regions {
    fn local(&self, memory: &Sge) -> Option<*mut u8> {
        self.translate(*memory)
    }

    fn remote(&self, key: u32, address: u64, bytes: u32) -> Option<*mut u8> {
        self.translate_remote(key, address, bytes).map(<*const u8>::cast_mut)
    }
}

impl Connection {
    /// Everything that a connection will ever need, and no socket yet.
    pub(super) fn new(reads_max: usize) -> Self {
        Self {
            qp: Qp { index: 0, generation: 0 },
            socket: None,
            phase: Phase::AwaitConnect,
            input: Input::new(),
            output: Output::new(RING_BYTES, PIECES_MAX),
            is_over: true,
            blocked: false,
            broken: None,
            peer_done: false,
            deadline: None,
            reads_due: None,
            reads_moved: false,
            sends: VecDeque::with_capacity(SENDS_PER_QP_MAX as usize),
            sends_done: 0,
            bytes_pushed: 0,
            taken: 0,
            acknowledged: 0,
            reads: VecDeque::with_capacity(reads_max),
            reads_asked: 0,
            reads_done: 0,
            served: VecDeque::with_capacity(READS_ANSWERED_MAX as usize),
            served_next: 0,
            peer_answers: 0,
        }
    }

    /// Makes it a new connection over this socket.
    pub(super) fn begin(&mut self, qp: Qp, socket: OwnedFd, phase: Phase, deadline: Option<Instant>) {
        assert!(self.sends.is_empty() && self.reads.is_empty(), "a connection's work completes with it");
        (self.qp, self.socket, self.phase, self.deadline) = (qp, Some(socket), phase, deadline);
        self.is_over = false;
        self.input.clear();
        self.output.clear();
        self.served.clear();
        (self.blocked, self.broken, self.peer_done) = (false, None, false);
        (self.sends_done, self.bytes_pushed, self.taken, self.acknowledged) = (0, 0, 0, 0);
        (self.reads_asked, self.reads_done, self.served_next, self.peer_answers) = (0, 0, 0, 0);
        (self.reads_due, self.reads_moved) = (None, false);
    }

    /// Its socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("a connection in use has a socket").as_fd()
    }

    /// A socket that has not said what it wants.
    pub(super) fn is_pending(&self) -> bool {
        self.socket.is_some() && matches!(self.phase, Phase::AwaitConnect)
    }

    /// Whether there is something to write that could be written now, or an end to come to.
    pub(super) fn wants_to_write(&self) -> bool {
        self.is_drained()
            || !self.blocked
                && self.broken.is_none()
                && (self.output.queued() > 0
                    || self.owes_ack()
                    || self.reads_asked < self.reads.len()
                    || !self.served.is_empty())
    }

    /// Whether there is something to read that may be read now.
    pub(super) fn wants_to_read(&self) -> bool {
        self.input.readable || self.input.not_ready
    }

    /// Whether it waits for an SRQ entry, and for nothing else.
    pub(super) fn wants_srq(&self) -> bool {
        self.input.not_ready && matches!(self.phase, Phase::Open) && !self.is_lost()
    }

    /// Whether the peer can neither be written to nor will say more than it has.
    pub(super) fn is_lost(&self) -> bool {
        self.input.hung_up || self.broken.is_some()
    }

    /// Whether SENDs of this end may still be acknowledged.
    pub(super) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    fn owes_ack(&self) -> bool {
        self.taken != self.acknowledged
    }

    fn push(&mut self, bytes: &[u8]) {
        self.output.push(bytes);
        self.bytes_pushed += bytes.len() as u64;
    }

    /// Queues the first frame of either end.
    pub(super) fn push_handshake(&mut self, frame: impl Fn(u32) -> Frame, private_data: &PrivateData) {
        let private = private_data.as_slice();
        let private_bytes = u32::try_from(private.len()).expect("at most 56 bytes");
        self.push(&frame(private_bytes).to_bytes());
        self.push(private);
    }

    /// Tells the connecting end that its request is here.
    pub(super) fn push_asked(&mut self) {
        self.push(&Frame::Asked.to_bytes());
    }

    /// Queues a SEND.
    pub(super) fn post_send(
        &mut self,
        tables: &mut Tables,
        request: &SendRequest<'_>,
    ) -> Result<Result<(), PostError>, Fate> {
        let (inline, memory): (&[u8], _) = match &request.payload {
            Payload::None => (&[], None),
            Payload::Inline(bytes) => (bytes, None),
            Payload::Registered(sge) => (&[], Some(*sge).filter(|sge| sge.bytes > 0)),
        };
        let frame_bytes = FRAME_BYTES + HEADER_BYTES + inline.len();
        if self.output.queued() >= WRITE_EARLY || !self.output.has_room(frame_bytes, Urgency::Request) {
            self.write(tables)?;
            if !matches!(self.phase, Phase::Open) {
                // A READ of the peer has failed on the way.
                return Ok(Err(PostError::Stale));
            }
        }
        if self.sends.len() == SENDS_PER_QP_MAX as usize
            || !self.output.has_room(frame_bytes, Urgency::Request)
        {
            return Ok(Err(PostError::QueueFull));
        }
        let behind = memory.map_or(inline.len(), |sge| sge.bytes as usize);
        let payload_bytes = u32::try_from(behind).expect("the limit is 4096");
        self.push(&Frame::Send { payload_bytes }.to_bytes());
        self.push(&request.header.0);
        if !inline.is_empty() {
            self.push(inline);
        }
        if let Some(sge) = memory {
            self.output.push_payload(sge, self.sends_done + self.sends.len() as u64);
            self.bytes_pushed += u64::from(sge.bytes);
        }
        self.sends.push_back(PostedSend { id: request.id, written_at: self.bytes_pushed });
        Ok(Ok(()))
    }

    /// When it must be looked at by time.
    pub(super) fn due(&self) -> Option<Instant> {
        self.deadline.or(self.reads_due)
    }

    /// Sets the time by which outstanding READs must have moved, after anything was done.
    pub(super) fn watch_reads(&mut self, silence_max: Duration) {
        let moved = std::mem::take(&mut self.reads_moved);
        if self.reads.is_empty() || self.input.not_ready || !matches!(self.phase, Phase::Open) {
            self.reads_due = None;
        } else if moved || self.reads_due.is_none() {
            // A limit beyond all time is none.
            self.reads_due = Instant::now().checked_add(silence_max);
        }
    }

    /// No READ has moved for too long, unless the kernel has bytes of one that nobody has read yet.
    fn reads_silent(&mut self, tables: &mut Tables, staging: &mut [u8; STAGING_BYTES]) -> Result<(), Fate> {
        for _ in 0..TURNS_BEHIND_SENDS {
            self.input.readable = true;
            self.receive(tables, staging)?;
            if self.reads_moved || self.input.not_ready || !matches!(self.phase, Phase::Open) {
                return Ok(());
            }
            if !self.input.readable {
                break;
            }
        }
        Err(Fate::of(DisconnectReason::Transport(libc::ETIMEDOUT)))
    }

    /// Takes the READ in this slot.
    pub(super) fn post_read(&mut self, slot: u32) {
        self.reads.push_back(slot);
    }

    /// The READ that the peer answers now, and its place in the order.
    pub(super) fn read_answered(&self) -> Option<(u32, u64)> {
        let slot = *self.reads.front()?;
        (self.reads_asked > 0).then_some((slot, self.reads_done))
    }

    /// The oldest READ is done.
    pub(super) fn complete_read(&mut self, tables: &mut Tables) {
        let slot = self.reads.pop_front().expect("it was answered");
        self.reads_asked -= 1;
        self.reads_done += 1;
        self.reads_moved = true;
        tables.complete_read(slot, Status::Success);
    }

    /// The peer says that it took so many SENDs since the beginning.
    pub(super) fn acknowledge(&mut self, tables: &mut Tables, taken: u64) -> Result<(), Fate> {
        let newly = taken.checked_sub(self.sends_done).ok_or(Fate::PROTOCOL)?;
        let newly = usize::try_from(newly).map_err(|_| Fate::PROTOCOL)?;
        if newly == 0 {
            return Ok(());
        }
        // Only what left this end whole can have been taken.
        let written = self.bytes_pushed - self.output.queued() as u64;
        match self.sends.get(newly - 1) {
            Some(last) if last.written_at <= written => {}
            _ => return Err(Fate::PROTOCOL),
        }
        for send in self.sends.drain(..newly) {
            tables.complete_send(self.qp, send.id, Status::Success);
        }
        self.sends_done = taken;
        Ok(())
    }

    /// The peer says that the SEND after the first `taken` ones failed.
    pub(super) fn send_failed(&mut self, tables: &mut Tables, taken: u64, fault: Fault) -> Fate {
        if let Err(fate) = self.acknowledge(tables, taken) {
            return fate;
        }
        if self.sends.is_empty() {
            return Fate::PROTOCOL;
        }
        let reason = DisconnectReason::WorkRequest(fault.status());
        Fate { reason, send: Some((taken, fault.status())), read: None }
    }

    /// Whether a SEND of this end that has not left names this key; its place in the order.
    pub(super) fn send_from(&self, key: MemoryKey) -> Option<u64> {
        self.output.payload_of(key)
    }

    /// Queues what this end owes, as far as there is room: acknowledgement, READ requests, answers.
    fn pull(&mut self, tables: &mut Tables) {
        if self.owes_ack() && self.output.has_room(FRAME_BYTES, Urgency::Answer) {
            self.acknowledged = self.taken;
            self.push(&Frame::SendAck { taken: self.taken }.to_bytes());
        }
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        while self.reads_asked < self.reads.len() && self.output.has_room(FRAME_BYTES, Urgency::Request) {
            let read = tables.reads.get(self.reads[self.reads_asked]);
            let id = self.reads_done + self.reads_asked as u64;
            let (address, key, bytes) = (read.address, read.key, read.bytes);
            self.reads_asked += 1;
            self.push(&Frame::ReadRequest { id, address, key, bytes }.to_bytes());
        }
        // Two answers: one being written, one behind it. More would only keep SENDs waiting.
        while self.output.answers() < 2 && self.output.has_room(2 * FRAME_BYTES, Urgency::Answer) {
            let Some(served) = self.served.front_mut() else { break };
            let id = served.id;
            let left = served.bytes - served.done;
            let address = served.address.checked_add(u64::from(served.done));
            let allowed = address
                .filter(|&address| tables.regions.translate_remote(served.key, address, left).is_some());
            let Some(address) = allowed else {
                let fault = Fault::RemoteAccess;
                self.fail(tables, Some(Frame::ReadError { id, fault }), fault.status());
                return;
            };
            let piece = left.min(READ_PIECE_MAX);
            let key = served.key;
            served.done += piece;
            if served.done == served.bytes {
                self.served.pop_front();
            }
            self.push(&Frame::ReadResponse { id, bytes: piece }.to_bytes());
            self.output.push_answer(id, key, address, piece);
            self.bytes_pushed += u64::from(piece);
            self.push(&Frame::ReadEnd { id }.to_bytes());
        }
    }

    /// Writes what is queued until the socket takes no more, or it is others' turn.
    pub(super) fn write(&mut self, tables: &mut Tables) -> Result<(), Fate> {
        let mut stretches = no_stretches();
        let mut budget = WRITE_BUDGET;
        while !self.blocked && self.broken.is_none() {
            self.pull(tables);
            if self.output.queued() == 0 || budget == 0 {
                break;
            }
            let (count, _) = match self.output.gather(&tables.regions, &mut stretches, budget) {
                Ok(listed) => listed,
                Err(Revoked::Answer { read: id, behind }) => {
                    // What is owed of the piece goes out as zeros, and the frame behind it says that they are that.
                    let fault = Fault::RemoteAccess;
                    self.output.overwrite(behind, &Frame::ReadError { id, fault }.to_bytes());
                    self.fail(tables, None, fault.status());
                    continue;
                }
                Err(Revoked::Payload { send }) => return Err(Self::payload_lost(send)),
            };
            // SAFETY: the frames' bytes are the queue's own; registered memory was looked up just now, and regions
            // stay mapped while they are in the table, which nobody changes during this call.
            match unsafe { socket::write(self.socket(), &mut stretches[..count]) } {
                Moved::Bytes(bytes) => {
                    self.output.advance(bytes);
                    budget = budget.saturating_sub(bytes);
                }
                Moved::Blocked | Moved::End => self.blocked = true,
                Moved::Failed(errno) => {
                    // The peer's last words may still wait to be read.
                    self.broken = Some(errno);
                    self.input.readable = true;
                }
            }
        }
        self.drained()
    }

    /// How a connection ends whose SEND lost its payload's memory.
    pub(super) fn payload_lost(send: u64) -> Fate {
        let status = Status::LocalProtection;
        Fate { reason: DisconnectReason::WorkRequest(status), send: Some((send, status)), read: None }
    }

    fn is_drained(&self) -> bool {
        let quiet = self.output.queued() == 0 && (self.sends.is_empty() || self.peer_done);
        matches!(self.phase, Phase::Draining { .. }) && (quiet || self.broken.is_some())
    }

    /// Ends a draining connection that has nothing left to do.
    pub(super) fn drained(&self) -> Result<(), Fate> {
        match self.phase {
            Phase::Draining { reason } if self.is_drained() => Err(Fate::of(reason)),
            _ => Ok(()),
        }
    }

    /// Its time is over.
    pub(super) fn expire(
        &mut self,
        tables: &mut Tables,
        staging: &mut [u8; STAGING_BYTES],
    ) -> Result<(), Fate> {
        match self.phase {
            Phase::Open if self.reads_due.is_some() => self.reads_silent(tables, staging),
            Phase::Draining { reason } => Err(Fate::of(reason)),
            Phase::Open | Phase::Requested => {
                self.never_ready(tables);
                self.write(tables)
            }
            Phase::Connecting { .. } | Phase::AwaitAccept | Phase::AwaitConnect => {
                Err(Fate::of(DisconnectReason::Transport(libc::ETIMEDOUT)))
            }
        }
    }

    /// Goes on with another socket, while connecting.
    pub(super) fn change_socket(&mut self, tables: &mut Tables, socket: OwnedFd) -> Result<(), Fate> {
        let token = Token { kind: Some(Kind::Tcp), place: u64::from(self.qp.index) };
        tables.epoll.remove(self.socket());
        self.socket = None;
        match tables.epoll.add(socket.as_fd(), token, WATCHED) {
            Ok(()) => {
                self.socket = Some(socket);
                Ok(())
            }
            Err(error) => {
                Err(Fate::of(DisconnectReason::Transport(error.raw_os_error().unwrap_or(libc::EIO))))
            }
        }
    }

    /// Nothing more can be read: with a writing side that failed, this is the end.
    pub(super) fn read_dry(&self) -> Result<(), Fate> {
        self.broken.map_or(Ok(()), |errno| Err(Fate::of_errno(errno)))
    }

    /// A request of the peer fails: it is told, and the connection ends at both ends.
    pub(super) fn fail(&mut self, tables: &mut Tables, last: Option<Frame>, status: Status) {
        if matches!(self.phase, Phase::Open) {
            self.drain(tables, DisconnectReason::WorkRequest(status), last, false);
        }
    }

    /// Begins to end the connection: no request is taken any more, what is queued is written, then `last`. SENDs may
    /// still be acknowledged where `keep_sends`; everything else completes flushed.
    pub(super) fn drain(
        &mut self,
        tables: &mut Tables,
        reason: DisconnectReason,
        last: Option<Frame>,
        keep_sends: bool,
    ) {
        self.phase = Phase::Draining { reason };
        self.deadline = Some(later(tables.options.farewell));
        tables.qps.set_state(self.qp, QpState::Closing);
        self.served.clear();
        self.input.abandon(self.qp, tables);
        let fate = Fate::of(reason);
        self.flush_reads(tables, &fate);
        if !keep_sends {
            self.flush_sends(tables, &fate);
        }
        if let Some(frame) = last {
            assert!(self.output.has_room(FRAME_BYTES, Urgency::Last), "the reserve holds the last frame");
            self.push(&frame.to_bytes());
        }
    }

    fn flush_reads(&mut self, tables: &mut Tables, fate: &Fate) {
        let mut status = fate.read.unwrap_or(Status::Flushed);
        while let Some(slot) = self.reads.pop_front() {
            tables.complete_read(slot, std::mem::replace(&mut status, Status::Flushed));
        }
        self.reads_asked = 0;
    }

    fn flush_sends(&mut self, tables: &mut Tables, fate: &Fate) {
        while let Some(send) = self.sends.pop_front() {
            let status = match fate.send {
                Some((place, status)) if place == self.sends_done => status,
                _ => Status::Flushed,
            };
            self.sends_done += 1;
            tables.complete_send(self.qp, send.id, status);
        }
    }

    /// The end: everything outstanding completes, the user is told, the socket closes.
    pub(super) fn end(&mut self, tables: &mut Tables, fate: &Fate) {
        if self.is_over {
            return;
        }
        // A connection that ends already ends for the first reason.
        let reason = match self.phase {
            Phase::Draining { reason } => reason,
            _ => fate.reason,
        };
        self.input.abandon(self.qp, tables);
        self.flush_sends(tables, fate);
        self.flush_reads(tables, fate);
        if matches!(self.phase, Phase::AwaitConnect) {
            tables.counters.protocol_errors += u64::from(reason == DisconnectReason::Protocol);
            tables.qps.release(self.qp);
        } else {
            tables.finish(self.qp, reason);
        }
        self.close(tables);
    }

    /// Closes the socket without a word to the user.
    pub(super) fn close(&mut self, tables: &mut Tables) {
        if let Some(socket) = self.socket.take() {
            tables.epoll.remove(socket.as_fd());
        }
        self.is_over = true;
        (self.deadline, self.reads_due) = (None, None);
        self.served.clear();
    }

    /// The user said yes; an end of the connection where there could be no READs on it.
    pub(super) fn accept(&mut self, tables: &mut Tables, private_data: &PrivateData) -> Result<(), Fate> {
        let reads_max = tables.agree_on_reads(self.peer_answers).ok_or(Fate::PROTOCOL)?;
        let reads_answered = u64::from(tables.options.reads_answered_per_qp_max);
        self.push_handshake(|private_bytes| Frame::Accept { private_bytes, reads_answered }, private_data);
        self.open(tables, PrivateData::new(&[]).expect("empty"), reads_max);
        Ok(())
    }

    /// The connection stands.
    pub(super) fn open(&mut self, tables: &mut Tables, private_data: PrivateData, reads_max: u32) {
        self.phase = Phase::Open;
        self.deadline = None;
        tables.connected(self.qp, private_data, reads_max);
    }
}
