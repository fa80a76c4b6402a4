//! The RDMA device that tests run on where one is named (docs/rdma.md).

use jet_fabric::Address;
use std::net::IpAddr;

/// The device, by its address: `JET_RDMA_ADDRESS`.
///
/// # Panics
/// If one is named, and the build has no verbs.
pub fn device_address() -> Option<String> {
    let address = std::env::var("JET_RDMA_ADDRESS").ok()?;
    if cfg!(feature = "verbs") {
        return Some(address);
    }
    // Software NICs in its place would be a check of nothing that was asked for.
    panic!(
        "JET_RDMA_ADDRESS={address} names a device, and these tests were built without verbs: \
         cargo test -p jet --features verbs"
    );
}

/// What is seen on every fabric is seen on these: on the one device where one is named.
pub fn fabrics() -> &'static [&'static str] {
    if device_address().is_some() { &["rdma"] } else { &["shm", "tcp"] }
}

/// Where senders leave from that go to this address: `JET_RDMA_SOURCE`, where another device was named for
/// them.
pub fn source_for(address: &Address) -> Option<IpAddr> {
    let source = std::env::var("JET_RDMA_SOURCE").ok().filter(|_| matches!(address, Address::Rdma(_)))?;
    Some(source.parse().expect("JET_RDMA_SOURCE is an address"))
}
