//! The RDMA port.

use super::words;
use serde::{Deserialize, Serialize};

words! {
    /// What the port's packets travel on.
    LinkLayer {
        /// Ethernet.
        RoCE = "RoCE",
        /// InfiniBand.
        InfiniBand = "InfiniBand",
    }
}

words! {
    /// How the port stands.
    PortState {
        /// Packets come and go.
        Active = "active",
        /// There is no link.
        Down = "down",
        /// A subnet manager has to set it up.
        Waiting = "waiting",
    }
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaStatus {
    /// The device.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// What its packets travel on.
    pub link: LinkLayer,
    /// How it stands.
    pub state: PortState,
    /// The payload of its longest packet, in bytes.
    pub packet_bytes_max: u32,
    /// Packets that a small message of 4 KiB takes, with its header.
    pub packets_of_4_kib: u32,
    /// The interface that has its first address.
    pub interface: Option<String>,
    /// Where the daemon listens.
    pub listening: Vec<RdmaListening>,
    /// Connections by the payload of their longest packet.
    pub paths: Vec<RdmaPath>,
    /// Times that the port went down.
    pub downs: u64,
    /// Times that its addresses changed.
    pub address_changes: u64,
    /// Requests that were refused because their packets are longer than the port's.
    pub refused_for_packets: u64,
    /// How long those of the last one were, in bytes.
    pub refused_packet_bytes: u32,
}

/// Where the daemon listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaListening {
    /// Address and port number.
    pub address: String,
    /// Whether the port has the address now.
    pub is_there: bool,
    /// Why nobody listens there, though the port has it.
    pub problem: Option<String>,
}

/// Connections whose longest packets are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPath {
    /// The payload of the longest packet, in bytes.
    pub packet_bytes: u32,
    /// How many connections.
    pub connections: u32,
}
