//! Daemons: how each program starts one, and what it says of itself.

use crate::process::Process;
use crate::waiting::{LOOK, PATIENCE, until};
use jet_control::ControlConnection;
use jet_control::status::Status;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// What starts a daemon: `program` and the words that make one of it (none for `jetd`), its control socket,
/// where it listens, and its settings, as in `read.checksums=off`.
pub fn command(
    program: impl AsRef<OsStr>,
    words: &[&str],
    control: &Path,
    listen: &[impl AsRef<OsStr>],
    settings: &[impl AsRef<OsStr>],
) -> Command {
    let mut command = Command::new(program);
    command.args(words).arg("--control-socket").arg(control);
    for address in listen {
        command.arg("--listen").arg(address);
    }
    for setting in settings {
        command.arg("--set").arg(setting);
    }
    command
}

/// The status, if a daemon answers at this control socket.
pub fn try_status(control: &Path) -> Option<Status> {
    ControlConnection::connect(control).ok()?.status().ok()
}

/// Waits until the daemon that this process is answers at its control socket: its first status.
///
/// # Panics
/// If it ends instead.
#[track_caller]
pub fn wait_answer(daemon: &Process, control: &Path) -> Status {
    until("the daemon to answer", || {
        assert!(daemon.is_running(), "the daemon ended: {}", daemon.said());
        try_status(control)
    })
}

/// Waits until the status is as wished. What is to be done meanwhile is done before each look.
///
/// # Panics
/// If it is not so within [`PATIENCE`], or no daemon answers.
#[track_caller]
pub fn wait_status(
    control: &Path,
    what: &str,
    mut meanwhile: impl FnMut(),
    wished: impl Fn(&Status) -> bool,
) -> Status {
    let deadline = Instant::now() + PATIENCE;
    loop {
        meanwhile();
        let status = try_status(control).expect("the daemon answers");
        if wished(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}: {status:#?}");
        std::thread::sleep(LOOK);
    }
}
