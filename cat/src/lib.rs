//! Last-level caches of a host: their description, the reservation of a part of them for a memory pool, and
//! measurements of how much of the pool lies in the cache (Jet §5).
//!
//! Any program can use this crate, not only Jet: nothing here knows of messages. The following program
//! reserves 16 MiB of each cache for itself:
//!
//! ```no_run
//! use jet_cat::plan::Request;
//! use jet_cat::reservation::{FOLDER, Reservation};
//! use jet_cat::resctrl::{GroupName, Resctrl};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let resctrl = Resctrl::find()?;
//!     let request = Request::new(GroupName::new("mine")?, 16 << 20);
//!     let reservation = Reservation::make(&resctrl, &request, FOLDER.as_ref(), &mut |_| {})?;
//!     print!("{}", reservation.plan());
//!     // Threads that this thread starts from here on are in the group, too.
//!     reservation.add_thread(rustix::thread::gettid().as_raw_pid())?;
//!     // ... work ...
//!     reservation.restore()?;
//!     Ok(())
//! }
//! ```

pub mod adjustments;
mod affinity;
pub mod counters;
mod cpu_set;
#[cfg(target_arch = "x86_64")]
mod cpuid;
mod journals;
mod lock;
pub mod plan;
pub mod registers;
pub mod resctrl;
pub mod reservation;
pub mod residency;
pub mod topology;

pub use affinity::Pinning;
pub use cpu_set::{CpuSet, CpuSetError};
