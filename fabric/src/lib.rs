//! NICs behind one trait, in verbs' own terms.
//!
//! [`Nic`] is what the rest of Jet knows of a network: a shared receive queue with two scatter entries an
//! entry, SEND with a fixed-size header, READ into a scatter list, completions, connections with private
//! data. One folder per implementation; every implementation passes the same conformance suite
//! (`tests/conformance/`).
//!
//! * [`soft`]: a software RNIC for machines with none, over `shm:` (same host) and `tcp:` (any host).
//! * `verbs` (cargo feature `verbs`): RNICs, and the kernel's soft-RoCE, on `rdma-sys` and RDMA CM.
//! * [`advice`]: what to change where the system refuses.
//! * [`clock`]: the time, for whoever drives a NIC and has none.
//! * [`limits`]: what a device can do, what a NIC on it does therefore, and devices by name.
//! * [`memory`]: sealed shared memory, and passing it between processes; what is registered is made of it.
//!
//! What this crate does *not* do: it knows no sessions, no credits and no admission; it never decides.

pub mod address;
pub mod advice;
pub mod clock;
pub mod limits;
pub mod memory;
pub mod nic;
mod readiness;
pub mod soft;
pub mod unix;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use address::{Address, AddressError};
pub use clock::{Clock, CoarseClock};
pub use nic::{Completion, Event, Nic, Qp};
