//! Accepting connections over `shm:`. What is common to both transports is in [`crate::soft::accepting`].
//!
//! A request is one packet, so it has arrived whole or not at all. It stays in the socket until it is carried
//! out.

use super::Shm;
use super::connection::Connection;
use super::control::said;
use crate::soft::accepting::{Accepted, Accepting};
use crate::soft::strangers::{Said, Strangers};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::token::{Kind, Place, Token};
use crate::source::Source;
use crate::unix::shut_down;
use rustix::event::epoll::EventFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

impl Shm {
    /// Continues to accept after a pause. The epoll may be looked at much later, so whoever waits is taken
    /// now.
    pub(super) fn accept_again(&mut self, tables: &mut Tables) {
        self.end_pause(tables);
        self.accept_round(tables);
    }

    fn watch_listeners(&self, tables: &Tables, flags: EventFlags) {
        for (number, listener) in (0..).zip(&self.listeners) {
            let token = Token { kind: Kind::Shm, place: Place::Listener(number) };
            // The listener's entry in the epoll exists, so changing it needs no memory.
            tables
                .epoll
                .modify(listener.socket.as_fd(), token.to_u64(), flags)
                .expect("a listener is watched");
        }
    }
}

impl Accepting for Shm {
    const KIND: Kind = Kind::Shm;

    fn strangers(&mut self) -> &mut Strangers {
        &mut self.strangers
    }

    fn listeners(&self) -> usize {
        self.listeners.len()
    }

    fn accept_at(&mut self, listener: usize) -> io::Result<Accepted> {
        let found = self.listeners[listener].accept()?;
        Ok(found.map_or(Accepted::Nobody, |(socket, source)| Accepted::From(socket, source)))
    }

    fn set_pause(&mut self, tables: &mut Tables, pauses: bool) {
        self.watch_listeners(tables, if pauses { EventFlags::empty() } else { EventFlags::IN });
    }

    fn said(socket: &OwnedFd) -> Said {
        said(socket)
    }

    fn is_held_up(tables: &mut Tables) -> bool {
        tables.disposal.is_full()
    }

    fn close(tables: &mut Tables, socket: OwnedFd, source: Source) {
        // Mostly no file waits in the socket. Then its descriptor is free at once, which may be what it is
        // closed for.
        if shut_down(socket.as_fd()) {
            return drop(socket);
        }
        tables.disposal.close_socket(source, socket);
    }

    fn let_in(&mut self, tables: &mut Tables, socket: OwnedFd, source: Source) {
        // A file comes with the request, and needs a descriptor. Whoever has said its request keeps its own.
        while socket.try_clone().is_err()
            && let Some(first) = self.strangers.first_without_request(said)
            && let Some((first, source)) = self.strangers.send_away(tables, first)
        {
            tables.counters.protocol_errors += u64::from(said(&first) == Said::Garbage);
            Self::close(tables, first, source);
        }
        // When the table is full, the peer is turned away by closing its socket.
        let Some(qp) = tables.qps.take(Kind::Shm, QpState::Handshake) else {
            return Self::close(tables, socket, source);
        };
        match Connection::new(tables, qp, socket, source, None) {
            Ok(connection) => {
                self.insert(connection);
                self.listen_to(tables, qp.index);
            }
            Err((_, socket)) => {
                tables.qps.release(qp);
                Self::close(tables, socket, source);
            }
        }
    }
}
