//! The sender's end: from files to messages, several in flight, in bounded memory but for the names of
//! directories.
//!
//! A file counts as sent when the receiver consumed every piece of it and gave it its name. What goes wrong
//! with one file (it vanished, it changed while it was read, the receiver's disk is full) is told for that
//! file, and the others go on. Holes of 64 KiB and more travel as messages of their own and stay holes;
//! shorter ones are sent as zeros.

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
use jet_client::send::{BufferError, SendError, Sender, Ticket, WaitError};
use source::Span;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watch::{Counts, Watch};

/// Files in work at once; each keeps a descriptor open.
const JOBS_MAX: usize = 200;
/// Messages in flight at once, small ones included. A sender is connected with at least so many.
pub const MESSAGES_MAX: u32 = 256;
/// How often a path is sent to a receiver that forgot it.
const PATH_MESSAGES_MAX: u32 = 32;
/// How often a file is sent that changes meanwhile.
const CHANGES_MAX: u32 = 4;
/// How often a file is sent of which the receiver loses parts.
const LOSSES_MAX: u32 = 32;
/// Between two looks at the stop signal and two progress lines.
const TICK: Duration = Duration::from_millis(200);
/// How long disconnecting may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long what is in flight may take to end once [`Sending::run`] was told to stop.
pub const GIVE_UP_MAX: Duration = Duration::from_secs(5);

/// How to send files.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Large pieces in flight.
    pub in_flight: usize,
    /// Bytes of a large piece, a multiple of 4 KiB. Where the receiver takes no such long messages they are
    /// shorter.
    pub piece_bytes: usize,
    /// Admission class of large pieces.
    pub class: u8,
    /// What files are proven with at the receiver.
    pub proof: Option<Hash>,
}

/// What happens meanwhile.
#[derive(Debug)]
pub enum Event<'a> {
    /// A file has its name at the receiver.
    FileSent {
        /// Its name there, printable.
        path: &'a str,
        /// Its bytes.
        bytes: u64,
    },
    /// A file was not sent.
    FileFailed(&'a Failure),
    /// A file is sent again from its beginning.
    Again {
        /// Its name at the receiver, printable.
        path: &'a str,
        /// What became of what was sent.
        why: &'a str,
    },
    /// The receiver takes messages of so many bytes only; pieces are shorter from now on.
    Shorter {
        /// The most that it takes.
        max: u64,
    },
    /// Neither a file nor a directory.
    Skipped {
        /// Where it is.
        source: &'a Path,
        /// What it is.
        what: &'static str,
    },
    /// The receiver is out of reach, or was, or takes nothing.
    Link(Link),
    /// Time has passed.
    Tick(&'a Sent),
}

/// How it stands with the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The connection was lost and is tried again.
    Lost,
    /// It stands again.
    Back,
    /// Messages are refused and sent again, and nothing is consumed.
    Refused,
    /// Messages are consumed again.
    Consumed,
    /// Messages go without the checksum that was asked for: the receiver checks none. Told once.
    Unchecked,
}

/// Why sending as a whole ended early.
#[derive(Debug, thiserror::Error)]
pub enum SendingError {
    /// No registered memory.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// A message was not taken.
    #[error("a message was not taken: {0}")]
    Send(#[from] SendError),
    /// The system.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// What a message in flight is.
#[derive(Clone, Copy, Debug)]
enum What {
    Path,
    Begin,
    /// Bytes or a hole of a file that has begun.
    Span {
        span: Span,
        /// It counts as a large piece.
        large: bool,
    },
    /// A file of one message.
    Whole {
        bytes: u64,
        large: bool,
    },
    Complete,
    Directory,
    Abandoned,
}

impl What {
    fn is_large(self) -> bool {
        matches!(self, Self::Span { large: true, .. } | Self::Whole { large: true, .. })
    }

    /// Nothing follows it: its end is that of its file or directory.
    fn is_last(self) -> bool {
        matches!(self, Self::Complete | Self::Directory | Self::Abandoned)
    }
}

/// Sends everything that a walk finds.
pub struct Sending<'a> {
    options: Options,
    sender: Sender,
    walk: Walk,
    walked: bool,
    /// Told at the end, when nothing is to be written below them any more. Not bounded: as many as the trees
    /// have.
    directories: VecDeque<(PathBuf, Vec<u8>)>,
    jobs: HashMap<u64, FileJob>,
    /// Jobs that may have something to do, each once.
    ready: VecDeque<u64>,
    in_flight: HashMap<Ticket, (u64, What)>,
    large_in_flight: usize,
    next_id: u64,
    sent: Sent,
    /// Nothing more can be sent, and why.
    fatal: Option<String>,
    interrupted: bool,
    watch: Watch,
    tell: &'a mut dyn FnMut(Event<'_>),
}

impl<'a> Sending<'a> {
    /// Over a connected sender, which takes [`MESSAGES_MAX`] messages at once.
    ///
    /// # Panics
    /// Where the pieces' length is no multiple of 4 KiB.
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
            tell,
        }
    }

    /// Sends it all. When `stop` says so, gives up what is not sent, so that the receiver keeps no parts;
    /// what has no end after [`GIVE_UP_MAX`] is left behind.
    ///
    /// # Errors
    /// [`SendingError`]. What went wrong with single files is in the report.
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
            self.look_at_link();
            if let Some(completion) = self.sender.wait(Some(TICK))? {
                self.handle(completion);
            }
        };
        let left_behind = !self.in_flight.is_empty();
        if late {
            let ids: Vec<u64> = self.jobs.keys().copied().collect();
            ids.into_iter().for_each(|id| self.end(id));
        }
        assert!(self.jobs.is_empty(), "{} files have no end and nothing in flight", self.jobs.len());
        self.sent.seconds = began.elapsed().as_secs_f64();
        self.look_at_checksums();
        let protocol = self.sender.stats().protocol;
        self.sent.redelivered = protocol.redelivered;
        self.sent.retried = protocol.retried;
        self.count_not_tried();
        self.sent.stopped = self.fatal.take();
        // One that cannot disconnect in time, or waits for ends that do not come, is disconnected by its
        // drop.
        if !left_behind {
            self.sender.close(CLOSE_TIMEOUT)?;
        }
        Ok(self.sent)
    }

    fn look_at_checksums(&mut self) {
        let before = std::mem::replace(&mut self.sent.unchecked, self.sender.stats().unchecked);
        if before == 0 && self.sent.unchecked > 0 {
            (self.tell)(Event::Link(Link::Unchecked));
        }
    }

    /// Tells what became of the connection while messages wait for their ends.
    fn look_at_link(&mut self) {
        self.look_at_checksums();
        if self.fatal.is_some() {
            return;
        }
        let protocol = self.sender.stats().protocol;
        let counts = Counts {
            connections: protocol.connections,
            retried: protocol.retried,
            consumed: self.sent.ends.consumed,
        };
        self.watch.look(self.sender.is_connected(), counts, Instant::now(), |link| {
            (self.tell)(Event::Link(link));
        });
    }

    /// After an early end: what was left untouched.
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

    /// Does one thing, if there is one: sends a message, or looks at the next file.
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
            // As long as it can go on, it is the first: one file after the other.
            if !matches!(step, Step::Waits)
                && let Some(job) = self.jobs.get_mut(&id)
                && !std::mem::replace(&mut job.queued, true)
            {
                self.ready.push_front(id);
            }
            match step {
                Step::Sent => return Ok(true),
                Step::NoRoom => return Ok(false),
                Step::Waits => {}
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
        // Directories come when every file has its end.
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

    /// A job may have something to do.
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

    /// Nothing more is sent but what tells the receiver so.
    fn give_up(&mut self, why: String) {
        if self.fatal.is_none() {
            // Of what fails already the first reason counts.
            for (&id, job) in &mut self.jobs {
                job.fail(why.clone());
                if !std::mem::replace(&mut job.queued, true) {
                    self.ready.push_back(id);
                }
            }
            self.fatal = Some(why);
        }
    }

    /// A file has its end, or begins again.
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

enum Step {
    /// A message is on its way, or something else changed.
    Sent,
    /// A large piece waits for another to end.
    NoRoom,
    /// Nothing to do for this file until a message of it has its end.
    Waits,
}
