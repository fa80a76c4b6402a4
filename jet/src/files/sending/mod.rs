//! Sender's end of the convention for sending files: from files to messages, several of them in flight.
//! Memory is bounded, except for the names of directories.
//!
//! A file counts as sent when the receiver consumed every piece of it and gave it its name. An error of one
//! file (it vanished, it changed while it was read, the receiver's disk is full) is reported for that file,
//! and the others are sent. Holes of 64 KiB and more are sent as messages of their own and stay holes.
//! Shorter ones are sent as zeros.

mod file;
mod messages;
mod report;
mod source;
mod state;
mod watch;

pub use report::{Failure, SendReport, Sent};

use super::path::printable;
use super::proof::{BLOCK_BYTES, Hash};
use super::walk::{Found, Walk};
use file::{Abort, Attempts, FileJob};
use jet_client::send::{BufferError, SendConnectError, SendError, Sender, Ticket, WaitError, WaitsFor};
use source::Span;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watch::{Counts, Watch};

/// Limit of the files in work at once. Each file keeps a descriptor open.
const JOBS_MAX: usize = 200;
/// Limit of the messages in flight at once, small ones included. The sender must be connected with room for
/// at least this number.
pub const MESSAGES_MAX: u32 = 256;
/// Limit of the path messages for one file. The path is sent again whenever the receiver has forgotten it.
const PATH_MESSAGES_MAX: u32 = 32;
/// Limit of the attempts to send a file that changes while it is sent.
const CHANGES_MAX: u32 = 4;
/// Limit of the attempts to send a file of which the receiver loses parts.
const LOSSES_MAX: u32 = 32;
/// Span between two checks of the stop signal, and between two progress events.
const TICK: Duration = Duration::from_millis(200);
/// Longest time that disconnecting may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that messages in flight may take to end after [`Sending::run`] was told to stop.
pub const GIVE_UP_MAX: Duration = Duration::from_secs(5);

/// Options for sending files.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Limit of the large pieces in flight.
    pub in_flight: usize,
    /// Length of a large piece in bytes, a multiple of 4 KiB. Pieces become shorter if the receiver takes no
    /// messages of this length.
    pub piece_bytes: usize,
    /// Class (urgency) of the messages that carry large pieces.
    pub class: u8,
    /// Kind of hash that files are proven with at the receiver, if any.
    pub proof: Option<Hash>,
}

/// Event while files are sent.
#[derive(Debug)]
pub enum Event<'a> {
    /// A file has its name at the receiver.
    FileSent {
        /// Path of the file at the receiver, in printable form.
        path: &'a str,
        /// Length of the file, in bytes.
        bytes: u64,
    },
    /// A file was not sent.
    FileFailed(&'a Failure),
    /// A file is sent again from its beginning.
    Again {
        /// Path of the file at the receiver, in printable form.
        path: &'a str,
        /// Reason why it is sent again.
        why: &'a str,
    },
    /// The receiver takes only messages of at most `max` bytes. Pieces are shorter from now on.
    Shorter {
        /// Length of the longest message that the receiver takes, in bytes.
        max: u64,
    },
    /// The walk found something that is neither a file nor a directory.
    Skipped {
        /// Path at the sender.
        source: &'a Path,
        /// Kind of the thing that was found, in words.
        what: &'static str,
    },
    /// The receiver ended the connection, since it does not take memory of this sender. Carries why, and what
    /// to change. Told once for each reason in a row; connecting is tried again.
    NotTaken(&'a SendConnectError),
    /// The state of the connection changed, or the receiver began or ceased to consume messages.
    Link(Link),
    /// Some time has passed. Carries the counts so far.
    Tick(&'a Sent),
}

/// State of the connection to the receiver, and of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The connection was lost, and connecting is tried again.
    Lost,
    /// The connection was left, and connecting is tried again: no message had an end for long, and the
    /// receiver named nothing that they wait for.
    LeftInVain,
    /// No message was consumed for long. Carries what they wait for.
    Waits(WaitsFor),
    /// The connection was made again.
    Back,
    /// Messages are refused and sent again, and no message is consumed.
    Refused,
    /// Messages are consumed again.
    Consumed,
    /// Messages are sent without the checksum that was asked for, because the receiver checks none. Reported
    /// once.
    Unchecked,
}

/// Reason why sending as a whole ended early.
#[derive(Debug, thiserror::Error)]
pub enum SendingError {
    /// There is no registered memory for a message.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// A message was not taken for sending.
    #[error("a message was not taken: {0}")]
    Send(#[from] SendError),
    /// Waiting for the end of a message failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// Kind of a message in flight, with what is needed at its end.
#[derive(Clone, Copy, Debug)]
enum InFlightKind {
    Path,
    Begin,
    /// Bytes or a hole of a file that has begun.
    Span {
        span: Span,
        /// Whether the message counts towards [`Options::in_flight`].
        large: bool,
    },
    /// A whole file in one message.
    Whole {
        bytes: u64,
        large: bool,
    },
    Complete,
    Directory,
    Abandoned,
}

impl InFlightKind {
    fn is_large(self) -> bool {
        matches!(self, Self::Span { large: true, .. } | Self::Whole { large: true, .. })
    }

    /// Returns whether the end of this message is that of its file or directory.
    fn is_last(self) -> bool {
        matches!(self, Self::Complete | Self::Directory | Self::Abandoned)
    }
}

/// Sender of everything that a walk finds.
pub struct Sending<'a> {
    options: Options,
    sender: Sender,
    walk: Walk,
    walked: bool,
    /// Directories, which are sent at the end, when nothing is written below them any more. The queue holds
    /// all directories of the trees, without a limit.
    directories: VecDeque<(PathBuf, Vec<u8>)>,
    jobs: HashMap<u64, FileJob>,
    /// Ids of jobs that may have something to do, each once.
    ready: VecDeque<u64>,
    in_flight: HashMap<Ticket, (u64, InFlightKind)>,
    large_in_flight: usize,
    next_id: u64,
    sent: Sent,
    /// Reason why nothing more can be sent, if so.
    fatal: Option<String>,
    interrupted: bool,
    watch: Watch,
    /// Why the receiver does not take this sender's memory, and how many messages were consumed when it said
    /// so. `None` once more are consumed.
    not_taken: Option<(SendConnectError, u64)>,
    tell: &'a mut dyn FnMut(Event<'_>),
}

impl<'a> Sending<'a> {
    /// Prepares sending over a connected sender, which takes [`MESSAGES_MAX`] messages at once.
    ///
    /// # Panics
    /// Panics where `piece_bytes` is no multiple of 4 KiB.
    pub fn new(options: Options, sender: Sender, walk: Walk, tell: &'a mut dyn FnMut(Event<'_>)) -> Self {
        assert!(options.piece_bytes.is_multiple_of(BLOCK_BYTES), "pieces of {} bytes", options.piece_bytes);
        Self {
            options,
            sender,
            walk,
            walked: false,
            directories: VecDeque::new(),
            jobs: HashMap::with_capacity(JOBS_MAX),
            ready: VecDeque::with_capacity(JOBS_MAX),
            in_flight: HashMap::with_capacity(MESSAGES_MAX as usize),
            large_in_flight: 0,
            next_id: 1,
            sent: Sent::default(),
            fatal: None,
            interrupted: false,
            watch: Watch::default(),
            not_taken: None,
            tell,
        }
    }

    /// Sends everything. When `stop` returns `true`, gives up what is not sent yet, so that the receiver
    /// keeps no parts. Messages without an end after [`GIVE_UP_MAX`] are left behind.
    ///
    /// # Errors
    /// [`SendingError`]. Errors of single files are in the report instead.
    pub fn run(mut self, stop: impl Fn() -> bool) -> Result<Sent, SendingError> {
        let began = Instant::now();
        let mut ticked = began;
        let mut leave_at = None;
        let late = loop {
            while let Some(completion) = self.sender.poll() {
                self.handle(completion);
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.sent.seconds = began.elapsed().as_secs_f64();
                (self.tell)(Event::Tick(&self.sent));
                if self.fatal.is_none() && stop() {
                    self.interrupted = true;
                    leave_at = Some(Instant::now() + GIVE_UP_MAX);
                    self.give_up("interrupted".to_owned());
                }
            }
            if leave_at.is_some_and(|at| Instant::now() >= at) {
                break true;
            }
            if self.step()? {
                continue;
            }
            if self.in_flight.is_empty() {
                break false;
            }
            self.check_link();
            match self.sender.wait_timeout(TICK) {
                Ok(Some(completion)) => self.handle(completion),
                Ok(None) | Err(WaitError::NotYet) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let left_behind = !self.in_flight.is_empty();
        if late {
            let ids: Vec<u64> = self.jobs.keys().copied().collect();
            ids.into_iter().for_each(|id| self.end(id));
        }
        assert!(self.jobs.is_empty(), "{} files have no end and nothing in flight", self.jobs.len());
        self.sent.seconds = began.elapsed().as_secs_f64();
        self.check_checksums();
        let protocol = self.sender.stats().protocol;
        self.sent.redelivered = protocol.redelivered;
        self.sent.retried = protocol.retried;
        self.count_not_tried();
        self.sent.stopped = self.fatal.take();
        // A sender that cannot disconnect in time, or waits for ends that do not arrive, is disconnected when
        // it is dropped.
        if !left_behind && let Err(error @ WaitError::System(_)) = self.sender.close_timeout(CLOSE_TIMEOUT) {
            return Err(error.into());
        }
        Ok(self.sent)
    }

    fn check_checksums(&mut self) {
        let before = std::mem::replace(&mut self.sent.unchecked, self.sender.stats().unchecked);
        if before == 0 && self.sent.unchecked > 0 {
            (self.tell)(Event::Link(Link::Unchecked));
        }
    }

    /// Reports changes of the connection while messages wait for their ends.
    fn check_link(&mut self) {
        self.check_checksums();
        if self.fatal.is_some() {
            return;
        }
        self.check_memory();
        let protocol = self.sender.stats().protocol;
        let counts = Counts {
            connections: protocol.connections,
            retried: protocol.retried,
            consumed: self.sent.ends.consumed,
            progress_timeouts: protocol.progress_timeouts,
            waits_for: self.sender.waits_for(),
        };
        self.watch.check(self.sender.is_connected(), counts, Instant::now(), |link| {
            (self.tell)(Event::Link(link));
        });
    }

    /// Reports that the receiver ended the connection for memory that it does not take. It may have stood for
    /// long: memory is registered when there are pieces for it.
    fn check_memory(&mut self) {
        let consumed = self.sent.ends.consumed;
        self.not_taken.take_if(|(_, before)| consumed > *before);
        let Some(failure @ SendConnectError::Region { .. }) = self.sender.take_failure() else { return };
        let is_told =
            self.not_taken.as_ref().is_some_and(|(told, _)| told.to_string() == failure.to_string());
        if !is_told {
            (self.tell)(Event::NotTaken(&failure));
        }
        self.not_taken = Some((failure, consumed));
    }

    /// Counts the files and directories that were not tried before an early end.
    fn count_not_tried(&mut self) {
        self.sent.not_tried += self.directories.len() as u64;
        while let Some(found) = self.walk.next() {
            match found {
                Found::File { .. } | Found::Directory { .. } => self.sent.not_tried += 1,
                Found::Skipped { .. } => self.sent.skipped += 1,
                Found::Failed { source, error } => self.failed(&source, &error.to_string()),
            }
        }
    }

    /// Does one piece of work, if there is any: sends a message, or opens the next file. Returns `false` if
    /// there was nothing to do.
    fn step(&mut self) -> Result<bool, SendingError> {
        if self.in_flight.len() >= MESSAGES_MAX as usize {
            return Ok(false);
        }
        debug_assert!(self.ready.len() <= self.jobs.len(), "{} of {}", self.ready.len(), self.jobs.len());
        while let Some(id) = self.ready.pop_front() {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.queued = false;
            }
            let step = self.advance(id)?;
            // A file that can continue stays the first, so files are sent one after the other.
            if !matches!(step, SendOutcome::Waits)
                && let Some(job) = self.jobs.get_mut(&id)
                && !std::mem::replace(&mut job.queued, true)
            {
                self.ready.push_front(id);
            }
            match step {
                SendOutcome::Sent => return Ok(true),
                SendOutcome::NoRoom => return Ok(false),
                SendOutcome::Waits => {}
            }
        }
        if self.jobs.len() >= JOBS_MAX || self.fatal.is_some() {
            return Ok(false);
        }
        if !self.walked {
            match self.walk.next() {
                Some(found) => self.found(found),
                None => self.walked = true,
            }
            return Ok(true);
        }
        // Directories are sent when every file has its end.
        if self.jobs.values().all(|job| job.is_directory())
            && let Some((source, path)) = self.directories.pop_front()
        {
            let job = FileJob::directory(&source, path);
            self.insert(source, job);
            return Ok(true);
        }
        Ok(false)
    }

    fn found(&mut self, found: Found) {
        match found {
            Found::File { source, path, follow } => {
                let Options { piece_bytes, proof, .. } = self.options;
                let job = FileJob::open(&source, path, follow, piece_bytes, proof, Attempts::default());
                self.insert(source, job);
            }
            Found::Directory { source, path } => self.directories.push_back((source, path)),
            Found::Skipped { source, what } => {
                self.sent.skipped += 1;
                (self.tell)(Event::Skipped { source: &source, what });
            }
            Found::Failed { source, error } => self.failed(&source, &error.to_string()),
        }
    }

    fn insert(&mut self, source: PathBuf, job: Result<FileJob, Abort>) {
        match job {
            Ok(job) => {
                let id = self.next_id;
                self.next_id += 1;
                self.jobs.insert(id, job);
                self.queue(id);
            }
            Err(Abort::Failed(why) | Abort::Changed(why) | Abort::Lost(why)) => self.failed(&source, &why),
            Err(Abort::TooLong) => unreachable!("nothing was sent"),
        }
    }

    /// Queues a job that may have something to do.
    fn queue(&mut self, id: u64) {
        if let Some(job) = self.jobs.get_mut(&id)
            && !std::mem::replace(&mut job.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    fn failed(&mut self, source: &Path, error: &str) {
        use std::os::unix::ffi::OsStrExt;
        let path = printable(source.as_os_str().as_bytes());
        let failure = Failure { path, error: error.to_owned() };
        (self.tell)(Event::FileFailed(&failure));
        self.sent.add_failure(failure);
    }

    /// Gives up all files and directories. The only messages that are still sent tell the receiver which
    /// files were given up.
    fn give_up(&mut self, why: String) {
        if self.fatal.is_none() {
            // A file that has failed already keeps its first reason.
            for (&id, job) in &mut self.jobs {
                job.fail(why.clone());
                if !std::mem::replace(&mut job.queued, true) {
                    self.ready.push_back(id);
                }
            }
            self.fatal = Some(why);
        }
    }

    /// Ends a file or directory, or begins it again.
    fn end(&mut self, id: u64) {
        let Some(job) = self.jobs.remove(&id) else { return };
        if job.queued {
            self.ready.retain(|&ready| ready != id);
        }
        let Some(abort) = &job.abort else {
            if job.is_directory() {
                self.sent.directories += 1;
            } else {
                self.sent.files += 1;
                let path = printable(&job.path);
                (self.tell)(Event::FileSent { path: &path, bytes: job.file_bytes() });
            }
            return;
        };
        let mut attempts = job.attempts;
        let (why, too_often) = match abort {
            Abort::Failed(why) => return self.failed(&job.source, why),
            Abort::Changed(why) => {
                attempts.changes += 1;
                let advice = "stop what writes to it, or send a snapshot of it";
                (why.clone(), (attempts.changes >= CHANGES_MAX).then(|| format!("{why}; {advice}")))
            }
            Abort::Lost(why) => {
                attempts.losses += 1;
                (why.clone(), (attempts.losses >= LOSSES_MAX).then(|| why.clone()))
            }
            Abort::TooLong => ("its pieces were too long".to_owned(), None),
        };
        if let Some(why) = too_often.or_else(|| self.fatal.clone()) {
            return self.failed(&job.source, &why);
        }
        self.sent.files_again += 1;
        let path = printable(&job.path);
        (self.tell)(Event::Again { path: &path, why: &why });
        let Options { piece_bytes, proof, .. } = self.options;
        let next = FileJob::open(&job.source, job.path, job.follow, piece_bytes, proof, attempts);
        self.insert(job.source, next);
    }
}

enum SendOutcome {
    /// A message was sent, or something else changed.
    Sent,
    /// There is no room for another message before one in flight ends.
    NoRoom,
    /// There is nothing to do for this file until one of its messages has its end.
    Waits,
}
