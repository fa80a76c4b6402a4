//! The RDMA device that tests use, where the environment names one (docs/rdma.md).

use jet_fabric::Address;
use std::net::IpAddr;

/// Returns the address of the RDMA device to test on, from the variable `JET_RDMA_ADDRESS`.
///
/// # Panics
/// If the variable is set, but the build has no verbs.
pub fn device_address() -> Option<String> {
    let address = std::env::var("JET_RDMA_ADDRESS").ok()?;
    if cfg!(feature = "verbs") {
        return Some(address);
    }
    // Falling back to software NICs would not test the device that was asked for.
    panic!(
        "JET_RDMA_ADDRESS={address} names a device, and these tests were built without verbs: \
         cargo test -p jet --features verbs"
    );
}

/// Returns the fabrics that a test of every fabric runs on: `rdma` alone where a device is named, otherwise
/// `shm` and `tcp`.
pub fn fabrics() -> &'static [&'static str] {
    if device_address().is_some() { &["rdma"] } else { &["shm", "tcp"] }
}

/// Returns the source address for senders to `address`: the value of `JET_RDMA_SOURCE`, which names another
/// device for them. `None` where the variable is not set, or `address` is not `rdma:`.
pub fn source_for(address: &Address) -> Option<IpAddr> {
    let source = std::env::var("JET_RDMA_SOURCE").ok().filter(|_| matches!(address, Address::Rdma(_)))?;
    Some(source.parse().expect("JET_RDMA_SOURCE is an address"))
}
