//! The last-level cache of a host: what there is of it, reserving a part for a pool, and telling whether the
//! pool is in it (Jet §5).
//!
//! Of use to anybody, not only to Jet: nothing here knows of messages. A program that wants 16 MiB of each
//! cache for itself:
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
//!     // Threads that this one starts from here on are in the group, too.
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

pub use affinity::Stay;
pub use cpu_set::{CpuSet, CpuSetError};
