//! What programs say of themselves, in lines: `tracing` events with a level and fields.
//!
//! A line is said by [`tracing::info!`] and its like. It is made where it is said, and written by a thread of
//! its own, so that no log holds anybody up: not a reader that stands still, not a full disk, not a journal
//! that does not answer. Lines of one kind (one place in the source) that come too often are left out and
//! counted, and so are lines that the log does not take. Nothing here panics.
//!
//! * [`start`]: from the beginning of `main` to its end.
//! * [`Form`]: lines for people, JSON, or the journal's own protocol.
//!
//! Results are not lines: they go to standard output by [`output`](crate::output).

mod form;
mod journal;
mod limit;
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

/// Which lines are said, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Those of this level and above: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub level: Level,
    /// How they are written.
    pub form: Form,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: Level(LevelFilter::INFO), form: Form::Auto }
    }
}

/// The least important lines that are said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Level(LevelFilter);

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // `tracing` takes numbers and nothing, too.
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

/// What [`configure`] changes.
struct Handle {
    level: reload::Handle<LevelFilter, tracing_subscriber::Registry>,
    writer: Writer,
}

/// The target of lines that somebody asked for one by one (`--verbose`): they are not limited.
pub const ASKED_FOR: &str = "asked for";

static HANDLE: OnceLock<Handle> = OnceLock::new();

/// The log of a program, from its start to its end. Dropped, it writes what was said, unless nobody takes it
/// within a second.
#[must_use = "dropped at once, nothing is written"]
pub struct Logging {
    _stop: Option<Stop>,
}

/// Starts the log of a program, with [`LogConfig::default`]. A second log of the same process says nothing.
pub fn start(program: &'static str) -> Logging {
    let (writer, stop) = Writer::start(program, Form::Auto.found(io::stderr().as_fd()));
    let (filter, level) = reload::Layer::new(LogConfig::default().level.0);
    let layers = tracing_subscriber::registry().with(filter).with(Layer::new(writer.clone()));
    if layers.try_init().is_err() {
        return Logging { _stop: None };
    }
    let _ = HANDLE.set(Handle { level, writer });
    Logging { _stop: Some(stop) }
}

/// Lines said from now on are as configured.
pub fn configure(config: &LogConfig) {
    if let Some(handle) = HANDLE.get() {
        // It fails only where the subscriber is gone.
        let _ = handle.level.reload(config.level.0);
        handle.writer.set_form(config.form.found(io::stderr().as_fd()));
    }
}

/// Writes over the last line of a terminal on standard error, with the cursor behind what is shown; with
/// nothing, empties it.
pub fn show_progress(line: String) {
    if let Some(handle) = HANDLE.get() {
        handle.writer.progress(line);
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
