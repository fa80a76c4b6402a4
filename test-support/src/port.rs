//! A TCP port for a daemon that is killed and started again.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// A reserved TCP port of the loopback address. It lies below the range from which the system picks ports. An
/// abstract Unix socket with the port's name keeps it from other tests while this value lives.
pub struct Port {
    number: u16,
    _lock: UnixListener,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Panics
    /// If no port is free.
    pub fn take() -> Self {
        let first = 10_000 + u16::try_from(std::process::id() % 1000).expect("below 1000") * 20;
        (first..32_000)
            .chain(10_000..first)
            .find_map(|number| {
                let name = SocketAddr::from_abstract_name(format!("jet-test-port-{number}")).ok()?;
                let lock = UnixListener::bind_addr(&name).ok()?;
                probe(number).ok()?;
                Some(Self { number, _lock: lock })
            })
            .expect("a free port")
    }

    /// Returns the port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Returns a socket that is bound to the port and does not listen. Fails where another socket listens there.
///
/// The socket must not listen: a process that another test starts inherits it for a moment. A listening
/// socket would then keep the daemon from the port.
fn probe(port: u16) -> rustix::io::Result<OwnedFd> {
    let probe = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&probe, true)?;
    bind(&probe, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(probe)
}

#[cfg(test)]
mod tests;
