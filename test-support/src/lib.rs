//! What tests of several crates share: processes that are started and watched, daemons among them, and what
//! they are given.
//!
//! For tests alone, so whatever fails here panics. Every wait is for a condition, and ends after
//! [`waiting::PATIENCE`]. Nothing here changes the process of the tests, which others share.

pub mod daemon;
pub mod device;
pub mod disk;
pub mod folder;
pub mod limits;
pub mod port;
pub mod process;
pub mod random;
pub mod tree;
pub mod waiting;
