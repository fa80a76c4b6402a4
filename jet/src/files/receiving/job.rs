//! Messages that the receiver is working on, each from its first slice to its end.

use super::open_message::OpenMessage;
use super::prove::{Proved, Proving};
use super::{Jobs, Receiving, RoundError};
use crate::files::disk::{Finished, Work};
use crate::files::parts::{Key, PartError, PartIndex, Unsynced};
use crate::files::path::{RelativePath, printable};
use crate::files::proof::{Proof, Sum};
use crate::files::reject;
use jet_client::receive::{DetachedSlice, Session};
use jet_wire::SLAB_BYTES;
use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Subject of a message in work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A whole file in one message.
    Whole { mode: u16, proof: Option<Proof> },
    /// A piece of a file that has begun.
    Piece,
    /// A file whose pieces and holes were all consumed, and that is to take its name.
    Complete { mode: u16, proof: Option<Proof> },
    /// A directory whose name must survive a crash.
    Directory,
}

impl Subject {
    /// Returns the permission bits that the file gets, if this message makes it whole.
    fn mode(self) -> Option<u16> {
        match self {
            Self::Whole { mode, .. } | Self::Complete { mode, .. } => Some(mode),
            Self::Piece | Self::Directory => None,
        }
    }
}

/// Step of a message in work: what is done with the message next, or what the message waits for.
pub(super) enum JobStep {
    /// The message's bytes arrive and are written.
    Bytes,
    /// A file is read again to prove it: the part's file, or the file that has the path already.
    Prove(Proving),
    /// The file gets its permission bits and is synced: the given file, or without one the part's.
    Sync(Option<Rc<OwnedFd>>),
    /// The file is on the disk, if `fsync` was asked for. Next a piece is accounted for, or a whole file gets
    /// its name.
    Lasting,
    /// These directories are synced, the last one first.
    Directories(Vec<Unsynced>),
    /// Everything is done, and the message can be consumed.
    Done,
}

pub(super) struct Job<'s> {
    pub message: OpenMessage<'s>,
    pub key: Key,
    pub path: Box<[u8]>,
    pub part: Option<PartIndex>,
    pub subject: Subject,
    pub step: JobStep,
    /// Offset in the file at which the message's bytes begin.
    pub offset: u64,
    /// Sum of the hashes of the bytes that arrived, if they are hashed.
    pub sum: Option<Sum>,
    /// Number of bytes whose write ended.
    pub written: u64,
    /// Number of writes, reads and syncs in flight, and of slices that are held on purpose.
    pub in_flight: u32,
    /// Whether every slice was taken.
    pub taken: bool,
    pub failed: Option<NonZeroU32>,
    /// Code of the error that kept the file from being written. Set while the file that has the path already
    /// is read instead.
    pub refusal: Option<NonZeroU32>,
    pub withdrawn: bool,
}

/// Outcome of a step.
enum Next {
    /// The message takes this step at once.
    Go(JobStep),
    /// The message waits: an operation on its file is in flight, or more of its bytes have to arrive.
    Wait,
    /// The message ends as consumed.
    End,
    /// The message is rejected with this code.
    Refuse(NonZeroU32),
}

impl From<PartError> for Next {
    fn from(error: PartError) -> Self {
        Self::Refuse(reject::code_of_part(&error))
    }
}

impl From<std::io::Error> for Next {
    fn from(error: std::io::Error) -> Self {
        Self::Refuse(reject::code_of(&error))
    }
}

/// Returns the code for a file that is not what its sender read: for a part, or for the file that has the
/// name.
fn not_whole(part: Option<PartIndex>) -> NonZeroU32 {
    if part.is_some() { reject::INCOMPLETE } else { reject::PART_GONE }
}

/// Returns whether an error says that a path does not lead through directories to a directory.
fn is_no_way(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

impl Job<'_> {
    fn path(&self) -> RelativePath<'_> {
        RelativePath::new(&self.path).expect("checked when it came")
    }

    /// Returns the directory whose entries must survive a crash: the one that the file is named in, or the
    /// directory that the message makes.
    fn directory(&self) -> Option<RelativePath<'_>> {
        match self.subject {
            Subject::Directory => Some(self.path()),
            Subject::Whole { .. } | Subject::Piece | Subject::Complete { .. } => self.path().split().0,
        }
    }

    /// Returns whether the two messages are pieces of the same part that overlap.
    fn writes_on(&self, other: &Job<'_>) -> bool {
        let end = |job: &Job<'_>| job.offset + job.message.bytes();
        self.part == other.part
            && (self.subject, other.subject) == (Subject::Piece, Subject::Piece)
            && self.offset < end(other)
            && other.offset < end(self)
    }
}

impl Receiving {
    /// Handles the end of a write, a read or a sync, and advances its job.
    pub(super) fn handle_finished<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        finished: Finished,
    ) -> Result<(), RoundError> {
        let Finished { token, before, work, error } = finished;
        let job = jobs.get(token);
        job.in_flight -= 1;
        match work {
            Work::Sync => match (error, &mut job.step) {
                (Some(error), _) => {
                    job.failed.get_or_insert(reject::code_of(&error));
                }
                (None, JobStep::Directories(unsynced)) => {
                    if let Some(synced) = unsynced.pop() {
                        self.parts.synced(synced);
                    }
                }
                (None, step) => *step = JobStep::Lasting,
            },
            Work::Read { buffer, done, .. } => {
                let JobStep::Prove(proving) = &mut job.step else { unreachable!("only proofs read") };
                let read = match error {
                    None => proving.read(buffer, done, before),
                    Some(error) => Err(error),
                };
                match read {
                    Ok(Some(work)) => {
                        let file = Rc::clone(proving.file());
                        return self.begin(jobs, token, &file, work);
                    }
                    Ok(None) => {}
                    // Somebody shortened the file while it was read, so not all of it is there any more.
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                        job.failed.get_or_insert(not_whole(job.part));
                    }
                    Err(error) => {
                        job.failed.get_or_insert(reject::code_of(&error));
                    }
                }
            }
            Work::Write { slice, done, offset, direct } => {
                if let Some(slice) = self.handle_write(jobs, token, slice, done, offset, direct, error)? {
                    session.release(slice);
                }
            }
        }
        self.advance(jobs, token)
    }

    /// Handles the end of a write. Returns the slice if nothing more has to be done with it.
    #[allow(clippy::too_many_arguments)] // the fields of one write
    fn handle_write(
        &mut self,
        jobs: &mut Jobs<'_>,
        token: usize,
        slice: DetachedSlice,
        done: usize,
        offset: u64,
        direct: bool,
        error: Option<std::io::Error>,
    ) -> Result<Option<DetachedSlice>, RoundError> {
        let job = jobs.get(token);
        match error {
            Some(error) => match (error.raw_os_error(), job.part) {
                (Some(libc::EINVAL), Some(part)) if direct => self.parts.refuse_direct(part, error),
                _ => {
                    job.failed.get_or_insert(reject::code_of(&error));
                }
            },
            None if done == slice.len() => {
                let bytes = done as u64;
                job.written += bytes;
                self.received.bytes += bytes;
                if direct {
                    self.received.bytes_direct += bytes;
                } else {
                    self.received.bytes_buffered += bytes;
                }
            }
            None => {}
        }
        if done == slice.len() || job.failed.is_some() {
            return Ok(Some(slice));
        }
        // The write was short, or the file system refused it with `O_DIRECT`. It continues where it stopped.
        self.write(jobs, token, slice, done, offset)
    }

    /// Begins a write. Returns the slice if the file cannot be opened: the job has failed then.
    pub(super) fn write(
        &mut self,
        jobs: &mut Jobs<'_>,
        token: usize,
        slice: DetachedSlice,
        done: usize,
        offset: u64,
    ) -> Result<Option<DetachedSlice>, RoundError> {
        let job = jobs.get(token);
        let part = job.part.expect("only pieces are written");
        let aligned = (offset + done as u64).is_multiple_of(SLAB_BYTES as u64)
            && (slice.as_ptr().addr() + done).is_multiple_of(SLAB_BYTES)
            && (slice.len() - done).is_multiple_of(SLAB_BYTES);
        match self.parts.file(part, aligned) {
            Ok((file, direct)) => {
                // SAFETY: `serve` waits until everything in flight has ended before it gives the session
                // back.
                unsafe { self.disk.begin(token, &file, Work::Write { slice, done, offset, direct })? };
                job.in_flight += 1;
                Ok(None)
            }
            Err(error) => {
                job.failed.get_or_insert(reject::code_of_part(&error));
                Ok(Some(slice))
            }
        }
    }

    /// Advances a job by as many steps as possible while none of its operations are in flight.
    pub(super) fn advance(&mut self, jobs: &mut Jobs<'_>, index: usize) -> Result<(), RoundError> {
        loop {
            let job = jobs.get(index);
            if job.in_flight > 0 {
                return Ok(());
            }
            let (failed, withdrawn) = (job.failed, job.withdrawn);
            if withdrawn || failed.is_some_and(|code| !self.turn_to_named(jobs, index, code)) {
                self.end(jobs, index);
                return Ok(());
            }
            let job = jobs.get(index);
            let next = match &job.step {
                JobStep::Bytes if !job.taken => Next::Wait,
                JobStep::Bytes => self.all_written(job),
                JobStep::Prove(_) => self.prove(jobs, index)?,
                JobStep::Sync(file) => {
                    let file = file.clone();
                    self.sync(jobs, index, file)?
                }
                JobStep::Lasting => self.lasting(job),
                JobStep::Directories(_) => self.sync_directory(jobs, index)?,
                JobStep::Done => Next::End,
            };
            let job = jobs.get(index);
            match next {
                Next::Go(step) => job.step = step,
                Next::Wait => return Ok(()),
                Next::End => {
                    self.end(jobs, index);
                    return Ok(());
                }
                Next::Refuse(code) => job.failed = Some(code),
            }
        }
    }

    /// Turns a job that cannot write its file of one message to reading the file that has the name. An
    /// earlier receiver may have named the file and been killed before it could tell the sender. Returns
    /// `false` if there is no file that can be the one that was sent.
    fn turn_to_named(&mut self, jobs: &mut Jobs<'_>, index: usize, code: NonZeroU32) -> bool {
        let job = jobs.get(index);
        let Subject::Whole { proof: Some(proof), .. } = job.subject else { return false };
        // A sync that failed reports lost bytes once. A second sync of the same file would not report them
        // again.
        let is_writing = matches!(job.step, JobStep::Bytes | JobStep::Lasting);
        if !is_writing || job.refusal.is_some() || !reject::is_of_system(code) {
            return false;
        }
        let Some(proving) = self.prove_named(job.path(), job.message.bytes(), proof) else { return false };
        if let Some(part) = job.part {
            self.parts.discard(part);
        }
        self.leave_part(job);
        job.part = None;
        // Bytes of the message that are still to arrive are released unread.
        job.taken = true;
        job.failed = None;
        job.refusal = Some(code);
        job.step = JobStep::Prove(proving);
        true
    }

    /// Opens the file that has the name, to be read again, if it is as long as the one that was sent.
    pub(super) fn prove_named(
        &mut self,
        path: RelativePath<'_>,
        file_bytes: u64,
        proof: Proof,
    ) -> Option<Proving> {
        let file = self.parts.named_file(path).ok()??;
        Proving::new(file.into(), proof).ok().filter(|proving| proving.file_bytes() == file_bytes)
    }

    /// Checks a message whose bytes were all taken: all must be written, and their hash must be the sender's.
    fn all_written(&mut self, job: &Job<'_>) -> Next {
        if job.written != job.message.bytes() {
            return Next::Refuse(reject::INCOMPLETE);
        }
        if let (Subject::Whole { proof: Some(proof), .. }, Some(sum)) = (job.subject, &job.sum)
            && sum.proof(job.written) != proof
        {
            return Next::Refuse(reject::DIFFERENT);
        }
        Next::Go(JobStep::Sync(None))
    }

    /// Sets the permission bits of a file of which everything was received, and syncs it where that was asked
    /// for.
    fn sync(
        &mut self,
        jobs: &mut Jobs<'_>,
        index: usize,
        named: Option<Rc<OwnedFd>>,
    ) -> Result<Next, RoundError> {
        let job = jobs.get(index);
        let file = match (named, job.part) {
            (Some(file), _) => Ok(file),
            (None, Some(part)) => self.parts.file(part, false).map(|(file, _)| file),
            (None, None) => Err(PartError::Gone),
        };
        let file = match file {
            Ok(file) => file,
            Err(error) => return Ok(error.into()),
        };
        if let Some(mode) = job.subject.mode()
            && let Err(error) = crate::files::parts::set_mode(&file, mode)
        {
            return Ok(error.into());
        }
        if !self.options.fsync {
            return Ok(Next::Go(JobStep::Lasting));
        }
        self.begin(jobs, index, &file, Work::Sync)?;
        Ok(Next::Wait)
    }

    /// Begins the next read of a file that is being proven. After the last read, decides by the result of the
    /// proof what follows.
    fn prove(&mut self, jobs: &mut Jobs<'_>, index: usize) -> Result<Next, RoundError> {
        let job = jobs.get(index);
        let JobStep::Prove(proving) = &mut job.step else { unreachable!("called for proofs") };
        if self.leaving {
            // The receiver is leaving. The next one proves the file.
            return Ok(Next::Wait);
        }
        let file = Rc::clone(proving.file());
        let right = match proving.next() {
            Ok(Proved::Read(work)) => {
                self.begin(jobs, index, &file, work)?;
                return Ok(Next::Wait);
            }
            Ok(Proved::Ended(right)) => right,
            Err(error) => return Ok(error.into()),
        };
        self.received.proven += u64::from(right);
        Ok(match (right, job.part) {
            (true, Some(_)) => Next::Go(JobStep::Sync(None)),
            (true, None) => Next::Go(JobStep::Sync(Some(file))),
            (false, part) => Next::Refuse(not_whole(part)),
        })
    }

    /// Accounts for a piece, or names a file, after it was synced where that was asked for.
    fn lasting(&mut self, job: &Job<'_>) -> Next {
        let Some(part) = job.part else {
            // The file has its name already.
            return self.named(job);
        };
        if job.subject == Subject::Piece {
            return match self.parts.written(part, job.offset, job.written, job.sum.as_ref()) {
                Ok(()) => Next::Go(JobStep::Done),
                Err(error) => error.into(),
            };
        }
        match self.parts.take_name(part) {
            Ok(first) => {
                self.received.files += u64::from(first);
                self.named(job)
            }
            Err(error) => error.into(),
        }
    }

    fn named(&mut self, job: &Job<'_>) -> Next {
        self.paths.forget(job.key);
        if !self.options.fsync {
            return Next::Go(JobStep::Done);
        }
        self.unsynced(job)
    }

    /// Finds the directories to sync after a file was named.
    fn unsynced(&mut self, job: &Job<'_>) -> Next {
        match self.parts.unsynced(job.directory()) {
            Ok(unsynced) => Next::Go(JobStep::Directories(unsynced)),
            // The directory was removed or moved away since, with the file in it. The file is sent again.
            Err(error) if job.subject != Subject::Directory && is_no_way(&error) => {
                Next::Refuse(reject::PART_GONE)
            }
            Err(error) => error.into(),
        }
    }

    /// Syncs the last of the directories that are still to be synced for this message.
    fn sync_directory(&mut self, jobs: &mut Jobs<'_>, index: usize) -> Result<Next, RoundError> {
        let job = jobs.get(index);
        let JobStep::Directories(unsynced) = &job.step else { unreachable!("called for directories") };
        let Some(unsynced) = unsynced.last() else { return Ok(Next::Go(JobStep::Done)) };
        Ok(match self.parts.open_unsynced(job.directory(), unsynced) {
            Ok(Some(directory)) => {
                self.begin(jobs, index, &directory, Work::Sync)?;
                Next::Wait
            }
            Ok(None) => self.unsynced(job),
            Err(error) => error.into(),
        })
    }

    fn begin(
        &mut self,
        jobs: &mut Jobs<'_>,
        index: usize,
        file: &Rc<OwnedFd>,
        work: Work,
    ) -> Result<(), RoundError> {
        // SAFETY: a sync has no bytes, and a read owns its buffer.
        unsafe { self.disk.begin(index, file, work)? };
        jobs.get(index).in_flight += 1;
        Ok(())
    }

    fn end(&mut self, jobs: &mut Jobs<'_>, index: usize) {
        let job = jobs.remove(index);
        if job.withdrawn {
            // The sender is gone, or the daemon told it that the bytes were corrupt. The bytes that were
            // written stay, since the message may be sent again.
            self.received.withdrawn += 1;
            if let Some(part) = job.part
                && jobs.places.iter().any(|(_, other)| other.writes_on(&job))
            {
                self.parts.doubt_all(part);
            }
            self.leave_part(&job);
            job.message.consume();
            return;
        }
        match job.failed {
            Some(code) => {
                // The reason why the file could not be written says more than how another file differs.
                let code = job.refusal.unwrap_or(code);
                if let Some(part) = job.part {
                    self.parts.discard(part);
                }
                self.leave_part(&job);
                let Job { message, path, .. } = job;
                self.refuse(message, code, || {
                    format!("{}: {}", printable(&path), reject::explain(code.get()))
                });
            }
            None => {
                self.leave_part(&job);
                self.received.messages += 1;
                job.message.consume();
            }
        }
    }

    /// Ends a message's use of its part. Bytes that it may have written without accounting for them may
    /// overlap those of another delivery of the same piece.
    pub(super) fn leave_part(&mut self, job: &Job<'_>) {
        let Some(part) = job.part else { return };
        if job.subject == Subject::Piece && !matches!(job.step, JobStep::Done) {
            self.parts.doubt(part, job.offset, job.message.bytes());
        }
        self.parts.leave(part);
    }

    /// Rejects a message. An unknown path, or a part that is gone or incomplete, is not reported as a
    /// complaint: the sender sends the path or the file again.
    pub(super) fn refuse(
        &mut self,
        message: OpenMessage<'_>,
        code: NonZeroU32,
        what: impl FnOnce() -> String,
    ) {
        match code {
            reject::PATH_UNKNOWN => {}
            reject::PART_GONE | reject::INCOMPLETE => self.received.lost += 1,
            _ => self.complain(what()),
        }
        message.reject(code);
    }
}
