//! Helpers that tests of several crates share: processes that are started and watched (daemons among them),
//! and the files, ports and devices that they use.
//!
//! The crate is for tests alone, so whatever fails here panics. Every wait is for a condition, and ends after
//! [`waiting::WAIT_LIMIT`]. Nothing here changes the test process itself, because other tests run in it, too.

pub mod daemon;
pub mod device;
pub mod disk;
pub mod folder;
pub mod limits;
pub mod pipe;
pub mod port;
pub mod process;
pub mod random;
pub mod tree;
pub mod waiting;
