//! Intake of new messages, and of the slices of messages that are still arriving.

use super::job::{Job, JobStep, Subject};
use super::open_message::OpenMessage;
use super::prove::Proving;
use super::{Jobs, Receiving, RoundError};
use crate::files::header::{FileHeader, HeaderError, Kind, PathField, TAG};
use crate::files::parts::{Found, Key, PartError, PartIndex};
use crate::files::path::{RelativePath, printable};
use crate::files::proof::{BLOCK_BYTES, Proof, Sum};
use crate::files::reject;
use jet_client::receive::{DetachedSlice, Message, Session, Slice, SliceError};
use jet_wire::SLAB_BYTES;
use std::io;
use std::num::NonZeroU32;
use std::time::Instant;

/// Largest number of writes that one slice needs: one for its whole slabs, and one for the rest.
pub(super) const ROOM_PER_SLICE: usize = 2;

/// Rejection of a message before any of it was written.
struct Refused {
    code: NonZeroU32,
    what: String,
}

/// State of a message that needs further work, from which its [`Job`] is made.
struct Opened {
    path: Box<[u8]>,
    part: Option<PartIndex>,
    subject: Subject,
    step: JobStep,
    offset: u64,
    sum: Option<Sum>,
    refusal: Option<NonZeroU32>,
}

impl Refused {
    fn header(what: impl Into<String>) -> Self {
        Self { code: reject::HEADER_REFUSED, what: what.into() }
    }

    fn part(path: RelativePath<'_>, error: &PartError) -> Self {
        let code = reject::code_of_part(error);
        Self { code, what: format!("{path}: {}", reject::explain(code.get())) }
    }

    fn system(path: RelativePath<'_>, error: &io::Error) -> Self {
        let code = reject::code_of(error);
        Self { code, what: format!("{path}: {}", reject::explain(code.get())) }
    }
}

impl Receiving {
    /// Takes a new message: carries it out at once, makes a job of it, or rejects it.
    pub(super) fn take<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        mut message: OpenMessage<'s>,
    ) -> Result<(), RoundError> {
        if message.redelivered() {
            self.received.redelivered += 1;
        }
        // The header is copied because the message is changed while the path is used.
        let mut bytes = [0; jet_wire::message::USER_HEADER_MAX];
        let length = message.user_header().len();
        bytes[..length].copy_from_slice(message.user_header());
        let taken = self.read_header(&message, &bytes[..length]);
        let refused = match taken.and_then(|header| Ok((self.path_of(&message, &header)?, header))) {
            Ok((_, FileHeader { kind: Kind::Path, file_id, .. })) => {
                let key = (message.sender(), file_id);
                match self.take_path(&mut message, key)? {
                    Ok(()) => {
                        self.received.messages += 1;
                        message.consume();
                        return Ok(());
                    }
                    Err(refused) => refused,
                }
            }
            Ok((path, header)) => match self.open(&message, &header, path) {
                Ok(None) => {
                    self.received.messages += 1;
                    message.consume();
                    return Ok(());
                }
                Ok(Some(opened)) => {
                    let index = jobs.insert(Job {
                        key: (message.sender(), header.file_id),
                        taken: !matches!(opened.step, JobStep::Bytes),
                        message,
                        path: opened.path,
                        part: opened.part,
                        subject: opened.subject,
                        step: opened.step,
                        offset: opened.offset,
                        sum: opened.sum,
                        written: 0,
                        in_flight: 0,
                        failed: None,
                        refusal: opened.refusal,
                        withdrawn: false,
                    });
                    if jobs.get(index).taken {
                        return self.advance(jobs, index);
                    }
                    self.feed(session, jobs, index)?;
                    return Ok(());
                }
                Err(refused) => refused,
            },
            Err(refused) => refused,
        };
        let Refused { code, what } = refused;
        self.refuse(message, code, || what);
        Ok(())
    }

    fn read_header<'a>(&self, message: &Message<'_>, bytes: &'a [u8]) -> Result<FileHeader<'a>, Refused> {
        if message.tag() != TAG {
            return Err(Refused::header("a message whose tag is none of jet send's"));
        }
        let header = FileHeader::decode(bytes).map_err(|error| {
            let code = match error {
                HeaderError::Path(_) => reject::PATH_REFUSED,
                _ => reject::HEADER_REFUSED,
            };
            let path = bytes.get(crate::files::header::FIXED_BYTES..).unwrap_or_default();
            Refused { code, what: format!("{}: {error}", printable(path)) }
        })?;
        let carries = matches!(header.kind, Kind::Piece { .. } | Kind::Whole { .. } | Kind::Path);
        if !carries && message.bytes() > 0 {
            return Err(Refused::header("a message with bytes where there are to be none"));
        }
        Ok(header)
    }

    fn take_path(&mut self, message: &mut Message<'_>, key: Key) -> Result<Result<(), Refused>, RoundError> {
        match message.try_next() {
            Ok(Some(slice)) if slice.len() as u64 == message.bytes() => {
                let path = match RelativePath::new(&slice) {
                    Ok(path) => path,
                    Err(error) => {
                        let what = format!("{}: {error}", printable(&slice));
                        return Ok(Err(Refused { code: reject::PATH_REFUSED, what }));
                    }
                };
                self.paths.remember(key, path.as_bytes());
                Ok(Ok(()))
            }
            Err(SliceError::Receive(error)) => Err(error.into()),
            _ => Ok(Err(Refused::header("a path that is no small message"))),
        }
    }

    /// Returns the path that a message is about. For a path message itself it is empty.
    fn path_of(&self, message: &Message<'_>, header: &FileHeader<'_>) -> Result<Box<[u8]>, Refused> {
        match (header.kind, header.path) {
            (Kind::Path, _) => Ok(Box::default()),
            (_, PathField::Here(path)) => Ok(path.as_bytes().into()),
            (_, PathField::Elsewhere) => {
                let path = self.paths.get((message.sender(), header.file_id));
                path.map(Into::into)
                    .ok_or_else(|| Refused { code: reject::PATH_UNKNOWN, what: String::new() })
            }
        }
    }

    /// Carries out a message at once and returns `None`, or returns the state of the job that it needs.
    fn open(
        &mut self,
        message: &Message<'_>,
        header: &FileHeader<'_>,
        path: Box<[u8]>,
    ) -> Result<Option<Opened>, Refused> {
        let key = (message.sender(), header.file_id);
        let at = RelativePath::new(&path).expect("checked before");
        let bytes = message.bytes();
        let system = |error: io::Error| Refused::system(at, &error);
        let opened = match header.kind {
            Kind::Path => return Ok(None),
            Kind::Begin { file_bytes, hash } => {
                self.parts.begin(key, at, file_bytes, hash).map_err(system)?;
                return Ok(None);
            }
            Kind::Hole { offset, bytes } => {
                let part = self.enter(key, at, offset, bytes)?;
                let written = if self.parts.has(part, offset, bytes) {
                    Ok(())
                } else {
                    self.parts.written(part, offset, bytes, None)
                };
                self.parts.leave(part);
                written.map_err(|error| Refused::part(at, &error))?;
                return Ok(None);
            }
            Kind::Abandoned => {
                self.parts.abandon(key, at).map_err(system)?;
                self.received.abandoned += 1;
                self.paths.forget(key);
                return Ok(None);
            }
            Kind::Piece { offset } => {
                let part = self.enter(key, at, offset, bytes)?;
                if self.parts.has(part, offset, bytes) {
                    // An earlier delivery of the piece was written. The bytes of this one are released
                    // unread.
                    self.parts.leave(part);
                    return Ok(None);
                }
                let sum = self.parts.hash(part).map(Sum::new);
                Opened {
                    part: Some(part),
                    subject: Subject::Piece,
                    step: JobStep::Bytes,
                    offset,
                    sum,
                    refusal: None,
                    path,
                }
            }
            Kind::Whole { mode, proof } => {
                let subject = Subject::Whole { mode, proof };
                match self.parts.create(key, at, bytes) {
                    Ok(part) => {
                        let (part, sum) = (Some(part), proof.map(|proof| Sum::new(proof.hash)));
                        Opened { part, subject, step: JobStep::Bytes, offset: 0, sum, refusal: None, path }
                    }
                    // A receiver that was killed may have named the file before it could tell the sender.
                    Err(error) => {
                        let proving = proof.and_then(|proof| self.prove_named(at, bytes, proof));
                        let Some(proving) = proving else { return Err(system(error)) };
                        let (step, refusal) = (JobStep::Prove(proving), Some(reject::code_of(&error)));
                        Opened { part: None, subject, step, offset: 0, sum: None, refusal, path }
                    }
                }
            }
            Kind::Complete { mode, proof } => {
                let (part, step) = self.find(key, at, proof)?;
                let subject = Subject::Complete { mode, proof };
                Opened { part, subject, step, offset: 0, sum: None, refusal: None, path }
            }
            Kind::Directory { mode } => {
                let directory = self.parts.make_directory(at, mode).map_err(system)?;
                self.received.directories += 1;
                if !self.options.fsync {
                    return Ok(None);
                }
                let unsynced = self.parts.unsynced_made(at, directory).map_err(system)?;
                let step = JobStep::Directories(unsynced);
                let subject = Subject::Directory;
                Opened { part: None, subject, step, offset: 0, sum: None, refusal: None, path }
            }
        };
        Ok(Some(opened))
    }

    /// Opens the part of a file that has begun, and checks that the bytes can be a piece or a hole of it.
    fn enter(
        &mut self,
        key: Key,
        path: RelativePath<'_>,
        offset: u64,
        bytes: u64,
    ) -> Result<PartIndex, Refused> {
        let part = self.parts.enter_to_write(key, path).map_err(|error| Refused::part(path, &error))?;
        let file_bytes = self.parts.file_bytes(part);
        let end = offset.checked_add(bytes).filter(|&end| end <= file_bytes);
        let on_block = |at: u64| at.is_multiple_of(BLOCK_BYTES as u64);
        if end.is_some_and(|end| on_block(offset) && (on_block(end) || end == file_bytes)) {
            return Ok(part);
        }
        self.parts.leave(part);
        Err(Refused::header(format!(
            "{path}: {bytes} bytes at {offset} are no piece of its file of {file_bytes}"
        )))
    }

    /// Searches for a file that is to take its name, and returns its part, if it has one, and the job's first
    /// step.
    fn find(
        &mut self,
        key: Key,
        path: RelativePath<'_>,
        proof: Option<Proof>,
    ) -> Result<(Option<PartIndex>, JobStep), Refused> {
        let system = |error: io::Error| Refused::system(path, &error);
        let refused = |code: NonZeroU32| {
            let what = format!("{path}: {}", reject::explain(code.get()));
            Err(Refused { code, what })
        };
        match (self.parts.find(key, path, proof).map_err(system)?, proof) {
            (Found::Proven(part), _) => Ok((Some(part), JobStep::Sync(None))),
            (Found::Unproven(part), Some(proof)) => {
                let proving = match self.parts.file(part, false) {
                    Ok((file, _)) => Proving::new(file, proof).map_err(PartError::from),
                    Err(error) => Err(error),
                };
                match proving {
                    Ok(proving) => Ok((Some(part), JobStep::Prove(proving))),
                    Err(error) => {
                        self.parts.leave(part);
                        Err(Refused::part(path, &error))
                    }
                }
            }
            (Found::Unproven(part), None) => {
                self.parts.leave(part);
                refused(reject::INCOMPLETE)
            }
            (Found::Incomplete, _) => refused(reject::INCOMPLETE),
            (Found::Different, _) => refused(reject::DIFFERENT),
            // The file may have taken its name since the message was delivered for the first time.
            (Found::Gone, Some(proof)) => match self.parts.named_file(path).map_err(system)? {
                Some(file) => {
                    let proving = Proving::new(file.into(), proof).map_err(system)?;
                    Ok((None, JobStep::Prove(proving)))
                }
                None => refused(reject::PART_GONE),
            },
            (Found::Gone, None) => refused(reject::PART_GONE),
        }
    }

    /// Takes the slices of a message that have arrived. Returns `false` if there were none.
    pub(super) fn feed<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        index: usize,
    ) -> Result<bool, RoundError> {
        let mut fed = false;
        loop {
            let job = jobs.get(index);
            if job.taken || job.withdrawn || job.failed.is_some() || self.room() < ROOM_PER_SLICE {
                return Ok(fed);
            }
            match job.message.try_next() {
                Ok(Some(slice)) => {
                    fed = true;
                    if self.slow_schedule.holds() {
                        job.in_flight += 1;
                        self.received.held += 1;
                        self.slow_schedule.hold((index, slice.detach()), Instant::now());
                        continue;
                    }
                    self.write_slice(session, jobs, index, slice)?;
                    if jobs.get(index).failed.is_some() {
                        self.advance(jobs, index)?;
                        return Ok(true);
                    }
                }
                Ok(None) => {
                    job.taken = true;
                    self.advance(jobs, index)?;
                    return Ok(true);
                }
                Err(SliceError::Withdrawn { .. }) => {
                    job.withdrawn = true;
                    self.advance(jobs, index)?;
                    return Ok(true);
                }
                Err(SliceError::NotYet) => return Ok(fed),
                // Only a call that waits says that all is held. Here writes in flight give slabs back.
                Err(SliceError::HoldsAll(_)) => return Ok(fed),
                Err(SliceError::Receive(error)) => return Err(error.into()),
                Err(error) => unreachable!("the next slice of a message: {error}"),
            }
        }
    }

    /// Writes a slice that was held on purpose.
    pub(super) fn write_held<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        index: usize,
        slice: DetachedSlice,
    ) -> Result<(), RoundError> {
        let slice = session.attach_slice(slice);
        let job = jobs.get(index);
        job.in_flight -= 1;
        // Nothing more is written of a message that failed meanwhile, or whose rest was withdrawn.
        if job.failed.is_some() || job.withdrawn {
            drop(slice);
        } else {
            self.write_slice(session, jobs, index, slice)?;
        }
        self.advance(jobs, index)
    }

    /// Begins the writes of a slice. Whole slabs may be written with `O_DIRECT`, so the bytes after the last
    /// whole slab are a write of their own.
    fn write_slice<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        index: usize,
        slice: Slice<'s>,
    ) -> Result<(), RoundError> {
        if slice.is_empty() {
            return Ok(());
        }
        // The bytes are counted now, while they are in the cache.
        let job = jobs.get(index);
        if let Some(sum) = &mut job.sum {
            sum.add(job.offset + slice.offset(), &slice);
        }
        let whole_slabs = slice.len() / SLAB_BYTES;
        let uneven = !slice.len().is_multiple_of(SLAB_BYTES);
        let (head, tail) = if uneven && whole_slabs > 0 {
            let (head, tail) = slice.split_at_slab(whole_slabs);
            (head, Some(tail))
        } else {
            (slice, None)
        };
        for slice in [Some(head), tail].into_iter().flatten() {
            let offset = jobs.get(index).offset + slice.offset();
            if let Some(slice) = self.write(jobs, index, slice.detach(), 0, offset)? {
                session.release(slice);
            }
        }
        Ok(())
    }
}
