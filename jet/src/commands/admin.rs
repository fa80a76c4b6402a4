//! What the subcommands for operators have in common: the daemon's admin socket.

use super::fail;
use jet_control::protocol::admin_socket_beside;
use jet_control::{CONTROL_SOCKET, ControlConnection, ControlRequest, ControlResponse};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options that say which daemon is commanded.
#[derive(Debug, clap::Args)]
pub(super) struct AdminSocket {
    /// The daemon's control socket, beside which its admin socket is.
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// The daemon's admin socket, which root and the daemon's own user may open [default: the control socket
    /// with -admin behind its name].
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
}

impl AdminSocket {
    /// Sends a request, and returns what `expected` makes of its answer.
    ///
    /// # Errors
    /// The exit code, once the error is logged.
    pub(super) fn ask<T>(
        &self,
        request: &ControlRequest,
        expected: impl FnOnce(ControlResponse) -> Option<T>,
    ) -> Result<T, ExitCode> {
        let path = self.admin_socket.clone().unwrap_or_else(|| admin_socket_beside(&self.control_socket));
        let answer = ControlConnection::connect(&path).and_then(|mut connection| connection.request(request));
        match answer {
            Ok((ControlResponse::Error { message, .. }, _)) => Err(fail(message)),
            Ok((answer, _)) => expected(answer).ok_or_else(|| {
                fail("the daemon's answer has another type; use the same build of Jet at both ends")
            }),
            Err(error) => Err(fail(error)),
        }
    }
}
