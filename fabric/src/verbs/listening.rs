//! Addresses at which a NIC listens, with an identifier for each.
//!
//! An unspecified address (`0.0.0.0`, `[::]`) stands for the addresses of the NIC's port, one by one. RDMA
//! CM's own unspecified address would be open to every device of the host, though this NIC cannot take
//! connections from the other devices. It would also keep another daemon on this host from using that port
//! number.
//!
//! An address may disappear and come back. The identifier that was bound to it is then made anew. What the
//! kernel has looked up for it (the interface, the GID) may differ from what the address leads to now.

use super::VerbsNic;
use super::addresses::LocalAddress;
use super::connection_manager::{ConnectionId, EventChannel};
use super::error::LOOPBACK;
use super::options::resolve;
use super::port::Port;
use super::watch::ListeningAt;
use crate::address::Address;
use crate::nic::ListenError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// Attempts to find a port number that is free at every address, where the system chooses the number.
const ATTEMPTS: u32 = 16;

/// Addresses at which one call of `listen` listens.
#[derive(Debug)]
pub(super) struct Listening {
    channel: Arc<EventChannel>,
    port: Port,
    /// Address that was asked for, with its real port number.
    asked: SocketAddr,
    places: Vec<Place>,
}

/// Address of a [`Listening`], with what listens there.
#[derive(Debug)]
struct Place {
    address: IpAddr,
    /// Identifier that listens, or in words the reason why none could be made anew. The next survey tries
    /// again.
    id: Result<ConnectionId, String>,
    /// Whether the port had the address at the last survey.
    is_there: bool,
    /// Whether the address appeared after listening began. Such a place is removed when its address
    /// disappears.
    is_learned: bool,
}

impl Listening {
    /// Listens at an address. An unspecified address stands for all of the port's addresses of its family
    /// (`[::]`: of both families).
    pub fn begin(channel: &Arc<EventChannel>, port: &Port, asked: SocketAddr) -> io::Result<Self> {
        if asked.ip().is_loopback() {
            return Err(io::Error::other(format!("{} {LOOPBACK}", asked.ip())));
        }
        // Where a GID was chosen, the only address is the one that it stands for.
        let asked = match port.source {
            Some(chosen) if asked.ip().is_unspecified() => SocketAddr::new(chosen, asked.port()),
            _ => asked,
        };
        let addresses = if asked.ip().is_unspecified() {
            stood_for(asked.ip(), port.number, &port.addresses())
        } else {
            vec![asked.ip()]
        };
        if addresses.is_empty() {
            let words =
                format!("{} port {} has no address that {} stands for", port.device, port.number, asked.ip());
            return Err(io::Error::other(words));
        }
        let mut attempts = if asked.port() == 0 { ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            let mut this =
                Self { channel: Arc::clone(channel), port: port.clone(), asked, places: Vec::new() };
            match this.add_all(&addresses) {
                // The port number that the first address was given is taken at another address.
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) && attempts > 0 => {}
                result => return result.map(|()| this),
            }
        }
    }

    fn add_all(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        for &address in addresses {
            let (real, id) = self.bound(address)?;
            self.asked.set_port(real.port());
            self.places.push(Place { address, id: Ok(id), is_there: true, is_learned: false });
        }
        Ok(())
    }

    fn bound(&self, ip: IpAddr) -> io::Result<(SocketAddr, ConnectionId)> {
        // An address keeps the scope that it was written with.
        let wanted = if ip == self.asked.ip() { self.asked } else { SocketAddr::new(ip, self.asked.port()) };
        let id = ConnectionId::new(&self.channel, 0)?;
        let real = id.listen(wanted)?;
        if self.port.is_of(id.device()) {
            return Ok((real, id));
        }
        let words = format!("{ip} is an address of another RDMA device than {}", self.port.device);
        Err(io::Error::other(words))
    }

    /// Returns the address that was asked for, with its real port number.
    pub fn address(&self) -> SocketAddr {
        self.asked
    }

    /// Whether [`Self::renew`] has something to do, now that the device has these addresses. With `all` it
    /// has something to do at each address that is present.
    pub fn is_stale(&self, present: &[LocalAddress], all: bool) -> bool {
        let is_new = |address: &IpAddr| self.places.iter().all(|place| place.address != *address);
        let any_new = self.asked.ip().is_unspecified()
            && stood_for(self.asked.ip(), self.port.number, present).iter().any(is_new);
        any_new
            || self.places.iter().any(|place| {
                let is_there = is_present(place.address, present);
                is_there != place.is_there || is_there && (all || place.id.is_err())
            })
    }

    /// Listens anew at addresses that came back, and at new ones that an unspecified address stands for.
    ///
    /// `present` are the device's addresses now. With `all` it listens anew at each of them.
    pub fn renew(&mut self, present: &[LocalAddress], all: bool) {
        if self.asked.ip().is_unspecified() {
            for address in stood_for(self.asked.ip(), self.port.number, present) {
                if self.places.iter().all(|place| place.address != address) {
                    let id = Err("it was just found".to_owned());
                    self.places.push(Place { address, id, is_there: false, is_learned: true });
                }
            }
        }
        for at in 0..self.places.len() {
            let place = &mut self.places[at];
            let is_there = is_present(place.address, present);
            let was_there = std::mem::replace(&mut place.is_there, is_there);
            if is_there && (all || !was_there || place.id.is_err()) {
                let address = place.address;
                // The old identifier is destroyed first, since it has the port number.
                place.id = Err("it is made anew".to_owned());
                self.places[at].id = self.bound(address).map(|(_, id)| id).map_err(|error| error.to_string());
            }
        }
        self.places.retain(|place| place.is_there || !place.is_learned);
    }

    /// Returns each address, with whether it is present and whether listening there failed.
    pub fn each(&self) -> impl Iterator<Item = ListeningAt> {
        self.places.iter().map(|place| ListeningAt {
            address: SocketAddr::new(place.address, self.asked.port()),
            is_there: place.is_there,
            problem: place.id.as_ref().err().filter(|_| place.is_there).cloned(),
        })
    }

    /// Whether the host has one of the addresses, and listening on it failed.
    pub fn is_lacking(&self) -> bool {
        self.places.iter().any(|place| place.is_there && place.id.is_err())
    }
}

impl VerbsNic {
    /// Listens at one more address, or at all that an unspecified one stands for.
    pub(super) fn begin_listening(&mut self, address: &Address) -> Result<Address, ListenError> {
        let Address::Rdma(text) = address else {
            return Err(ListenError::WrongFabric { address: address.clone() });
        };
        if self.device.is_gone() {
            let source = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(ListenError::System { address: address.clone(), source });
        }
        let listening =
            resolve(text).and_then(|asked| Listening::begin(&self.channel, self.device.port(), asked));
        match listening {
            Ok(listening) => {
                let real = listening.address();
                self.listening.push(listening);
                self.update_listening();
                Ok(Address::Rdma(real.to_string()))
            }
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                Err(ListenError::InUse { address: address.clone() })
            }
            Err(source) => Err(ListenError::System { address: address.clone(), source }),
        }
    }

    /// Updates the port's status after the set of addresses at which the NIC listens has changed.
    pub(super) fn update_listening(&mut self) {
        if !self.listening.is_empty() {
            self.surveying.note_listening(Instant::now());
        }
        self.watch.update(|status| {
            status.listening = self.listening.iter().flat_map(Listening::each).collect();
        });
    }

    /// Stops listening everywhere.
    pub(super) fn end_listening(&mut self) {
        self.listening.clear();
        self.surveying.stop_listening();
        self.update_listening();
    }
}

/// Whether the device has an address. A link-local address is not searched for, and counts as present.
fn is_present(address: IpAddr, present: &[LocalAddress]) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    is_link_local || present.iter().any(|found| found.address == address)
}

/// Returns those of the present addresses that an unspecified address stands for at a port.
fn stood_for(all: IpAddr, port: u8, present: &[LocalAddress]) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for found in present.iter().filter(|found| found.port == port) {
        if (all.is_ipv6() || found.address.is_ipv4()) && !addresses.contains(&found.address) {
            addresses.push(found.address);
        }
    }
    addresses
}
