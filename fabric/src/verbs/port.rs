//! A port of a device: the addresses that lead to it, and its state.

use super::addresses::{Host, LocalAddress};
use super::context::Context;
use rdma_sys::{___ibv_query_port, ibv_context, ibv_device, ibv_port_attr, ibv_port_state};
use std::io;
use std::net::IpAddr;

/// Link layers of an InfiniBand port: `IBV_LINK_LAYER_INFINIBAND` of infiniband/verbs.h, and 0, which kernels
/// before 2.6.37 report.
const INFINIBAND: [u8; 2] = [0, 1];

/// Port of a device. Any thread may use it as long as the device is open.
#[derive(Clone, Debug)]
pub(super) struct Port {
    context: *mut ibv_context,
    of: *mut ibv_device,
    pub device: String,
    pub number: u8,
    /// Address of the chosen GID: connections leave from it and arrive at it. `None` where no GID was chosen.
    pub source: Option<IpAddr>,
}

// SAFETY: verbs may be called by any thread, and by several at once.
unsafe impl Send for Port {}

/// State of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The port carries packets.
    Active,
    /// The port has no link, or its interface is down.
    Down,
    /// The port has a link, and waits for the subnet manager (InfiniBand).
    Waiting,
    /// The device reports no known state.
    Unknown,
}

/// State of a port at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub state: PortState,
    /// Payload of the port's longest packet in bytes (the active MTU).
    pub packet_bytes_max: u32,
    pub is_infiniband: bool,
}

/// Returns the bytes of an MTU in the specification's code; 0 for an unknown code.
pub(super) fn mtu_bytes(mtu: u32) -> u32 {
    if (1..=5).contains(&mtu) { 128 << mtu } else { 0 }
}

impl Port {
    pub fn new(context: &Context, device: String, number: u8, source: Option<IpAddr>) -> Self {
        Self { context: context.as_ptr(), of: context.device(), device, number, source }
    }

    /// Whether the port belongs to this device.
    pub fn is_of(&self, device: *mut ibv_device) -> bool {
        self.of == device
    }

    /// Returns the present addresses of the port's device, those of its other ports, too. Reads some hundred
    /// files.
    pub fn addresses(&self) -> Vec<LocalAddress> {
        Host::this().addresses_of_ports(&self.device)
    }

    /// Asks the device for the port's state.
    pub fn standing(&self) -> io::Result<Standing> {
        // SAFETY: the context is open, which the NIC guarantees; zeros are a value of the structure, which
        // the call fills.
        let found = unsafe {
            let mut found: ibv_port_attr = std::mem::zeroed();
            match ___ibv_query_port(self.context, self.number, &mut found) {
                0 => found,
                errno => return Err(io::Error::from_raw_os_error(errno.abs())),
            }
        };
        let state = match found.state {
            ibv_port_state::IBV_PORT_ACTIVE | ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::Active,
            ibv_port_state::IBV_PORT_DOWN => PortState::Down,
            ibv_port_state::IBV_PORT_INIT | ibv_port_state::IBV_PORT_ARMED => PortState::Waiting,
            _ => PortState::Unknown,
        };
        Ok(Standing {
            state,
            packet_bytes_max: mtu_bytes(found.active_mtu),
            is_infiniband: INFINIBAND.contains(&found.link_layer),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_what_the_specification_says() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!([0, 6, 99].map(mtu_bytes), [0, 0, 0]);
    }
}
