//! Escape from pressure (Jet §4.3, Algorithm 1): what the pool's state is, and what to do about it.
//!
//! - [`Thresholds`] reads the [`Pressure`] from what is available, with hysteresis on the way back;
//! - [`Escape`] knows which session holds how much of the pool since when, and answers with one [`Action`]
//!   after the other: replace, copy, mark;
//! - [`EscapeConfig`] has the algorithm's parameters, and how the defaults are derived.
//!
//! What this crate does *not* do: it moves no byte and reads no clock; it is told and it answers.
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
