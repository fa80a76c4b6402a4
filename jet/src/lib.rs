//! The receiver on a host: the daemon `jetd`, and the tool `jet`.
//!
//! * [`daemon`]: configuration, the reactor that drives `jet-core` over a NIC, sessions, the control socket.
//! * [`files`]: trees of files as messages, sent and received.
//! * [`commands`]: the subcommands of the tool `jet`, one file each.
//! * [`demo`]: daemon, receiving application and senders as separate processes on one host.
//! * [`child_process`]: child processes that end with their parent.
//! * [`log`]: log lines of the programs. A log that takes no lines neither blocks nor ends a program.
//! * [`mod@output`]: results, on standard output.
//! * [`values`]: sizes and spans of time with units, as the configuration and command lines take them.

// Programs write log lines through `log` and results through `output`, never with the print macros.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod backoff;
pub mod child_process;
pub mod commands;
pub mod daemon;
pub mod demo;
mod descriptors;
pub mod files;
pub mod log;
pub mod output;
mod progress;
mod text;
pub mod values;
