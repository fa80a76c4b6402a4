//! Resource limits of a process that a test starts (`setrlimit`).

use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Limits a resource of the process that `command` starts to `most`.
pub fn limit(command: &mut Command, resource: Resource, most: u64) {
    limit_within(command, resource, most, most);
}

/// Limits a resource of the process that `command` starts to `at_first`. The process itself can raise that
/// limit to `most`.
pub fn limit_within(command: &mut Command, resource: Resource, at_first: u64, most: u64) {
    let limit = Rlimit { current: Some(at_first), maximum: Some(most) };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(move || Ok(setrlimit(resource, limit)?)) };
}
