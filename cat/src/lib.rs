//! The last-level cache of a host: what there is of it, reserving a part for a pool, and telling whether the pool is in it
//! (Jet §5).
//!
//! Of use to anybody, not only to Jet: nothing here knows of messages.

pub mod counters;
mod cpu_set;
pub mod plan;
pub mod resctrl;
pub mod reservation;
pub mod residency;
pub mod topology;

pub use cpu_set::{CpuSet, CpuSetError};
