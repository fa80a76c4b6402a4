//! A port for a daemon that is killed and started again.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// A port of loopback: below those that the system gives out by itself, and kept from other tests for as long
/// as this lives, by an abstract socket of its name.
pub struct Port {
    number: u16,
    _lock: UnixListener,
}

impl Port {
    /// Takes one that is free.
    ///
    /// # Panics
    /// If there is none.
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

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// A socket that has the port and does not listen; an error where somebody listens. A process that another
/// test starts has this one's sockets for a moment, and one that listened would keep the daemon from the
/// port.
fn probe(port: u16) -> rustix::io::Result<OwnedFd> {
    let probe = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&probe, true)?;
    bind(&probe, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(probe)
}

#[cfg(test)]
mod tests;
