//! A pipe whose ends are files. The standard library's own is newer than the toolchain that checks the
//! stated minimum (`.ci/older-rust`).

use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;

/// Makes a pipe. Returns the end that reads and the end that writes; no child process inherits them.
///
/// # Panics
/// Where the process has no descriptor left.
pub fn pipe() -> (File, File) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("two descriptors");
    (reader.into(), writer.into())
}
