//! The sender's end: from files to messages, several in flight, in bounded memory.
//!
//! A file counts as sent when the receiver consumed every piece of it and gave it its name. What goes wrong with one
//! file (it vanished, it changed while it was read, the receiver's disk is full) is told for that file, and the others
//! go on. Sparse files are sent with their holes as zeros.

mod file;
mod report;
mod watch;

pub use report::{Ends, Failure, Sent};

use super::header::{FileHeader, Kind, PathField, SMALL_PATH_MAX, TAG};
use super::path::{RelativePath, printable};
use super::reject;
use super::walk::{Found, Walk};
use file::{FileJob, PathState, Piece, Stage};
use jet_client::send::{AckStatus, BufferError, Completion, SendError, Sender, Ticket, WaitError};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watch::{Counts, Watch};

/// Files in work at once; each keeps a descriptor open.
const JOBS_MAX: usize = 200;
/// Messages in flight at once, small ones included. A sender is connected with at least so many.
pub const MESSAGES_MAX: u32 = 256;
/// How often a path is said to a receiver that forgot it.
const SAYS_MAX: u32 = 8;
/// Between two looks at the stop signal and two progress lines.
const TICK: Duration = Duration::from_millis(200);
/// How long disconnecting may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How to send files.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Large pieces in flight.
    pub in_flight: usize,
    /// Bytes of a large piece, more than a small message has.
    pub piece_bytes: usize,
    /// Admission class of large pieces.
    pub class: u8,
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
    Piece(Piece),
    /// A directory, the end of a file, or its giving-up.
    Last,
}

/// Sends everything that a walk finds.
pub struct Sending<'a> {
    options: Options,
    sender: Sender,
    walk: Walk,
    walked: bool,
    /// Told at the end, when nothing is to be written below them any more.
    directories: VecDeque<(PathBuf, Vec<u8>)>,
    jobs: HashMap<u64, FileJob>,
    /// Jobs that may have something to do.
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
    pub fn new(options: Options, sender: Sender, walk: Walk, tell: &'a mut dyn FnMut(Event<'_>)) -> Self {
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

    /// Sends it all. When `stop` says so, gives up what is not sent, so that the receiver keeps no parts.
    ///
    /// # Errors
    /// [`SendingError`]. What went wrong with single files is in the report.
    pub fn run(mut self, stop: impl Fn() -> bool) -> Result<Sent, SendingError> {
        let began = Instant::now();
        let mut ticked = began;
        loop {
            while let Some(completion) = self.sender.poll() {
                self.handle(completion);
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.sent.seconds = began.elapsed().as_secs_f64();
                (self.tell)(Event::Tick(&self.sent));
                if self.fatal.is_none() && stop() {
                    self.interrupted = true;
                    self.give_up("interrupted".to_owned());
                }
            }
            if self.step()? {
                continue;
            }
            if self.in_flight.is_empty() {
                break;
            }
            self.look_at_link();
            if let Some(completion) = self.sender.wait(Some(TICK))? {
                self.handle(completion);
            }
        }
        assert!(self.jobs.is_empty(), "{} files have no end and nothing in flight", self.jobs.len());
        self.sent.seconds = began.elapsed().as_secs_f64();
        self.look_at_checksums();
        let protocol = self.sender.stats().protocol;
        self.sent.redelivered = protocol.redelivered;
        self.sent.retried = protocol.retried;
        self.count_not_tried();
        self.sent.stopped = self.fatal.take();
        // Every message has its end already; one that cannot disconnect in time is disconnected by its drop.
        self.sender.close(CLOSE_TIMEOUT)?;
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
        while let Some(&id) = self.ready.front() {
            match self.advance(id)? {
                Step::Sent => return Ok(true),
                Step::NoRoom => return Ok(false),
                Step::Waits => {
                    self.ready.pop_front();
                }
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
        if self.jobs.values().all(|job| job.is_directory)
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
            Found::File { source, path } => {
                let job = FileJob::open(&source, path, self.options.piece_bytes);
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

    fn insert(&mut self, source: PathBuf, job: Result<FileJob, String>) {
        match job {
            Ok(job) => {
                let id = self.next_id;
                self.next_id += 1;
                self.jobs.insert(id, job);
                self.ready.push_back(id);
            }
            Err(error) => self.failed(&source, &error),
        }
    }

    fn failed(&mut self, source: &Path, error: &str) {
        use std::os::unix::ffi::OsStrExt;
        let path = printable(source.as_os_str().as_bytes());
        let failure = Failure { path, error: error.to_owned() };
        (self.tell)(Event::FileFailed(&failure));
        self.sent.add_failure(failure);
    }

    /// Takes a file a step on.
    fn advance(&mut self, id: u64) -> Result<Step, SendingError> {
        // Whom nobody hears needs to be told nothing.
        let unheard = self.fatal.is_some() && !self.interrupted;
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(Step::Waits) };
        if job.failed.is_some() {
            if job.in_flight > 0 {
                return Ok(Step::Waits);
            }
            if job.stage == Stage::Pieces
                && job.may_be_there
                && matches!(job.path_state, PathState::InHeader | PathState::Said)
                && !unheard
            {
                return self.send_last(id, Kind::Abandoned);
            }
            self.end(id);
            return Ok(Step::Waits);
        }
        match job.path_state {
            PathState::Unsaid => return self.send_path(id),
            PathState::Saying => return Ok(Step::Waits),
            PathState::InHeader | PathState::Said => {}
        }
        if job.is_directory {
            return if job.stage == Stage::Pieces {
                self.send_last(id, Kind::Directory)
            } else {
                Ok(Step::Waits)
            };
        }
        if let Some(piece) = job.next_piece() {
            return self.send_piece(id, piece);
        }
        if job.in_flight > 0 || job.stage == Stage::Ending {
            return Ok(Step::Waits);
        }
        if job.pieces_many {
            return self.send_last(id, Kind::Complete);
        }
        self.end(id);
        Ok(Step::Waits)
    }

    fn send_path(&mut self, id: u64) -> Result<Step, SendingError> {
        let job = job_of(&mut self.jobs, id);
        let header = job.header(id, Kind::Path, 0).encode();
        match self.sender.send_small(TAG, header.as_ref(), &job.path) {
            Ok(ticket) => {
                job.path_state = PathState::Saying;
                job.says += 1;
                job.in_flight += 1;
                self.in_flight.insert(ticket, (id, What::Path));
                Ok(Step::Sent)
            }
            Err(error) => refused(error),
        }
    }

    fn send_last(&mut self, id: u64, kind: Kind) -> Result<Step, SendingError> {
        let job = job_of(&mut self.jobs, id);
        let header = job.header(id, kind, 0).encode();
        match self.sender.send_small(TAG, header.as_ref(), &[]) {
            Ok(ticket) => {
                job.stage = Stage::Ending;
                job.in_flight += 1;
                self.in_flight.insert(ticket, (id, What::Last));
                Ok(Step::Sent)
            }
            Err(error) => refused(error),
        }
    }

    fn send_piece(&mut self, id: u64, piece: Piece) -> Result<Step, SendingError> {
        let job = job_of(&mut self.jobs, id);
        let small = piece.bytes <= jet_wire::SLAB_BYTES
            && (job.path.len() <= SMALL_PATH_MAX || job.path_state == PathState::Said);
        if !small && self.large_in_flight >= self.options.in_flight {
            return Ok(Step::NoRoom);
        }
        let header = job.header(id, Kind::Piece, piece.offset).encode();
        let ticket = if small {
            let mut bytes = [0; jet_wire::SLAB_BYTES];
            let bytes = &mut bytes[..piece.bytes];
            if let Err(error) = job.read(bytes, piece) {
                job.failed = Some(error);
                return Ok(Step::Sent);
            }
            self.sender.send_small(TAG, header.as_ref(), bytes)
        } else {
            let mut buffer = self.sender.buffer(piece.bytes)?;
            if let Err(error) = job.read(&mut buffer, piece) {
                job.failed = Some(error);
                return Ok(Step::Sent);
            }
            let sent = self.sender.send(TAG, header.as_ref(), buffer, piece.bytes, self.options.class);
            sent.map_err(|(error, _)| error)
        };
        match ticket {
            Ok(ticket) => {
                job.took(piece);
                job.in_flight += 1;
                job.may_be_there |= job.pieces_many;
                self.large_in_flight += usize::from(!small);
                self.in_flight.insert(ticket, (id, What::Piece(Piece { large: !small, ..piece })));
                Ok(Step::Sent)
            }
            Err(error) => refused(error),
        }
    }

    /// A message has its end.
    fn handle(&mut self, completion: Completion) {
        let Completion { ticket, status, latency_ns, .. } = completion;
        let (id, what) = self.in_flight.remove(&ticket).expect("every message in flight is known");
        self.sent.messages += 1;
        self.sent.latency.add(latency_ns);
        self.sent.ends.count(status);
        if let What::Piece(piece) = what {
            self.large_in_flight -= usize::from(piece.large);
        }
        let job = job_of(&mut self.jobs, id);
        job.in_flight -= 1;
        match (status, what) {
            (AckStatus::Consumed, What::Path) => {
                if job.path_state == PathState::Saying {
                    job.path_state = PathState::Said;
                }
            }
            (AckStatus::Consumed, What::Piece(piece)) => self.sent.bytes += piece.bytes as u64,
            (AckStatus::Consumed, What::Last) => {
                self.end(id);
                return;
            }
            (AckStatus::Rejected(code), What::Piece(_) | What::Last)
                if code == reject::PATH_UNKNOWN.get()
                    && job.path_state != PathState::InHeader
                    && job.says < SAYS_MAX
                    && job.failed.is_none() =>
            {
                // The receiver was started again and does not know the path: say it, and send this again.
                if job.path_state == PathState::Said {
                    job.path_state = PathState::Unsaid;
                }
                match what {
                    What::Piece(piece) => job.again.push_back(piece),
                    _ => job.stage = Stage::Pieces,
                }
            }
            (status, what) => {
                let text = match status {
                    AckStatus::Rejected(code) => reject::explain(code),
                    AckStatus::PeerLost => {
                        "the connection was lost and not made again in time; start the daemon and send again"
                            .to_owned()
                    }
                    status => status.to_string(),
                };
                job.failed.get_or_insert_with(|| text.clone());
                if matches!(what, What::Last) {
                    self.end(id);
                } else {
                    self.ready.push_back(id);
                }
                if matches!(
                    status,
                    AckStatus::PeerLost
                        | AckStatus::NoApp
                        | AckStatus::AppGone
                        | AckStatus::Draining
                        | AckStatus::Denied
                ) {
                    self.give_up(text);
                }
                return;
            }
        }
        self.ready.push_back(id);
    }

    /// Nothing more is sent but what tells the receiver so.
    fn give_up(&mut self, why: String) {
        if self.fatal.is_none() {
            for (&id, job) in &mut self.jobs {
                job.failed.get_or_insert_with(|| why.clone());
                self.ready.push_back(id);
            }
            self.fatal = Some(why);
        }
    }

    /// A file has its end.
    fn end(&mut self, id: u64) {
        let Some(job) = self.jobs.remove(&id) else { return };
        match job.failed {
            Some(error) => self.failed(&job.source, &error),
            None if job.is_directory => self.sent.directories += 1,
            None => {
                self.sent.files += 1;
                let path = printable(&job.path);
                (self.tell)(Event::FileSent { path: &path, bytes: job.file_bytes });
            }
        }
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

fn job_of(jobs: &mut HashMap<u64, FileJob>, id: u64) -> &mut FileJob {
    jobs.get_mut(&id).expect("a file with messages in flight is in work")
}

fn refused(error: SendError) -> Result<Step, SendingError> {
    if error.is_would_block() { Ok(Step::NoRoom) } else { Err(error.into()) }
}

impl FileJob {
    fn header(&self, id: u64, kind: Kind, offset: u64) -> FileHeader<'_> {
        let path = match (self.path_state, kind) {
            (PathState::InHeader, _) => {
                PathField::Here(RelativePath::new(&self.path).expect("checked by the walk"))
            }
            _ => PathField::Elsewhere,
        };
        FileHeader { kind, mode: self.mode, file_id: id, file_bytes: self.file_bytes, offset, path }
    }
}
