//! Status of the RDMA port.

use super::words;
use serde::{Deserialize, Serialize};

words! {
    /// Link layer of an RDMA port.
    LinkLayer {
        /// Ethernet.
        RoCE = "RoCE",
        /// InfiniBand.
        InfiniBand = "InfiniBand",
    }
}

words! {
    /// State of an RDMA port.
    PortState {
        /// The port passes packets.
        Active = "active",
        /// The port has no link.
        Down = "down",
        /// The port waits for a subnet manager to set it up.
        Waiting = "waiting",
    }
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaStatus {
    /// Name of the device.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Link layer of the port.
    pub link: LinkLayer,
    /// State of the port.
    pub state: PortState,
    /// Payload of the port's longest packet, in bytes.
    pub packet_bytes_max: u32,
    /// Packets that a small message of 4 KiB takes, with its header.
    pub packets_of_4_kib: u32,
    /// Network interface that has the port's first address.
    pub interface: Option<String>,
    /// Addresses where the daemon listens.
    pub listening: Vec<RdmaListening>,
    /// Connections, counted by the payload of their longest packet.
    pub paths: Vec<RdmaPath>,
    /// Number of times that the port went down.
    pub downs: u64,
    /// Number of times that the port's addresses changed.
    pub address_changes: u64,
    /// Connection requests that were refused because their packets are longer than the port's.
    pub refused_for_packets: u64,
    /// Length of the packets of the last connection request that was refused for its packets, in bytes.
    pub refused_packet_bytes: u32,
}

/// An address where the daemon listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaListening {
    /// IP address and port number.
    pub address: String,
    /// Whether the RDMA port has the address now.
    pub is_there: bool,
    /// Reason why the daemon cannot listen at the address, though the RDMA port has the address.
    pub problem: Option<String>,
}

/// Connections whose longest packets have the same payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPath {
    /// Payload of the longest packet, in bytes.
    pub packet_bytes: u32,
    /// Number of connections whose longest packet has this payload.
    pub connections: u32,
}
