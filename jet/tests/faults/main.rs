//! Tests of bad input and faults against real processes. A process that misbehaves or dies loses what is its
//! own. All others are still served, and no slab and no message is lost.
//!
//! The daemon is always the binary `jetd`. Senders and applications that are killed are this binary, started
//! again (see `children.rs`). Nothing is timed: every wait is for a condition and has a generous limit.
//! Random choices follow from a seed that is printed, and `JET_FAULTS_SEED=N` repeats them.

mod applications;
mod bad_peers;
mod cache;
mod cancel;
mod children;
mod consumers;
mod control_socket;
mod crowd;
mod daemon_deaths;
mod deaths;
#[cfg(feature = "verbs")]
mod devices;
mod drain;
mod endurance;
mod escape;
mod exactly_once;
mod hand_session;
mod load;
mod nodes;
mod own_memory;
mod pace;
mod poison;
mod profiles;
mod quarantine;
mod raw_peer;
mod receiver_timeout;
mod region_places;
mod replies;
mod rig;
mod rights;
mod shared_senders;
mod shared_sessions;
mod silent;
mod slow_senders;
mod sparse;
mod standstill;
mod storage_server;
mod traffic;
