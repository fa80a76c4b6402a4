//! The tool `jet`.

use std::process::ExitCode;

fn main() -> ExitCode {
    jet::commands::main()
}
