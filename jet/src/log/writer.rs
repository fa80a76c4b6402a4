//! The thread that writes log lines.

use super::form::{Form, escaped, human, json};
use super::journal::Journal;
use super::record::Record;
use super::stderr::Stderr;
use crossbeam_queue::ArrayQueue;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// Most lines that may wait to be written. Further lines are left out and counted.
const LINES: usize = 1024;
/// Time that a program waits at its end until its last lines are written.
const LAST_WAIT: Duration = Duration::from_secs(1);

enum Item {
    Line(Record),
    /// Text for the last line of the terminal; empty to remove it.
    Progress(String),
}

struct Shared {
    items: ArrayQueue<Item>,
    /// Number of lines that found no room in the queue.
    lost: AtomicU64,
    form: Mutex<Form>,
    stop: AtomicBool,
}

/// Handle by which lines are queued for the thread.
#[derive(Clone)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// Thread that writes; none if the system started none.
    thread: Option<Thread>,
}

/// Stops the thread when dropped. Waits until everything is written, but at most [`LAST_WAIT`].
pub(super) struct Stop {
    shared: Arc<Shared>,
    thread: Option<Thread>,
    done: Receiver<()>,
}

impl Writer {
    /// Starts the thread. If the system starts none, lines are lost.
    pub fn start(program: &'static str, form: Form) -> (Self, Stop) {
        Self::start_on(program, form, |write| write(io::stderr().as_fd()))
    }

    /// Starts the thread like [`Self::start`], with a standard error that a test provides.
    fn start_on(
        program: &'static str,
        form: Form,
        stderr: impl Fn(&mut dyn FnMut(BorrowedFd<'_>)) + Send + 'static,
    ) -> (Self, Stop) {
        let shared = Arc::new(Shared {
            items: ArrayQueue::new(LINES),
            lost: AtomicU64::new(0),
            form: Mutex::new(form),
            stop: AtomicBool::new(false),
        });
        let (ends, done) = sync_channel(1);
        let of_thread = Arc::clone(&shared);
        let run = move || write_all(program, &of_thread, stderr, &ends);
        let thread = std::thread::Builder::new().name("jet-log".to_owned()).spawn(run);
        let thread = thread.ok().map(|thread| thread.thread().clone());
        let writer = Self { shared: Arc::clone(&shared), thread: thread.clone() };
        (writer, Stop { shared, thread, done })
    }

    /// Queues a line, or counts it as lost if the queue is full.
    pub fn put(&self, record: Record) {
        if self.shared.items.push(Item::Line(record)).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.wake();
    }

    /// Shows `line` as the last line of the terminal, if the queue has room. A lost one does no harm, since
    /// the next comes soon.
    pub fn progress(&self, line: String) {
        let _ = self.shared.items.push(Item::Progress(line));
        self.wake();
    }

    pub fn set_form(&self, form: Form) {
        *self.shared.form.lock().unwrap_or_else(PoisonError::into_inner) = form;
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        let Some(thread) = &self.thread else { return };
        self.shared.stop.store(true, Ordering::Release);
        thread.unpark();
        // The program ends whether everything is written or not.
        let _ = self.done.recv_timeout(LAST_WAIT);
    }
}

fn write_all(
    program: &str,
    shared: &Shared,
    stderr: impl Fn(&mut dyn FnMut(BorrowedFd<'_>)),
    ends: &SyncSender<()>,
) {
    let mut lines = Lines { program, stderr: Stderr::NONE, journal: None, progress: String::new() };
    loop {
        // Read the stop flag first: lines that were queued before the stop are then in the queue.
        let stop = shared.stop.load(Ordering::Acquire);
        while let Some(item) = shared.items.pop() {
            lines.stderr.left_out(shared.lost.swap(0, Ordering::Relaxed));
            let form = *shared.form.lock().unwrap_or_else(PoisonError::into_inner);
            stderr(&mut |to| lines.write(to, form, &item));
        }
        if stop {
            // Sending fails if the program no longer waits.
            let _ = ends.send(());
            return;
        }
        std::thread::park();
    }
}

/// Everything that the thread writes with, and the text that it shows.
struct Lines<'a> {
    program: &'a str,
    stderr: Stderr,
    journal: Option<Journal>,
    /// Text on the last line of the terminal.
    progress: String,
}

impl Lines<'_> {
    fn write(&mut self, to: BorrowedFd<'_>, form: Form, item: &Item) {
        match item {
            Item::Progress(line) => {
                self.progress = escaped(line);
                self.stderr.put(to, &format!("\r\x1b[K{}", self.progress));
            }
            Item::Line(record) => {
                if form == Form::Journald && self.journal_takes(record) {
                    return;
                }
                let line = match form {
                    Form::Json => json(self.program, record),
                    // Also if the journal does not take the line: its stream, or a terminal, may.
                    Form::Auto | Form::Human | Form::Journald => human(self.program, record),
                };
                if self.progress.is_empty() {
                    self.stderr.put(to, &line);
                } else {
                    self.stderr.put(to, &format!("\r\x1b[K{line}{}", self.progress));
                }
            }
        }
    }

    fn journal_takes(&mut self, record: &Record) -> bool {
        if self.journal.is_none() {
            self.journal = Journal::new().ok();
        }
        let taken = self.journal.as_ref().is_some_and(|journal| journal.put(self.program, record).is_ok());
        if !taken {
            self.journal = None;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, pipe};
    use std::time::{Instant, SystemTime};
    use tracing::Level;

    fn record(message: String) -> Record {
        Record { time: SystemTime::now(), level: Level::INFO, message, fields: Vec::new(), left_out: 0 }
    }

    fn on(to: impl AsFd + Send + 'static) -> impl Fn(&mut dyn FnMut(BorrowedFd<'_>)) + Send + 'static {
        move |write| write(to.as_fd())
    }

    #[test]
    fn lines_come_in_order_and_progress_stays_the_last() {
        let (mut reader, writer) = pipe().unwrap();
        let (lines, stop) = Writer::start_on("jet", Form::Human, on(writer));
        lines.put(record("one".to_owned()));
        lines.progress("half\n".to_owned());
        lines.put(record("two".to_owned()));
        lines.progress(String::new());
        drop((lines, stop));
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "jet: one\n\r\x1b[Khalf\r\x1b[Kjet: two\nhalf\r\x1b[K");
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_neither_lines_nor_the_end() {
        let (mut reader, writer) = pipe().unwrap();
        let (lines, stop) = Writer::start_on("jet", Form::Human, on(writer));
        let before = Instant::now();
        for n in 0..100_000 {
            lines.put(record(format!("{n} {}", "x".repeat(100))));
        }
        // Each line that waited would take a second.
        assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
        let before = Instant::now();
        drop((lines, stop));
        assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
        let mut some = vec![0; 4096];
        reader.read_exact(&mut some).unwrap();
        assert!(String::from_utf8_lossy(&some).contains("jet: 0 xxx"));
    }

    #[test]
    fn what_was_left_out_is_told_once_there_is_room_again() {
        let (mut reader, writer) = pipe().unwrap();
        let (lines, stop) = Writer::start_on("jet", Form::Human, on(writer));
        let line = "y".repeat(4096);
        // Until the thread waits for the reader and the queue is full.
        while lines.shared.lost.load(Ordering::Relaxed) == 0 {
            lines.put(record(line.clone()));
        }
        let reading = std::thread::spawn(move || {
            let mut said = String::new();
            reader.read_to_string(&mut said).unwrap();
            said
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while !lines.shared.items.is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        lines.put(record("and this".to_owned()));
        drop((lines, stop));
        let said = reading.join().unwrap();
        assert!(said.contains("left out here") && said.ends_with("jet: and this\n"), "{}", said.len());
    }

    #[test]
    fn a_full_disk_costs_the_lines_alone() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (lines, stop) = Writer::start_on("jet", Form::Json, on(full));
        for n in 0..1000 {
            lines.put(record(n.to_string()));
        }
        drop((lines, stop));
    }
}
