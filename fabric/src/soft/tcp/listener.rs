//! The TCP sockets on which connections arrive.

use super::socket;
use crate::address::Address;
use crate::networks::Networks;
use crate::nic::ListenError;
use crate::soft::accepting::Accepted;
use crate::source::Source;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    /// Whether connections may wait. Set when the epoll reports an edge, and cleared when no connection is
    /// found.
    pub(super) ready: bool,
}

impl Listener {
    /// Listens at the first address of `host:port` that allows it. Returns the real address, too.
    pub(super) fn bind(host_port: &str) -> Result<(Self, Address), ListenError> {
        let address = || Address::Tcp(host_port.to_owned());
        let system = |source| ListenError::System { address: address(), source };
        let mut outcome = Err(io::Error::from(io::ErrorKind::NotFound));
        for candidate in socket::resolve(host_port).map_err(system)? {
            outcome = socket::listen(&candidate);
            if outcome.is_ok() {
                break;
            }
        }
        let (socket, bound) = outcome.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { address: address() },
            _ => system(source),
        })?;
        Ok((Self { socket, ready: true }, Address::Tcp(bound.to_string())))
    }

    /// Takes a connection that waits, if there is one, and returns where it comes from.
    ///
    /// # Errors
    /// The system has no descriptor or memory left for the connection. It stays waiting; the caller should
    /// try again later.
    pub(super) fn accept(&mut self, networks: &Networks) -> io::Result<Accepted> {
        loop {
            match socket::accept(self.socket.as_fd()) {
                Ok((socket, address)) if networks.contain(address) => {
                    return Ok(Accepted::From(socket, Source::of_address(address)));
                }
                Ok(_) => return Ok(Accepted::NotAllowed),
                Err(Errno::AGAIN) => {
                    self.ready = false;
                    return Ok(Accepted::Nobody);
                }
                // A signal came, or the peer has gone already.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
