//! Receiver's end of the convention for sending files: from a session's slices to files.
//!
//! Life of a piece: its slices are written to the file from the memory that they lie in. Each slice is
//! released when its write has ended. The message is consumed when all of it was written (with `fsync`: when
//! the disk has it) and accounted for. A write that fails rejects the message with the errno, and the other
//! files are received as before.

mod intake;
mod job;
mod open_message;
mod paths;
mod prove;
mod report;
mod slow_option;
mod slow_schedule;
#[cfg(test)]
mod tests;

use super::disk::{Disk, DiskError, Engine};
use super::parts::{OutError, Parts, PartsOptions};
use jet_client::receive::{DetachedSlice, ReceiveError, Session};
use job::Job;
use open_message::OpenMessage;
use paths::Paths;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;
use slow_schedule::SlowSchedule;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use report::{ReceiveReport, Received};
pub use slow_option::{Hold, Slow, SlowError, Stop};

/// Limit of the parts that are open at once. The limit is higher than that of messages in work, so that an
/// unused part can always be closed to open another.
const PARTS_OPEN_MAX: usize = 256;
/// Limit of the messages that are in work at once.
const JOBS_MAX: usize = 192;
/// Number of descriptors for everything but messages and parts: the session, the ring, directories that are
/// looked up.
const DESCRIPTORS_OTHERS: usize = 64;
/// Number of descriptors of an open part: the file, the file with `O_DIRECT`, and its directory. A message in
/// work may need one more, for another directory that is synced.
const DESCRIPTORS_PER_PART: usize = 3;
/// Number of rounds without any work before the receiver sleeps.
const POLLS_BEFORE_SLEEP: u32 = 200;
/// Number of rounds of work between two checks of the stop signal, because a check is a system call. Without
/// io_uring a round waits for each of its reads and writes, and every round checks the stop signal.
const ROUNDS_PER_STOP_CHECK: u32 = 64;

const _: () = assert!(JOBS_MAX < PARTS_OPEN_MAX);

/// Returns the limit of messages in work and the limit of open parts, for this limit of descriptors. Both
/// limits are at least 1, even if there are too few descriptors: running out of them is then reported when it
/// happens.
fn bounds(descriptors: usize) -> (usize, usize) {
    let left = descriptors.saturating_sub(DESCRIPTORS_OTHERS);
    // Each message in work has a part, and one more part can be open beside them.
    let jobs = (left.saturating_sub(DESCRIPTORS_PER_PART) / (DESCRIPTORS_PER_PART + 1)).clamp(1, JOBS_MAX);
    let parts = (left.saturating_sub(jobs) / DESCRIPTORS_PER_PART).clamp(jobs + 1, PARTS_OPEN_MAX);
    (jobs, parts)
}

/// Options for receiving files.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory that the files go to. It is made if it does not exist.
    pub out: PathBuf,
    /// Whether files are synced to the disk before they are acknowledged.
    pub fsync: bool,
    /// Whether `O_DIRECT` is tried.
    pub direct: bool,
    /// Whether io_uring is tried.
    pub io_uring: bool,
    /// Limit of the writes in flight.
    pub depth: usize,
    /// Number of files after which the receiver stops, if any.
    pub files_max: Option<u64>,
    /// Span without any message or slice after which the receiver stops, if any.
    pub until_idle: Option<Duration>,
    /// Ways in which the receiver is slow on purpose.
    pub slow: Slow,
}

/// Reason why serving a session ended.
#[derive(Debug)]
pub enum Served {
    /// The stop signal was given.
    Stopped,
    /// [`Options::files_max`] files were received.
    Enough,
    /// No message or slice arrived for [`Options::until_idle`].
    Idle,
    /// The session ended. The caller may register again.
    SessionEnded(ReceiveError),
}

/// Reason why no files can be received any more.
#[derive(Debug, thiserror::Error)]
pub enum ReceivingError {
    /// The receiver's directory cannot be used.
    #[error(transparent)]
    Out(#[from] OutError),
    /// The disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system call that waits for events failed.
    #[error("cannot wait: {0}")]
    Wait(#[source] io::Error),
}

/// State of a receiver that outlives its sessions: the files, the disk, the counts.
pub struct Receiving {
    options: Options,
    disk: Disk,
    parts: Parts,
    paths: Paths,
    jobs_max: usize,
    received: Received,
    /// Error texts of rejected messages that the caller has not taken yet.
    complaints: Vec<String>,
    complaints_left_out: u64,
    /// Time at which a message or slice arrived last. During a stop on purpose (`--slow`), this is the time
    /// at which the stop ends.
    active_at: Instant,
    /// Whether the receiver is leaving: it finishes what is in flight and begins no proof.
    leaving: bool,
    /// Slices that are held on purpose, each with the index of its message among those in work.
    slow_schedule: SlowSchedule<(usize, DetachedSlice)>,
}

impl Receiving {
    /// Opens the receiver's directory and sets up the disk.
    ///
    /// # Errors
    /// [`ReceivingError::Out`] and [`ReceivingError::Disk`].
    pub fn new(options: Options) -> Result<Self, ReceivingError> {
        let (jobs_max, open_max) = bounds(crate::descriptors::limit());
        let parts_options = PartsOptions { open_max, direct: options.direct, fsync: options.fsync };
        let parts = Parts::new(&options.out, parts_options)?;
        let disk = Disk::new(options.depth, JOBS_MAX, options.io_uring)?;
        // Room for the writes of each slice that is held is reserved, so that it can be written as soon as it
        // is due.
        let slow_schedule = SlowSchedule::new(options.slow, options.depth / intake::ROOM_PER_SLICE);
        Ok(Self {
            options,
            disk,
            parts,
            paths: Paths::default(),
            jobs_max,
            received: Received::default(),
            complaints: Vec::new(),
            complaints_left_out: 0,
            active_at: Instant::now(),
            leaving: false,
            slow_schedule,
        })
    }

    /// Returns the counts of everything that was received so far.
    pub fn received(&self) -> Received {
        self.received
    }

    /// Returns the means by which files are written.
    pub fn engine(&self) -> Engine {
        self.disk.engine()
    }

    /// Returns the kernel's reason for giving no io_uring, if the options asked for io_uring in vain.
    pub fn io_uring_refusal(&self) -> Option<&io::Error> {
        self.disk.refusal()
    }

    /// Returns the first error with which a file system refused a direct write, if one did.
    pub fn direct_refusal(&self) -> Option<&io::Error> {
        self.parts.direct_refusal()
    }

    /// Returns the parts of the files that are being received.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Takes the error texts of the messages that were rejected since the last call, and the number of the
    /// texts that were not kept.
    pub fn take_complaints(&mut self) -> (Vec<String>, u64) {
        (std::mem::take(&mut self.complaints), std::mem::take(&mut self.complaints_left_out))
    }

    /// Receives until the session ends, `stop` is readable, or a limit of the options is reached. `tell` is
    /// called before each sleep and at the end.
    ///
    /// No operation of the session is in flight when this function returns. Messages that were not finished
    /// are delivered again.
    ///
    /// # Errors
    /// [`ReceivingError::Disk`] and [`ReceivingError::Wait`].
    pub fn serve(
        &mut self,
        session: &Session,
        stop: BorrowedFd<'_>,
        mut tell: impl FnMut(&mut Self),
    ) -> Result<Served, ReceivingError> {
        self.leaving = false;
        self.active_at = Instant::now();
        self.slow_schedule.start(self.active_at);
        let mut jobs = Jobs::new(self.jobs_max);
        let ends = WritesEnd(self);
        let served = ends.0.serve_jobs(session, stop, &mut jobs, &mut tell);
        ends.0.leave(session, jobs)?;
        tell(ends.0);
        served
    }

    fn serve_jobs<'s>(
        &mut self,
        session: &'s Session,
        stop: BorrowedFd<'_>,
        jobs: &mut Jobs<'s>,
        tell: &mut impl FnMut(&mut Self),
    ) -> Result<Served, ReceivingError> {
        let (mut rounds, mut polls) = (0u32, 0u32);
        loop {
            rounds += 1;
            if rounds >= ROUNDS_PER_STOP_CHECK || self.disk.engine() == Engine::Pwrite {
                rounds = 0;
                if is_readable(stop)? {
                    return Ok(Served::Stopped);
                }
            }
            let worked = match self.work(session, jobs) {
                Ok(worked) => worked,
                Err(RoundError::Session(error)) => return Ok(Served::SessionEnded(error)),
                Err(RoundError::Disk(error)) => return Err(error.into()),
            };
            self.disk.submit()?;
            if self.options.files_max.is_some_and(|max| self.received.files >= max) && jobs.is_empty() {
                return Ok(Served::Enough);
            }
            if worked {
                polls = 0;
                continue;
            }
            polls += 1;
            if polls < POLLS_BEFORE_SLEEP {
                std::hint::spin_loop();
                continue;
            }
            // Where the session is not ready to sleep, one more round tells whether something waits.
            polls = POLLS_BEFORE_SLEEP - 1;
            self.parts.close_unused();
            tell(self);
            let now = Instant::now();
            let stopped_until = self.slow_schedule.stopped_until(now);
            let idle_left = match (self.options.until_idle, jobs.is_empty() && stopped_until.is_none()) {
                (Some(limit), true) => {
                    let left = limit.saturating_sub(now.saturating_duration_since(self.active_at));
                    if left.is_zero() {
                        return Ok(Served::Idle);
                    }
                    Some(left)
                }
                _ => None,
            };
            let due = [stopped_until, self.slow_schedule.next_due()].into_iter().flatten().min();
            let due_left = due.map(|due| due.saturating_duration_since(now));
            let left = [idle_left, due_left].into_iter().flatten().min();
            match self.sleep(session, stop, left, stopped_until.is_some()) {
                Ok(()) => {}
                Err(SleepError::Session(error)) => return Ok(Served::SessionEnded(error)),
                Err(SleepError::System(error)) => return Err(ReceivingError::Wait(error)),
            }
            rounds = ROUNDS_PER_STOP_CHECK;
        }
    }

    /// Does one round of work: handles operations that ended, feeds messages in work, and takes new ones.
    /// Returns `false` if there was nothing to do.
    fn work<'s>(&mut self, session: &'s Session, jobs: &mut Jobs<'s>) -> Result<bool, RoundError> {
        let mut worked = false;
        let mut stopped = false;
        self.parts.forget_directories();
        if self.slow_schedule.is_on() {
            let now = Instant::now();
            if let Some(until) = self.slow_schedule.stopped_until(now) {
                stopped = true;
                self.active_at = until;
            }
            while let Some((index, slice)) = self.slow_schedule.take_due(now) {
                worked = true;
                self.write_held(session, jobs, index, slice)?;
            }
        }
        // Only operations that had ended by now are handled. Without io_uring an operation that is begun here
        // ends at once, and a proof would read its whole file in this loop.
        for _ in 0..self.disk.ended() {
            let Some(finished) = self.disk.finished() else { break };
            worked = true;
            self.handle_finished(session, jobs, finished)?;
        }
        if stopped {
            return Ok(worked);
        }
        for index in 0..jobs.jobs_max {
            if jobs.places.contains(index) {
                worked |= self.feed(session, jobs, index)?;
            }
        }
        let enough = self.options.files_max.is_some_and(|max| self.received.files >= max);
        while !enough && !self.is_blocked(jobs) {
            let message = match session.try_receive() {
                Err(ReceiveError::NotYet) => break,
                received => received?,
            };
            worked = true;
            self.take(session, jobs, OpenMessage::new(message))?;
        }
        if worked {
            self.active_at = Instant::now();
        }
        Ok(worked)
    }

    /// Returns whether nothing can be taken from the session before a write or a message ends.
    fn is_blocked(&self, jobs: &Jobs<'_>) -> bool {
        jobs.is_full() || self.room() < intake::ROOM_PER_SLICE
    }

    /// Returns how many writes can be begun now, beside the writes that are reserved for slices that are held
    /// on purpose.
    fn room(&self) -> usize {
        self.disk.room() - self.slow_schedule.held() * intake::ROOM_PER_SLICE
    }

    fn sleep(
        &mut self,
        session: &Session,
        stop: BorrowedFd<'_>,
        left: Option<Duration>,
        stopped: bool,
    ) -> Result<(), SleepError> {
        // While the disk has no room, only its completions wake this thread, or the time at which a held
        // slice is due. Otherwise messages in work may wait for slices, which need the session.
        let blocked = stopped || self.room() < intake::ROOM_PER_SLICE;
        let asleep = if blocked {
            session.flush();
            self.disk.prepare_sleep()
        } else {
            session.prepare_sleep().map_err(SleepError::Session)? && self.disk.prepare_sleep()
        };
        let result = if asleep { self.poll(session, stop, left, blocked) } else { Ok(()) };
        self.disk.awake();
        result.map_err(SleepError::System)
    }

    fn poll(
        &self,
        session: &Session,
        stop: BorrowedFd<'_>,
        left: Option<Duration>,
        blocked: bool,
    ) -> io::Result<()> {
        let mut fds = [
            PollFd::new(&self.disk, PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::new(session, PollFlags::IN),
        ];
        // While the disk is busy, or nothing is read on purpose, messages that wait are no reason to wake.
        let count = if blocked { 2 } else { 3 };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds[..count], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes the slices that are held, waits until everything in flight has ended, and finishes the messages
    /// that are whole. The other messages are left to be sent again.
    fn leave<'s>(&mut self, session: &'s Session, mut jobs: Jobs<'s>) -> Result<(), DiskError> {
        self.leaving = true;
        let mut ended = Vec::with_capacity(self.options.depth + JOBS_MAX);
        while let Some((index, slice)) = self.slow_schedule.take_now() {
            match self.write_held(session, &mut jobs, index, slice) {
                Ok(()) | Err(RoundError::Session(_)) => {}
                Err(RoundError::Disk(error)) => return Err(error),
            }
        }
        while !self.disk.is_idle() {
            self.disk.wait_all(|finished| ended.push(finished))?;
            for finished in ended.drain(..) {
                match self.handle_finished(session, &mut jobs, finished) {
                    // It no longer matters whether the session is intact.
                    Ok(()) | Err(RoundError::Session(_)) => {}
                    Err(RoundError::Disk(error)) => return Err(error),
                }
            }
        }
        // These messages are neither consumed nor rejected. Their senders get the end AppGone, and send them
        // again.
        for (_, job) in jobs.places {
            self.leave_part(&job);
        }
        session.flush();
        Ok(())
    }

    fn complain(&mut self, what: String) {
        /// Limit of the complaints that are kept. Further complaints are only counted, because with a full
        /// disk every message is rejected.
        const COMPLAINTS_MAX: usize = 8;
        self.received.rejected += 1;
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(what);
        } else {
            self.complaints_left_out += 1;
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> Result<bool, ReceivingError> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, Some(&now)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(ReceivingError::Wait(errno.into())),
    }
}

/// Error that stops a round of work.
#[derive(Debug)]
enum RoundError {
    Session(ReceiveError),
    Disk(DiskError),
}

impl From<ReceiveError> for RoundError {
    fn from(error: ReceiveError) -> Self {
        Self::Session(error)
    }
}

impl From<DiskError> for RoundError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

enum SleepError {
    Session(ReceiveError),
    System(io::Error),
}

/// Guard that waits until everything in flight has ended, also on a panic. The session is dropped next, and
/// with it the memory from which files are being written.
struct WritesEnd<'r>(&'r mut Receiving);

impl Drop for WritesEnd<'_> {
    fn drop(&mut self) {
        // Nothing is in flight when `wait_all` returns, with or without an error.
        let _ = self.0.disk.wait_all(drop);
    }
}

/// Table of the messages in work.
struct Jobs<'s> {
    places: Slab<Job<'s>>,
    jobs_max: usize,
}

impl<'s> Jobs<'s> {
    fn new(jobs_max: usize) -> Self {
        Self { places: Slab::with_capacity(jobs_max), jobs_max }
    }

    fn is_full(&self) -> bool {
        self.places.len() == self.jobs_max
    }

    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn insert(&mut self, job: Job<'s>) -> usize {
        assert!(!self.is_full(), "the caller polls whether there is room");
        self.places.insert(job)
    }

    fn get(&mut self, index: usize) -> &mut Job<'s> {
        self.places.get_mut(index).expect("a job in work exists")
    }

    fn remove(&mut self, index: usize) -> Job<'s> {
        self.places.try_remove(index).expect("a job in work exists")
    }
}
