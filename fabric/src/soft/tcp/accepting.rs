//! Accepting connections: each is a stranger until all of its request has arrived.
//!
//! The rules by which strangers make room for each other are in [`crate::soft::strangers`]. What a stranger
//! has said is looked at and left in its socket, so nothing is kept for it here.

use super::Tcp;
use super::connection::Phase;
use super::frame::{FRAME_BYTES, Frame};
use super::socket::{self, IoOutcome};
use crate::nic::PRIVATE_DATA_MAX;
use crate::soft::deadlines::Wait;
use crate::soft::strangers::{PAUSE, Said, Source};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::token::Kind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Connections accepted in one poll, at most.
const ACCEPT_BURST: usize = 32;
/// Time until the next try after the system had no descriptor for a new connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

impl Tcp {
    /// Accepts waiting connections, within limits. `true` where there were any.
    pub(super) fn accept_sockets(&mut self, tables: &mut Tables) -> bool {
        let mut accepted = 0;
        for place in 0..self.listeners.len() {
            while self.listeners[place].ready && accepted < ACCEPT_BURST {
                if self.strangers.must_pause() {
                    self.pause(tables, PAUSE);
                    return accepted > 0;
                }
                accepted += 1;
                match self.listeners[place].accept() {
                    Ok(Some((socket, source))) => self.welcome(tables, socket, source),
                    Ok(None) => accepted -= 1,
                    // No descriptor is left: who has said nothing for longest gives one back.
                    Err(_) => match self.strangers.first() {
                        Some(first) => self.look_at_stranger(tables, first, true),
                        None => {
                            self.pause(tables, ACCEPT_AGAIN);
                            return accepted > 1;
                        }
                    },
                }
            }
        }
        accepted > 0
    }

    fn pause(&mut self, tables: &mut Tables, span: Duration) {
        self.accepts_nobody = true;
        tables.deadlines.set(tables.place_of_listeners(Kind::Tcp), Wait::Accept, span);
    }

    /// Continues to accept after a pause.
    pub(super) fn accept_again(&mut self) {
        self.accepts_nobody = false;
        self.strangers.end_pause();
    }

    pub(super) fn may_accept(&self) -> bool {
        !self.accepts_nobody && self.listeners.iter().any(|listener| listener.ready)
    }

    /// Lets a newcomer in that has said all of its request, or gives it a place among the strangers.
    fn welcome(&mut self, tables: &mut Tables, socket: OwnedFd, source: Source) {
        let said = said(&socket);
        if said == Said::Request {
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

    /// Lets a stranger in that has said all of its request. With `leaves` any other stranger is closed.
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

    /// Makes a connection of a socket in which all of a request waits, and reads the request.
    fn let_in(&mut self, tables: &mut Tables, socket: OwnedFd) {
        // A socket that cannot be set up, or has no place, is closed; its peer notices that at once.
        if socket::prepare(&socket, &self.options).is_err() {
            return;
        }
        let Some(qp) = tables.qps.take(Kind::Tcp, QpState::Handshake) else { return };
        if self.begin(tables, qp, socket, Phase::Handshake).is_err() {
            return tables.qps.release(qp);
        }
        self.turn(tables, qp.index, |connection, tables, staging| {
            connection.input.readable = true;
            connection.receive(tables, staging)
        });
    }
}

/// Looks at what a peer has said, without taking it out of the socket.
fn said(socket: &OwnedFd) -> Said {
    let mut bytes = [0; FRAME_BYTES + PRIVATE_DATA_MAX];
    let got = match socket::peek(socket.as_fd(), &mut bytes) {
        IoOutcome::Bytes(got) => got,
        IoOutcome::Blocked => return Said::NotAll,
        IoOutcome::End | IoOutcome::Failed(_) => return Said::Gone,
    };
    let Some(head) = bytes[..got].first_chunk::<FRAME_BYTES>() else { return Said::NotAll };
    match Frame::parse(head) {
        Ok(Frame::Connect { private_bytes, .. }) if got >= FRAME_BYTES + private_bytes as usize => {
            Said::Request
        }
        Ok(Frame::Connect { .. }) => Said::NotAll,
        Ok(_) | Err(_) => Said::Garbage,
    }
}
