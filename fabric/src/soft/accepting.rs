//! Accepting connections, which is the same for both transports: whose turn it is, when accepting pauses, and
//! how a stranger comes in or goes.
//!
//! Who waits at one listener holds up nobody at another: the listeners take turns, one connection each, and
//! the next round begins where the last one ended. The rules by which strangers make room for each other are
//! in [`super::strangers`].

use super::deadlines::Wait;
use super::strangers::{Looked, PAUSE, Said, Strangers};
use super::tables::Tables;
use super::token::Kind;
use crate::source::Source;
use rustix::event::epoll::EventFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Connections accepted in one round, at most.
const ACCEPT_BURST: usize = 32;
/// Time until the next try after the system had no descriptor for a new connection, or too much of earlier
/// ones waits to be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What was found at a listener.
pub(crate) enum Accepted {
    /// Nobody waits.
    Nobody,
    /// A connection, and where it comes from.
    From(OwnedFd, Source),
    /// A connection from a network that is not allowed, which is closed.
    NotAllowed,
}

/// Transport that accepts connections.
pub(crate) trait Accepting {
    /// Kind of the transport.
    const KIND: Kind;

    /// Returns its strangers.
    fn strangers(&mut self) -> &mut Strangers;

    /// Returns how many listeners it has.
    fn listeners(&self) -> usize;

    /// Takes a connection that waits at a listener, if there is one.
    ///
    /// # Errors
    /// The system has no descriptor or memory left for the connection. It stays waiting.
    fn accept_at(&mut self, listener: usize) -> io::Result<Accepted>;

    /// Begins or ends a pause, in which listeners wake nobody.
    fn set_pause(&mut self, tables: &mut Tables, pauses: bool);

    /// Looks at what a peer has said, without taking it out of the socket.
    fn said(socket: &OwnedFd) -> Said;

    /// Whether nobody may be accepted until what earlier connections left is closed.
    fn is_held_up(tables: &mut Tables) -> bool;

    /// Closes a socket that this end has read nothing from.
    fn close(tables: &mut Tables, socket: OwnedFd, source: Source);

    /// Makes a connection of a socket in which all of a request waits, and reads the request.
    fn let_in(&mut self, tables: &mut Tables, socket: OwnedFd, source: Source);

    /// Accepts waiting connections, within limits. `true` where there were any.
    fn accept_round(&mut self, tables: &mut Tables) -> bool {
        let listeners = self.listeners();
        let (mut tries, mut without) = (0, 0);
        while tries < ACCEPT_BURST && without < listeners {
            if self.strangers().must_pause() {
                self.strangers().begin_pause();
                self.pause(tables, PAUSE);
                break;
            }
            if Self::is_held_up(tables) {
                self.pause(tables, ACCEPT_AGAIN);
                break;
            }
            let listener = self.strangers().take_turn(listeners);
            match self.accept_at(listener) {
                Ok(Accepted::From(socket, source)) => {
                    (tries, without) = (tries + 1, 0);
                    self.welcome(tables, socket, source);
                }
                // Who comes again and again pauses accepting as any newcomer does.
                Ok(Accepted::NotAllowed) => {
                    (tries, without) = (tries + 1, 0);
                    self.strangers().count_newcomer();
                    tables.counters.networks_refused += 1;
                }
                Ok(Accepted::Nobody) => without += 1,
                // No descriptor is left: who has said nothing for longest gives one back.
                Err(_) => match self.strangers().first() {
                    Some(first) => {
                        tries += 1;
                        self.look_at_stranger(tables, first, true);
                    }
                    None => {
                        self.pause(tables, ACCEPT_AGAIN);
                        break;
                    }
                },
            }
        }
        tries > 0
    }

    /// Accepts nobody for this time.
    fn pause(&mut self, tables: &mut Tables, span: Duration) {
        tables.deadlines.set(tables.place_of_listeners(Self::KIND), Wait::Accept, span);
        self.set_pause(tables, true);
    }

    /// Continues to accept after a pause.
    fn end_pause(&mut self, tables: &mut Tables) {
        self.strangers().forget_newcomers();
        self.go_on(tables);
    }

    /// Notes that the NIC's user has accepted a newcomer. Where accepting pauses for newcomers that were not
    /// accepted, and there are no longer so many, it goes on.
    fn user_accepted(&mut self, tables: &mut Tables) {
        if self.strangers().was_accepted() {
            self.go_on(tables);
        }
    }

    fn go_on(&mut self, tables: &mut Tables) {
        tables.deadlines.clear(tables.place_of_listeners(Self::KIND));
        self.set_pause(tables, false);
    }

    /// Lets a newcomer in that has said all of its request, or gives it a place among the strangers.
    fn welcome(&mut self, tables: &mut Tables, socket: OwnedFd, source: Source) {
        self.strangers().count_newcomer();
        match Self::said(&socket) {
            Said::Request => self.let_in(tables, socket, source),
            Said::NotAll => {
                if let Some(first) = self.strangers().in_the_way_of(source) {
                    self.look_at_stranger(tables, first, true);
                }
                // A socket that cannot be watched is closed; its peer notices that at once.
                if let Err(socket) = self.strangers().seat(tables, socket, source) {
                    Self::close(tables, socket, source);
                }
            }
            said @ (Said::Garbage | Said::Gone) => {
                tables.counters.protocol_errors += u64::from(said == Said::Garbage);
                Self::close(tables, socket, source);
            }
        }
    }

    /// Lets a stranger in that has said all of its request. With `leaves` any other stranger is closed.
    fn look_at_stranger(&mut self, tables: &mut Tables, place: u32, leaves: bool) {
        match self.strangers().look(tables, place, leaves, Self::said) {
            Looked::Stays => {}
            // Whoever is let in may bring one file more. Who waits here comes in no sooner than others.
            Looked::Request(socket, source) if Self::is_held_up(tables) => {
                Self::close(tables, socket, source)
            }
            Looked::Request(socket, source) => self.let_in(tables, socket, source),
            Looked::Leaves(socket, source) => Self::close(tables, socket, source),
        }
    }

    /// Acts on a stranger's socket that became ready, unless that stranger has gone meanwhile.
    fn stranger_is_ready(&mut self, tables: &mut Tables, place: u32, number: u32, flags: EventFlags) {
        if self.strangers().has(place, number) {
            self.look_at_stranger(tables, place, Strangers::hung_up(flags));
        }
    }

    /// Closes the strangers whose time is over.
    fn end_late_strangers(&mut self, tables: &mut Tables) {
        while let Some(place) = self.strangers().next_due(tables) {
            self.look_at_stranger(tables, place, true);
        }
    }
}
