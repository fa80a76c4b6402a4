//! Preparing escape memory: memory outside the pool (Jet §4.3), which workers copy into. `jet-escape` and
//! `jet-core` decide when it is used.

mod memory;

pub use memory::{PrepareError, Preparing, Sessions, prepare};
