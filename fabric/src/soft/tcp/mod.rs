//! The transport between hosts: frames over TCP.
//!
//! What one connection does is in [`connection`], the bytes on the stream are in [`frame`]. Bytes that wait
//! to be used are in [`input`], bytes that wait to be written in [`output`], and system calls in [`socket`].
//! How connections are accepted is in [`accepting`].
//! This module has what is common to all connections: which of them have work, listeners, and deadlines.
//!
//! Sockets are watched edge-triggered, and the events are never changed. A socket is on the `ready` list from
//! the edge until it was read dry. So no system call asks for what the kernel already told, and a socket that
//! is not read for want of an SRQ entry wakes nobody. The socket of an only connection is tried without
//! waiting to be told.

mod accepting;
mod connection;
mod frame;
mod input;
mod listener;
mod output;
mod socket;
#[cfg(test)]
pub(super) mod tests;

use super::accepting::Accepting;
use super::deadlines::Wait;
use super::options::{SoftOptions, TcpOptions};
use super::strangers::Strangers;
use super::tables::Tables;
use super::token::{Kind, Place, Token};
use super::transport::Transport;
use crate::address::Address;
use crate::networks::Networks;
use crate::nic::{
    ConnectError, DisconnectReason, ListenError, MemoryKey, PostError, PrivateData, Qp, SendRequest,
};
use connection::{Connection, End, Phase, WATCHED};
use frame::Frame;
use input::STAGING_BYTES;
use listener::Listener;
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Connections that have their turn in one call of `progress`.
const TURNS_PER_POLL: usize = 16;
/// Most polls between two looks for what arrived while sockets are open and nothing arrives.
const LOOK_INTERVAL_MAX: u32 = 8;
/// Polls between two checks of the epoll while the only connection is read without it. Newcomers show there.
const EPOLL_INTERVAL_ALONE: u32 = 32;

const HUNG_UP: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// Place of a QP, and the lists that it is on.
///
/// The marks (`is_ready` and so on) stay when the place gets another connection. So no list ever has more
/// entries than there are places.
#[derive(Debug, Default)]
struct Slot {
    connection: Option<Box<Connection>>,
    is_ready: bool,
    is_dirty: bool,
    is_waiting: bool,
    owes_ack: bool,
}

/// Transport over `tcp:`: its listeners and connections.
#[derive(Debug)]
pub(crate) struct Tcp {
    options: TcpOptions,
    reads_max: usize,
    slots: Box<[Slot]>,
    /// Connections that ended, kept for their buffers.
    #[expect(clippy::vec_box, reason = "a connection goes back into its place without being moved")]
    spare: Vec<Box<Connection>>,
    open: usize,
    /// Whether it ever listened or connected. Until then it need not be asked for work.
    is_used: bool,
    /// Indices of connections that have bytes to be read.
    ready: VecDeque<u32>,
    /// Indices of connections that have something to write.
    dirty: VecDeque<u32>,
    /// Indices of connections that need an SRQ entry.
    waiting: VecDeque<u32>,
    /// Indices of connections that owe an acknowledgement, and when it was due when they got here.
    owing: VecDeque<(u32, u64)>,
    /// Index of the connection that began, or had an event, last.
    last: u32,
    /// Polls since the socket of the only connection was read without an event.
    polls_since_read: u32,
    listeners: Vec<Listener>,
    networks: Networks,
    /// Accepted connections whose request has not arrived.
    strangers: Strangers,
    /// Whether accepting pauses: the system has nothing left for another connection, or too many newcomers
    /// said nothing.
    accepts_nobody: bool,
    idle_polls: u32,
    staging: Box<[u8; STAGING_BYTES]>,
}

impl Tcp {
    /// Takes connections from these networks alone.
    pub(super) fn accept_from(&mut self, networks: Networks) {
        self.networks = networks;
    }

    /// Whether it ever listened or connected: where not, [`Transport::flush`] and [`Transport::progress`]
    /// have nothing to do.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Offers the peer memory that it is about to READ.
    pub(super) fn offer(&mut self, tables: &mut Tables, qp: Qp, address: u64, key: u32, bytes: u32) {
        self.turn(tables, qp.index, |connection, _, _| {
            connection.offer(address, key, bytes);
            Ok(())
        });
    }

    /// Gives a connection a turn, ends it if that is the outcome, and puts it on the lists where it belongs.
    fn turn<T>(
        &mut self,
        tables: &mut Tables,
        index: u32,
        act: impl FnOnce(&mut Connection, &mut Tables, &mut [u8; STAGING_BYTES]) -> Result<T, End>,
    ) -> Option<T> {
        let slot = &mut self.slots[index as usize];
        let connection = slot.connection.as_mut()?;
        let outcome = match act(connection, tables, &mut self.staging) {
            Ok(value) => Some(value),
            Err(end) => {
                connection.end(tables, &end);
                None
            }
        };
        if connection.socket.is_none() {
            self.open -= 1;
            self.spare.push(slot.connection.take().expect("it is here"));
            return outcome;
        }
        connection.watch_reads(tables);
        connection.watch_cut_send(tables);
        if connection.waits_for_entry() {
            if !std::mem::replace(&mut slot.is_waiting, true) {
                self.waiting.push_back(index);
            }
        } else if connection.wants_to_read() && !std::mem::replace(&mut slot.is_ready, true) {
            self.ready.push_back(index);
        }
        if connection.wants_to_write() && !std::mem::replace(&mut slot.is_dirty, true) {
            self.dirty.push_back(index);
        }
        if !slot.owes_ack
            && let Some(due_ns) = connection.ack_due_ns()
        {
            slot.owes_ack = true;
            self.owing.push_back((index, due_ns));
        }
        outcome
    }

    /// Writes the acknowledgements that are due by this time, in nanoseconds.
    fn write_acks(&mut self, tables: &mut Tables, by_ns: u64) {
        for _ in 0..self.owing.len() {
            let Some(&(index, _)) = self.owing.front().filter(|&&(_, due_ns)| due_ns <= by_ns) else {
                return;
            };
            self.owing.pop_front();
            self.slots[index as usize].owes_ack = false;
            // Where it went with something else, none is due. One of SENDs that were taken since may be due
            // later.
            self.turn(tables, index, |connection, tables, _| match connection.ack_due_ns() {
                Some(due_ns) if due_ns <= by_ns => connection.write(tables),
                _ => Ok(()),
            });
        }
    }

    /// Whether there is one connection alone, and nothing to do but to read what its peer sends.
    ///
    /// Then an attempt to read tells as much as the epoll does, and brings the bytes with it.
    fn only_reads(&self) -> bool {
        let connection = self.slots.get(self.last as usize).and_then(|slot| slot.connection.as_ref());
        self.open == 1
            && self.strangers.count() == 0
            && self.ready.is_empty()
            && connection.is_some_and(|connection| connection.only_reads())
    }

    /// Reads from the only connection, once in so many polls. `true` where something had arrived.
    fn read_only_one(&mut self, tables: &mut Tables) -> bool {
        self.polls_since_read = self.polls_since_read.saturating_add(1);
        if !self.only_reads() || self.polls_since_read < self.idle_interval() {
            return false;
        }
        self.polls_since_read = 0;
        let read = self.turn(tables, self.last, |connection, tables, staging| {
            connection.input.readable = true;
            connection.receive(tables, staging)
        });
        // Its end is news, too.
        read != Some(false)
    }

    /// Returns how many polls in vain may pass between two looks for what arrived. After empty polls a look
    /// costs more than it finds.
    fn idle_interval(&self) -> u32 {
        (self.idle_polls / 4).clamp(1, LOOK_INTERVAL_MAX)
    }

    /// Begins a connection over this socket at the QP's place.
    fn begin(&mut self, tables: &mut Tables, qp: Qp, socket: OwnedFd, phase: Phase) -> io::Result<()> {
        tables.epoll.add(socket.as_fd(), Connection::token(qp), WATCHED)?;
        let slot = &mut self.slots[qp.index as usize];
        assert!(slot.connection.is_none(), "a QP's place is free until it is taken");
        let reads_max = self.reads_max;
        let mut connection = self.spare.pop().unwrap_or_else(|| Box::new(Connection::new(reads_max)));
        connection.begin(qp, socket, phase);
        self.last = qp.index;
        tables.deadlines.set(qp.index, Wait::Handshake, tables.options.handshake);
        self.open += 1;
        slot.connection = Some(connection);
        Ok(())
    }

    /// Opens a socket to the next address for which that succeeds. Addresses are taken from the end of the
    /// list.
    fn open_next(
        &self,
        addresses: &mut Vec<std::net::SocketAddr>,
        mut failure: io::Error,
    ) -> Result<OwnedFd, io::Error> {
        while let Some(address) = addresses.pop() {
            match socket::connect(&address, &self.options) {
                Ok(socket) => return Ok(socket),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Continues to connect after the epoll reported the connecting socket.
    fn connecting(&mut self, tables: &mut Tables, index: u32) {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        let Phase::Opening { others, private_data } = &mut connection.phase else { return };
        let (mut others, private_data) = (std::mem::take(others), *private_data);
        let next = match socket::outcome(connection.socket()) {
            // The connect has not ended yet.
            Err(libc::ENOTCONN) => {
                connection.phase = Phase::Opening { others, private_data };
                return;
            }
            Ok(()) => Ok(None),
            Err(errno) => self.open_next(&mut others, io::Error::from_raw_os_error(errno)).map(Some),
        };
        self.turn(tables, index, |connection, tables, _| match next {
            Ok(None) => {
                connection.phase = Phase::Connecting;
                let reads_answered = u64::from(tables.options.reads_answered_per_qp_max);
                let frame = |private_bytes| Frame::Connect { private_bytes, reads_answered };
                connection.push_handshake(frame, &private_data);
                connection.write(tables)
            }
            Ok(Some(socket)) => {
                connection.phase = Phase::Opening { others, private_data };
                connection.change_socket(tables, socket)
            }
            Err(error) => {
                Err(End::of(DisconnectReason::Transport(error.raw_os_error().unwrap_or(libc::EIO))))
            }
        });
    }

    fn flush_dirty(&mut self, tables: &mut Tables) -> bool {
        let count = self.dirty.len();
        for _ in 0..count {
            let index = self.dirty.pop_front().expect("counted");
            self.slots[index as usize].is_dirty = false;
            self.turn(tables, index, |connection, tables, _| connection.write(tables));
        }
        count > 0
    }
}

impl Transport for Tcp {
    fn new(options: &SoftOptions) -> Self {
        let qps = options.qps_max as usize;
        Self {
            options: options.tcp,
            reads_max: options.reads_per_qp_max as usize,
            slots: (0..qps).map(|_| Slot::default()).collect(),
            spare: Vec::with_capacity(qps),
            open: 0,
            is_used: false,
            ready: VecDeque::with_capacity(qps),
            dirty: VecDeque::with_capacity(qps),
            waiting: VecDeque::with_capacity(qps),
            owing: VecDeque::with_capacity(qps),
            last: 0,
            polls_since_read: 0,
            listeners: Vec::new(),
            networks: Networks::default(),
            strangers: Strangers::new(Kind::Tcp),
            accepts_nobody: false,
            idle_polls: 0,
            staging: vec![0; STAGING_BYTES].try_into().expect("of this length"),
        }
    }

    fn listen(&mut self, tables: &mut Tables, address: &Address) -> Result<Address, ListenError> {
        let Address::Tcp(host_port) = address else {
            return Err(ListenError::WrongFabric { address: address.clone() });
        };
        let (listener, bound) = Listener::bind(host_port)?;
        self.is_used = true;
        let number = u32::try_from(self.listeners.len()).expect("listeners are few");
        let token = Token { kind: Kind::Tcp, place: Place::Listener(number) };
        tables
            .epoll
            .add(listener.socket.as_fd(), token.to_u64(), EventFlags::IN | EventFlags::ET)
            .map_err(|source| ListenError::System { address: address.clone(), source })?;
        self.listeners.push(listener);
        self.strangers.open(&tables.options);
        Ok(bound)
    }

    fn stop_listening(&mut self, tables: &mut Tables) {
        for listener in self.listeners.drain(..) {
            tables.epoll.remove(listener.socket.as_fd());
        }
        self.end_pause(tables);
    }

    fn connect(
        &mut self,
        tables: &mut Tables,
        qp: Qp,
        address: &Address,
        private_data: &PrivateData,
    ) -> Result<(), ConnectError> {
        let Address::Tcp(host_port) = address else {
            return Err(ConnectError::WrongFabric { address: address.clone() });
        };
        let system = |source| ConnectError::System { address: address.clone(), source };
        let mut others = socket::resolve(host_port).map_err(system)?;
        self.is_used = true;
        others.reverse();
        let nowhere = io::Error::from(io::ErrorKind::NotFound);
        let socket = self.open_next(&mut others, nowhere).map_err(system)?;
        let phase = Phase::Opening { others, private_data: *private_data };
        self.begin(tables, qp, socket, phase).map_err(system)
    }

    fn accept(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        let accepted = self.turn(tables, qp.index, |connection, tables, _| {
            connection.accept(tables, private_data)?;
            connection.write(tables)
        });
        accepted.ok_or(PostError::Stale)?;
        self.user_accepted(tables);
        Ok(())
    }

    fn reject(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData) {
        self.turn(tables, qp.index, |connection, tables, _| {
            connection.push_handshake(|private_bytes| Frame::Reject { private_bytes }, private_data);
            // The first bytes of a fresh socket always fit, and a peer that has gone already need not hear
            // them.
            let _ = connection.write(tables);
            connection.close(tables);
            tables.qps.release(qp);
            Ok(())
        });
    }

    fn disconnect(&mut self, tables: &mut Tables, qp: Qp) {
        self.turn(tables, qp.index, |connection, tables, _| {
            if !matches!(connection.phase, Phase::Connected) {
                return Err(End::of(DisconnectReason::Local));
            }
            connection.begin_closing(tables, DisconnectReason::Local, Some(Frame::Bye), true);
            connection.write(tables)
        });
    }

    fn post_send(&mut self, tables: &mut Tables, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        let posted =
            self.turn(tables, qp.index, |connection, tables, _| connection.post_send(tables, &request));
        posted.unwrap_or(Err(PostError::Stale))
    }

    fn post_read(&mut self, tables: &mut Tables, qp: Qp, read: u32) {
        self.turn(tables, qp.index, |connection, _, _| {
            connection.post_read(read);
            Ok(())
        });
    }

    fn flush(&mut self, tables: &mut Tables) {
        self.flush_dirty(tables);
    }

    fn progress(&mut self, tables: &mut Tables) -> bool {
        let mut worked = self.may_accept() && self.accept_round(tables);
        if !tables.srq.is_empty() {
            while let Some(index) = self.waiting.pop_front() {
                let slot = &mut self.slots[index as usize];
                slot.is_waiting = false;
                if !std::mem::replace(&mut slot.is_ready, true) {
                    self.ready.push_back(index);
                }
            }
        }
        for _ in 0..self.ready.len().min(TURNS_PER_POLL) {
            let index = self.ready.pop_front().expect("counted");
            self.slots[index as usize].is_ready = false;
            self.turn(tables, index, |connection, tables, staging| connection.receive(tables, staging));
            worked = true;
        }
        worked = worked || self.read_only_one(tables);
        self.write_acks(tables, tables.deadlines.now_ns());
        self.idle_polls = if worked { 0 } else { self.idle_polls.saturating_add(1) };
        worked
    }

    fn ready(&mut self, tables: &mut Tables, place: Place, flags: EventFlags) -> bool {
        let index = match place {
            Place::Connection(index) => index,
            Place::Listener(number) => {
                if let Some(listener) = self.listeners.get_mut(number as usize) {
                    listener.ready = true;
                }
                return true;
            }
            Place::Stranger { place, number } => {
                self.idle_polls = 0;
                self.stranger_is_ready(tables, place, number, flags);
                return true;
            }
            Place::Turns => return true,
        };
        (self.idle_polls, self.last) = (0, index);
        let connection = self.slots[index as usize].connection.as_ref();
        if connection.is_some_and(|connection| matches!(connection.phase, Phase::Opening { .. })) {
            self.connecting(tables, index);
            return true;
        }
        // The edge of bytes that were read without it comes later, and then says only that there is room.
        let is_news = connection.is_some_and(|connection| connection.blocked)
            || flags.intersects(EventFlags::IN | HUNG_UP);
        self.turn(tables, index, |connection, _, _| {
            connection.input.readable |= flags.intersects(EventFlags::IN | HUNG_UP);
            connection.input.hung_up |= flags.intersects(HUNG_UP);
            connection.blocked &= !flags.intersects(EventFlags::OUT | HUNG_UP);
            Ok(())
        });
        is_news
    }

    fn epoll_interval(&self) -> u32 {
        if self.open == 0 && self.strangers.count() == 0 {
            return u32::MAX;
        }
        if self.only_reads() {
            return EPOLL_INTERVAL_ALONE;
        }
        // While connections have bytes to read, the others can wait a few polls.
        if self.ready.is_empty() { self.idle_interval() } else { 4 }
    }

    fn expire(&mut self, tables: &mut Tables, place: Place, wait: Wait) {
        match place {
            Place::Connection(index) => {
                self.turn(tables, index, |connection, tables, staging| {
                    connection.expire(tables, staging, wait)
                });
            }
            Place::Listener(_) => self.end_pause(tables),
            Place::Stranger { .. } => self.end_late_strangers(tables),
            // Only `shm:` has a line.
            Place::Turns => {}
        }
    }

    fn arm(&mut self, tables: &mut Tables) -> bool {
        // Nobody is kept waiting by a sleeper.
        self.write_acks(tables, u64::MAX);
        let can_resume = !self.waiting.is_empty() && !tables.srq.is_empty();
        if !self.ready.is_empty() || !self.dirty.is_empty() || can_resume || self.may_accept() {
            return false;
        }
        true
    }

    fn registered(&mut self, _tables: &mut Tables, _key: MemoryKey) {
        // Peers name regions by key, and each READ is looked up when it is answered.
    }

    fn deregistered(&mut self, tables: &mut Tables, key: MemoryKey) {
        for index in 0..self.slots.len() {
            let lost = self.slots[index].connection.as_ref().and_then(|connection| connection.send_from(key));
            if let Some(send) = lost {
                let index = u32::try_from(index).expect("QPs are counted in 32 bits");
                self.turn(tables, index, |_, _, _| Err::<(), _>(Connection::payload_lost(send)));
            }
        }
    }
}
