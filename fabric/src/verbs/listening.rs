//! Where a NIC listens: an identifier for each address.
//!
//! An address of all addresses stands for those of the NIC's port, one by one. RDMA CM's own would be open to every device of the
//! host, of which this NIC can take nothing, and would keep the next daemon from that port number.

use super::connection_manager::{ConnectionId, EventChannel};
use super::device::Device;
use super::error::LOOPBACK;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// How often a free port is looked for that is free at every address.
const ATTEMPTS: u32 = 16;

/// What one call asked to listen on.
#[derive(Debug)]
pub(super) struct Listening {
    /// With its real port.
    asked: SocketAddr,
    identifiers: Vec<(IpAddr, ConnectionId)>,
}

fn bound(
    channel: &Rc<EventChannel>,
    device: &Device,
    address: SocketAddr,
) -> io::Result<(SocketAddr, ConnectionId)> {
    let id = ConnectionId::new(channel, 0)?;
    let real = id.listen(address)?;
    if device.context().is_of(id.device()) {
        return Ok((real, id));
    }
    let words = format!("{} is an address of another RDMA device than {}", address.ip(), device.name());
    Err(io::Error::other(words))
}

impl Listening {
    /// Listens at an address, or at all of the device's port that are of its family (of both families for `[::]`).
    pub fn begin(channel: &Rc<EventChannel>, device: &Device, asked: SocketAddr) -> io::Result<Self> {
        if asked.ip().is_loopback() {
            return Err(io::Error::other(format!("{} {LOOPBACK}", asked.ip())));
        }
        // Where a GID was chosen, all addresses are the one that it stands for.
        let asked = match device.source {
            Some(chosen) if asked.ip().is_unspecified() => SocketAddr::new(chosen, asked.port()),
            _ => asked,
        };
        let addresses = meant(asked.ip(), device);
        if addresses.is_empty() {
            let words = format!("{} has no address that {} stands for", device.name(), asked.ip());
            return Err(io::Error::other(words));
        }
        let mut attempts = if asked.port() == 0 { ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            match Self::at(channel, device, asked, &addresses) {
                // The number that the first address was given is somebody else's at another.
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) && attempts > 0 => {}
                result => return result,
            }
        }
    }

    fn at(
        channel: &Rc<EventChannel>,
        device: &Device,
        asked: SocketAddr,
        addresses: &[IpAddr],
    ) -> io::Result<Self> {
        let mut this = Self { asked, identifiers: Vec::with_capacity(addresses.len()) };
        for &ip in addresses {
            // An address keeps the scope that it was written with.
            let wanted = if ip == asked.ip() { this.asked } else { SocketAddr::new(ip, this.asked.port()) };
            let (real, id) = bound(channel, device, wanted)?;
            this.asked.set_port(real.port());
            this.identifiers.push((ip, id));
        }
        Ok(this)
    }

    /// What was asked for, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.asked
    }
}

/// The addresses that an address means on a device.
fn meant(ip: IpAddr, device: &Device) -> Vec<IpAddr> {
    if !ip.is_unspecified() {
        return vec![ip];
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for found in device.addresses() {
        if (ip.is_ipv6() || found.address.is_ipv4()) && !addresses.contains(&found.address) {
            addresses.push(found.address);
        }
    }
    addresses
}
