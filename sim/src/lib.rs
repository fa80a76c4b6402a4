//! Senders, receiver and applications in one process, from a seed: a search for what breaks Jet's promises.
//!
//! A [`Scenario`] is drawn from a seed: devices, network, numbers of the receiver, applications and their
//! habits, senders and their loads, and which faults may happen. A [`Simulation`] runs it in time that it
//! makes up. The parts are the real ones: `jet-core` in the driver of `jet-reactor`, the driver of
//! `jet-client`, the segments and rings of `jet-wire`. NICs and network are those of [`jet_fabric::sim`].
//! Applications are modelled.
//!
//! Everything that happens is an [`Event`](event::Event). The [checkers] see each of them, and each checker
//! watches one kind of promise. The same seed gives the same events at the same times: the hash over them is
//! printed.

mod actors;
mod application;
mod bells;
mod cheat;
pub mod checkers;
mod counts;
pub mod event;
mod faults;
mod ghosts;
mod less;
mod lives;
mod log;
mod observer;
mod payload;
mod printed;
mod receiver;
pub mod scenario;
mod sender;
mod simulation;
mod watch;

pub use checkers::Failure;
pub use counts::{Counts, RARE};
pub use less::{Less, NotLess, Shrunk, shrink};
pub use log::Log;
pub use payload::Payload;
pub use scenario::{Kind, Scenario};
pub use simulation::{Outcome, Simulation};
