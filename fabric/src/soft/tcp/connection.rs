//! One connection: its phases, what it has outstanding, and its end. Its SENDs are in [`sending`], its READs
//! in [`reading`], what arrives in [`receiving`], and what is written in [`writing`].

mod reading;
mod receiving;
mod sending;
mod writing;

use super::frame::{FRAME_BYTES, Frame};
use super::input::{Input, STAGING_BYTES};
use super::output::{Output, Urgency};
use crate::nic::{DisconnectReason, PrivateData, Qp, Status};
use crate::soft::deadlines::Wait;
use crate::soft::options::{PAYLOAD_BYTES_MAX, READS_ANSWERED_MAX, SENDS_PER_QP_MAX};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::token::{Kind, Place, Token};
use jet_wire::message::HEADER_BYTES;
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a connection's socket is watched for: edges, so that it is never watched for anything else.
pub(super) const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);
/// The queue of frames holds a full send queue of inline payloads. Pages that are not needed are not touched.
const RING_BYTES: usize =
    SENDS_PER_QP_MAX as usize * (FRAME_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX as usize) + (16 << 10);
/// A frame and a stretch of memory for each SEND and each piece of an answer, and the reserve.
const PIECES_MAX: usize = 2 * SENDS_PER_QP_MAX as usize + 64;

/// Where a connection stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// The socket connects; further addresses of the same name follow in this order (last first).
    Opening { others: Vec<SocketAddr>, private_data: PrivateData },
    /// This end has asked.
    Connecting,
    /// A socket came and has said nothing yet.
    Handshake,
    /// The peer has asked, the user has not answered.
    Requested,
    /// It stands.
    Connected,
    /// It ends for this reason, once what is queued is written.
    Closing { reason: DisconnectReason },
}

/// How a connection ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Why.
    pub(super) reason: DisconnectReason,
    /// The SEND, by its place in the order, that does not end flushed.
    pub(super) send: Option<(u64, Status)>,
    /// How the oldest READ ends, if not flushed.
    pub(super) read: Option<Status>,
}

impl End {
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
    /// Bytes of a READ must come in time.
    reads_watched: bool,
    /// Bytes of a READ came since that began.
    pub(super) reads_moved: bool,
    sends: VecDeque<PostedSend>,
    sends_completed: u64,
    bytes_pushed: u64,
    /// SENDs of the peer that landed here, and how many of them it was told of.
    pub(super) received: u64,
    acknowledged: u64,
    /// Slots of our READs, oldest first; the first `reads_asked` were asked for.
    reads: VecDeque<u32>,
    reads_asked: usize,
    reads_completed: u64,
    pub(super) served: VecDeque<Served>,
    pub(super) served_next: u64,
    /// READs that the peer answers at once, as it said when it asked.
    pub(super) peer_answers: u32,
}

impl Connection {
    /// Everything that a connection will ever need, and no socket yet.
    pub(super) fn new(reads_max: usize) -> Self {
        Self {
            qp: Qp { index: 0, generation: 0 },
            socket: None,
            phase: Phase::Handshake,
            input: Input::new(),
            output: Output::new(RING_BYTES, PIECES_MAX),
            is_over: true,
            blocked: false,
            broken: None,
            peer_done: false,
            reads_watched: false,
            reads_moved: false,
            sends: VecDeque::with_capacity(SENDS_PER_QP_MAX as usize),
            sends_completed: 0,
            bytes_pushed: 0,
            received: 0,
            acknowledged: 0,
            reads: VecDeque::with_capacity(reads_max),
            reads_asked: 0,
            reads_completed: 0,
            served: VecDeque::with_capacity(READS_ANSWERED_MAX as usize),
            served_next: 0,
            peer_answers: 0,
        }
    }

    /// What the epoll carries for a connection's socket.
    pub(super) fn token(qp: Qp) -> u64 {
        Token { kind: Kind::Tcp, place: Place::Connection(qp.index) }.to_u64()
    }

    /// Makes it a new connection over this socket.
    pub(super) fn begin(&mut self, qp: Qp, socket: OwnedFd, phase: Phase) {
        assert!(self.sends.is_empty() && self.reads.is_empty(), "a connection's work completes with it");
        (self.qp, self.socket, self.phase) = (qp, Some(socket), phase);
        self.is_over = false;
        self.input.clear();
        self.output.clear();
        self.served.clear();
        (self.blocked, self.broken, self.peer_done) = (false, None, false);
        (self.sends_completed, self.bytes_pushed, self.received, self.acknowledged) = (0, 0, 0, 0);
        (self.reads_asked, self.reads_completed, self.served_next, self.peer_answers) = (0, 0, 0, 0);
        (self.reads_watched, self.reads_moved) = (false, false);
    }

    /// Its socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("a connection in use has a socket").as_fd()
    }

    /// A socket that has not said what it wants.
    pub(super) fn is_pending(&self) -> bool {
        self.socket.is_some() && matches!(self.phase, Phase::Handshake)
    }

    /// Whether there is something to read that may be read now.
    pub(super) fn wants_to_read(&self) -> bool {
        self.input.readable || self.input.rnr
    }

    /// Whether it waits for an SRQ entry, and for nothing else.
    pub(super) fn waits_for_entry(&self) -> bool {
        self.input.rnr && matches!(self.phase, Phase::Connected) && !self.is_lost()
    }

    /// Whether the peer can neither be written to nor will say more than it has.
    pub(super) fn is_lost(&self) -> bool {
        self.input.hung_up || self.broken.is_some()
    }

    fn is_closed(&self) -> bool {
        let quiet = self.output.queued() == 0 && (self.sends.is_empty() || self.peer_done);
        matches!(self.phase, Phase::Closing { .. }) && (quiet || self.broken.is_some())
    }

    /// Ends a connection that is closing and has nothing left to do.
    pub(super) fn end_if_closed(&self) -> Result<(), End> {
        match self.phase {
            Phase::Closing { reason } if self.is_closed() => Err(End::of(reason)),
            _ => Ok(()),
        }
    }

    /// What it waited for did not come in time.
    pub(super) fn expire(
        &mut self,
        tables: &mut Tables,
        staging: &mut [u8; STAGING_BYTES],
        wait: Wait,
    ) -> Result<(), End> {
        match wait {
            Wait::ReadSilence => self.reads_silent(tables, staging),
            Wait::Rnr => {
                self.rnr_exhausted(tables);
                self.write(tables)
            }
            // It ends for the reason for which it was to end.
            Wait::Farewell => Err(End::of(DisconnectReason::Local)),
            Wait::Handshake | Wait::Accept => Err(End::of(DisconnectReason::Transport(libc::ETIMEDOUT))),
        }
    }

    /// Goes on with another socket, while connecting.
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

    /// Nothing more can be read: with a writing side that failed, this is the end.
    pub(super) fn read_dry(&self) -> Result<(), End> {
        self.broken.map_or(Ok(()), |errno| Err(End::of_errno(errno)))
    }

    /// A request of the peer fails: it is told, and the connection ends at both ends.
    pub(super) fn fail(&mut self, tables: &mut Tables, last: Option<Frame>, status: Status) {
        if matches!(self.phase, Phase::Connected) {
            self.begin_closing(tables, DisconnectReason::WorkRequest(status), last, false);
        }
    }

    /// Begins to end the connection: no request is taken any more, what is queued is written, then `last`.
    /// SENDs may still be acknowledged where `keep_sends`; everything else completes flushed.
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
        self.input.abandon(self.qp, tables);
        let end = End::of(reason);
        self.flush_reads(tables, &end);
        if !keep_sends {
            self.flush_sends(tables, &end);
        }
        if let Some(frame) = last {
            assert!(self.output.has_room(FRAME_BYTES, Urgency::Last), "the reserve holds the last frame");
            self.push(&frame.to_bytes());
        }
    }

    /// The end: everything outstanding completes, the user is told, the socket closes.
    pub(super) fn end(&mut self, tables: &mut Tables, end: &End) {
        if self.is_over {
            return;
        }
        // A connection that ends already ends for the first reason.
        let reason = match self.phase {
            Phase::Closing { reason } => reason,
            _ => end.reason,
        };
        self.input.abandon(self.qp, tables);
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

    /// Closes the socket without a word to the user.
    pub(super) fn close(&mut self, tables: &mut Tables) {
        if let Some(socket) = self.socket.take() {
            tables.epoll.remove(socket.as_fd());
        }
        self.is_over = true;
        tables.deadlines.clear(self.qp.index);
        self.served.clear();
    }

    /// The user said yes; an end of the connection where there could be no READs on it.
    pub(super) fn accept(&mut self, tables: &mut Tables, private_data: &PrivateData) -> Result<(), End> {
        let reads_max = tables.agree_on_reads(self.peer_answers).ok_or(End::PROTOCOL)?;
        let reads_answered = u64::from(tables.options.reads_answered_per_qp_max);
        self.push_handshake(|private_bytes| Frame::Accept { private_bytes, reads_answered }, private_data);
        self.connected(tables, PrivateData::new(&[]).expect("empty"), reads_max);
        Ok(())
    }

    /// The connection stands.
    pub(super) fn connected(&mut self, tables: &mut Tables, private_data: PrivateData, reads_max: u32) {
        self.phase = Phase::Connected;
        tables.deadlines.clear(self.qp.index);
        tables.connected(self.qp, private_data, reads_max);
    }
}
