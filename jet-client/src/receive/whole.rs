//! Copying a whole message out. Each slice is given back as soon as it was copied, so the message may be
//! larger than the pool.

use super::error::SliceError;
use super::message::Message;
use super::shared::{OwnedMessage, OwnedSlice};
use super::slice::Slice;
use std::collections::TryReserveError;
use std::ops::{Deref, Range};
use std::time::{Duration, Instant};

/// Reason why a message was not copied out, or not all of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The buffer is smaller than the message. Nothing was taken.
    #[error("the message has {bytes} bytes, and the place for it {room}")]
    Room {
        /// Length of the message, in bytes.
        bytes: u64,
        /// Length of the buffer, in bytes.
        room: usize,
    },
    /// The memory for the message could not be allocated. The slice that did not fit was given back, and its
    /// bytes are lost.
    #[error(
        "there is no memory for a message of {bytes} bytes: {source}; check its length before, or reject it"
    )]
    Memory {
        /// Length of the message, in bytes.
        bytes: u64,
        /// Error of the allocator.
        source: TryReserveError,
    },
    /// The next slice did not arrive. Slices before it were copied. Where the slice is only late, copy again:
    /// the missing bytes follow.
    #[error(transparent)]
    Slice(#[from] SliceError),
}

impl CopyError {
    /// Whether only the rest has not arrived yet.
    pub fn is_not_yet(&self) -> bool {
        matches!(self, Self::Slice(error) if error.is_not_yet())
    }
}

/// A slice of either kind.
trait Piece: Deref<Target = [u8]> {
    fn offset(&self) -> u64;

    /// Returns the range of the slice in its message. The message must fit the address space.
    fn place(&self) -> Range<usize> {
        let start = usize::try_from(self.offset()).expect("a message that fits memory has offsets within it");
        start..start + self.len()
    }
}

impl Piece for Slice<'_> {
    fn offset(&self) -> u64 {
        self.offset()
    }
}

impl Piece for OwnedSlice {
    fn offset(&self) -> u64 {
        self.offset()
    }
}

/// Defines how a message of either kind is copied out by the thread that calls.
macro_rules! copied_out {
    ($message:ty) => {
        impl $message {
            /// Copies the rest of the message into `to`, which has room for the whole message: each byte goes
            /// to its offset. Gives each slice back at once, and waits for bytes that have not arrived.
            ///
            /// Returns the number of bytes that it copied: the whole message, except for slices that were
            /// taken before.
            ///
            /// # Errors
            /// [`CopyError`].
            pub fn copy_to(&mut self, to: &mut [u8]) -> Result<u64, CopyError> {
                check_room(self.bytes(), to)?;
                copy_each(None, |left| self.wait(left), |slice| copy(slice, to))
            }

            /// Copies the rest of the message like [`Self::copy_to`], and waits at most for `timeout`
            /// altogether.
            ///
            /// # Errors
            /// [`CopyError`], of which [`CopyError::is_not_yet`] says that the time ran out: copy again, to
            /// the same place.
            pub fn copy_to_timeout(&mut self, to: &mut [u8], timeout: Duration) -> Result<u64, CopyError> {
                check_room(self.bytes(), to)?;
                copy_each(Some(timeout), |left| self.wait(left), |slice| copy(slice, to))
            }

            /// Copies the rest of the message like [`Self::copy_to`], into a vector. The vector grows as
            /// slices arrive, and has the message's length at the end. So memory is allocated only for bytes
            /// that arrived, whatever length the sender announced. The bytes of slices that were taken before
            /// keep their values, or are zeros. Unlike [`std::io::Read::read_to_end`] it appends nothing:
            /// each byte goes to its offset.
            ///
            /// # Errors
            /// [`CopyError`].
            pub fn read_to_end(&mut self, to: &mut Vec<u8>) -> Result<u64, CopyError> {
                let bytes = self.bytes();
                let copied = copy_each(None, |left| self.wait(left), |slice| copy_growing(slice, to, bytes))?;
                fit(to, bytes)?;
                Ok(copied)
            }

            /// Copies the rest of the message like [`Self::read_to_end`], and waits at most for `timeout`
            /// altogether.
            ///
            /// # Errors
            /// [`CopyError`], of which [`CopyError::is_not_yet`] says that the time ran out: copy again, to
            /// the same place.
            pub fn read_to_end_timeout(
                &mut self,
                to: &mut Vec<u8>,
                timeout: Duration,
            ) -> Result<u64, CopyError> {
                let bytes = self.bytes();
                let grow = |slice: &_| copy_growing(slice, to, bytes);
                let copied = copy_each(Some(timeout), |left| self.wait(left), grow)?;
                fit(to, bytes)?;
                Ok(copied)
            }
        }
    };
}

copied_out!(Message<'_>);
copied_out!(OwnedMessage);

#[cfg(feature = "tokio")]
impl OwnedMessage {
    /// Copies the rest of the message like [`Self::copy_to`], as a future. Cancelling the future loses
    /// nothing: copy again, to the same place.
    ///
    /// # Errors
    /// [`CopyError`].
    pub async fn copy_to_async(&mut self, to: &mut [u8]) -> Result<u64, CopyError> {
        check_room(self.bytes(), to)?;
        let mut copied = 0;
        while let Some(slice) = self.next_async().await? {
            copy(&slice, to)?;
            copied += slice.len() as u64;
        }
        Ok(copied)
    }

    /// Copies the rest of the message like [`Self::read_to_end`], as a future. Cancelling the future loses
    /// nothing: read again, with the same vector.
    ///
    /// # Errors
    /// [`CopyError`].
    pub async fn read_to_end_async(&mut self, to: &mut Vec<u8>) -> Result<u64, CopyError> {
        let bytes = self.bytes();
        let mut copied = 0;
        while let Some(slice) = self.next_async().await? {
            copy_growing(&slice, to, bytes)?;
            copied += slice.len() as u64;
        }
        fit(to, bytes)?;
        Ok(copied)
    }
}

fn check_room(bytes: u64, to: &[u8]) -> Result<(), CopyError> {
    if bytes > to.len() as u64 { Err(CopyError::Room { bytes, room: to.len() }) } else { Ok(()) }
}

/// Takes slices until there are no more. `next` waits for one, for as long as it is told.
fn copy_each<S: Piece>(
    timeout: Option<Duration>,
    mut next: impl FnMut(Option<Duration>) -> Result<Option<S>, SliceError>,
    mut take: impl FnMut(&S) -> Result<(), CopyError>,
) -> Result<u64, CopyError> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut copied = 0;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let Some(slice) = next(left)? else { return Ok(copied) };
        take(&slice)?;
        copied += slice.len() as u64;
    }
}

#[expect(clippy::unnecessary_wraps, reason = "stands in for copy_growing, which may fail")]
fn copy(slice: &impl Piece, to: &mut [u8]) -> Result<(), CopyError> {
    // The slice lies within the message, as was checked at its delivery. `to` has room for the message, as
    // was checked before.
    to[slice.place()].copy_from_slice(slice);
    Ok(())
}

fn copy_growing(slice: &impl Piece, to: &mut Vec<u8>, bytes: u64) -> Result<(), CopyError> {
    let place = slice.place();
    grow(to, place.end, bytes)?;
    to[place].copy_from_slice(slice);
    Ok(())
}

/// Gives the vector the message's length, after everything was copied.
fn fit(to: &mut Vec<u8>, bytes: u64) -> Result<(), CopyError> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    grow(to, length, bytes)?;
    to.truncate(length);
    Ok(())
}

fn grow(to: &mut Vec<u8>, length: usize, bytes: u64) -> Result<(), CopyError> {
    if length > to.len() {
        to.try_reserve(length - to.len()).map_err(|source| CopyError::Memory { bytes, source })?;
        to.resize(length, 0);
    }
    Ok(())
}
