//! Starting a daemon from a test, and reading its status.

use crate::process::Process;
use crate::waiting::{PAUSE, WAIT_LIMIT, until};
use jet_control::ControlConnection;
use jet_control::status::Status;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Builds the command that starts a daemon. `words` are the first arguments, which make `program` a daemon
/// (none for `jetd`). Each setting has the form `read.checksums=off`.
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

/// Returns the daemon's status, or `None` if no daemon answers at this control socket.
pub fn try_status(control: &Path) -> Option<Status> {
    ControlConnection::connect(control).ok()?.status().ok()
}

/// Waits until the daemon `daemon` answers at its control socket, and returns its first status.
///
/// # Panics
/// If the process ends first, or does not answer within [`WAIT_LIMIT`].
#[track_caller]
pub fn wait_answer(daemon: &Process, control: &Path) -> Status {
    until("the daemon to answer", || {
        assert!(daemon.is_running(), "the daemon ended: {}", daemon.stderr_text());
        try_status(control)
    })
}

/// Waits until `wished` holds of the daemon's status, and returns that status. Calls `meanwhile` before each
/// request.
///
/// # Panics
/// If `wished` does not hold within [`WAIT_LIMIT`], or no daemon answers.
#[track_caller]
pub fn wait_status(
    control: &Path,
    what: &str,
    mut meanwhile: impl FnMut(),
    wished: impl Fn(&Status) -> bool,
) -> Status {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        meanwhile();
        let status = try_status(control).expect("the daemon answers");
        if wished(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "waited {WAIT_LIMIT:?} for {what}: {status:#?}");
        std::thread::sleep(PAUSE);
    }
}
