//! How a NIC's port stands, for whoever tells it. The NIC writes it when the device says something, and every
//! 10 s ([`super::VerbsOptions::look_every`]) while it listens; anybody may read it.

use super::port::{PortState, Standing};
use super::set_up::Survey;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// The device.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// InfiniBand, or else RoCE.
    pub is_infiniband: bool,
    /// Whether it carries packets.
    pub state: PortState,
    /// The payload of its longest packet, in bytes.
    pub packet_bytes_max: u32,
    /// The interface that has its first address.
    pub interface: Option<String>,
    /// The addresses that lead to it.
    pub addresses: Vec<IpAddr>,
    /// Where the NIC listens.
    pub listening: Vec<ListeningAt>,
    /// Connections that stand, by the payload of their longest packet, those with the shortest first.
    pub paths: Vec<Path>,
    /// Times that the port went down.
    pub downs: u64,
    /// Times that its addresses changed.
    pub address_changes: u64,
    /// Requests that were refused because their packets are longer than the port's.
    pub refused: u64,
    /// How long those of the last one were, in bytes.
    pub refused_packet_bytes: u32,
}

impl PortStatus {
    /// As a survey found it, with nothing counted yet.
    pub(super) fn new(device: &str, port: u8, survey: &Survey) -> Self {
        let mut status = Self {
            device: device.to_owned(),
            port,
            is_infiniband: false,
            state: PortState::Unknown,
            packet_bytes_max: 0,
            interface: None,
            addresses: Vec::new(),
            listening: Vec::new(),
            paths: Vec::new(),
            downs: 0,
            address_changes: 0,
            refused: 0,
            refused_packet_bytes: 0,
        };
        status.take_survey(survey);
        status
    }

    /// As a survey found it; what is counted goes on.
    pub(super) fn take_survey(&mut self, survey: &Survey) {
        match &survey.standing {
            Ok(standing) => self.take_standing(standing),
            Err(_) => self.state = PortState::Unknown,
        }
        let mut own = survey.addresses.iter().filter(|found| found.port == self.port).peekable();
        self.interface = own.peek().and_then(|found| found.interface.clone());
        self.addresses = own.map(|found| found.address).collect();
    }

    /// As the device says that it stands.
    pub(super) fn take_standing(&mut self, standing: &Standing) {
        self.is_infiniband = standing.is_infiniband;
        self.state = standing.state;
        self.packet_bytes_max = standing.packet_bytes_max;
    }
}

/// Where a NIC listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListeningAt {
    /// The address.
    pub address: SocketAddr,
    /// Whether the port has it now.
    pub is_there: bool,
    /// Why nobody listens there, though the port has it. It is tried again every second.
    pub problem: Option<String>,
}

/// Connections whose longest packets are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The payload of the longest packet, in bytes: the least that the ports at both ends take.
    pub packet_bytes: u32,
    /// How many there are.
    pub connections: u32,
}

/// The status, shared.
pub struct PortWatch {
    status: Mutex<PortStatus>,
    changed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for PortWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortWatch").field("status", &self.status).finish_non_exhaustive()
    }
}

impl PortWatch {
    pub(super) fn new(status: PortStatus) -> Self {
        Self { status: Mutex::new(status), changed: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, PortStatus> {
        // What somebody left half written is still what was known.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands.
    pub fn status(&self) -> PortStatus {
        self.lock().clone()
    }

    /// Calls this whenever something changed; on the NIC's thread, so it must not wait. Once only: `false`
    /// where somebody is called already.
    pub fn on_change(&self, call: impl Fn() + Send + Sync + 'static) -> bool {
        self.changed.set(Box::new(call)).is_ok()
    }

    /// Whether anybody is called.
    pub(super) fn is_watched(&self) -> bool {
        self.changed.get().is_some()
    }

    /// Something may have changed.
    pub(super) fn update(&self, change: impl FnOnce(&mut PortStatus)) {
        let mut status = self.lock();
        let before = status.clone();
        change(&mut status);
        let is_new = *status != before;
        drop(status);
        if let (true, Some(call)) = (is_new, self.changed.get()) {
            call();
        }
    }
}
