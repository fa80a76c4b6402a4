//! Accepting connections: each is a stranger until its request has arrived.
//!
//! The rules by which strangers make room for each other are in [`crate::soft::strangers`]. A request is one
//! packet, so it has arrived whole or not at all. It stays in the socket until it is carried out.

use super::Shm;
use super::connection::Connection;
use super::control::said;
use crate::soft::deadlines::Wait;
use crate::soft::strangers::{PAUSE, Said, Source};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::token::{Kind, Place, Token};
use rustix::event::epoll::EventFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Time until the next try after the system had no descriptor for a new connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Connections accepted in one check of a listener.
const ACCEPT_BURST: u32 = 64;

impl Shm {
    /// Takes connections that wait at a listener.
    pub(super) fn accept_sockets(&mut self, tables: &mut Tables, listener: usize) {
        for _ in 0..ACCEPT_BURST {
            if self.strangers.must_pause() {
                return self.pause(tables, PAUSE);
            }
            let Some(listener) = self.listeners.get(listener) else { return };
            match listener.accept() {
                Ok(Some((socket, source))) => self.welcome(tables, socket, source),
                Ok(None) => return,
                // No descriptor is left: who has said nothing for longest gives one back.
                Err(_) => match self.strangers.first() {
                    Some(first) => self.look_at_stranger(tables, first, true),
                    None => return self.pause(tables, ACCEPT_AGAIN),
                },
            }
        }
    }

    /// Stops watching the listeners for this time.
    fn pause(&self, tables: &mut Tables, span: Duration) {
        tables.deadlines.set(tables.place_of_listeners(Kind::Shm), Wait::Accept, span);
        self.watch_listeners(tables, EventFlags::empty());
    }

    /// Continues to accept after a pause. The epoll may be looked at much later, so whoever waits is taken
    /// now.
    pub(super) fn accept_again(&mut self, tables: &mut Tables) {
        self.strangers.end_pause();
        self.watch_listeners(tables, EventFlags::IN);
        for listener in 0..self.listeners.len() {
            self.accept_sockets(tables, listener);
        }
    }

    pub(super) fn watch_listeners(&self, tables: &Tables, flags: EventFlags) {
        for (number, listener) in (0..).zip(&self.listeners) {
            let token = Token { kind: Kind::Shm, place: Place::Listener(number) };
            // The listener's entry in the epoll exists, so changing it needs no memory.
            tables
                .epoll
                .modify(listener.socket.as_fd(), token.to_u64(), flags)
                .expect("a listener is watched");
        }
    }

    /// Lets a newcomer in that has said its request, or gives it a place among the strangers.
    fn welcome(&mut self, tables: &mut Tables, socket: OwnedFd, source: Source) {
        let said = said(&socket);
        if said == Said::Request {
            // A peer sends its request as soon as it has connected.
            return self.let_in(tables, socket);
        }
        self.strangers.count_newcomer();
        tables.counters.protocol_errors += u64::from(said == Said::Garbage);
        if said == Said::NotAll {
            if let Some(first) = self.strangers.in_the_way_of(source) {
                self.look_at_stranger(tables, first, true);
            }
            // A socket that cannot be watched is closed; its peer notices that at once.
            let _ = self.strangers.seat(tables, socket, source);
        }
    }

    /// Lets a stranger in that has said its request. With `leaves` any other stranger is closed.
    pub(super) fn look_at_stranger(&mut self, tables: &mut Tables, place: u32, leaves: bool) {
        if let Some(socket) = self.strangers.look(tables, place, leaves, said) {
            self.let_in(tables, socket);
        }
    }

    /// Closes the strangers whose time is over.
    pub(super) fn end_late_strangers(&mut self, tables: &mut Tables) {
        while let Some(place) = self.strangers.next_due(tables) {
            self.look_at_stranger(tables, place, true);
        }
    }

    /// Makes a connection of a socket in which a request waits, and carries the request out.
    fn let_in(&mut self, tables: &mut Tables, socket: OwnedFd) {
        // A file comes with the request, and needs a descriptor.
        while socket.try_clone().is_err()
            && let Some(first) = self.strangers.first()
        {
            drop(self.strangers.look(tables, first, true, said));
        }
        // When the table is full, the peer is turned away by closing its socket.
        let Some(qp) = tables.qps.take(Kind::Shm, QpState::Handshake) else { return };
        match Connection::new(tables, qp, socket, None) {
            Ok(connection) => {
                self.insert(connection);
                self.check_socket(tables, qp.index);
            }
            Err(_) => tables.qps.release(qp),
        }
    }
}
