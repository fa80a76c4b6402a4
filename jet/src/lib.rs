//! The receiver on a host: the daemon `jetd`, and the tool `jet`.
//!
//! * [`daemon`]: configuration, the reactor that drives `jet-core` over a NIC, sessions, the control socket.
//! * [`files`]: trees of files as messages, sent and received.
//! * [`commands`]: what the tool `jet` does, a file a subcommand.
//! * [`demo`]: the whole of it as separate processes on one host.
//! * [`log`]: what programs say of themselves, which no log can hold up or end.
//! * [`mod@output`]: results, on standard output.

// What a program says goes through `log`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod commands;
pub mod daemon;
pub mod demo;
mod descriptors;
pub mod files;
pub mod log;
pub mod output;
