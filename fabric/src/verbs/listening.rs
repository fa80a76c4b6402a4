//! Where a NIC listens: an identifier for each address.
//!
//! An address of all addresses stands for those of the NIC's port, one by one. RDMA CM's own would be open to
//! every device of the host, of which this NIC can take nothing, and would keep the next daemon from that
//! port number.
//!
//! An address may go and come back. An identifier that was bound to it meanwhile is made anew then: what the
//! kernel has looked up for it (the interface, the GID) need not be what the address leads to now.

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

/// How often a free port number is looked for that is free at every address.
const ATTEMPTS: u32 = 16;

/// What one call asked to listen on.
#[derive(Debug)]
pub(super) struct Listening {
    channel: Arc<EventChannel>,
    port: Port,
    /// With its real port number.
    asked: SocketAddr,
    places: Vec<Place>,
}

/// One address of it.
#[derive(Debug)]
struct Place {
    address: IpAddr,
    /// What listens; or why nothing does, where it could not be made anew. It is tried again with the next
    /// survey.
    id: Result<ConnectionId, String>,
    /// Whether the port had the address at the last look.
    is_there: bool,
    /// It came after the beginning, so it is forgotten when it goes.
    is_learned: bool,
}

impl Listening {
    /// Listens at an address, or at all of the port that are of its family (of both families for `[::]`).
    pub fn begin(channel: &Arc<EventChannel>, port: &Port, asked: SocketAddr) -> io::Result<Self> {
        if asked.ip().is_loopback() {
            return Err(io::Error::other(format!("{} {LOOPBACK}", asked.ip())));
        }
        // Where a GID was chosen, all addresses are the one that it stands for.
        let asked = match port.source {
            Some(chosen) if asked.ip().is_unspecified() => SocketAddr::new(chosen, asked.port()),
            _ => asked,
        };
        let addresses = if asked.ip().is_unspecified() {
            meant(asked.ip(), port.number, &port.addresses())
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
                // The number that the first address was given is somebody else's at another.
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

    /// What was asked for, with its real port number.
    pub fn address(&self) -> SocketAddr {
        self.asked
    }

    /// Whether anything is to be done where the device has these addresses; `all`: wherever it listens.
    pub fn is_stale(&self, present: &[LocalAddress], all: bool) -> bool {
        let is_new = |address: &IpAddr| self.places.iter().all(|place| place.address != *address);
        let any_new = self.asked.ip().is_unspecified()
            && meant(self.asked.ip(), self.port.number, present).iter().any(is_new);
        any_new
            || self.places.iter().any(|place| {
                let is_there = is_present(place.address, present);
                is_there != place.is_there || is_there && (all || place.id.is_err())
            })
    }

    /// The device has these addresses now: listens anew where one is back, and where one is new that all
    /// addresses mean; `all`: at each that is there.
    pub fn renew(&mut self, present: &[LocalAddress], all: bool) {
        if self.asked.ip().is_unspecified() {
            for address in meant(self.asked.ip(), self.port.number, present) {
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
                // The one of before goes first: it has the port number.
                place.id = Err("it is made anew".to_owned());
                self.places[at].id = self.bound(address).map(|(_, id)| id).map_err(|error| error.to_string());
            }
        }
        self.places.retain(|place| place.is_there || !place.is_learned);
    }

    /// Each of its addresses.
    pub fn each(&self) -> impl Iterator<Item = ListeningAt> {
        self.places.iter().map(|place| ListeningAt {
            address: SocketAddr::new(place.address, self.asked.port()),
            is_there: place.is_there,
            problem: place.id.as_ref().err().filter(|_| place.is_there).cloned(),
        })
    }

    /// Whether an address is there, and yet nobody listens at it.
    pub fn is_lacking(&self) -> bool {
        self.places.iter().any(|place| place.is_there && place.id.is_err())
    }
}

impl VerbsNic {
    /// At one address more, or at all that it stands for.
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
                self.tell_listening();
                Ok(Address::Rdma(real.to_string()))
            }
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                Err(ListenError::InUse { address: address.clone() })
            }
            Err(source) => Err(ListenError::System { address: address.clone(), source }),
        }
    }

    /// It listens at one address more, or at none any more.
    pub(super) fn tell_listening(&mut self) {
        if !self.listening.is_empty() {
            self.surveying.listens(Instant::now());
        }
        self.watch.update(|status| {
            status.listening = self.listening.iter().flat_map(Listening::each).collect();
        });
    }

    /// Nowhere any more.
    pub(super) fn end_listening(&mut self) {
        self.listening.clear();
        self.surveying.stop_listening();
        self.tell_listening();
    }
}

/// Whether the device has an address. One that is of a link only is not looked for.
fn is_present(address: IpAddr, present: &[LocalAddress]) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    is_link_local || present.iter().any(|found| found.address == address)
}

/// The addresses that an address of all addresses means at a port, of those that are there.
fn meant(all: IpAddr, port: u8, present: &[LocalAddress]) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for found in present.iter().filter(|found| found.port == port) {
        if (all.is_ipv6() || found.address.is_ipv4()) && !addresses.contains(&found.address) {
            addresses.push(found.address);
        }
    }
    addresses
}
