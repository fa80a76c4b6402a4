//! The receiver's driver. It carries out what `jet-core` decides, on a [NIC](jet_fabric::nic::Nic), on the
//! rings of applications, and on workers that copy and make checksums (Jet §4.1, §4.3).
//!
//! [`Driver`] has no clock, no socket, no file and no configuration of its own. Its caller has those: it
//! calls [`Driver::turn`] with the time, and decides when to sleep. In the daemon the caller is a thread that
//! sleeps in epoll; in a simulator the caller makes up the time. The caller also implements [`Application`]:
//! how an application is woken, and how the end of its session is reported to it.
//!
//! While there is work, nothing on the message path allocates, locks or makes a system call.
//!
//! A process may run several drivers only if no memory is [watched](poison::watch). Notes of memory that the
//! hardware lost are kept once for the process, and the first driver that looks takes them.

// The driver's caller gets what is to be printed: printing may wait.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod application;
mod driver;
mod effect_handler;
mod memory;
mod peers;
pub mod poison;
mod posting;
mod sessions;
mod turn;
pub mod workers;

#[cfg(test)]
mod pair;

pub use application::{Application, NewSession, SessionTicket};
pub use driver::Driver;
pub use effect_handler::Parts;
pub use memory::{EscapeRegion, LostMemory, PoolMemory, ReplyMemory};
