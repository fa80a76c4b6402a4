//! Panics as log lines: errors with the thread's name and the place in the source.
//!
//! Rust's own hook writes to standard error and waits for its reader, in no form that programs read. The
//! hook here queues a line like any other: it does not wait, and the line has a limit of its own. Panics that
//! come again and again fill no disk.
//!
//! A panic that ends the process must be seen. The panic of `main` drops the log, which waits until all is
//! written. A panic within a panic ends the process at once, so a thread that panics a second time waits
//! until the log is written, for at most two seconds. It also waits where the first panic was caught, since
//! the two cannot be told apart.

use super::limit::{Kind, Place};
use super::record::Record;
use super::stderr;
use super::writer::Writer;
use serde_json::Value;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::panic::PanicHookInfo;
use tracing::Level;

/// Longest message and longest backtrace of a panic in the log, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;
const BACKTRACE_BYTES_MAX: usize = 16_384;

thread_local! {
    /// Whether the thread has panicked before.
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
    /// Whether the thread may wait for the log. The log's own thread may not.
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Lets the log's own thread panic without waiting for itself.
pub(super) fn never_wait_on_this_thread() {
    MAY_WAIT.set(false);
}

/// Logs all panics from now on.
pub(super) fn log_all(writer: Writer) {
    std::panic::set_hook(Box::new(move |panic| log(&writer, panic)));
}

/// Logs a panic. A panic in here would end the process, so nothing here may panic: no assertion, no index,
/// and no `thread::current`, which panics at the end of a thread.
fn log(writer: &Writer, panic: &PanicHookInfo<'_>) {
    let kind = Kind { place: Place::Panic, subject: None };
    if let Some(left_out) = writer.admit(&kind) {
        let message = format!("panicked: {}", cut(text_of(panic), MESSAGE_BYTES_MAX));
        writer.limit().note(&kind, Level::ERROR, &message);
        writer.put(Record { fields: fields(panic), left_out, ..Record::error(message) });
    }
    if HAS_PANICKED.replace(true) {
        if MAY_WAIT.get() {
            writer.flush();
        }
        // What Rust itself writes before it ends the process must not wait either.
        stderr::never_block();
    }
}

fn text_of<'a>(panic: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}

fn fields(panic: &PanicHookInfo<'_>) -> Vec<(&'static str, Value)> {
    let mut fields = Vec::new();
    // The name that `ps` and `top` show.
    if let Ok(name) = rustix::thread::name() {
        fields.push(("thread", name.to_string_lossy().into()));
    }
    if let Some(place) = panic.location() {
        fields.push(("place", place.to_string().into()));
    }
    // Captured only if `RUST_BACKTRACE` asks for it. This may wait for the disk.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        fields.push(("backtrace", cut(&backtrace.to_string(), BACKTRACE_BYTES_MAX).into()));
    }
    fields
}

/// Returns the beginning of a text, of at most `bytes_max` bytes.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    end.and_then(|end| text.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::form::Form;
    use super::*;
    use std::io;
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Variable of the environment that makes this test's process the one that panics.
    const CHILD: &str = "JET_TEST_LOG_THREAD_PANICS";

    #[test]
    fn a_panic_of_the_logs_own_thread_is_a_log_line_and_the_thread_goes_on() {
        let name = "log::panics::tests::a_panic_of_the_logs_own_thread_is_a_log_line_and_the_thread_goes_on";
        if std::env::var_os(CHILD).is_some() {
            panic_in_the_logs_thread();
            return;
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let said = String::from_utf8(child.stderr).unwrap();
        assert!(child.status.success(), "{said}");
        let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(
            (&lines[0]["message"], &lines[0]["thread"]),
            (&"panicked: on purpose".into(), &"jet-log".into())
        );
        assert_eq!(lines.last().map(|line| &line["message"]), Some(&"after".into()), "{said}");
    }

    fn panic_in_the_logs_thread() {
        let is_first = AtomicBool::new(true);
        let (writer, stop) = Writer::start_on("jetd", Form::Json, move |write| {
            assert!(!is_first.swap(false, Ordering::Relaxed), "on purpose");
            write(io::stderr().as_fd());
        });
        log_all(writer.clone());
        writer.put(Record::error("this line panics".to_owned()));
        writer.flush();
        writer.put(Record::error("after".to_owned()));
        drop(stop);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abc", 2), "ab");
        assert_eq!(cut("aü", 2), "a");
        assert_eq!(cut("", 2), "");
    }
}
