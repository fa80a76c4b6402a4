//! The status of a NIC's port, which any thread may read.
//!
//! The NIC updates it when the device reports a change, and every 10 s
//! ([`super::VerbsOptions::survey_every`]) while it listens.

use super::port::{PortState, Standing};
use super::set_up::Survey;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Status of a NIC's port, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Name of the device.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Whether the port is of InfiniBand; otherwise it is of RoCE.
    pub is_infiniband: bool,
    /// State of the port's link.
    pub state: PortState,
    /// Payload of the port's longest packet in bytes.
    pub packet_bytes_max: u32,
    /// Interface that has the port's first address.
    pub interface: Option<String>,
    /// Addresses that lead to the port.
    pub addresses: Vec<IpAddr>,
    /// Addresses at which the NIC listens.
    pub listening: Vec<ListeningAt>,
    /// Ready connections, counted by the payload of their longest packet, the shortest packets first.
    pub paths: Vec<Path>,
    /// Times that the port went down.
    pub downs: u64,
    /// Times that the port's addresses changed.
    pub address_changes: u64,
    /// Requests that were refused because the peer's packets are longer than the port's.
    pub refused: u64,
    /// Payload in bytes of the longest packet of the last refused request.
    pub refused_packet_bytes: u32,
}

impl PortStatus {
    /// Makes a status of a survey's findings, with all counters at zero.
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

    /// Takes over a survey's findings. The counters keep their values.
    pub(super) fn take_survey(&mut self, survey: &Survey) {
        match &survey.standing {
            Ok(standing) => self.take_standing(standing),
            Err(_) => self.state = PortState::Unknown,
        }
        let mut own = survey.addresses.iter().filter(|found| found.port == self.port).peekable();
        self.interface = own.peek().and_then(|found| found.interface.clone());
        self.addresses = own.map(|found| found.address).collect();
    }

    /// Takes over the port's state as the device reported it.
    pub(super) fn take_standing(&mut self, standing: &Standing) {
        self.is_infiniband = standing.is_infiniband;
        self.state = standing.state;
        self.packet_bytes_max = standing.packet_bytes_max;
    }
}

/// Address at which a NIC listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListeningAt {
    /// Address with the port number.
    pub address: SocketAddr,
    /// Whether the device's port has the address now.
    pub is_there: bool,
    /// Reason why listening there failed, though the port has the address. It is tried again every second.
    pub problem: Option<String>,
}

/// Connections whose longest packets have the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Payload of the longest packet in bytes: the least that the ports at both ends take.
    pub packet_bytes: u32,
    /// Number of these connections.
    pub connections: u32,
}

/// Status of a NIC's port, shared between the NIC and other threads.
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
        // After a panic in a change, the status is still the best that is known.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the present status.
    pub fn status(&self) -> PortStatus {
        self.lock().clone()
    }

    /// Sets the function to call whenever the status has changed. `false` where one was set before.
    ///
    /// The NIC's thread calls the function, so it must not wait.
    pub fn on_change(&self, call: impl Fn() + Send + Sync + 'static) -> bool {
        self.changed.set(Box::new(call)).is_ok()
    }

    /// Whether a function to call was set.
    pub(super) fn is_watched(&self) -> bool {
        self.changed.get().is_some()
    }

    /// Changes the status, and calls the function if the status is different then.
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
