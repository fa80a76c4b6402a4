//! New messages, and the slices of those that are arriving.

use super::job::{Job, Then};
use super::{Broken, Jobs, Receiving};
use crate::files::header::{FileHeader, HeaderError, Kind, PathField, TAG};
use crate::files::parts::Key;
use crate::files::path::{RelativePath, printable};
use crate::files::reject;
use jet_client::receive::{DetachedSlice, Message, Session, Slice, SliceError};
use jet_wire::SLAB_BYTES;
use std::io;
use std::num::NonZeroU32;
use std::task::Poll;
use std::time::Instant;

/// Writes that a slice may become: whole slabs, and what is left of the last one.
pub(super) const ROOM_PER_SLICE: usize = 2;

/// Why a message is rejected at once.
struct Refused {
    code: NonZeroU32,
    what: String,
}

impl Refused {
    fn header(what: impl Into<String>) -> Self {
        Self { code: reject::HEADER_REFUSED, what: what.into() }
    }

    fn system(path: RelativePath<'_>, error: &io::Error) -> Self {
        let code = reject::code_of(error);
        Self { code, what: format!("{path}: {}", reject::explain(code.get())) }
    }
}

impl Receiving {
    /// Takes a new message.
    pub(super) fn take<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        mut message: Message<'s>,
    ) -> Result<(), Broken> {
        if message.redelivered() {
            self.received.redelivered += 1;
        }
        // Copied, because the message goes on while the path is used.
        let mut bytes = [0; jet_wire::message::USER_HEADER_MAX];
        let length = message.user_header().len();
        bytes[..length].copy_from_slice(message.user_header());
        let taken = self.read_header(&message, &bytes[..length]);
        let refused = match taken {
            Ok(header) => {
                let key = (message.sender(), header.file_id);
                match header.kind {
                    Kind::Path => match self.take_path(&mut message, key)? {
                        Ok(()) => {
                            self.received.messages += 1;
                            message.consume();
                            return Ok(());
                        }
                        Err(refused) => refused,
                    },
                    Kind::Piece => match self.begin_piece(&message, &header) {
                        Ok((part, then)) => {
                            let index = jobs.insert(Job {
                                message,
                                key,
                                part: Some(part),
                                offset: header.offset,
                                mode: header.mode,
                                then,
                                in_flight: 0,
                                taken: false,
                                synced: false,
                                failed: None,
                                withdrawn: false,
                            });
                            self.feed(session, jobs, index)?;
                            return Ok(());
                        }
                        Err(refused) => refused,
                    },
                    Kind::Directory | Kind::Complete | Kind::Abandoned => {
                        match self.name(&message, &header) {
                            Ok(None) => {
                                self.received.messages += 1;
                                message.consume();
                                return Ok(());
                            }
                            Ok(Some(directory)) => {
                                let index = jobs.insert(Job {
                                    message,
                                    key,
                                    part: None,
                                    offset: 0,
                                    mode: header.mode,
                                    then: Then::Named,
                                    in_flight: 0,
                                    taken: true,
                                    synced: false,
                                    failed: None,
                                    withdrawn: false,
                                });
                                return self.named(jobs, index, &directory);
                            }
                            Err(refused) => refused,
                        }
                    }
                }
            }
            Err(refused) => refused,
        };
        // A path that has to be said again is no complaint: it heals itself.
        if refused.code != reject::PATH_UNKNOWN {
            self.complain(refused.what);
        }
        message.reject(refused.code);
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
        if !matches!(header.kind, Kind::Piece | Kind::Path) && message.bytes() > 0 {
            return Err(Refused::header("a message with bytes where there are to be none"));
        }
        Ok(header)
    }

    fn take_path(&mut self, message: &mut Message<'_>, key: Key) -> Result<Result<(), Refused>, Broken> {
        match message.try_next() {
            Ok(Poll::Ready(Some(slice))) if slice.len() as u64 == message.bytes() => {
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

    fn path<'a>(&'a self, key: Key, header: &FileHeader<'a>) -> Result<RelativePath<'a>, Refused> {
        match header.path {
            PathField::Here(path) => Ok(path),
            PathField::Elsewhere => self
                .paths
                .get(key)
                .and_then(|path| RelativePath::new(path).ok())
                .ok_or_else(|| Refused { code: reject::PATH_UNKNOWN, what: String::new() }),
        }
    }

    fn begin_piece(
        &mut self,
        message: &Message<'_>,
        header: &FileHeader<'_>,
    ) -> Result<(crate::files::parts::PartIndex, Then), Refused> {
        let key = (message.sender(), header.file_id);
        let path = self.path(key, header)?.as_bytes().to_vec();
        let path = RelativePath::new(&path).expect("checked before");
        let bytes = message.bytes();
        if header.offset.checked_add(bytes).is_none_or(|end| end > header.file_bytes) {
            let file = header.file_bytes;
            return Err(Refused::header(format!(
                "{path}: a piece of {bytes} bytes at {} lies outside its file of {file}",
                header.offset
            )));
        }
        let whole = header.offset == 0 && bytes == header.file_bytes;
        match self.parts.enter(key, path, header.file_bytes) {
            Ok(part) => Ok((part, if whole { Then::Complete } else { Then::Nothing })),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() => {
                Err(Refused::header(format!("{path}: its length is another than in the piece before")))
            }
            Err(error) => Err(Refused::system(path, &error)),
        }
    }

    /// Messages without bytes. Gives the directory that has to be synced where a name was made.
    fn name(
        &mut self,
        message: &Message<'_>,
        header: &FileHeader<'_>,
    ) -> Result<Option<std::rc::Rc<std::os::fd::OwnedFd>>, Refused> {
        let key = (message.sender(), header.file_id);
        let path = self.path(key, header)?.as_bytes().to_vec();
        let path = RelativePath::new(&path).expect("checked before");
        match header.kind {
            Kind::Complete => {
                let again = message.redelivered();
                match self.parts.complete_file(key, path, header.file_bytes, header.mode, again) {
                    Ok(named) => {
                        self.received.files += u64::from(named.first);
                        self.paths.forget(key);
                        Ok(Some(named.directory))
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Refused {
                        code: reject::INCOMPLETE,
                        what: format!("{path}: {}", reject::explain(reject::INCOMPLETE.get())),
                    }),
                    Err(error) => Err(Refused::system(path, &error)),
                }
            }
            Kind::Abandoned => {
                self.parts.abandon_file(key, path).map_err(|error| Refused::system(path, &error))?;
                self.received.abandoned += 1;
                self.paths.forget(key);
                Ok(None)
            }
            _ => {
                let directory = self
                    .parts
                    .make_directory(path, header.mode)
                    .map_err(|error| Refused::system(path, &error))?;
                self.received.directories += 1;
                Ok(Some(directory))
            }
        }
    }

    /// Takes the slices of a message that have arrived. `false`: none had.
    pub(super) fn feed<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        index: usize,
    ) -> Result<bool, Broken> {
        let mut fed = false;
        loop {
            let job = jobs.get(index);
            if job.taken || job.withdrawn || job.failed.is_some() || self.room() < ROOM_PER_SLICE {
                return Ok(fed);
            }
            match job.message.try_next() {
                Ok(Poll::Pending) => return Ok(fed),
                Ok(Poll::Ready(Some(slice))) => {
                    fed = true;
                    if self.slowness.holds() {
                        job.in_flight += 1;
                        self.received.held += 1;
                        self.slowness.hold((index, slice.detach()), Instant::now());
                        continue;
                    }
                    self.write_slice(session, jobs, index, slice)?;
                    if jobs.get(index).failed.is_some() {
                        self.advance(jobs, index)?;
                        return Ok(true);
                    }
                }
                Ok(Poll::Ready(None)) => {
                    job.taken = true;
                    self.advance(jobs, index)?;
                    return Ok(true);
                }
                Err(SliceError::Withdrawn { .. }) => {
                    job.withdrawn = true;
                    self.advance(jobs, index)?;
                    return Ok(true);
                }
                Err(SliceError::TimedOut) => return Ok(fed),
                Err(SliceError::Receive(error)) => return Err(error.into()),
            }
        }
    }

    /// A slice was held long enough.
    pub(super) fn write_held<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        index: usize,
        slice: DetachedSlice,
    ) -> Result<(), Broken> {
        let slice = session.attach_slice(slice);
        let job = jobs.get(index);
        job.in_flight -= 1;
        // Of a message that failed meanwhile, or whose rest does not come, nothing more is written.
        if job.failed.is_some() || job.withdrawn {
            drop(slice);
        } else {
            self.write_slice(session, jobs, index, slice)?;
        }
        self.advance(jobs, index)
    }

    /// Whole slabs can go straight to the device; what is left of the last one goes on its own.
    fn write_slice<'s>(
        &mut self,
        session: &'s Session,
        jobs: &mut Jobs<'s>,
        index: usize,
        slice: Slice<'s>,
    ) -> Result<(), Broken> {
        if slice.is_empty() {
            return Ok(());
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
