//! Connection over `shm:`: its link, what is outstanding on it, and its end.
//!
//! Its SENDs are in [`sending`], the peer's SENDs in [`receiving`], its READs in [`reading`], and the
//! messages on its socket in [`socket`].

mod reading;
mod receiving;
mod sending;
mod socket;

use super::control::Control;
use super::link::{Fault, Link, RING_CELLS};
use super::regions::{PeerRegions, RegionPlace};
use crate::nic::{DisconnectReason, PrivateData, Qp, RegionError, Status};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::tables::reads::ReadList;
use crate::soft::tables::region_places::SourcePlaces;
use crate::soft::tables::socket_turns::SourceNumber;
use crate::soft::token::{Kind, Place, Token};
use crate::source::Source;
use jet_wire::ring::RingError;
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// End of a connection: the reason told at this end, and the fault told to the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// Reason that is reported to the user of this end.
    pub(super) reason: DisconnectReason,
    /// Fault that is reported to the other end.
    pub(super) fault: Fault,
}

impl End {
    pub(super) const PROTOCOL: Self = Self { reason: DisconnectReason::Protocol, fault: Fault::Protocol };
    pub(super) const LOCAL: Self = Self { reason: DisconnectReason::Local, fault: Fault::Closed };

    /// End because nothing arrived from the peer in time.
    pub(super) const TIMEOUT: Self =
        Self { reason: DisconnectReason::Transport(libc::ETIMEDOUT), fault: Fault::Closed };

    pub(super) fn work(status: Status, fault: Fault) -> Self {
        Self { reason: DisconnectReason::WorkRequest(status), fault }
    }
}

impl From<RegionError> for End {
    fn from(error: RegionError) -> Self {
        let reason = match error {
            // The peer did nothing that is forbidden.
            RegionError::ReceiverFull => DisconnectReason::Transport(libc::ENOMEM),
            RegionError::Share => DisconnectReason::Transport(libc::EDQUOT),
            RegionError::NotSealed
            | RegionError::TooMany
            | RegionError::TooLarge
            | RegionError::Unreadable => DisconnectReason::Protocol,
        };
        Self { reason, fault: error.into() }
    }
}

impl From<RingError> for End {
    fn from(_: RingError) -> Self {
        Self::PROTOCOL
    }
}

/// SEND that was posted and has not completed.
#[derive(Clone, Copy, Debug)]
struct PostedSend {
    id: u64,
    staged: bool,
}

/// Where a stretch of the peer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sought {
    /// The stretch is there.
    At(RegionPlace),
    /// No announced region contains it.
    Nowhere,
    /// Announcements wait for their turn. Once they were taken, [`Connection::awaits`] is no longer true.
    Later,
}

/// Announcements that a SEND of the peer or a READ of this end waits for: they wait in the socket for a turn.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    /// Announcements that the peer had made, which must be taken; the count wraps.
    announced: u32,
    /// Messages that were taken meanwhile.
    messages: u32,
}

impl Awaited {
    /// Whether all of them were taken, of which so many were.
    fn is_taken(self, seen: u32) -> bool {
        // Both counts wrap. A message may be seen before it is counted: then `seen` is ahead.
        matches!(self.announced.wrapping_sub(seen), 0 | 0x8000_0000..)
    }
}

/// Connection over `shm:`, seen from this end.
pub(super) struct Connection {
    pub(super) qp: Qp,
    socket: OwnedFd,
    /// Whether the epoll watches the socket.
    watched: bool,
    /// Events that the epoll watches for.
    watched_for: EventFlags,
    pub(super) link: Option<Link>,
    sends: VecDeque<PostedSend>,
    /// SENDs of this end that have completed since the connection began; the count wraps.
    sends_completed: u32,
    /// SENDs of the peer that have arrived since the connection began; the count wraps.
    received: u32,
    staged_next: u32,
    staged_held: u32,
    peer_regions: PeerRegions,
    /// The peer's process.
    source: Source,
    /// Places for regions that the peer's process has taken.
    source_places: SourcePlaces,
    /// Number of the peer's process among those that have turns.
    source_number: SourceNumber,
    /// Whether messages in the socket wait for a turn. The socket is not watched for more of them meanwhile.
    in_line: bool,
    /// What a SEND or a READ waits for.
    awaited: Option<Awaited>,
    /// Announcements of the peer's regions that this end has taken; the count wraps.
    announcements_seen: u32,
    /// Announcements of this end's regions that were made to the peer; the count wraps.
    announced: u32,
    /// Control messages that wait for room in the socket.
    outbox: VecDeque<Control>,
    /// READs that this end posted.
    pub(super) reads: ReadList,
    /// READs that the peer answers at once, as its connection request said.
    pub(super) peer_answers: u32,
    /// Whether a SEND of the peer waits for an SRQ entry, which was counted once as RNR.
    rnr: bool,
    /// Whether this end's user has ended the connection, and its last SENDs are still to be taken.
    pub(super) closing: bool,
    /// Whether the other end is closed. What it sent before is still taken.
    pub(super) hung_up: bool,
    /// Whether the connection is in the list of those with SENDs to show to the peer.
    pub(super) dirty: bool,
    /// Whether the connection is in the list of those that every poll visits.
    pub(super) hot: bool,
    /// Whether the connection is in the queue of those with outstanding READs.
    pub(super) reading: bool,
    /// Number of polls in a row that found no work.
    pub(super) idle_polls: u32,
    /// Whether a post found the ring broken. The next poll of the connection ends it.
    broken: bool,
}

impl Connection {
    /// Makes a connection on a socket, which the epoll then watches.
    ///
    /// # Errors
    /// What the system says. The socket comes back with it.
    pub(super) fn new(
        tables: &mut Tables,
        qp: Qp,
        socket: OwnedFd,
        source: Source,
        link: Option<Link>,
    ) -> Result<Self, (io::Error, OwnedFd)> {
        let watched_for = EventFlags::IN;
        if let Err(error) = tables.epoll.add(socket.as_fd(), Self::token(qp), watched_for) {
            return Err((error, socket));
        }
        let source_places = tables.region_places.of(source);
        let source_number = tables.socket_turns.join(source);
        Ok(Self {
            qp,
            source,
            socket,
            watched: true,
            watched_for,
            link,
            sends: VecDeque::with_capacity(RING_CELLS as usize),
            sends_completed: 0,
            received: 0,
            staged_next: 0,
            staged_held: 0,
            peer_regions: PeerRegions::default(),
            source_places,
            source_number,
            in_line: false,
            awaited: None,
            announcements_seen: 0,
            announced: 0,
            outbox: VecDeque::new(),
            reads: ReadList::default(),
            peer_answers: 0,
            rnr: false,
            closing: false,
            hung_up: false,
            dirty: false,
            hot: false,
            reading: false,
            idle_polls: 0,
            broken: false,
        })
    }

    fn token(qp: Qp) -> u64 {
        Token { kind: Kind::Shm, place: Place::Connection(qp.index) }.to_u64()
    }

    /// Returns the connection's link.
    ///
    /// # Panics
    /// Where the connection has none yet.
    #[inline]
    pub(super) fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("a connection has its link before it stands")
    }

    /// Prepares for not being polled: the peer rings the bell from now on. `false` where there is work
    /// already.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.prepare_for_room() && self.link().incoming.prepare_sleep()
    }

    /// Makes the peer ring the bell when it takes SENDs of this end. `false` where it has taken some already.
    pub(super) fn prepare_for_room(&mut self) -> bool {
        let outstanding = self.sends.len();
        if outstanding == 0 {
            return true;
        }
        let link = self.link();
        link.wait_for_room();
        // The next poll finds a broken index.
        let all_wait = link.outgoing.unread().is_ok_and(|unread| unread as usize == outstanding);
        if !all_wait {
            link.stop_waiting_for_room();
        }
        all_wait
    }

    /// Withdraws [`Self::prepare_sleep`]: the peer need not ring any more.
    pub(super) fn awake(&mut self) {
        let link = self.link();
        link.incoming.awake();
        link.stop_waiting_for_room();
    }

    /// Returns how the connection ends here after the peer ended it, by the fault that the peer left in the
    /// link.
    pub(super) fn end_by_peer(&self) -> End {
        let fault = self.link.as_ref().and_then(Link::peer_fault).map(|(fault, _)| fault);
        let reason = match fault {
            Some(Fault::RemoteAccess) => DisconnectReason::WorkRequest(Status::RemoteAccess),
            Some(fault) => match (fault.region_error(), fault.send_status()) {
                (Some(error), _) => DisconnectReason::Region(error),
                (None, Some(status)) => DisconnectReason::WorkRequest(status),
                (None, None) => DisconnectReason::Peer,
            },
            None => DisconnectReason::Peer,
        };
        End { reason, fault: Fault::Closed }
    }

    /// Ends the connection: completes everything outstanding, tells the peer, and reports the end to the
    /// user.
    pub(super) fn end(mut self, tables: &mut Tables, end: End) {
        self.flush_reads(tables);
        if self.link.is_some() {
            self.link().outgoing.publish();
            self.flush_sends(tables);
        }
        self.tell_end(end.fault);
        self.unwatch(tables);
        tables.deadlines.clear(self.qp.index);
        match tables.qps.get(self.qp).expect("a connection's QP lives").state {
            // The user never heard of this connection.
            QpState::Handshake => {
                tables.counters.protocol_errors += u64::from(end.reason == DisconnectReason::Protocol);
                tables.qps.release(self.qp);
            }
            // The user has heard of its end.
            QpState::Ended => {}
            // The user asked for the end before the peer closed.
            QpState::Closing if end.reason == DisconnectReason::Peer => {
                tables.finish(self.qp, DisconnectReason::Local);
            }
            _ => tables.finish(self.qp, end.reason),
        }
        self.leave(tables);
    }

    /// Tells the peer in the link, if there is one, that this end leaves.
    pub(super) fn tell_end(&mut self, fault: Fault) {
        if let Some(link) = &self.link {
            link.set_fault(fault, self.received);
        }
    }

    /// Gives what the connection has to the thread that frees such things.
    pub(super) fn leave(self, tables: &mut Tables) {
        tables.socket_turns.leave(self.source_number, self.qp.index);
        tables.disposal.free((self.peer_regions, self.link));
        tables.disposal.close_socket(self.source, self.socket);
    }

    /// Sends the answer that refuses a connection request. Nothing follows on the socket.
    pub(super) fn reject(&mut self, tables: &Tables, private_data: &PrivateData) {
        // A socket that was never written to has room, and a peer that is gone needs no answer.
        let _ = self.send_control(tables, Control::Reject(*private_data));
    }
}
