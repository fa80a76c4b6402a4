//! Tests of all actuators together, on fake trees of sysfs and debugfs and with a fake tool that behaves like
//! the real one.

mod crash;
mod faults;
mod flapping;
mod host;
mod lowering;

pub(super) use host::{script, wait_until};
