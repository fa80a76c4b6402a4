//! The receiver's driver: it carries out what `jet-core` says, on a [NIC](jet_fabric::nic::Nic), on the rings
//! of applications and on workers that copy and make checksums (Jet §4.1, §4.3).
//!
//! [`Driver`] has no clock, no socket, no file and no configuration of its own. Whoever has those calls
//! [`Driver::turn`] with the time, and decides when to sleep: the daemon does so on a thread, with epoll; a
//! simulator does so with a time that it makes up. How an application is woken, and hears of its session's
//! end, is an [`Application`] of theirs.
//!
//! Nothing on the message path allocates, locks or makes a system call while there is work.
//!
//! Several drivers may be in one process where no memory is [watched](poison::watch): what the hardware lost
//! is noted for the process, and whoever looks first takes the notes.

// What is to be said is told to whoever has the driver: printing may wait.
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
pub use memory::{EscapeRegion, LostMemory, PoolMemory};
