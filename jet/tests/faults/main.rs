//! Bad input and faults against real processes: whoever misbehaves or dies loses what is its own, everybody
//! else is served on, and no slab and no message is lost.
//!
//! The daemon is always the binary `jetd`; senders and applications that are killed are this binary started
//! again (see `children.rs`). Nothing is timed: every wait is for a condition and has a generous limit. What
//! is random comes from a seed that is printed; `JET_FAULTS_SEED=N` runs it again.

mod applications;
mod bad_peers;
mod cache;
mod children;
mod control_socket;
mod daemon_deaths;
mod deaths;
#[cfg(feature = "verbs")]
mod devices;
mod drain;
mod endurance;
mod escape;
mod hand_session;
mod load;
mod nodes;
mod pace;
mod poison;
mod profiles;
mod quarantine;
mod raw_peer;
mod rig;
mod silence;
mod standstill;
mod traffic;
