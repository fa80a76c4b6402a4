//! Progress of long work, on the last line of the terminal.

use crate::log::show_progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

/// Highest rate at which the line is drawn, in Hz.
const DRAWN_HZ: u8 = 10;
/// Width in columns that is assumed where standard error is no terminal.
const COLUMNS: u16 = 80;

const UNKNOWN_LENGTH: &str = "{spinner} {msg}, {binary_bytes}, {decimal_bytes_per_sec}";
const KNOWN_LENGTH: &str =
    "{msg} [{wide_bar}] {binary_bytes} of {binary_total_bytes}, {decimal_bytes_per_sec}, {eta} left";

/// A line on standard error that shows how far the work is. Dropping it clears the line.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a progress line that shows nothing.
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Creates a line with bytes and their rate, for work whose length is not known.
    pub fn of_unknown_length() -> Self {
        Self::new(None, UNKNOWN_LENGTH)
    }

    /// Creates a line with a bar, the bytes done of `bytes`, their rate, and the time left.
    pub fn of_bytes(bytes: u64) -> Self {
        Self::new(Some(bytes), KNOWN_LENGTH)
    }

    fn new(bytes: Option<u64>, template: &str) -> Self {
        let line = LastLine { columns, show: Box::new(show_progress), frame: Mutex::default() };
        Self::on(ProgressDrawTarget::term_like_with_hz(Box::new(line), DRAWN_HZ), bytes, template)
    }

    fn on(target: ProgressDrawTarget, bytes: Option<u64>, template: &str) -> Self {
        let style = ProgressStyle::with_template(template).expect("the template is this module's own");
        let style = style.progress_chars("=> ").tick_chars("|/-\\ ");
        Self { bar: ProgressBar::with_draw_target(bytes, target).with_style(style) }
    }

    /// Sets the number of bytes that are done, and the text beside that number.
    pub fn set(&self, bytes: u64, words: String) {
        self.bar.set_message(words);
        self.bar.set_position(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns whether standard error is a terminal, where a user may watch the progress.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Returns the columns of the terminal on standard error.
fn columns() -> u16 {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.ok().map(|size| size.ws_col).filter(|&columns| columns > 0).unwrap_or(COLUMNS)
}

/// Terminal of one line, on which the bar is drawn. The log's writer shows the line below the log lines, so a
/// terminal that takes no output holds up neither the log nor the work.
struct LastLine {
    columns: fn() -> u16,
    show: Box<dyn Fn(String) + Send + Sync>,
    frame: Mutex<String>,
}

impl LastLine {
    fn with_frame<T>(&self, change: impl FnOnce(&mut String) -> T) -> T {
        change(&mut self.frame.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for LastLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastLine").field("frame", &self.frame).finish_non_exhaustive()
    }
}

impl TermLike for LastLine {
    fn width(&self) -> u16 {
        // With the last column filled, some terminals put the cursor on the next line.
        (self.columns)().saturating_sub(1).max(1)
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.with_frame(|frame| frame.push_str(text));
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.with_frame(String::clear);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let frame = self.with_frame(std::mem::take);
        // The frame is padded with blanks, which need not be sent. Its words may be wider than the terminal.
        // A second row would not be cleared with the first.
        let line: String = frame.trim_end().chars().take(self.width().into()).collect();
        (self.show)(line);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    type Frames = Arc<Mutex<Vec<String>>>;

    fn shown(bytes: Option<u64>, template: &str) -> (Progress, Frames) {
        shown_on(|| 70, bytes, template)
    }

    fn shown_on(columns: fn() -> u16, bytes: Option<u64>, template: &str) -> (Progress, Frames) {
        let frames = Frames::default();
        let put = Arc::clone(&frames);
        let show = Box::new(move |frame| put.lock().unwrap().push(frame));
        let line = LastLine { columns, show, frame: Mutex::default() };
        (Progress::on(ProgressDrawTarget::term_like(Box::new(line)), bytes, template), frames)
    }

    #[test]
    fn a_bar_is_as_long_as_its_share_and_goes_at_the_end() {
        let (progress, frames) = shown(Some(4 << 20), KNOWN_LENGTH);
        progress.set(1 << 20, "shm".to_owned());
        progress.bar.force_draw();
        let frame = frames.lock().unwrap().last().cloned().expect("it was drawn");
        assert!(frame.starts_with("shm [=") && frame.contains(" 1.00 MiB of 4.00 MiB, "), "{frame}");
        let bar = &frame[frame.find('[').unwrap() + 1..frame.find(']').unwrap()];
        let done = bar.chars().filter(|&mark| mark == '=').count();
        assert!(bar.len() > 4 && done == bar.len() / 4, "{frame}");
        assert!(frame.len() < 70, "{frame}");
        drop(progress);
        assert_eq!(frames.lock().unwrap().last().map(String::as_str), Some(""));
    }

    #[test]
    fn a_narrow_terminal_gets_one_row() {
        let (progress, frames) = shown_on(|| 20, Some(4 << 20), KNOWN_LENGTH);
        progress.set(1 << 20, "shm: 3 of 3 senders at work".to_owned());
        progress.bar.force_draw();
        let frame = frames.lock().unwrap().last().cloned().expect("it was drawn");
        assert_eq!(frame, "shm: 3 of 3 senders");
    }

    #[test]
    fn without_a_length_there_are_words_and_bytes() {
        let (progress, frames) = shown(None, UNKNOWN_LENGTH);
        progress.set(3 << 10, "2 files".to_owned());
        progress.bar.force_draw();
        let frame = frames.lock().unwrap().last().cloned().expect("it was drawn");
        assert!(frame.contains(" 2 files, 3.00 KiB, "), "{frame}");
    }
}
