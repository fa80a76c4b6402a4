//! Results, on standard output. What else programs say goes to the [log](crate::log).
//!
//! A result that cannot be printed makes the exit code 1, unless its reader went away: what was asked is done
//! then.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a result could not be printed, for [`exit_code`].
static PRINTING_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a JSON object on a line of its own; otherwise as [`print`].
pub fn print_json(value: &impl serde::Serialize) {
    match serde_json::to_string(value) {
        Ok(json) => print(&format!("{json}\n")),
        // Only a map with keys that are no text.
        Err(error) => note_printed(Err(error.into())),
    }
}

/// Prints a result on standard output.
pub fn print(text: &str) {
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

/// The code that a program ends with: the one given, unless a result could not be printed.
pub fn exit_code(code: ExitCode) -> ExitCode {
    if PRINTING_FAILED.load(Ordering::Relaxed) { ExitCode::FAILURE } else { code }
}

/// Reads the command line.
///
/// # Errors
/// The code to end with, after help, a version or an error was printed.
pub fn command_line<P: clap::Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        if error.use_stderr() {
            // As with every remark.
            let _ = error.print();
        } else {
            note_printed(error.print());
        }
        exit_code(u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
    })
}
