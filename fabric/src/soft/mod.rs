//! The software RNIC: a NIC for machines that have none.
//!
//! [`SoftNic`] keeps what a RNIC keeps in its own memory (keys, QPs, the SRQ, completions) in `tables` and
//! moves bytes by one of two transports behind the seam in `transport`:
//!
//! * `shm`, same host: rings of SEND descriptors in a segment that the connecting end makes, registered
//!   memory as memory files that the reading NIC maps, one copy a byte;
//! * `tcp`, any host: frames over a socket, read straight into the slabs.
//!
//! It works when it is polled: the thread that polls is the NIC's processor. [`threaded`] is such a thread,
//! for any NIC.
//!
//! Which module uses which is drawn in docs/architecture.md ("Inside the software NIC"), and
//! `fabric/tests/arrows.rs` holds the code to it.

mod deadlines;
mod nic;
mod options;
mod shm;
mod tables;
mod tcp;
pub mod threaded;
mod token;
mod transport;

pub use nic::SoftNic;
pub use options::{SoftOptions, TcpOptions};
