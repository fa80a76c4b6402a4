//! Escape, the driver's part: memory outside the cache, and threads that copy into it (Jet §4.3). What is done when is
//! decided elsewhere.

mod memory;
mod workers;

pub use memory::{PrepareError, Preparing, prepare};
pub use workers::{CopyJob, QueueFull, WORKERS_MAX, Workers};
