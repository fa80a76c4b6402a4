//! The receiver's end: from a session's slices to files.
//!
//! Life of a piece: its slices are written from where they lie, each is released when its write ended, and
//! the message is finished as consumed when all were written (with `fsync`: when the disk has them) and
//! accounted for. A write that fails rejects the message with the errno, and the other files go on.

mod intake;
mod job;
mod paths;
mod prove;
mod report;
mod slow_option;
mod slow_schedule;
#[cfg(test)]
mod tests;
mod unended;

use super::disk::{Disk, DiskError, Engine};
use super::parts::{OutError, Parts, PartsOptions};
use jet_client::receive::{DetachedSlice, ReceiveError, Session};
use job::Job;
use paths::Paths;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slow_schedule::SlowSchedule;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use unended::Unended;

pub use report::{ReceiveReport, Received};
pub use slow_option::{Hold, Slow, SlowError, Stop};

/// Parts that are open at once. More than messages are in work, so that one can always be closed for another.
const PARTS_OPEN_MAX: usize = 256;
/// Messages that are in work at once.
const JOBS_MAX: usize = 192;
/// Descriptors for everything but messages and parts: the session, the ring, directories that are looked for.
const DESCRIPTORS_OTHERS: usize = 64;
/// Descriptors of a part: buffered, direct, its directory. A message in work may sync another directory.
const DESCRIPTORS_PER_PART: usize = 3;
/// Looks in vain before a sleep.
const LOOKS_BEFORE_SLEEP: u32 = 200;
/// Rounds of work between two looks at the stop signal: a look is a system call. Without io_uring a round
/// waits for each of its reads and writes, and every round looks.
const ROUNDS_PER_STOP_LOOK: u32 = 64;

const _: () = assert!(JOBS_MAX < PARTS_OPEN_MAX);

/// Messages in work at once and parts that are open at once, with so many descriptors. Where there are too
/// few for any, running out of them is reported when it happens.
fn bounds(descriptors: usize) -> (usize, usize) {
    let left = descriptors.saturating_sub(DESCRIPTORS_OTHERS);
    // Each message in work has a part, and one more part can be open beside them.
    let jobs = (left.saturating_sub(DESCRIPTORS_PER_PART) / (DESCRIPTORS_PER_PART + 1)).clamp(1, JOBS_MAX);
    let parts = (left.saturating_sub(jobs) / DESCRIPTORS_PER_PART).clamp(jobs + 1, PARTS_OPEN_MAX);
    (jobs, parts)
}

/// How to receive files.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory that they go to; made where it is not there.
    pub out: PathBuf,
    /// Make them last before they are acknowledged.
    pub fsync: bool,
    /// Try `O_DIRECT`.
    pub direct: bool,
    /// Try io_uring.
    pub io_uring: bool,
    /// Writes in flight.
    pub depth: usize,
    /// Leave after so many files.
    pub files_max: Option<u64>,
    /// Leave when nothing came for so long.
    pub until_idle: Option<Duration>,
    /// Be slow on purpose.
    pub slow: Slow,
}

/// Why serving a session ended.
#[derive(Debug)]
pub enum Served {
    /// Somebody asked for it.
    Stopped,
    /// [`Options::files_max`] were received.
    Enough,
    /// Nothing came for [`Options::until_idle`].
    Idle,
    /// The session ended; register again.
    SessionEnded(ReceiveError),
}

/// Why nothing can be received.
#[derive(Debug, thiserror::Error)]
pub enum ReceivingError {
    /// The directory.
    #[error(transparent)]
    Out(#[from] OutError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system.
    #[error("cannot wait: {0}")]
    Wait(#[source] io::Error),
}

/// What outlives a session: the files, the disk, the counts.
pub struct Receiving {
    options: Options,
    disk: Disk,
    parts: Parts,
    paths: Paths,
    jobs_max: usize,
    received: Received,
    /// Rejections that were not said yet, in words.
    complaints: Vec<String>,
    complaints_left_out: u64,
    /// When something came last; later than now while nothing is read on purpose.
    active_at: Instant,
    /// No more than what is in flight is done.
    leaving: bool,
    /// Slices that are held on purpose, with the place of their message among those in work.
    slow_schedule: SlowSchedule<(usize, DetachedSlice)>,
}

impl Receiving {
    /// Opens the directory and sets the disk up.
    ///
    /// # Errors
    /// [`ReceivingError`].
    pub fn new(options: Options) -> Result<Self, ReceivingError> {
        let (jobs_max, open_max) = bounds(crate::descriptors::limit());
        let parts_options = PartsOptions { open_max, direct: options.direct, fsync: options.fsync };
        let parts = Parts::new(&options.out, parts_options)?;
        let disk = Disk::new(options.depth, JOBS_MAX, options.io_uring)?;
        // Each slice that is held has its writes kept, so that it can be written as soon as it is due.
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

    /// What was received so far.
    pub fn received(&self) -> Received {
        self.received
    }

    /// How writing is done.
    pub fn engine(&self) -> Engine {
        self.disk.engine()
    }

    /// Why the kernel gave no io_uring, where it was asked.
    pub fn io_uring_refusal(&self) -> Option<&io::Error> {
        self.disk.refusal()
    }

    /// Why the file system took no direct writes, where it took none.
    pub fn direct_refusal(&self) -> Option<&io::Error> {
        self.parts.direct_refusal()
    }

    /// The files on their way.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What was rejected since the last call, in words, and how many more were not kept.
    pub fn take_complaints(&mut self) -> (Vec<String>, u64) {
        (std::mem::take(&mut self.complaints), std::mem::take(&mut self.complaints_left_out))
    }

    /// Receives until the session ends, `stop` is readable, or the options say that it is enough. `tell` is
    /// called before each sleep and at the end.
    ///
    /// When it returns nothing of the session is in flight; what was not finished comes again.
    ///
    /// # Errors
    /// [`ReceivingError`].
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
        let (mut rounds, mut looks) = (0u32, 0u32);
        loop {
            rounds += 1;
            if rounds >= ROUNDS_PER_STOP_LOOK || self.disk.engine() == Engine::Pwrite {
                rounds = 0;
                if is_readable(stop)? {
                    return Ok(Served::Stopped);
                }
            }
            let worked = match self.work(session, jobs) {
                Ok(worked) => worked,
                Err(Broken::Session(error)) => return Ok(Served::SessionEnded(error)),
                Err(Broken::Disk(error)) => return Err(error.into()),
            };
            self.disk.submit()?;
            if self.options.files_max.is_some_and(|max| self.received.files >= max) && jobs.is_empty() {
                return Ok(Served::Enough);
            }
            if worked {
                looks = 0;
                continue;
            }
            looks += 1;
            if looks < LOOKS_BEFORE_SLEEP {
                std::hint::spin_loop();
                continue;
            }
            looks = 0;
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
                Err(Sleepless::Session(error)) => return Ok(Served::SessionEnded(error)),
                Err(Sleepless::System(error)) => return Err(ReceivingError::Wait(error)),
            }
            rounds = ROUNDS_PER_STOP_LOOK;
        }
    }

    /// One round: what ended, what goes on, what is new. `false`: nothing was there to do.
    fn work<'s>(&mut self, session: &'s Session, jobs: &mut Jobs<'s>) -> Result<bool, Broken> {
        let mut worked = false;
        let mut stopped = false;
        self.parts.look_anew();
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
        // No more than had ended by now: without io_uring what is begun meanwhile ends at once, and a proof
        // would read its whole file here.
        for _ in 0..self.disk.ended() {
            let Some(finished) = self.disk.finished() else { break };
            worked = true;
            self.handle_finished(session, jobs, finished)?;
        }
        if stopped {
            return Ok(worked);
        }
        for index in 0..jobs.places.len() {
            if jobs.places[index].is_some() {
                worked |= self.feed(session, jobs, index)?;
            }
        }
        let enough = self.options.files_max.is_some_and(|max| self.received.files >= max);
        while !enough && !self.is_blocked(jobs) {
            let Some(message) = session.try_receive()? else { break };
            worked = true;
            self.take(session, jobs, Unended::new(message))?;
        }
        if worked {
            self.active_at = Instant::now();
        }
        Ok(worked)
    }

    /// Whether nothing can be taken from the session before a write ends.
    fn is_blocked(&self, jobs: &Jobs<'_>) -> bool {
        jobs.is_full() || self.room() < intake::ROOM_PER_SLICE
    }

    /// Writes that can be begun now, beside those that are kept for what is held.
    fn room(&self) -> usize {
        self.disk.room() - self.slow_schedule.held() * intake::ROOM_PER_SLICE
    }

    fn sleep(
        &mut self,
        session: &Session,
        stop: BorrowedFd<'_>,
        left: Option<Duration>,
        stopped: bool,
    ) -> Result<(), Sleepless> {
        // A full disk's own completions wake, or the time when what is held is due. Messages in work that
        // wait for slices need the session.
        let blocked = stopped || self.room() < intake::ROOM_PER_SLICE;
        let asleep = if blocked {
            session.flush();
            self.disk.prepare_sleep()
        } else {
            session.prepare_sleep().map_err(Sleepless::Session)? && self.disk.prepare_sleep()
        };
        let result = if asleep { self.poll(session, stop, left, blocked) } else { Ok(()) };
        self.disk.awake();
        result.map_err(Sleepless::System)
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
        // Messages that wait while the disk is busy, or while nothing is read on purpose, are no reason to
        // wake.
        let count = if blocked { 2 } else { 3 };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds[..count], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes what is held, lets writes in flight end, finishes what is whole, and leaves the rest to be sent
    /// again.
    fn leave<'s>(&mut self, session: &'s Session, mut jobs: Jobs<'s>) -> Result<(), DiskError> {
        self.leaving = true;
        let mut ended = Vec::with_capacity(self.options.depth + JOBS_MAX);
        while let Some((index, slice)) = self.slow_schedule.take_now() {
            match self.write_held(session, &mut jobs, index, slice) {
                Ok(()) | Err(Broken::Session(_)) => {}
                Err(Broken::Disk(error)) => return Err(error),
            }
        }
        while !self.disk.is_idle() {
            self.disk.wait_all(|finished| ended.push(finished))?;
            for finished in ended.drain(..) {
                match self.handle_finished(session, &mut jobs, finished) {
                    // Whether the session still stands matters no more.
                    Ok(()) | Err(Broken::Session(_)) => {}
                    Err(Broken::Disk(error)) => return Err(error),
                }
            }
        }
        // Neither consumed nor rejected: their senders hear AppGone, and send them again.
        for job in jobs.places.into_iter().flatten() {
            self.leave_part(&job);
        }
        session.flush();
        Ok(())
    }

    fn complain(&mut self, what: String) {
        /// Beyond that only their number is said: a full disk rejects everything.
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

/// What stops a round of work.
#[derive(Debug)]
enum Broken {
    Session(ReceiveError),
    Disk(DiskError),
}

impl From<ReceiveError> for Broken {
    fn from(error: ReceiveError) -> Self {
        Self::Session(error)
    }
}

impl From<DiskError> for Broken {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

enum Sleepless {
    Session(ReceiveError),
    System(io::Error),
}

/// Has everything in flight end before it goes, on a panic, too: the memory that is being written from goes
/// with the session, which goes next.
struct WritesEnd<'r>(&'r mut Receiving);

impl Drop for WritesEnd<'_> {
    fn drop(&mut self) {
        // Nothing is in flight when this returns, whatever it says.
        let _ = self.0.disk.wait_all(drop);
    }
}

/// The messages in work.
struct Jobs<'s> {
    places: Vec<Option<Job<'s>>>,
    free: Vec<usize>,
}

impl<'s> Jobs<'s> {
    fn new(jobs_max: usize) -> Self {
        Self { places: (0..jobs_max).map(|_| None).collect(), free: (0..jobs_max).rev().collect() }
    }

    fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    fn insert(&mut self, job: Job<'s>) -> usize {
        let index = self.free.pop().expect("the caller looks whether there is room");
        self.places[index] = Some(job);
        index
    }

    fn get(&mut self, index: usize) -> &mut Job<'s> {
        self.places[index].as_mut().expect("a job in work exists")
    }

    fn remove(&mut self, index: usize) -> Job<'s> {
        self.free.push(index);
        self.places[index].take().expect("a job in work exists")
    }
}
