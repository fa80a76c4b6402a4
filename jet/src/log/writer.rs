//! The thread that writes log lines.

use super::form::{Form, escaped, human, json, needs_time};
use super::journal::Journal;
use super::limit::{Decision, Kind, Limit, Unreported};
use super::panics;
use super::record::Record;
use super::stderr::Stderr;
use crossbeam_queue::ArrayQueue;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime};
use tracing::Level;

/// Limit of the lines that wait to be written. Further lines are left out and counted.
const LINES: usize = 1024;
/// Room in the queue that only warnings and errors use.
const RESERVE: usize = 128;
/// Longest time that a program waits, for room in the queue or for the queue to be written, while no line is
/// taken.
const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// Longest time that a program waits at its end until its last lines are written, if they are taken one by
/// one.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Most panics of the thread after which it goes on.
const PANICS_MAX: u32 = 8;

/// Calls its argument with standard error, or with what a test has in its place.
type WithStderr = dyn Fn(&mut dyn FnMut(BorrowedFd<'_>)) + Send + Sync;

enum Item {
    Line(Record),
    /// Text for the last line of the terminal; empty to remove it.
    Progress(String),
    /// Answered when all items before it are written.
    Flush(SyncSender<()>),
}

struct Shared {
    program: &'static str,
    stderr: Box<WithStderr>,
    /// Whether lines for people begin with their time.
    has_time: bool,
    /// Whether the thread runs: it takes what is queued.
    is_running: AtomicBool,
    items: ArrayQueue<Item>,
    /// Number of lines that found no room in the queue.
    lost: AtomicU64,
    form: Mutex<Form>,
    limit: Limit,
    stop: AtomicBool,
    /// Number of items that the thread has taken from the queue and written, or tried to.
    taken: AtomicU64,
    /// Whether somebody has waited for room in vain since the thread took an item.
    stalled: AtomicBool,
    waiting: Mutex<()>,
    /// Signalled when an item was taken.
    room: Condvar,
}

impl Shared {
    /// Queues an item if there is room. The last places are for warnings and errors.
    fn push(&self, item: Item) -> Result<(), Item> {
        let is_urgent = match &item {
            Item::Line(record) => record.level <= Level::WARN,
            Item::Progress(_) | Item::Flush(_) => false,
        };
        if !is_urgent && self.items.len() >= LINES - RESERVE {
            return Err(item);
        }
        self.items.push(item)
    }

    fn form(&self) -> Form {
        *self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line on the calling thread, without waiting: it is lost if standard error does not take it at
    /// once. For errors that no thread writes.
    fn write_at_once(&self, record: Record) {
        let mut lines = Lines::new(self, Stderr::AT_ONCE);
        (self.stderr)(&mut |to| lines.write(to, self.form(), &Item::Line(record.clone())));
    }

    /// Tells those that wait for room that an item was taken.
    fn note_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.stalled.store(false, Ordering::Relaxed);
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.room.notify_all();
    }
}

/// Handle by which lines are queued for the thread.
#[derive(Clone)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// Thread that writes; none if the system started none.
    thread: Option<Thread>,
}

/// Stops the thread when dropped. Waits until everything is written, as long as lines are taken, but at most
/// [`LAST_WAIT`].
pub(super) struct Stop {
    shared: Arc<Shared>,
    thread: Option<Thread>,
    done: Receiver<()>,
}

impl Writer {
    /// Starts the thread. If the system starts none, the reason is written at once. Errors are then written
    /// by the threads that log them, without waiting, and all other lines are lost.
    pub fn start(program: &'static str, form: Form) -> (Self, Stop) {
        let has_time = needs_time(io::stderr().as_fd());
        Self::start_with(program, form, has_time, |write| write(io::stderr().as_fd()), spawn)
    }

    /// Starts the thread like [`Self::start`], with a standard error that a test provides, and without times.
    #[cfg(test)]
    pub fn start_on(
        program: &'static str,
        form: Form,
        stderr: impl Fn(&mut dyn FnMut(BorrowedFd<'_>)) + Send + Sync + 'static,
    ) -> (Self, Stop) {
        Self::start_with(program, form, false, stderr, spawn)
    }

    fn start_with(
        program: &'static str,
        form: Form,
        has_time: bool,
        stderr: impl Fn(&mut dyn FnMut(BorrowedFd<'_>)) + Send + Sync + 'static,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> (Self, Stop) {
        let shared = Arc::new(Shared {
            program,
            stderr: Box::new(stderr),
            has_time,
            is_running: AtomicBool::new(true),
            items: ArrayQueue::new(LINES),
            lost: AtomicU64::new(0),
            form: Mutex::new(form),
            limit: Limit::new(),
            stop: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            waiting: Mutex::new(()),
            room: Condvar::new(),
        });
        let (ends, done) = sync_channel(1);
        let of_thread = Arc::clone(&shared);
        let thread = match spawn(Box::new(move || run(&of_thread, &ends))) {
            Ok(thread) => Some(thread.thread().clone()),
            Err(error) => {
                shared.is_running.store(false, Ordering::Release);
                shared.write_at_once(Record::error(format!(
                    "the log's thread cannot be started ({error}): only errors are logged"
                )));
                None
            }
        };
        let writer = Self { shared: Arc::clone(&shared), thread: thread.clone() };
        (writer, Stop { shared, thread, done })
    }

    /// Decides whether a line of a kind is written. Returns how many lines of the kind were left out before
    /// it, or counts it and returns `None`.
    pub fn admit(&self, kind: &Kind) -> Option<u64> {
        match self.shared.limit.decide(kind, Instant::now()) {
            Decision::Write { left_out } => return Some(left_out),
            // The thread has to report it if no later line does.
            Decision::LeaveOut { first: true } => self.wake(),
            Decision::LeaveOut { first: false } => {}
            Decision::Lose => _ = self.shared.lost.fetch_add(1, Ordering::Relaxed),
        }
        None
    }

    /// Queues a line, or counts it as lost if the queue is full.
    pub fn put(&self, record: Record) {
        if !self.shared.is_running.load(Ordering::Acquire) {
            return self.put_without_thread(record);
        }
        self.count_lost(self.shared.push(Item::Line(record)));
        self.wake();
    }

    /// Writes an error at once, and counts any other line as lost.
    fn put_without_thread(&self, record: Record) {
        if record.level == Level::ERROR {
            self.shared.write_at_once(record);
        } else {
            self.count_lost(Err(Item::Line(record)));
        }
    }

    /// Queues a line like [`Self::put`], and waits for room if it has to: as long as lines are taken, and at
    /// most [`WAIT_LIMIT`] if none is. For threads that may wait.
    pub fn put_in_time(&self, record: Record) {
        if !self.shared.is_running.load(Ordering::Acquire) {
            return self.put_without_thread(record);
        }
        self.count_lost(self.push_in_time(Item::Line(record)));
        self.wake();
    }

    /// Shows `line` as the last line of the terminal, if the queue has room. A lost line does no harm, since
    /// the next one comes soon. Removing the line waits for room.
    pub fn progress(&self, line: String) {
        let is_last = line.is_empty();
        let item = Item::Progress(line);
        let _ = if is_last { self.push_in_time(item) } else { self.shared.push(item) };
        self.wake();
    }

    /// Waits until everything that was queued is written, at most [`WAIT_LIMIT`].
    pub fn flush(&self) {
        let (flushed, done) = sync_channel(1);
        if self.push_in_time(Item::Flush(flushed)).is_ok() {
            self.wake();
            let _ = done.recv_timeout(WAIT_LIMIT);
        }
    }

    fn count_lost(&self, pushed: Result<(), Item>) {
        if let Err(Item::Line(record)) = pushed {
            // Lines that this one would have told of are lost with it.
            self.shared.lost.fetch_add(1 + record.left_out, Ordering::Relaxed);
        }
    }

    fn push_in_time(&self, mut item: Item) -> Result<(), Item> {
        let shared = &*self.shared;
        let mut waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut seen, mut since) = (shared.taken.load(Ordering::Relaxed), Instant::now());
        loop {
            item = match shared.push(item) {
                Ok(()) => return Ok(()),
                Err(item) => item,
            };
            let taken = shared.taken.load(Ordering::Relaxed);
            if taken != seen {
                (seen, since) = (taken, Instant::now());
            }
            let left = WAIT_LIMIT.saturating_sub(since.elapsed());
            let is_running = shared.is_running.load(Ordering::Acquire);
            if left.is_zero() || !is_running || shared.stalled.load(Ordering::Relaxed) {
                shared.stalled.store(true, Ordering::Relaxed);
                return Err(item);
            }
            self.wake();
            (waiting, _) = shared.room.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn set_form(&self, form: Form) {
        *self.shared.form.lock().unwrap_or_else(PoisonError::into_inner) = form;
    }

    /// Limits of each kind of line.
    pub fn limit(&self) -> &Limit {
        &self.shared.limit
    }

    /// Has the thread look for what there is to write, and when it has to look next.
    pub fn wake(&self) {
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
        // The program ends whether everything is written or not, but not while lines are being taken.
        let (began, mut seen) = (Instant::now(), None);
        while self.done.recv_timeout(WAIT_LIMIT) == Err(RecvTimeoutError::Timeout) {
            let taken = Some(self.shared.taken.load(Ordering::Relaxed));
            if taken == seen || began.elapsed() > LAST_WAIT {
                return;
            }
            seen = taken;
        }
    }
}

fn spawn(run: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("jet-log".to_owned()).spawn(run)
}

/// Runs the thread. After a panic of its own, which is in the queue then, the thread goes on.
fn run(shared: &Shared, ends: &SyncSender<()>) {
    panics::never_wait_on_this_thread();
    for _ in 0..=PANICS_MAX {
        if catch_unwind(AssertUnwindSafe(|| write_all(shared))).is_ok() {
            break;
        }
    }
    shared.is_running.store(false, Ordering::Release);
    // Sending fails if the program no longer waits.
    let _ = ends.send(());
}

/// Writes what is queued until the stop.
fn write_all(shared: &Shared) {
    let mut lines = Lines::new(shared, Stderr::NONE);
    let stderr = &shared.stderr;
    loop {
        // Read the stop flag first: lines that were queued before the stop are then in the queue.
        let stop = shared.stop.load(Ordering::Acquire);
        while let Some(item) = shared.items.pop() {
            lines.count_lost(shared.form(), shared.lost.swap(0, Ordering::Relaxed));
            stderr(&mut |to| lines.write(to, shared.form(), &item));
            shared.note_taken();
        }
        let (unreported, again) = shared.limit.take_unreported(Instant::now(), stop);
        for Unreported { level, message, left_out } in unreported {
            let time = SystemTime::now();
            let record = Record { time, level, message: message.to_string(), fields: Vec::new(), left_out };
            let item = Item::Line(record);
            stderr(&mut |to| lines.write(to, shared.form(), &item));
        }
        if stop {
            lines.count_lost(shared.form(), shared.lost.swap(0, Ordering::Relaxed));
            stderr(&mut |to| lines.tell_lost(to, shared.form()));
            return;
        }
        match again {
            None => std::thread::park(),
            Some(at) => std::thread::park_timeout(at.saturating_duration_since(Instant::now())),
        }
    }
}

/// Everything that a thread writes with, and the text that it shows.
struct Lines<'a> {
    program: &'a str,
    has_time: bool,
    stderr: Stderr,
    journal: Option<Journal>,
    /// Text on the last line of the terminal.
    progress: String,
}

impl<'a> Lines<'a> {
    fn new(shared: &'a Shared, stderr: Stderr) -> Self {
        let Shared { program, has_time, .. } = *shared;
        Self { program, has_time, stderr, journal: None, progress: String::new() }
    }
}

impl Lines<'_> {
    /// Counts lines that found no room in the queue, for the next line to tell, or tells the journal.
    fn count_lost(&mut self, form: Form, lines: u64) {
        if lines > 0 && !(form == Form::Journald && self.journal_takes(&loss(lines))) {
            self.stderr.left_out(lines);
        }
    }

    /// Writes a text to standard error, behind a line that tells of those that were left out before it.
    fn put(&mut self, to: BorrowedFd<'_>, form: Form, text: &str) {
        let (program, has_time) = (self.program, self.has_time);
        self.stderr.put(to, text, |lines| match form {
            Form::Json => json(program, &loss(lines)),
            Form::Auto | Form::Human | Form::Journald => human(program, &loss(lines), has_time),
        });
    }

    /// Tells at the end of lines that were left out, if no later line could.
    fn tell_lost(&mut self, to: BorrowedFd<'_>, form: Form) {
        if self.stderr.has_left_out() {
            self.put(to, form, "");
        }
    }

    fn write(&mut self, to: BorrowedFd<'_>, form: Form, item: &Item) {
        match item {
            // Sending fails if nobody waits any more.
            Item::Flush(flushed) => drop(flushed.try_send(())),
            // An object a line, and nothing else.
            Item::Progress(_) if form == Form::Json => {}
            Item::Progress(line) => {
                self.progress = escaped(line);
                self.put(to, form, &format!("\r\x1b[K{}", self.progress));
            }
            Item::Line(record) => {
                if form == Form::Journald && self.journal_takes(record) {
                    return;
                }
                let line = match form {
                    Form::Json => json(self.program, record),
                    // Also if the journal does not take the line: its stream, or a terminal, may.
                    Form::Auto | Form::Human | Form::Journald => human(self.program, record, self.has_time),
                };
                if self.progress.is_empty() {
                    self.put(to, form, &line);
                } else {
                    self.put(to, form, &format!("\r\x1b[K{line}{}", self.progress));
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

/// Line that tells how many lines the log did not take.
fn loss(lines: u64) -> Record {
    let message = format!("{lines} line(s) left out, because they came faster than the log took them");
    Record { time: SystemTime::now(), level: Level::WARN, message, fields: Vec::new(), left_out: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_test_support::pipe::pipe;
    use std::fs::File;
    use std::io::Read;

    fn record(message: String) -> Record {
        Record { time: SystemTime::now(), level: Level::INFO, message, fields: Vec::new(), left_out: 0 }
    }

    fn on(
        to: impl AsFd + Send + Sync + 'static,
    ) -> impl Fn(&mut dyn FnMut(BorrowedFd<'_>)) + Send + Sync + 'static {
        move |write| write(to.as_fd())
    }

    #[test]
    fn lines_come_in_order_and_progress_stays_the_last() {
        let (mut reader, writer) = pipe();
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
        let (mut reader, writer) = pipe();
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
        let (mut reader, writer) = pipe();
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
        assert!(
            said.contains("left out, because they came faster") && said.ends_with("jet: and this\n"),
            "{}",
            said.len()
        );
    }

    #[test]
    fn lines_that_may_wait_are_all_taken_by_a_slow_reader_and_flushed_in_order() {
        let (mut reader, writer) = pipe();
        let (lines, stop) = Writer::start_on("jet", Form::Human, on(writer));
        let reading = std::thread::spawn(move || {
            let mut said = String::new();
            reader.read_to_string(&mut said).unwrap();
            said
        });
        // Many times the queue, and the pipe.
        for n in 0..8 * LINES {
            lines.put_in_time(record(format!("{n} {}", "z".repeat(200))));
        }
        lines.flush();
        assert!(lines.shared.items.is_empty());
        drop((lines, stop));
        let said = reading.join().unwrap();
        let number = |line: &str| line.split(' ').nth(1).unwrap().parse::<usize>().unwrap();
        let numbers = said.lines().map(number);
        assert!(numbers.eq(0..8 * LINES), "{} lines", said.lines().count());
    }

    #[test]
    fn lines_that_were_lost_last_are_told_at_the_end() {
        let (mut reader, writer) = pipe();
        let (lines, stop) = Writer::start_on("jet", Form::Human, on(writer));
        let queued = 2 * LINES;
        for _ in 0..queued {
            lines.put(record("y".repeat(4096)));
        }
        let reading = std::thread::spawn(move || {
            let mut said = String::new();
            reader.read_to_string(&mut said).unwrap();
            said
        });
        // No queued line is left, most likely, that could tell of what is lost next.
        lines.flush();
        lines.shared.lost.fetch_add(7, Ordering::Relaxed);
        drop((lines, stop));
        let said = reading.join().unwrap();
        let told = said.lines().filter_map(|line| {
            line.strip_suffix(" line(s) left out, because they came faster than the log took them")
        });
        let told = told.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
        // A line that was cut is shorter, and counts as left out.
        let whole = "jet: ".len() + 4096;
        let written = said.lines().filter(|line| line.len() == whole).count();
        assert_eq!(told.sum::<usize>() + written, queued + 7);
    }

    #[test]
    fn room_is_kept_for_warnings_and_each_form_tells_of_lines_that_found_none() {
        for form in [Form::Json, Form::Human] {
            let (mut reader, writer) = pipe();
            let (lines, stop) = Writer::start_on("jet", form, on(writer));
            while lines.shared.lost.load(Ordering::Relaxed) == 0 {
                lines.put(record("y".repeat(4096)));
            }
            let urgent = Record { level: Level::ERROR, ..record("bad".to_owned()) };
            lines.put(urgent);
            let reading = std::thread::spawn(move || {
                let mut said = String::new();
                reader.read_to_string(&mut said).unwrap();
                said
            });
            drop((lines, stop));
            let said = reading.join().unwrap();
            assert!(said.contains("left out, because they came faster"), "{form:?}");
            assert!(said.lines().any(|line| line.contains("bad")), "{form:?}");
            if form == Form::Json {
                for line in said.lines() {
                    serde_json::from_str::<serde_json::Value>(line)
                        .unwrap_or_else(|error| panic!("{error}: {line}"));
                }
            }
        }
    }

    #[test]
    fn without_a_thread_the_reason_and_errors_are_written_at_once_and_nothing_waits() {
        let (reader, writer) = pipe();
        let spawn = |_| Err(io::Error::from_raw_os_error(libc::EAGAIN));
        let (lines, stop) = Writer::start_with("jetd", Form::Human, false, on(writer), spawn);
        lines.put(record("left out".to_owned()));
        lines.put(Record::error("bad".to_owned()));
        let before = Instant::now();
        // More than a pipe holds, and nobody reads.
        for _ in 0..1000 {
            lines.put_in_time(Record::error("y".repeat(4096)));
        }
        lines.flush();
        // Each line that waited would take a second.
        assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
        drop((lines, stop));
        let said = io::read_to_string(reader).unwrap();
        let first = "jetd: error: the log's thread cannot be started (Resource temporarily unavailable \
            (os error 11)): only errors are logged\njetd: error: bad\njetd: error: yyy";
        assert!(said.starts_with(first), "{said:.200}");
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
