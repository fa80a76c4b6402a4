//! Program `jet`: the tool that sends and receives files, and runs or asks the daemon.

#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::process::ExitCode;

fn main() -> ExitCode {
    jet::commands::main()
}
