//! Bad input and faults against real processes: whoever misbehaves or dies loses what is its own, everybody else is
//! served on, and no slab and no message is lost.
//!
//! The daemon is always the binary `jetd`; senders and applications that are killed are this binary started again (see
//! `children.rs`). Nothing is timed: every wait is for a condition and has a generous limit. What is random comes from a
//! seed that is printed; `JET_FAULTS_SEED=N` runs it again.

#[path = "faults/applications.rs"]
mod applications;
#[path = "faults/bad_peers.rs"]
mod bad_peers;
#[path = "faults/cache.rs"]
mod cache;
#[path = "faults/children.rs"]
mod children;
#[path = "faults/control_socket.rs"]
mod control_socket;
#[path = "faults/daemon_deaths.rs"]
mod daemon_deaths;
#[path = "faults/deaths.rs"]
mod deaths;
#[cfg(feature = "verbs")]
#[path = "faults/devices.rs"]
mod devices;
#[path = "faults/drain.rs"]
mod drain;
#[path = "faults/endurance.rs"]
mod endurance;
#[path = "faults/escape.rs"]
mod escape;
#[path = "faults/hand_session.rs"]
mod hand_session;
#[path = "faults/load.rs"]
mod load;
#[path = "faults/nodes.rs"]
mod nodes;
#[path = "faults/pace.rs"]
mod pace;
#[path = "faults/poison.rs"]
mod poison;
#[path = "faults/profiles.rs"]
mod profiles;
#[path = "faults/quarantine.rs"]
mod quarantine;
#[path = "faults/raw_peer.rs"]
mod raw_peer;
#[path = "faults/rig.rs"]
mod rig;
#[path = "faults/silence.rs"]
mod silence;
#[path = "faults/standstill.rs"]
mod standstill;
#[path = "faults/traffic.rs"]
mod traffic;
