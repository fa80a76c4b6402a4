//! Accepting connections over `tcp:`. What is common to both transports is in [`crate::soft::accepting`].
//!
//! What a stranger has said is looked at and left in its socket, so nothing is kept for it here.

use super::Tcp;
use super::connection::Phase;
use super::frame::{FRAME_BYTES, Frame};
use super::socket::{self, IoOutcome};
use crate::nic::PRIVATE_DATA_MAX;
use crate::soft::accepting::{Accepted, Accepting};
use crate::soft::strangers::{Said, Strangers};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::token::Kind;
use crate::source::Source;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

impl Tcp {
    pub(super) fn may_accept(&self) -> bool {
        !self.accepts_nobody && self.listeners.iter().any(|listener| listener.ready)
    }
}

impl Accepting for Tcp {
    const KIND: Kind = Kind::Tcp;

    fn strangers(&mut self) -> &mut Strangers {
        &mut self.strangers
    }

    fn listeners(&self) -> usize {
        self.listeners.len()
    }

    fn accept_at(&mut self, listener: usize) -> io::Result<Accepted> {
        let listener = &mut self.listeners[listener];
        if listener.ready { listener.accept(&self.networks) } else { Ok(Accepted::Nobody) }
    }

    fn set_pause(&mut self, _tables: &mut Tables, pauses: bool) {
        self.accepts_nobody = pauses;
    }

    fn said(socket: &OwnedFd) -> Said {
        said(socket)
    }

    fn is_held_up(_tables: &mut Tables) -> bool {
        false
    }

    fn close(_tables: &mut Tables, socket: OwnedFd, _source: Source) {
        // This end never lets a socket linger, so that takes no time.
        drop(socket);
    }

    fn let_in(&mut self, tables: &mut Tables, socket: OwnedFd, source: Source) {
        // A socket that cannot be set up, or has no place, is closed; its peer notices that at once.
        if socket::prepare(&socket, &self.options).is_err() {
            return;
        }
        let Some(qp) = tables.qps.take(Kind::Tcp, QpState::Handshake) else { return };
        if self.begin(tables, qp, socket, Phase::Handshake).is_err() {
            return tables.qps.release(qp);
        }
        self.turn(tables, qp.index, |connection, tables, staging| {
            connection.source = source;
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
