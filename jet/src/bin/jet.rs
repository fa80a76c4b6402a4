//! The tool `jet`.

#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::process::ExitCode;

fn main() -> ExitCode {
    jet::commands::main()
}
