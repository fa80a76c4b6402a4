//! A message in work, from its last slice to its end.

use super::{Broken, Jobs, Receiving};
use crate::files::disk::{Finished, Work};
use crate::files::parts::{Key, Named, PartIndex};
use crate::files::reject;
use jet_client::receive::{DetachedSlice, Message, Session};
use jet_wire::SLAB_BYTES;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// What a message is about once its bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing: other pieces follow.
    Nothing,
    /// It is the whole file.
    Complete,
    /// It made a name or a directory; what is synced is a directory.
    Named,
}

pub(super) struct Job<'s> {
    pub message: Message<'s>,
    pub key: Key,
    pub part: Option<PartIndex>,
    /// Where the piece begins in the file.
    pub offset: u64,
    pub mode: u16,
    pub then: Then,
    /// Writes and syncs in flight, and slices that are held.
    pub in_flight: u32,
    /// Every slice was taken, or none is wanted any more.
    pub taken: bool,
    pub synced: bool,
    pub failed: Option<NonZeroU32>,
    pub withdrawn: bool,
}

impl Receiving {
    /// A write or a sync ended.
    pub(super) fn handle_finished<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        finished: Finished,
    ) -> Result<(), Broken> {
        let Finished { token, work, error } = finished;
        let job = jobs.get(token);
        job.in_flight -= 1;
        match work {
            Work::Sync => {
                if let Some(error) = error {
                    job.failed.get_or_insert(reject::code_of(&error));
                }
                job.synced = true;
            }
            Work::Write { slice, done, offset, direct } => {
                if let Some(slice) = self.handle_write(jobs, token, slice, done, offset, direct, error)? {
                    session.release(slice);
                }
            }
        }
        self.advance(jobs, token)
    }

    /// Gives the slice back where nothing more is to be done with it.
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
    ) -> Result<Option<DetachedSlice>, Broken> {
        let job = jobs.get(token);
        match error {
            Some(error) => match (error.raw_os_error(), job.part) {
                (Some(libc::EINVAL), Some(part)) if direct => self.parts.refuse_direct(part, error),
                (Some(libc::EINTR | libc::EAGAIN), _) => {}
                _ => {
                    job.failed.get_or_insert(reject::code_of(&error));
                }
            },
            None if done == slice.len() => {
                let bytes = done as u64;
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
        // A short write, or one that the file system wants otherwise: go on where it stopped.
        self.write(jobs, token, slice, done, offset)
    }

    /// Begins a write. Gives the slice back where its file cannot be opened: then the job has failed.
    pub(super) fn write(
        &mut self,
        jobs: &mut Jobs<'_>,
        token: usize,
        slice: DetachedSlice,
        done: usize,
        offset: u64,
    ) -> Result<Option<DetachedSlice>, Broken> {
        let job = jobs.get(token);
        let part = job.part.expect("only pieces are written");
        let aligned = (offset + done as u64).is_multiple_of(SLAB_BYTES as u64)
            && (slice.as_ptr().addr() + done).is_multiple_of(SLAB_BYTES)
            && (slice.len() - done).is_multiple_of(SLAB_BYTES);
        match self.parts.file(part, aligned) {
            Ok((file, direct)) => {
                // SAFETY: `serve` lets everything in flight end before it gives the session back.
                unsafe { self.disk.begin(token, &file, Work::Write { slice, done, offset, direct })? };
                job.in_flight += 1;
                Ok(None)
            }
            Err(error) => {
                job.failed.get_or_insert(reject::code_of(&error));
                Ok(Some(slice))
            }
        }
    }

    /// Takes a job on where nothing of it is in flight: sync, name, end.
    pub(super) fn advance(&mut self, jobs: &mut Jobs<'_>, index: usize) -> Result<(), Broken> {
        let job = jobs.get(index);
        if job.in_flight > 0 || !(job.taken || job.failed.is_some() || job.withdrawn) {
            return Ok(());
        }
        if job.failed.is_none()
            && !job.withdrawn
            && let Some(part) = job.part
        {
            if self.options.fsync && !job.synced {
                return match self.parts.file(part, false) {
                    Ok((file, _)) => self.sync(jobs, index, &file),
                    Err(error) => self.fail(jobs, index, &error),
                };
            }
            if job.then == Then::Complete {
                let (mode, key) = (job.mode, job.key);
                return match self.parts.complete(part, mode) {
                    Ok(Named { directory, first }) => {
                        self.received.files += u64::from(first);
                        self.paths.forget(key);
                        let job = jobs.get(index);
                        job.then = Then::Named;
                        job.part = None;
                        self.parts.leave(part);
                        self.named(jobs, index, &directory)
                    }
                    Err(error) => self.fail(jobs, index, &error),
                };
            }
        }
        self.end(jobs, index);
        Ok(())
    }

    /// A name or a directory was made; with `fsync` it has to last before the message ends.
    pub(super) fn named(
        &mut self,
        jobs: &mut Jobs<'_>,
        index: usize,
        directory: &Rc<OwnedFd>,
    ) -> Result<(), Broken> {
        if self.options.fsync {
            return self.sync(jobs, index, directory);
        }
        self.end(jobs, index);
        Ok(())
    }

    fn sync(&mut self, jobs: &mut Jobs<'_>, index: usize, file: &Rc<OwnedFd>) -> Result<(), Broken> {
        // SAFETY: a sync has no bytes.
        unsafe { self.disk.begin(index, file, Work::Sync)? };
        jobs.get(index).in_flight += 1;
        Ok(())
    }

    fn fail(&mut self, jobs: &mut Jobs<'_>, index: usize, error: &std::io::Error) -> Result<(), Broken> {
        jobs.get(index).failed = Some(reject::code_of(error));
        self.end(jobs, index);
        Ok(())
    }

    fn end(&mut self, jobs: &mut Jobs<'_>, index: usize) {
        let Job { message, part, failed, withdrawn, .. } = jobs.remove(index);
        if withdrawn {
            // Its sender is gone, or heard from the daemon that the bytes were corrupt. What is written stays: it may
            // come again.
            self.received.withdrawn += 1;
            if let Some(part) = part {
                self.parts.leave(part);
            }
            message.consume();
            return;
        }
        match failed {
            Some(code) => {
                let mut what = reject::explain(code.get());
                if let Some(part) = part {
                    what = format!("{}: {what}", self.parts.name(part));
                    self.parts.discard(part);
                    self.parts.leave(part);
                }
                self.complain(what);
                message.reject(code);
            }
            None => {
                if let Some(part) = part {
                    self.parts.leave(part);
                }
                self.received.messages += 1;
                message.consume();
            }
        }
    }
}
