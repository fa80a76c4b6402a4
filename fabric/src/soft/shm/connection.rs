//! One connection: its link, what is outstanding on it, and its end. What its socket carries is in [`socket`].

mod socket;

use super::control::Control;
use super::link::{BESIDE_BYTES, Fault, Link, RING_CELLS, SendItem, source};
use super::regions::PeerRegions;
use crate::later::later;
use crate::nic::{Access, DisconnectReason, Payload, PostError, PrivateData, Qp, SendRequest, Sge, Status};
use crate::soft::options::PAYLOAD_BYTES_MAX;
use crate::soft::tables::Tables;
use crate::soft::tables::reads::ReadList;
use crate::soft::transport::{Kind, QpState, Token};
use crate::unix::ring;
use jet_wire::message::HEADER_BYTES;
use jet_wire::ring::{PushError, RingError};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// SENDs taken from one connection before the next has its turn.
const RECEIVE_BURST: u32 = 32;

/// Why a connection ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// What the user of this end hears.
    pub(super) reason: DisconnectReason,
    /// What the other end hears.
    pub(super) fault: Fault,
}

impl End {
    pub(super) const PROTOCOL: Self = Self { reason: DisconnectReason::Protocol, fault: Fault::Protocol };
    pub(super) const LOCAL: Self = Self { reason: DisconnectReason::Local, fault: Fault::Closed };

    /// Nothing was heard in time.
    pub(super) const SILENCE: Self =
        Self { reason: DisconnectReason::Transport(libc::ETIMEDOUT), fault: Fault::Closed };

    /// This NIC has mapped as many regions as it may.
    pub(super) const FULL: Self =
        Self { reason: DisconnectReason::Transport(libc::ENOMEM), fault: Fault::Closed };

    pub(super) fn work(status: Status, fault: Fault) -> Self {
        Self { reason: DisconnectReason::WorkRequest(status), fault }
    }
}

impl From<RingError> for End {
    fn from(_: RingError) -> Self {
        Self::PROTOCOL
    }
}

/// A SEND that was posted and has not completed.
#[derive(Clone, Copy, Debug)]
struct Posted {
    id: u64,
    staged: bool,
}

/// Why a connection is looked at by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// Who came in has not said what it wants, or who was asked has not answered.
    Handshake(Instant),
    /// Its last SENDs have not been taken.
    Farewell(Instant),
    /// Its SEND waits for an SRQ entry.
    Rnr(Instant),
}

impl Deadline {
    pub(super) fn instant(self) -> Instant {
        match self {
            Self::Handshake(at) | Self::Farewell(at) | Self::Rnr(at) => at,
        }
    }
}

pub(super) struct Connection {
    pub(super) qp: Qp,
    socket: OwnedFd,
    /// The socket is watched by the epoll.
    watched: bool,
    /// Watched for room too.
    watched_for_room: bool,
    pub(super) link: Option<Link>,
    sends: VecDeque<Posted>,
    /// SENDs that completed, ever; wraps.
    completed: u32,
    /// SENDs that arrived, ever; wraps.
    received: u32,
    staged_next: u32,
    staged_held: u32,
    peer_regions: PeerRegions,
    /// Announcements of the peer that were taken; wraps.
    announcements_seen: u32,
    /// Announcements of this end; wraps.
    announced: u32,
    /// Control messages that the socket had no room for.
    outbox: VecDeque<Control>,
    /// READs that this end posted.
    pub(super) reads: ReadList,
    /// READs that the peer answers at once, as it said when it asked.
    pub(super) peer_answers: u32,
    /// A SEND waits for an SRQ entry, and was counted.
    rnr: bool,
    /// Something is to be done at a time.
    pub(super) deadline: Option<Deadline>,
    /// The other end is closed; what it sent before is still taken.
    pub(super) hung_up: bool,
    /// In the list of connections that have SENDs to show.
    pub(super) dirty: bool,
    /// In the list of connections that are polled.
    pub(super) hot: bool,
    /// In the queue of connections with READs.
    pub(super) reading: bool,
    /// In the list of connections with a deadline.
    pub(super) timed: bool,
    /// Polls in a row that found nothing.
    pub(super) idle_polls: u32,
    /// A post found the ring broken; the next look ends the connection.
    broken: bool,
}

impl Connection {
    /// A connection on a fresh socket, watched by the epoll.
    pub(super) fn new(tables: &Tables, qp: Qp, socket: OwnedFd, link: Option<Link>) -> io::Result<Self> {
        tables.epoll.add(socket.as_fd(), Self::token(qp), EventFlags::IN)?;
        Ok(Self {
            qp,
            socket,
            watched: true,
            watched_for_room: false,
            link,
            sends: VecDeque::with_capacity(RING_CELLS as usize),
            completed: 0,
            received: 0,
            staged_next: 0,
            staged_held: 0,
            peer_regions: PeerRegions::default(),
            announcements_seen: 0,
            announced: 0,
            outbox: VecDeque::new(),
            reads: ReadList::default(),
            peer_answers: 0,
            rnr: false,
            deadline: None,
            hung_up: false,
            dirty: false,
            hot: false,
            reading: false,
            timed: false,
            idle_polls: 0,
            broken: false,
        })
    }

    fn token(qp: Qp) -> Token {
        Token { kind: Some(Kind::Shm), place: u64::from(qp.index) }
    }

    /// The link of a connection that has one.
    #[inline]
    pub(super) fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("a connection has its link before it stands")
    }

    // SENDs of this end.

    /// Takes a SEND.
    #[inline]
    pub(super) fn post_send(&mut self, tables: &Tables, request: &SendRequest<'_>) -> Result<(), PostError> {
        if self.sends.len() == RING_CELLS as usize || self.broken {
            return Err(PostError::QueueFull);
        }
        let mut item = SendItem {
            source: source::BESIDE,
            payload_bytes: 0,
            key: 0,
            reserved: 0,
            place: 0,
            header: request.header.0,
            beside: [0; BESIDE_BYTES],
        };
        let mut staged = false;
        match request.payload {
            Payload::None => {}
            Payload::Inline(bytes) => staged = self.carry(&mut item, bytes)?,
            Payload::Registered(sge) => match tables.regions.get(sge.key) {
                Some(region) if region.access == Access::RemoteRead => {
                    item.source = source::REGISTERED;
                    (item.payload_bytes, item.key, item.place) = (sge.bytes, sge.key.0, sge.offset);
                }
                // Nobody else may see that region: its bytes go by way of the link.
                _ => staged = self.carry_local(tables, &mut item, sge)?,
            },
        }
        match self.link().outgoing.push(item) {
            Ok(()) => {}
            Err(PushError::Full) => return Err(PostError::QueueFull),
            Err(PushError::Broken(_)) => {
                self.broken = true;
                return Err(PostError::QueueFull);
            }
        }
        if staged {
            self.staged_next = (self.staged_next + 1) % self.link().staged_places();
            self.staged_held += 1;
        }
        self.sends.push_back(Posted { id: request.id, staged });
        Ok(())
    }

    /// Puts bytes into the item, or beside the ring where they are many; `true` where a staged place is used.
    #[inline]
    fn carry(&mut self, item: &mut SendItem, bytes: &[u8]) -> Result<bool, PostError> {
        item.payload_bytes = u32::try_from(bytes.len()).map_err(|_| PostError::Limit)?;
        if let Some(beside) = item.beside.get_mut(..bytes.len()) {
            beside.copy_from_slice(bytes);
            return Ok(false);
        }
        let place = self.staged_next;
        if self.staged_held == self.link().staged_places() {
            return Err(PostError::QueueFull);
        }
        let to = self.link().staged(place);
        // SAFETY: a staged place holds 4096 bytes, which the payload does not exceed (checked before posting), and no
        // SEND under way uses this one: they are given in turn, and `staged_held` counts those that are out.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        (item.source, item.place) = (source::STAGED, u64::from(place));
        Ok(true)
    }

    fn carry_local(&mut self, tables: &Tables, item: &mut SendItem, sge: Sge) -> Result<bool, PostError> {
        let from = tables.regions.translate(sge).ok_or(PostError::LocalProtection)?;
        let mut bytes = [0u8; PAYLOAD_BYTES_MAX as usize];
        let bytes = &mut bytes[..sge.bytes as usize];
        // SAFETY: the stretch is registered and at most 4096 bytes (checked before posting).
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        self.carry(item, bytes)
    }

    /// Shows the peer what was posted, and wakes it if it sleeps.
    #[inline]
    pub(super) fn show(&mut self) {
        let link = self.link();
        link.outgoing.publish();
        if link.outgoing.wake_needed() {
            ring(self.socket.as_fd());
        }
    }

    /// Completes SENDs that the peer took. What was posted must have been shown.
    #[inline]
    pub(super) fn complete_sends(&mut self, tables: &mut Tables) -> Result<bool, End> {
        if self.broken {
            return Err(End::PROTOCOL);
        }
        if self.sends.is_empty() {
            return Ok(false);
        }
        let unread = self.link().outgoing.unread()? as usize;
        let taken = self.sends.len() - unread;
        self.complete_front(tables, taken, Status::Success);
        Ok(taken > 0)
    }

    fn complete_front(&mut self, tables: &mut Tables, count: usize, status: Status) {
        for _ in 0..count {
            let Some(posted) = self.sends.pop_front() else { return };
            self.staged_held -= u32::from(posted.staged);
            self.completed = self.completed.wrapping_add(1);
            tables.complete_send(self.qp, posted.id, status);
        }
    }

    /// Whether SENDs of this end are outstanding.
    pub(super) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    // SENDs of the other end.

    /// Takes SENDs into SRQ entries, at most as many as the budget of this poll has left; whether there were any.
    #[inline]
    pub(super) fn receive(&mut self, tables: &mut Tables, budget: &mut u32) -> Result<bool, End> {
        let mut taken = 0;
        while taken < RECEIVE_BURST && *budget > 0 {
            if tables.srq.is_empty() {
                self.note_rnr(tables);
                break;
            }
            let Some(item) = self.link().incoming.pop()? else { break };
            self.land(tables, &item)?;
            self.received = self.received.wrapping_add(1);
            taken += 1;
            *budget -= 1;
        }
        if taken > 0 {
            self.rnr_ends();
            let link = self.link();
            link.incoming.advance();
            if link.room_is_wanted() {
                ring(self.socket.as_fd());
            }
        }
        Ok(taken > 0)
    }

    fn note_rnr(&mut self, tables: &mut Tables) {
        if !self.rnr && !self.link().incoming.is_empty() {
            self.rnr = true;
            tables.counters.rnr += 1;
            if let (Some(timeout), None) = (tables.options.rnr_timeout, self.deadline) {
                self.deadline = Some(Deadline::Rnr(later(timeout)));
            }
        }
    }

    fn rnr_ends(&mut self) {
        self.rnr = false;
        if matches!(self.deadline, Some(Deadline::Rnr(_))) {
            self.deadline = None;
        }
    }

    /// Whether a SEND waits for an SRQ entry.
    pub(super) fn waits_for_entry(&self) -> bool {
        self.rnr
    }

    /// Copies one SEND to where it belongs. `item` is this end's own copy.
    #[inline]
    fn land(&mut self, tables: &mut Tables, item: &SendItem) -> Result<(), End> {
        let bytes = item.payload_bytes;
        let from = match item.source {
            source::BESIDE if bytes as usize <= BESIDE_BYTES => item.beside.as_ptr(),
            source::STAGED if bytes <= PAYLOAD_BYTES_MAX => {
                self.link().staged_by_peer(item.place).ok_or(End::PROTOCOL)?
            }
            source::REGISTERED => self
                .translate_peer(tables, item.key, item.place, bytes)?
                .ok_or(End::work(Status::LocalProtection, Fault::PayloadKey))?,
            _ => return Err(End::PROTOCOL),
        };
        let entry = tables.srq.pop().expect("seen by the caller");
        let fits = entry.payload.map_or(bytes == 0, |payload| bytes <= payload.bytes);
        if !fits {
            tables.complete_receive(self.qp, entry.id, 0, Status::Length);
            return Err(End::work(Status::Length, Fault::Length));
        }
        let to_header = tables.regions.translate(entry.header);
        let to_payload = match entry.payload {
            Some(payload) => tables.regions.translate(payload),
            None => to_header,
        };
        let (Some(to_header), Some(to_payload)) = (to_header, to_payload) else {
            tables.complete_receive(self.qp, entry.id, 0, Status::LocalProtection);
            return Err(End::work(Status::LocalProtection, Fault::Receiver));
        };
        // SAFETY: both places are registered, as long as said, and this NIC's to write while the entry is its own.
        // `from` has `bytes` readable bytes. It may be the peer's memory, which the peer can change meanwhile: the bytes
        // are copied as they come and never looked at here. The two sides are different regions: a pool that is
        // registered for local writing is never announced.
        unsafe {
            to_header.copy_from_nonoverlapping(item.header.as_ptr(), HEADER_BYTES);
            to_payload.copy_from(from, bytes as usize);
        }
        tables.counters.bytes_in += HEADER_BYTES as u64 + u64::from(bytes);
        tables.complete_receive(self.qp, entry.id, bytes, Status::Success);
        Ok(())
    }

    // READs of this end.

    /// Copies at most `bytes_max` bytes for the oldest READs; `true` where READs remain.
    pub(super) fn read(&mut self, tables: &mut Tables, bytes_max: u32) -> Result<bool, End> {
        let mut budget = bytes_max;
        while let Some(slot) = self.reads.front() {
            let read = tables.reads.get(slot);
            let (key, address, bytes) = (read.key, read.address, read.bytes);
            let Some(from) = self.translate_peer(tables, key, address, bytes)? else {
                self.end_read(tables, Status::RemoteAccess);
                return Err(End::work(Status::RemoteAccess, Fault::ReadAccess));
            };
            while tables.reads.get(slot).done < bytes {
                if budget == 0 {
                    return Ok(true);
                }
                let stretch = tables.reads.get(slot).next_stretch(budget).expect("bytes are missing");
                let Some(to) = tables.regions.translate(stretch) else {
                    self.end_read(tables, Status::LocalProtection);
                    return Err(End::work(Status::LocalProtection, Fault::Closed));
                };
                let done = tables.reads.get(slot).done as usize;
                // SAFETY: `from` has `bytes` readable bytes, of which `done` are behind; `to` is registered and as long as
                // the stretch. The peer may change its bytes meanwhile: they are copied, not looked at. `copy` and not
                // `copy_nonoverlapping`: a NIC connected to itself may read a region into itself.
                unsafe { to.copy_from(from.add(done), stretch.bytes as usize) };
                tables.reads.get_mut(slot).advance(stretch.bytes);
                tables.counters.bytes_in += u64::from(stretch.bytes);
                budget -= stretch.bytes;
            }
            self.end_read(tables, Status::Success);
        }
        Ok(false)
    }

    /// Completes the oldest READ.
    fn end_read(&mut self, tables: &mut Tables, status: Status) {
        let slot = tables.reads.pop(&mut self.reads).expect("there is a READ to end");
        tables.complete_read(slot, status);
    }

    /// Completes all READs as flushed.
    pub(super) fn flush_reads(&mut self, tables: &mut Tables) {
        while self.reads.front().is_some() {
            self.end_read(tables, Status::Flushed);
        }
    }

    // Sleep and end.

    /// Prepares for not being polled: the peer rings from now on. `false`: something is there.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        let outstanding = self.sends.len();
        let link = self.link();
        if outstanding > 0 {
            link.want_room();
            // A broken index is found by the next poll.
            if link.outgoing.unread().map_or(true, |unread| unread as usize != outstanding) {
                link.room_unwanted();
                return false;
            }
        }
        link.incoming.prepare_sleep()
    }

    /// Takes back that this end sleeps.
    pub(super) fn awake(&mut self) {
        let link = self.link();
        link.incoming.awake();
        link.room_unwanted();
    }

    /// What the other end's user heard, in this end's terms.
    pub(super) fn end_by_peer(&self) -> End {
        let fault = self.link.as_ref().and_then(Link::peer_fault).map(|(fault, _)| fault);
        let reason = match fault {
            Some(Fault::ReadAccess) => DisconnectReason::WorkRequest(Status::RemoteAccess),
            Some(fault) => fault.send_status().map_or(DisconnectReason::Peer, DisconnectReason::WorkRequest),
            None => DisconnectReason::Peer,
        };
        End { reason, fault: Fault::Closed }
    }

    /// Completes everything outstanding, tells the peer, and lets go.
    pub(super) fn end(mut self, tables: &mut Tables, end: End) {
        self.flush_reads(tables);
        // They are unmapped with the connection, at the end of this call.
        tables.mapped_regions -= self.peer_regions.count();
        if self.link.is_some() {
            self.link().outgoing.publish();
            self.settle_sends(tables);
            let received = self.received;
            self.link().set_fault(end.fault, received);
        }
        self.unwatch(tables);
        match tables.qps.get(self.qp).expect("a connection's QP lives").state {
            // The user never heard of it.
            QpState::Handshake => {
                tables.counters.protocol_errors += u64::from(end.reason == DisconnectReason::Protocol);
                tables.qps.release(self.qp);
            }
            // The user has heard of its end.
            QpState::Ended => {}
            // The user asked for it first.
            QpState::Closing if end.reason == DisconnectReason::Peer => {
                tables.finish(self.qp, DisconnectReason::Local);
            }
            _ => tables.finish(self.qp, end.reason),
        }
    }

    /// Completes all SENDs: as taken, as failed, as flushed.
    fn settle_sends(&mut self, tables: &mut Tables) {
        let outstanding = self.sends.len();
        let unread = self.link().outgoing.unread().map_or(outstanding, |unread| unread as usize);
        self.complete_front(tables, outstanding - unread.min(outstanding), Status::Success);
        if let Some((fault, received)) = self.link().peer_fault() {
            // The peer's word, which may be any: what it says it took beyond what there is counts for nothing.
            let taken = received.wrapping_sub(self.completed) as usize;
            if taken <= self.sends.len() {
                self.complete_front(tables, taken, Status::Success);
                if let Some(status) = fault.send_status() {
                    self.complete_front(tables, 1, status);
                }
            }
        }
        self.complete_front(tables, usize::MAX, Status::Flushed);
    }

    /// Says the answer to a request; nothing else follows.
    pub(super) fn refuse(&mut self, tables: &Tables, private_data: &PrivateData) {
        // A socket that was never written to has room; a peer that is gone needs no answer.
        let _ = self.say(tables, Control::Reject(*private_data));
    }
}
