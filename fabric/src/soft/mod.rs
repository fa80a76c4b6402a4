//! The software RNIC: a NIC for machines without one.
//!
//! [`SoftNic`] keeps in `tables` what an RNIC keeps in its own memory: keys, QPs, the SRQ, completions. It
//! moves bytes by one of two transports, which implement the trait in `transport`:
//!
//! * `shm`, same host: rings of SEND descriptors in memory that the connecting end makes. Registered memory
//!   is passed as memory files, which the reading NIC maps. Each byte is copied once.
//! * `tcp`, any host: frames over a socket, read straight into the slabs.
//!
//! The NIC works only while it is polled, on the thread that polls. [`threaded`] is a thread that polls any
//! NIC. [`attended`] is one that helps only while the user polls nothing.
//!
//! docs/architecture.md ("Inside the software NIC") draws which module uses which, and
//! `fabric/tests/arrows.rs` checks the code against it.

mod accepting;
pub mod attended;
mod deadlines;
#[cfg(test)]
mod lingering;
mod nic;
mod options;
mod shm;
mod strangers;
mod tables;
mod tcp;
pub mod threaded;
mod token;
mod transport;

pub use nic::SoftNic;
pub use options::{SoftOptions, TcpOptions};
