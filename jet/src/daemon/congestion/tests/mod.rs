//! The whole of it against a fake tree of sysfs and debugfs, and a fake tool that behaves as the real one.

mod crash;
mod faults;
mod flapping;
mod host;
mod lowering;

pub(super) use host::{script, wait_until};
