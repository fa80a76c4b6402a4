//! Why there is no NIC on verbs.

use crate::limits::LimitError;
use std::io;
use std::net::IpAddr;

/// Said of a loopback address.
pub(super) const LOOPBACK: &str = "is no address of an RDMA device: RDMA CM would take it for the address of \
                                   each of them, open to their networks; name one that a device has (rdma \
                                   link, ip address)";

/// Why a [`super::VerbsNic`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// Numbers that cannot be.
    #[error("{0}")]
    Options(&'static str),
    /// The device, or what it may do by its profile, is not enough.
    #[error("{0}")]
    Limits(#[from] LimitError),
    /// There is no RDMA device at all.
    #[error(
        "there is no RDMA device: {source}; load its driver and rdma_ucm, or try a soft one \
         (modprobe rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev eth0)"
    )]
    NoDevices {
        /// What the system said.
        source: io::Error,
    },
    /// No device of that name.
    #[error("there is no RDMA device '{wanted}'; there are: {}", .present.join(", "))]
    NoSuchDevice {
        /// The name asked for.
        wanted: String,
        /// Those that are there.
        present: Vec<String>,
    },
    /// The device has no such port.
    #[error("'{device}' has no port {port}; see /sys/class/infiniband/{device}/ports")]
    NoPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: u8,
    },
    /// An address of this host alone.
    #[error("{address} {LOOPBACK}")]
    Loopback {
        /// The address.
        address: IpAddr,
    },
    /// The GID is empty, or no address of this host.
    #[error(
        "GID {index} of '{device}' port {port} {problem}; see \
         /sys/class/infiniband/{device}/ports/{port}/gids and gid_attrs/types, and take one with the address \
         of the interface, of type RoCE v2 where there is one"
    )]
    Gid {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// The index asked for.
        index: u8,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A device has no GID that stands for an address.
    #[error(
        "no RDMA device has an address to be found by ({device} was looked at); give its interface one (ip \
         address add; on InfiniBand the one over it, which ib_ipoib makes), or name the address to listen on"
    )]
    NoAddress {
        /// The device.
        device: String,
    },
    /// The address of the GID belongs to another device.
    #[error(
        "{address}, an address of '{device}', is reached over '{other}'; give each interface an address of \
         its own"
    )]
    Ambiguous {
        /// The device.
        device: String,
        /// Its address.
        address: IpAddr,
        /// The device that the system takes for it.
        other: String,
    },
    /// The device speaks iWARP.
    #[error(
        "'{device}' is an iWARP device, and Jet speaks to RoCE and InfiniBand only (docs/rdma.md); use tcp: \
         there"
    )]
    Iwarp {
        /// The device.
        device: String,
    },
    /// No device has the address or a way to it.
    #[error("no RDMA device reaches {address}: {source}; is the link up, and has its interface an address?")]
    Unreachable {
        /// The address.
        address: IpAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There can be no memory on that node.
    #[error(
        "cannot have the queues on NUMA node {node}: {source}; the nodes are in /sys/devices/system/node"
    )]
    Node {
        /// The node that was asked for.
        node: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The device makes no queue for so many SRQ entries, though it says that it has room for them.
    #[error("{verb} failed for {entries} SRQ entries: {source}; ask for fewer, or raise ulimit -l (memlock)")]
    SrqEntries {
        /// The verb's name.
        verb: &'static str,
        /// How many.
        entries: u32,
        /// What the system said.
        source: io::Error,
    },
    /// A verb failed.
    #[error("{verb} failed: {source}; {advice}")]
    Verb {
        /// Its name.
        verb: &'static str,
        /// What the system said.
        source: io::Error,
        /// What to change.
        advice: &'static str,
    },
    /// Something of the system around it failed.
    #[error("cannot make a NIC on verbs: {0}")]
    System(#[from] io::Error),
}

impl VerbsError {
    /// Whether it may pass by itself: a device comes back, or its interface gets its address.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::NoDevices { .. }
                | Self::NoSuchDevice { .. }
                | Self::NoAddress { .. }
                | Self::Unreachable { .. }
        )
    }

    /// The last error of this thread, as a verb leaves it.
    pub(super) fn verb(verb: &'static str, advice: &'static str) -> Self {
        let source = io::Error::last_os_error();
        let advice = match source.raw_os_error() {
            Some(libc::EMFILE) => "raise ulimit -n",
            _ => advice,
        };
        Self::Verb { verb, source, advice }
    }
}
