//! Log lines of the programs: `tracing` events with a level and fields.
//!
//! Code logs with [`tracing::info!`] and its like. The calling thread makes the record, and a separate thread
//! writes it. The log therefore blocks no program: not a reader that stands still, not a full disk, not a
//! journal that does not answer. Only lines that a user asked for wait a second for a slow reader
//! ([`ASKED_FOR`]). Lines of one kind (one place in the source) that come too often are left out
//! and counted. Lines that the log does not take are left out and counted, too. No function of this module
//! panics. Panics of any thread are log lines.
//!
//! * [`start`] starts the log, at the beginning of `main`.
//! * [`Form`] selects lines for people, JSON, or the journal's own protocol.
//!
//! Results are not log lines: they go to standard output by [`output`](crate::output).

mod form;
mod journal;
mod limit;
mod panics;
mod record;
mod stderr;
mod writer;

pub use form::Form;

use record::Layer;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::OnceLock;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use writer::{Stop, Writer};

/// Settings of the log: which lines are written, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Least important level that is written: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub level: Level,
    /// Form in which lines are written.
    pub form: Form,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: Level(LevelFilter::INFO), form: Form::Auto }
    }
}

/// Least important level whose lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Level(LevelFilter);

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // `tracing` also accepts numbers and the empty text.
        let is_word = !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase());
        let level = if is_word { text.parse().ok() } else { None };
        let none = || format!("'{text}' is no level; write off, error, warn, info, debug or trace");
        level.map(Self).ok_or_else(none)
    }
}

impl TryFrom<String> for Level {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Level> for String {
    fn from(level: Level) -> Self {
        level.to_string()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parts of the log that [`configure`] changes.
struct Handle {
    level: reload::Handle<LevelFilter, tracing_subscriber::Registry>,
    writer: Writer,
}

/// Target of lines that the user of a command asked for one by one: those of `--verbose`, and the names of
/// what failed. Their number is not limited, and the thread that logs them waits for a slow reader.
pub const ASKED_FOR: &str = "asked for";

static HANDLE: OnceLock<Handle> = OnceLock::new();

/// The log of a program, which `main` keeps until its end. Dropping the log waits until all lines are
/// written: at most a second if the reader takes none of them, else at most ten seconds.
#[must_use = "dropped at once, nothing is written"]
pub struct Logging {
    _stop: Option<Stop>,
}

/// Starts the log of a program, with [`LogConfig::default`]. Panics are logged from now on, at every level of
/// the log, in place of the text that Rust writes. A second log in the same process writes nothing.
pub fn start(program: &'static str) -> Logging {
    let (writer, stop) = Writer::start(program, Form::Auto.found(io::stderr().as_fd()));
    let (filter, level) = reload::Layer::new(LogConfig::default().level.0);
    let layers = tracing_subscriber::registry().with(filter).with(Layer::new(writer.clone()));
    if layers.try_init().is_err() {
        return Logging { _stop: None };
    }
    panics::log_all(writer.clone());
    let _ = HANDLE.set(Handle { level, writer });
    Logging { _stop: Some(stop) }
}

/// Applies settings to all lines that are logged from now on.
pub fn configure(config: &LogConfig) {
    if let Some(handle) = HANDLE.get() {
        // Fails only if the subscriber is gone.
        let _ = handle.level.reload(config.level.0);
        handle.writer.set_form(config.form.found(io::stderr().as_fd()));
    }
}

/// Shows `line` as the last line of the terminal on standard error, in place of the text that was shown
/// before. An empty `line` removes the text.
pub fn show_progress(line: String) {
    if let Some(handle) = HANDLE.get() {
        handle.writer.progress(line);
    }
}

/// Waits until everything that was logged so far is written, at most a second.
pub fn flush() {
    if let Some(handle) = HANDLE.get() {
        handle.writer.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_words() {
        for word in ["off", "error", "warn", "info", "debug", "trace"] {
            assert_eq!(word.parse::<Level>().unwrap().to_string(), word);
        }
        for bad in ["", "3", "loud", "info,jet=debug"] {
            assert!(bad.parse::<Level>().unwrap_err().contains("write off, error"), "{bad}");
        }
    }
}
