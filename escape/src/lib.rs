//! Escape from pressure (Jet §4.3, Algorithm 1): how full the pool is, and what to do about it.
//!
//! - [`Thresholds`] reads the [`Pressure`] from what is available, with hysteresis when the pressure falls;
//! - [`Escape`] knows which session holds how much of the pool since when. It returns one [`Action`] after
//!   the other: replace, copy, mark;
//! - [`EscapeConfig`] has the algorithm's parameters, and how the defaults are derived.
//!
//! What this crate does *not* do: it moves no byte and reads no clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod controller;
mod held;
mod pressure;
mod session_set;
mod turn;

pub use config::{EscapeConfig, EscapeConfigError};
pub use controller::{ACTIONS_MAX, Action, COUNTED_MAX, Escape, NODES_MAX, PoolView};
pub use pressure::{Pressure, ThresholdError, Thresholds};
