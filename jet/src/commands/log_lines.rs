//! Options of commands that log while they work.

use crate::log::{self, Form, Level, LogConfig};

/// Options that select the log lines that a command writes, and their form.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LogLines {
    /// Least important log lines to write: off, error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value_t = LogConfig::default().level)]
    log_level: Level,
    /// Form of the log lines on standard error.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogConfig::default().form)]
    log_form: Form,
}

impl LogLines {
    /// Applies the options to all lines that are logged from now on.
    pub(crate) fn apply(self) {
        log::configure(&LogConfig { level: self.log_level, form: self.log_form });
    }
}
