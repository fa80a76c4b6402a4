//! Limits of a process that is started (`setrlimit`).

use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the process that the command will be so much of a resource, and no more.
pub fn limit(command: &mut Command, resource: Resource, most: u64) {
    limit_within(command, resource, most, most);
}

/// Gives it so much, which it may raise to `most` by itself.
pub fn limit_within(command: &mut Command, resource: Resource, at_first: u64, most: u64) {
    let limit = Rlimit { current: Some(at_first), maximum: Some(most) };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(move || Ok(setrlimit(resource, limit)?)) };
}
