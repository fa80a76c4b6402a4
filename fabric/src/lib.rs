//! NICs behind one trait, in the terms of verbs.
//!
//! [`Nic`] is all that the rest of Jet knows of a network:
//!
//! * a shared receive queue, with two scatter entries in each of its entries,
//! * SEND with a fixed-size header,
//! * READ into a scatter list,
//! * completions,
//! * connections with private data.
//!
//! Each implementation has a folder of its own, and passes the same conformance suite (`tests/conformance/`).
//!
//! The modules:
//!
//! * [`soft`]: a software RNIC for machines without one, over `shm:` (same host) and `tcp:` (any host).
//! * `verbs` (cargo feature `verbs`): RNICs, and the kernel's soft-RoCE, on `rdma-sys` and RDMA CM.
//! * [`advice`]: advice on what to change where the system refuses a call.
//! * [`clock`]: clocks for callers that drive a NIC and have none of their own.
//! * [`limits`]: what a device can do, which limits a NIC on that device keeps to, and profiles of named
//!   devices.
//! * [`memory`]: sealed shared memory that is registered with NICs and passed between processes.
//!
//! This crate knows no sessions, no credits and no admission. It never decides about messages.

pub mod address;
pub mod advice;
pub mod clock;
pub mod give_way;
pub mod limits;
pub mod memory;
pub mod networks;
pub mod nic;
mod readiness;
pub mod sim;
pub mod soft;
mod source;
pub mod spin_budget;
pub mod unix;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use address::{Address, AddressError};
pub use clock::{Clock, CoarseClock};
pub use nic::{Completion, Event, Nic, Qp};
