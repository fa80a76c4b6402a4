//! Results of the programs, on standard output. All other text of the programs goes to the [`log`].
//!
//! A result that cannot be printed makes the exit code 1. The exception is a reader that closed its end: the
//! requested work is done then.

use crate::log;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a result could not be printed. [`exit_code`] reads it.
static PRINTING_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a JSON object as one line on standard output. Failures are noted like those of [`print()`].
pub fn print_json(value: &impl serde::Serialize) {
    match serde_json::to_string(value) {
        Ok(json) => print(&format!("{json}\n")),
        // Serializing fails only for a map whose keys are not text.
        Err(error) => note_printed(Err(error.into())),
    }
}

/// Prints a result on standard output, behind what was logged before, and flushes it. A failure is logged and
/// noted for [`exit_code`], except a closed pipe.
pub fn print(text: &str) {
    log::flush();
    let mut out = io::stdout().lock();
    note_printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn note_printed(printed: io::Result<()>) {
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            tracing::error!("cannot print to stdout: {error}");
            PRINTING_FAILED.store(true, Ordering::Relaxed);
        }
        Ok(()) | Err(_) => {}
    }
}

/// Returns the program's exit code: `code`, or a failure if a result could not be printed.
pub fn exit_code(code: ExitCode) -> ExitCode {
    if PRINTING_FAILED.load(Ordering::Relaxed) { ExitCode::FAILURE } else { code }
}

/// Parses the command line.
///
/// # Errors
/// Returns the exit code for the program after it has printed help, the version, or a usage error.
pub fn command_line<P: clap::Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        if error.use_stderr() {
            // A usage error that cannot be printed is dropped, like a log line.
            let _ = error.print();
        } else {
            note_printed(error.print());
        }
        exit_code(u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
    })
}
