//! The receiver on a host: the daemon `jetd`, and the tool `jet`.
//!
//! * [`daemon`]: configuration, the reactor that drives `jet-core` over a NIC, sessions, the control socket.
//! * [`files`]: trees of files as messages, sent and received.
//! * [`commands`]: what the tool `jet` does, a file a subcommand.
//! * [`demo`]: the whole of it as separate processes on one host.
//! * [`output`]: results and remarks, none of which ends a program.

// What a program says goes through `output`, which no log can hold up or end.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod commands;
pub mod daemon;
pub mod demo;
mod descriptors;
pub mod files;
pub mod output;
