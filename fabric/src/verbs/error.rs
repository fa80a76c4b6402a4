//! Errors of making a NIC on verbs.

use crate::limits::LimitError;
use std::io;
use std::net::IpAddr;

/// Part of error messages about a loopback address.
pub(super) const LOOPBACK: &str = "is no address of an RDMA device: RDMA CM would take it for the address of \
                                   each of them, open to their networks; name one that a device has (rdma \
                                   link, ip address)";

/// Reason why a [`super::VerbsNic`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The options have values that are not allowed.
    #[error("{0}")]
    Options(&'static str),
    /// The device's limits, or those of its profile, are too low.
    #[error("{0}")]
    Limits(#[from] LimitError),
    /// The host has no RDMA device at all.
    #[error(
        "there is no RDMA device: {source}; load its driver and rdma_ucm, or try a soft one \
         (modprobe rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev eth0)"
    )]
    NoDevices {
        /// Error of the system.
        source: io::Error,
    },
    /// No device has that name.
    #[error("there is no RDMA device '{wanted}'; there are: {}", .present.join(", "))]
    NoSuchDevice {
        /// Name that was asked for.
        wanted: String,
        /// Names of the devices that are present.
        present: Vec<String>,
    },
    /// The device has no such port.
    #[error("'{device}' has no port {port}; see /sys/class/infiniband/{device}/ports")]
    NoPort {
        /// Name of the device.
        device: String,
        /// Port that was asked for.
        port: u8,
    },
    /// The address is a loopback address.
    #[error("{address} {LOOPBACK}")]
    Loopback {
        /// Address that was asked for.
        address: IpAddr,
    },
    /// The GID is not usable: it is empty, or stands for no address of this host.
    #[error(
        "GID {index} of '{device}' port {port} {problem}; see \
         /sys/class/infiniband/{device}/ports/{port}/gids and gid_attrs/types, and take one with the address \
         of the interface, of type RoCE v2 where there is one"
    )]
    Gid {
        /// Name of the device.
        device: String,
        /// Port of the device.
        port: u8,
        /// Index that was asked for.
        index: u8,
        /// Problem of the GID, in words.
        problem: &'static str,
    },
    /// The device has no GID that stands for an address.
    #[error(
        "no RDMA device has an address to be found by ({device} was looked at); give its interface one (ip \
         address add; on InfiniBand the one over it, which ib_ipoib makes), or name the address to listen on"
    )]
    NoAddress {
        /// Name of the device.
        device: String,
    },
    /// The GID's address leads to another device.
    #[error(
        "{address}, an address of '{device}', is reached over '{other}'; give each interface an address of \
         its own"
    )]
    Ambiguous {
        /// Name of the device.
        device: String,
        /// Address of the device.
        address: IpAddr,
        /// Name of the device that the system finds for the address.
        other: String,
    },
    /// The device uses iWARP.
    #[error(
        "'{device}' is an iWARP device, and Jet speaks to RoCE and InfiniBand only (docs/rdma.md); use tcp: \
         there"
    )]
    Iwarp {
        /// Name of the device.
        device: String,
    },
    /// No device has the address, or a route to it.
    #[error("no RDMA device reaches {address}: {source}; is the link up, and has its interface an address?")]
    Unreachable {
        /// Address that was asked for.
        address: IpAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The system allows no memory on that NUMA node.
    #[error(
        "cannot have the queues on NUMA node {node}: {source}; the nodes are in /sys/devices/system/node"
    )]
    Node {
        /// Node that was asked for.
        node: u32,
        /// Error of the system.
        source: io::Error,
    },
    /// The device could not make a queue for so many SRQ entries, though it reports that it has room for
    /// them.
    #[error("{verb} failed for {entries} SRQ entries: {source}; ask for fewer, or raise ulimit -l (memlock)")]
    SrqEntries {
        /// Name of the verb.
        verb: &'static str,
        /// Number of entries.
        entries: u32,
        /// Error of the system.
        source: io::Error,
    },
    /// A verb failed.
    #[error("{verb} failed: {source}; {advice}")]
    Verb {
        /// Name of the verb.
        verb: &'static str,
        /// Error of the system.
        source: io::Error,
        /// Advice on what to change.
        advice: &'static str,
    },
    /// Another call to the system failed.
    #[error("cannot make a NIC on verbs: {0}")]
    System(#[from] io::Error),
}

impl VerbsError {
    /// Whether the error may pass without a change here: a device comes back, or its interface gets its
    /// address.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::NoDevices { .. }
                | Self::NoSuchDevice { .. }
                | Self::NoAddress { .. }
                | Self::Unreachable { .. }
        )
    }

    /// Makes the error of a verb from the thread's last errno.
    pub(super) fn verb(verb: &'static str, advice: &'static str) -> Self {
        let source = io::Error::last_os_error();
        let advice = match source.raw_os_error() {
            Some(libc::EMFILE) => "raise ulimit -n",
            _ => advice,
        };
        Self::Verb { verb, source, advice }
    }
}
