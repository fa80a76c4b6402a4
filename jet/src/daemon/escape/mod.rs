//! Escape, the driver's part: memory outside the cache (Jet §4.3), which workers copy into. What is done when
//! is decided elsewhere.

mod memory;

pub use memory::{PrepareError, Preparing, Sessions, prepare};
