//! Connection over `tcp:`: its phases, what it has outstanding, and its end.
//!
//! Its SENDs are in [`sending`], its READs in [`reading`], what arrives in [`receiving`], what is written in
//! [`writing`], and what is sent before it is asked for in [`pushes`].

mod pushes;
mod read_queue;
mod reading;
mod receiving;
mod sending;
mod writing;

use super::frame::{FRAME_BYTES, Frame};
use super::input::{Input, STAGING_BYTES};
use super::output::{Output, Urgency};
use crate::nic::{DisconnectReason, PrivateData, Qp, Source, Status};
use crate::soft::deadlines::Wait;
use crate::soft::options::{PAYLOAD_BYTES_MAX, READS_ANSWERED_MAX, SENDS_PER_QP_MAX};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::token::{Kind, Place, Token};
use jet_wire::message::HEADER_BYTES;
use pushes::{Offers, Promises};
use read_queue::ReadQueue;
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Events that a connection's socket is watched for. They are edge-triggered, so the set never changes.
pub(super) const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);
/// Bytes of the queue of frames: enough for a full send queue of inline payloads. Unused pages are never
/// touched.
const RING_BYTES: usize =
    SENDS_PER_QP_MAX as usize * (FRAME_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX as usize) + (16 << 10);
/// Pieces that the queue of output holds: a frame and a stretch of memory for each SEND and each piece of an
/// answer, and the reserve.
const PIECES_MAX: usize = 2 * SENDS_PER_QP_MAX as usize + 64;

/// Phase of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    /// The socket connects. Further addresses of the same name follow in this order (last first).
    Opening { others: Vec<SocketAddr>, private_data: PrivateData },
    /// This end has sent its request.
    Connecting,
    /// A peer's request waits in the socket, and is read next.
    Handshake,
    /// The peer's request has arrived, and the user has not answered.
    Requested,
    /// The connection is ready for work.
    Connected,
    /// The connection ends for this reason, once the queued output is written.
    Closing { reason: DisconnectReason },
}

/// Immediate end of a connection: the reason, and how its work completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Reason for the end.
    pub(super) reason: DisconnectReason,
    /// SEND that does not complete as flushed: its place in the order of SENDs, and its status.
    pub(super) send: Option<(u64, Status)>,
    /// Status of the READ whose bytes are next, if it does not complete as flushed.
    pub(super) read: Option<Status>,
}

impl End {
    pub(super) fn of(reason: DisconnectReason) -> Self {
        Self { reason, send: None, read: None }
    }

    /// End because the peer broke the protocol.
    pub(super) const PROTOCOL: Self = Self { reason: DisconnectReason::Protocol, send: None, read: None };

    /// Makes the end of a connection whose socket failed with this errno.
    pub(super) fn of_errno(errno: i32) -> Self {
        Self::of(match errno {
            // The peer's process died, or closed the connection. The transport did not fail.
            libc::ECONNRESET | libc::EPIPE => DisconnectReason::Peer,
            errno => DisconnectReason::Transport(errno),
        })
    }
}

/// SEND that was posted and not yet acknowledged.
#[derive(Clone, Copy, Debug)]
struct PostedSend {
    id: u64,
    /// Bytes written since the connection began, at the moment when this SEND is written in full.
    written_at: u64,
}

/// READ of the peer that waits to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) id: u64,
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) bytes: u32,
    pub(super) done: u32,
}

/// Connection over `tcp:`, seen from this end. It is reused for later connections.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) qp: Qp,
    pub(super) socket: Option<OwnedFd>,
    /// Where the connection comes from, if the peer asked for it.
    pub(super) source: Source,
    pub(super) phase: Phase,
    pub(super) input: Input,
    output: Output,
    /// Whether the connection has ended and its user knows.
    is_over: bool,
    /// Whether the socket takes no more bytes until the epoll reports room.
    pub(super) blocked: bool,
    /// Errno of a failed write. What the peer sent before is still read.
    broken: Option<i32>,
    /// Whether nothing more comes from the peer.
    pub(super) peer_done: bool,
    /// Whether a deadline runs for bytes of a READ.
    reads_watched: bool,
    /// Whether bytes of a READ arrived since the deadline was set.
    pub(super) reads_moved: bool,
    /// Number of the SEND whose rest has a deadline, in the order of arrival.
    cut_send_watched: Option<u64>,
    sends: VecDeque<PostedSend>,
    sends_completed: u64,
    bytes_pushed: u64,
    /// SENDs of the peer that arrived here. `acknowledged` counts those that the peer was told of.
    pub(super) received: u64,
    acknowledged: u64,
    /// Time in nanoseconds since which an acknowledgement is owed, where one is.
    owes_since_ns: u64,
    /// This end's READs.
    reads: ReadQueue,
    /// What this end pushes, and what the peer does.
    offers: Offers,
    promises: Promises,
    pub(super) served: VecDeque<Served>,
    pub(super) served_next: u64,
    /// READs that the peer answers at once, as its connection request said.
    pub(super) peer_answers: u32,
}

impl Connection {
    /// Allocates everything that a connection will ever need, without a socket yet. The lists of offers are
    /// allocated with the first connection here whose ends push.
    pub(super) fn new(reads_max: usize) -> Self {
        Self {
            qp: Qp { index: 0, generation: 0 },
            socket: None,
            source: Source::of_nobody(),
            phase: Phase::Handshake,
            input: Input::new(),
            output: Output::new(RING_BYTES, PIECES_MAX),
            is_over: true,
            blocked: false,
            broken: None,
            peer_done: false,
            reads_watched: false,
            reads_moved: false,
            cut_send_watched: None,
            sends: VecDeque::with_capacity(SENDS_PER_QP_MAX as usize),
            sends_completed: 0,
            bytes_pushed: 0,
            received: 0,
            acknowledged: 0,
            owes_since_ns: 0,
            reads: ReadQueue::new(reads_max),
            offers: Offers::default(),
            promises: Promises::new(),
            served: VecDeque::with_capacity(READS_ANSWERED_MAX as usize),
            served_next: 0,
            peer_answers: 0,
        }
    }

    /// Returns the token of a connection's socket in the epoll.
    pub(super) fn token(qp: Qp) -> u64 {
        Token { kind: Kind::Tcp, place: Place::Connection(qp.index) }.to_u64()
    }

    /// Begins a new connection over this socket.
    pub(super) fn begin(&mut self, qp: Qp, socket: OwnedFd, phase: Phase) {
        assert!(self.sends.is_empty() && self.reads.is_empty(), "a connection's work completes with it");
        (self.qp, self.socket, self.phase) = (qp, Some(socket), phase);
        self.is_over = false;
        self.input.clear();
        self.output.clear();
        self.served.clear();
        (self.blocked, self.broken, self.peer_done) = (false, None, false);
        (self.sends_completed, self.bytes_pushed, self.received, self.acknowledged) = (0, 0, 0, 0);
        self.reads.begin();
        self.offers.clear();
        self.promises.clear();
        (self.served_next, self.peer_answers) = (0, 0);
        (self.reads_watched, self.reads_moved, self.cut_send_watched) = (false, false, None);
    }

    /// Returns the connection's socket.
    ///
    /// # Panics
    /// Where the connection is not in use.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("a connection in use has a socket").as_fd()
    }

    /// Whether there may be something to read now.
    pub(super) fn wants_to_read(&self) -> bool {
        self.input.readable || self.input.rnr || self.input.push_waits
    }

    /// Whether the connection waits for an SRQ entry, and for nothing else.
    pub(super) fn waits_for_entry(&self) -> bool {
        self.input.rnr && matches!(self.phase, Phase::Connected) && !self.is_lost()
    }

    /// Whether an attempt to read tells as much of the connection as the epoll does.
    pub(super) fn only_reads(&self) -> bool {
        matches!(self.phase, Phase::Connected) && !self.blocked && !self.input.is_held() && !self.is_lost()
    }

    /// Whether the connection is lost: a write failed, or the peer has hung up.
    pub(super) fn is_lost(&self) -> bool {
        self.input.hung_up || self.broken.is_some()
    }

    fn is_closed(&self) -> bool {
        let has_nothing_to_send = self.output.queued() == 0 && (self.sends.is_empty() || self.peer_done);
        matches!(self.phase, Phase::Closing { .. }) && (has_nothing_to_send || self.broken.is_some())
    }

    /// Ends a connection that is closing and has nothing left to do.
    pub(super) fn end_if_closed(&self) -> Result<(), End> {
        match self.phase {
            Phase::Closing { reason } if self.is_closed() => Err(End::of(reason)),
            _ => Ok(()),
        }
    }

    /// Handles a deadline that is over.
    pub(super) fn expire(
        &mut self,
        tables: &mut Tables,
        staging: &mut [u8; STAGING_BYTES],
        wait: Wait,
    ) -> Result<(), End> {
        match wait {
            Wait::ReadAnswer => self.read_timed_out(tables, staging),
            Wait::SendRest => self.cut_send_timed_out(tables, staging),
            Wait::Rnr => {
                self.rnr_exhausted(tables);
                self.write(tables)
            }
            // A closing connection ends for the reason that it was given before.
            Wait::Farewell => Err(End::of(DisconnectReason::Local)),
            Wait::Handshake | Wait::Accept | Wait::Turn => {
                Err(End::of(DisconnectReason::Transport(libc::ETIMEDOUT)))
            }
        }
    }

    /// Continues to connect with another socket, after the socket before it failed.
    pub(super) fn change_socket(&mut self, tables: &mut Tables, socket: OwnedFd) -> Result<(), End> {
        tables.epoll.remove(self.socket());
        self.socket = None;
        match tables.epoll.add(socket.as_fd(), Self::token(self.qp), WATCHED) {
            Ok(()) => {
                self.socket = Some(socket);
                Ok(())
            }
            Err(error) => {
                Err(End::of(DisconnectReason::Transport(error.raw_os_error().unwrap_or(libc::EIO))))
            }
        }
    }

    /// Ends the connection where nothing more can be read and writing has failed.
    pub(super) fn read_dry(&self) -> Result<(), End> {
        self.broken.map_or(Ok(()), |errno| Err(End::of_errno(errno)))
    }

    /// Ends the connection at both ends after a request of the peer failed. The frame `last` tells the peer.
    pub(super) fn fail(&mut self, tables: &mut Tables, last: Option<Frame>, status: Status) {
        if matches!(self.phase, Phase::Connected) {
            self.begin_closing(tables, DisconnectReason::WorkRequest(status), last, false);
        }
    }

    /// Begins to end the connection.
    ///
    /// No request is taken any more. The queued output is written, then `last`. With `keep_sends` the peer
    /// may still acknowledge SENDs; all other work completes as flushed.
    pub(super) fn begin_closing(
        &mut self,
        tables: &mut Tables,
        reason: DisconnectReason,
        last: Option<Frame>,
        keep_sends: bool,
    ) {
        self.phase = Phase::Closing { reason };
        tables.deadlines.set(self.qp.index, Wait::Farewell, tables.options.farewell);
        tables.qps.set_state(self.qp, QpState::Closing);
        self.served.clear();
        self.offers.withdraw();
        self.input.abandon();
        let end = End::of(reason);
        self.flush_reads(tables, &end);
        if !keep_sends {
            self.flush_sends(tables, &end);
        }
        // The peer drops what comes behind the last frame.
        self.push_ack();
        if let Some(frame) = last {
            assert!(self.output.has_room(FRAME_BYTES, Urgency::Last), "the reserve holds the last frame");
            self.push(&frame.to_bytes());
        }
    }

    /// Ends the connection: completes everything outstanding, tells the user, and closes the socket.
    pub(super) fn end(&mut self, tables: &mut Tables, end: &End) {
        if self.is_over {
            return;
        }
        // A connection that is already closing ends for its first reason.
        let reason = match self.phase {
            Phase::Closing { reason } => reason,
            _ => end.reason,
        };
        self.input.abandon();
        self.flush_sends(tables, end);
        self.flush_reads(tables, end);
        if matches!(self.phase, Phase::Handshake) {
            tables.counters.protocol_errors += u64::from(reason == DisconnectReason::Protocol);
            tables.qps.release(self.qp);
        } else {
            tables.finish(self.qp, reason);
        }
        self.close(tables);
    }

    /// Closes the socket without telling the user.
    pub(super) fn close(&mut self, tables: &mut Tables) {
        if let Some(socket) = self.socket.take() {
            tables.epoll.remove(socket.as_fd());
        }
        self.is_over = true;
        tables.deadlines.clear(self.qp.index);
        self.served.clear();
    }

    /// Answers the peer's request with yes. The error ends a connection on which this end's READs would never
    /// be answered.
    pub(super) fn accept(&mut self, tables: &mut Tables, private_data: &PrivateData) -> Result<(), End> {
        let reads_max = tables.agree_on_reads(self.peer_answers).ok_or(End::PROTOCOL)?;
        let reads_answered = u64::from(tables.options.reads_answered_per_qp_max);
        self.push_handshake(|private_bytes| Frame::Accept { private_bytes, reads_answered }, private_data);
        self.connected(tables, PrivateData::new(&[]).expect("empty"), reads_max);
        Ok(())
    }

    /// Marks the connection as ready, and reports it to the user.
    pub(super) fn connected(&mut self, tables: &mut Tables, private_data: PrivateData, reads_max: u32) {
        self.phase = Phase::Connected;
        tables.deadlines.clear(self.qp.index);
        tables.connected(self.qp, private_data, reads_max);
    }
}
