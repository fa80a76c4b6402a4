//! The transport on one host: rings of SENDs in memory that both ends map, and registered memory as memory
//! files that the reading end reads, or maps ([`regions`]).
//!
//! A connection is a Unix socket and a [`link`]. The socket carries memory files, announcements of regions,
//! and doorbells ([`control`]). A connection with recent work is *hot*: every poll reads its rings. A
//! connection without recent work is *cold*: its peer rings the bell, and the epoll reports that. So a NIC
//! with a thousand connections costs only as much as the busy ones among them. How connections are accepted
//! is in [`accepting`], and whose messages on sockets are taken in [`sockets`].

mod accepting;
mod connection;
mod control;
mod link;
mod listener;
mod regions;
mod sockets;
#[cfg(test)]
mod tests;

use super::accepting::Accepting;
use super::deadlines::Wait;
use super::options::SoftOptions;
use super::strangers::Strangers;
use super::tables::Tables;
use super::tables::qps::QpState;
use super::token::{Kind, Place, Token};
use super::transport::Transport;
use crate::address::Address;
use crate::nic::{ConnectError, ListenError, MemoryKey, PostError, PrivateData, Qp, SendRequest, Status};
use crate::source::Source;
use crate::unix::peer_of;
use connection::{Connection, End};
use control::Control;
use link::{Fault, Link};
use listener::{Listener, connect_to};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

/// Empty polls after which a connection goes cold.
///
/// Waking a cold connection costs its peer a system call. So a connection stays hot for about as long as some
/// hundred such calls take.
const COLD_AFTER_POLLS: u32 = 2048;
/// Hot connections from which on they go cold sooner: with twice as many after half as many empty polls.
const HOT_FEW: usize = 16;
/// Hot connections without work that are looked at in one poll. Otherwise thousands that have work now and
/// then would make each poll take as long as some hundred messages.
const VAIN_POLLS: u32 = 128;
/// SENDs taken in one poll, from all connections together.
///
/// That takes about as long as the READs' part of a poll, so neither starves the other.
const RECEIVES_PER_POLL: u32 = 128;
/// Bytes copied for READs in one poll.
///
/// That is enough for the copy to run at full speed. It takes about 6 us, short enough that SENDs do not wait
/// behind a fragment.
const READ_BYTES_PER_POLL: u32 = 64 << 10;
/// Most polls between two checks of the sockets. A NIC without work checks more often.
const EPOLL_INTERVAL: u32 = 1024;
/// Transport over `shm:`: its listeners and connections.
pub(crate) struct Shm {
    listeners: Vec<Listener>,
    /// Accepted connections whose request has not arrived.
    strangers: Strangers,
    /// Connections by their QP's index.
    connections: Vec<Option<Box<Connection>>>,
    /// Indices of the hot connections: every poll visits them.
    hot: Vec<u32>,
    /// Indices of the connections with SENDs to show to their peers.
    dirty: Vec<u32>,
    /// Indices of the connections with outstanding READs, in the order of their turns.
    reading: VecDeque<u32>,
    /// Place in `hot` where the next poll begins. It moves, so that a scarce SRQ serves all connections.
    first: usize,
}

impl Shm {
    fn get(&mut self, qp: Qp) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(qp.index as usize)?.as_deref_mut()?;
        (connection.qp == qp).then_some(connection)
    }

    fn insert(&mut self, connection: Connection) {
        let place = &mut self.connections[connection.qp.index as usize];
        assert!(place.is_none(), "a QP's place is free when it is taken");
        *place = Some(Box::new(connection));
    }

    /// Makes a connection hot: every poll visits it from now on.
    fn make_hot(&mut self, index: u32) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
        connection.idle_polls = 0;
        if !std::mem::replace(&mut connection.hot, true) {
            connection.awake();
            self.hot.push(index);
        }
    }

    /// Gives up all connections and strangers without a SEND, since the NIC is dropped. The peers see that
    /// this end's memory is no longer what they READ.
    pub(super) fn leave(&mut self, tables: &mut Tables) {
        for mut connection in self.connections.drain(..).flatten() {
            connection.tell_end(Fault::Closed);
            connection.leave(tables);
        }
        for (socket, source) in self.strangers.send_all_away(tables) {
            Self::close(tables, socket, source);
        }
    }

    /// Ends a connection, and takes it off all lists.
    fn end(&mut self, tables: &mut Tables, index: u32, end: End) {
        let Some(connection) = self.connections[index as usize].take() else { return };
        // These searches are rare, and the lists are short. Entries of the lists must exist.
        if connection.hot {
            self.hot.retain(|other| *other != index);
        }
        if connection.dirty {
            self.dirty.retain(|other| *other != index);
        }
        if connection.reading {
            self.reading.retain(|other| *other != index);
        }
        connection.end(tables, end);
    }

    /// Polls a hot connection once. Returns whether there was work, or how the connection ends.
    #[inline]
    fn poll_connection(
        connection: &mut Connection,
        tables: &mut Tables,
        budget: &mut u32,
    ) -> Result<bool, End> {
        if connection.stands_still() {
            // A poll that found nothing may have made the peer ring: see `arm`.
            connection.link().stop_waiting_for_room();
        }
        let received = connection.receive(tables, budget)?;
        let completed = connection.complete_sends(tables)?;
        if connection.hung_up && !received {
            return Err(connection.end_by_peer());
        }
        if connection.closing && !connection.has_sends() {
            return Err(End::LOCAL);
        }
        Ok(received || completed)
    }

    /// Polls the hot connections, each once, until the budget for SENDs is used up, or many had no work. The
    /// next poll continues there. `vain`: how many those are.
    fn poll_hot(&mut self, tables: &mut Tables, mut vain: u32) -> bool {
        let mut worked = false;
        let mut budget = RECEIVES_PER_POLL;
        let mut left = self.hot.len();
        // Where many are hot, each has its turn seldom, and must use it.
        let cold_after = COLD_AFTER_POLLS / u32::try_from(left / HOT_FEW).unwrap_or(u32::MAX).max(1);
        let mut place = self.first;
        while left > 0 && budget > 0 && vain > 0 {
            left -= 1;
            if place >= self.hot.len() {
                place = 0;
            }
            let Some(index) = self.hot.get(place).copied() else { break };
            let connection = self.connections[index as usize].as_deref_mut().expect("what is hot exists");
            match Self::poll_connection(connection, tables, &mut budget) {
                Ok(true) => {
                    connection.idle_polls = 0;
                    worked = true;
                    place += 1;
                }
                Ok(false) => {
                    connection.idle_polls = connection.idle_polls.saturating_add(1);
                    vain -= 1;
                    // Where the connection leaves the list, the last one moves to its place and has its turn.
                    if !self.try_cool(index, place, cold_after) {
                        place += 1;
                    }
                }
                Err(end) => {
                    self.end(tables, index, end);
                    worked = true;
                }
            }
        }
        // Where all had their turn, the next poll begins one further, so that a scarce SRQ serves another
        // connection first.
        self.first = if left == 0 && budget > 0 { place + 1 } else { place };
        worked
    }

    /// Lets a connection go cold that has had no work for long. `true` where it did.
    #[inline]
    fn try_cool(&mut self, index: u32, place: usize, cold_after: u32) -> bool {
        let connection = self.connections[index as usize].as_deref_mut().expect("what is hot exists");
        if connection.idle_polls < cold_after || !Self::cool(connection) {
            return false;
        }
        self.hot.swap_remove(place);
        true
    }

    /// Makes a connection's peer ring from now on. `false` where work waits that no bell would announce.
    fn cool(connection: &mut Connection) -> bool {
        let waits = connection.stands_still()
            || connection.hung_up
            || connection.reads.front().is_some()
            || connection.dirty;
        if waits || !connection.prepare_sleep() {
            return false;
        }
        connection.hot = false;
        true
    }

    /// Copies bytes for the READs of one connection, whose turn it is.
    fn poll_reads(&mut self, tables: &mut Tables) -> bool {
        let Some(index) = self.reading.pop_front() else { return false };
        let connection = self.connections[index as usize].as_deref_mut().expect("who reads exists");
        match connection.read(tables, READ_BYTES_PER_POLL) {
            Ok(true) => self.reading.push_back(index),
            Ok(false) => {
                connection.reading = false;
                if connection.hung_up {
                    // It ends once the SENDs were taken that the peer made before it left.
                    self.make_hot(index);
                }
            }
            Err(end) => {
                connection.reading = false;
                self.end(tables, index, end);
            }
        }
        true
    }

    /// Announces a region to every peer that knows this NIC's regions.
    fn announce(&mut self, tables: &mut Tables, control: Control) {
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections[index].as_deref_mut() else { continue };
            let qp = connection.qp;
            let knows = match tables.qps.get(qp).expect("a connection's QP lives").state {
                QpState::Connecting | QpState::Connected | QpState::Closing => true,
                // These peers hear of all regions when they are accepted.
                QpState::Handshake | QpState::Requested | QpState::Ended => false,
            };
            if knows && let Err(end) = connection.announce(tables, control) {
                self.end(tables, qp.index, end);
            }
        }
    }
}

impl Transport for Shm {
    fn new(options: &SoftOptions) -> Self {
        let qps = options.qps_max as usize;
        Self {
            listeners: Vec::new(),
            strangers: Strangers::new(Kind::Shm),
            connections: (0..qps).map(|_| None).collect(),
            hot: Vec::with_capacity(qps),
            dirty: Vec::with_capacity(qps),
            reading: VecDeque::with_capacity(qps),
            first: 0,
        }
    }

    fn listen(&mut self, tables: &mut Tables, address: &Address) -> Result<Address, ListenError> {
        let Address::Shm(path) = address else {
            return Err(ListenError::WrongFabric { address: address.clone() });
        };
        let system = |source| ListenError::System { address: address.clone(), source };
        let listener = Listener::bind(path)?;
        tables.disposal.start().map_err(system)?;
        let number = u32::try_from(self.listeners.len()).expect("listeners are few");
        let token = Token { kind: Kind::Shm, place: Place::Listener(number) };
        tables.epoll.add(listener.socket.as_fd(), token.to_u64(), EventFlags::IN).map_err(system)?;
        self.listeners.push(listener);
        self.strangers.open(&tables.options);
        Ok(address.clone())
    }

    fn stop_listening(&mut self, tables: &mut Tables) {
        for listener in self.listeners.drain(..) {
            tables.epoll.remove(listener.socket.as_fd());
            // What waits to be accepted may have sent files.
            tables.disposal.close_socket(Source::of_nobody(), listener.stop());
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
        let Address::Shm(path) = address else {
            return Err(ConnectError::WrongFabric { address: address.clone() });
        };
        let system = |source: io::Error| ConnectError::System { address: address.clone(), source };
        let socket = connect_to(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ConnectError::Busy { address: address.clone() },
            _ => system(error),
        })?;
        let link = Link::make().map_err(system)?;
        let peer = peer_of(socket.as_fd()).map_err(system)?;
        let source = Source::of_process(peer.process, peer.user);
        let connection = Connection::new(tables, qp, socket, source, Some(link));
        let mut connection = connection.map_err(|(error, _)| system(error))?;
        let reads_answered = tables.options.reads_answered_per_qp_max;
        let sent = connection
            .send_control(tables, Control::Connect { private_data: *private_data, reads_answered })
            .and_then(|()| connection.announce_all(tables));
        if sent.is_err() {
            connection.unwatch(tables);
            connection.leave(tables);
            return Err(system(io::Error::other("the listener's socket does not take what is sent")));
        }
        self.insert(connection);
        tables.deadlines.set(qp.index, Wait::Handshake, tables.options.handshake);
        Ok(())
    }

    fn accept(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        let connection = self.get(qp).expect("a QP that was requested has its connection");
        let Some(reads_max) = tables.agree_on_reads(connection.peer_answers) else {
            self.end(tables, qp.index, End::PROTOCOL);
            return Err(PostError::Stale);
        };
        let reads_answered = tables.options.reads_answered_per_qp_max;
        let sent = connection
            .send_control(tables, Control::Accept { private_data: *private_data, reads_answered })
            .and_then(|()| connection.announce_all(tables));
        if let Err(end) = sent {
            self.end(tables, qp.index, end);
            return Err(PostError::Stale);
        }
        tables.connected(qp, PrivateData::new(&[]).expect("nothing fits"), reads_max);
        self.make_hot(qp.index);
        self.user_accepted(tables);
        Ok(())
    }

    fn reject(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData) {
        self.get(qp).expect("a QP that was requested has its connection").reject(tables, private_data);
        // Ends without an event, since the user itself refused the connection.
        tables.qps.set_state(qp, QpState::Handshake);
        self.end(tables, qp.index, End::LOCAL);
    }

    fn disconnect(&mut self, tables: &mut Tables, qp: Qp) {
        let connected = tables.qps.get(qp).is_some_and(|entry| entry.state == QpState::Connected);
        let connection = self.get(qp).expect("a living QP has its connection");
        connection.flush_reads(tables);
        if !connected || !connection.has_sends() {
            return self.end(tables, qp.index, End::LOCAL);
        }
        connection.closing = true;
        tables.deadlines.set(qp.index, Wait::Farewell, tables.options.farewell);
        tables.qps.set_state(qp, QpState::Closing);
        self.make_hot(qp.index);
    }

    #[inline]
    fn post_send(&mut self, tables: &mut Tables, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        let connection =
            self.connections[qp.index as usize].as_deref_mut().expect("a connected QP has its connection");
        if let Err(error) = connection.post_send(tables, &request) {
            // The next poll empties a full ring, or finds a broken one.
            self.make_hot(qp.index);
            return Err(error);
        }
        if !std::mem::replace(&mut connection.dirty, true) {
            self.dirty.push(qp.index);
        }
        Ok(())
    }

    fn post_read(&mut self, tables: &mut Tables, qp: Qp, read: u32) {
        let connection =
            self.connections[qp.index as usize].as_deref_mut().expect("a connected QP has its connection");
        tables.reads.append(&mut connection.reads, read);
        if !std::mem::replace(&mut connection.reading, true) {
            self.reading.push_back(qp.index);
        }
        // The READ may take a bell off the socket, so the connection must be awake.
        self.make_hot(qp.index);
    }

    #[inline]
    fn flush(&mut self, _tables: &mut Tables) {
        while let Some(index) = self.dirty.pop() {
            let connection = self.connections[index as usize].as_deref_mut().expect("what is dirty exists");
            connection.dirty = false;
            connection.show();
            // Its SENDs complete soon.
            self.make_hot(index);
        }
    }

    fn progress(&mut self, tables: &mut Tables) -> bool {
        let mut worked = self.poll_hot(tables, VAIN_POLLS);
        worked |= self.poll_reads(tables);
        worked
    }

    fn expire(&mut self, tables: &mut Tables, place: Place, wait: Wait) {
        let index = match place {
            Place::Connection(index) => index,
            Place::Listener(_) => return self.accept_again(tables),
            Place::Stranger { .. } => return self.end_late_strangers(tables),
            Place::Turns => return self.give_turns(tables),
        };
        let end = match wait {
            Wait::Rnr => End::work(Status::RnrExhausted, Fault::RnrExhausted),
            Wait::Farewell => End::LOCAL,
            Wait::Handshake | Wait::ReadAnswer | Wait::SendRest | Wait::Accept | Wait::Turn => End::TIMEOUT,
        };
        self.end(tables, index, end);
    }

    fn ready(&mut self, tables: &mut Tables, place: Place, flags: EventFlags) -> bool {
        match place {
            Place::Connection(index) => self.check_socket(tables, index, flags),
            Place::Listener(_) => drop(self.accept_round(tables)),
            Place::Stranger { place, number } => self.stranger_is_ready(tables, place, number, flags),
            Place::Turns => {}
        }
        true
    }

    fn epoll_interval(&self) -> u32 {
        EPOLL_INTERVAL
    }

    fn arm(&mut self, tables: &mut Tables) -> bool {
        // All of them: who sleeps must have looked at each.
        if !self.reading.is_empty() || self.poll_hot(tables, u32::MAX) {
            return false;
        }
        let mut place = 0;
        while let Some(index) = self.hot.get(place).copied() {
            let connection = self.connections[index as usize].as_deref_mut().expect("what is hot exists");
            if Self::cool(connection) {
                self.hot.swap_remove(place);
            } else if connection.stands_still() && !connection.hung_up && connection.prepare_for_room() {
                // This connection has nothing to do until the user posts to the SRQ, it has a turn, or the
                // peer takes SENDs.
                place += 1;
            } else {
                return false;
            }
        }
        true
    }

    fn registered(&mut self, tables: &mut Tables, key: MemoryKey) {
        self.announce(tables, Control::Register(key.0));
    }

    fn deregistered(&mut self, tables: &mut Tables, key: MemoryKey) {
        self.announce(tables, Control::Deregister(key.0));
    }
}
