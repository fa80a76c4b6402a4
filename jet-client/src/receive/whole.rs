//! Copying a whole message out. Each slice is given back as soon as it was copied, so the message may be
//! larger than the pool.

use super::error::SliceError;
use super::message::Message;
use super::slice::Slice;
use std::collections::TryReserveError;
use std::time::{Duration, Instant};

/// Reason why a message was not copied out, or not all of it.
#[derive(Debug, thiserror::Error)]
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

impl Message<'_> {
    /// Copies the rest of the message into `to`, which has room for the whole message: each byte goes to its
    /// offset. Gives each slice back at once. Waits for bytes that have not arrived, at most for `timeout`
    /// altogether (`None`: without limit).
    ///
    /// Returns the number of bytes that it copied: the whole message, except for slices that were taken
    /// before.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy_to(&mut self, to: &mut [u8], timeout: Option<Duration>) -> Result<u64, CopyError> {
        self.check_room(to)?;
        self.copy_each(timeout, |slice| {
            copy(slice, to);
            Ok(())
        })
    }

    /// Copies the rest of the message like [`Self::copy_to`], into a vector. The vector grows as slices
    /// arrive, and has the message's length at the end. So memory is allocated only for bytes that arrived,
    /// whatever length the sender announced. The bytes of slices that were taken before keep their values, or
    /// are zeros.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn read_to_end(&mut self, to: &mut Vec<u8>, timeout: Option<Duration>) -> Result<u64, CopyError> {
        let bytes = self.bytes();
        let copied = self.copy_each(timeout, |slice| copy_growing(slice, to, bytes))?;
        self.fit(to)?;
        Ok(copied)
    }

    /// Copies the rest of the message like [`Self::copy_to`], as a future and without limit. Cancelling the
    /// future loses nothing: copy again.
    ///
    /// # Errors
    /// [`CopyError`].
    #[cfg(feature = "tokio")]
    pub async fn copy_to_async(&mut self, to: &mut [u8]) -> Result<u64, CopyError> {
        self.check_room(to)?;
        let mut copied = 0;
        while let Some(slice) = self.next_async().await? {
            copy(&slice, to);
            copied += slice.len() as u64;
        }
        Ok(copied)
    }

    /// Copies the rest of the message like [`Self::read_to_end`], as a future and without limit. Cancelling
    /// the future loses nothing: read again, with the same vector.
    ///
    /// # Errors
    /// [`CopyError`].
    #[cfg(feature = "tokio")]
    pub async fn read_to_end_async(&mut self, to: &mut Vec<u8>) -> Result<u64, CopyError> {
        let bytes = self.bytes();
        let mut copied = 0;
        while let Some(slice) = self.next_async().await? {
            copy_growing(&slice, to, bytes)?;
            copied += slice.len() as u64;
        }
        self.fit(to)?;
        Ok(copied)
    }

    /// Gives the vector the message's length, after everything was copied.
    fn fit(&self, to: &mut Vec<u8>) -> Result<(), CopyError> {
        let bytes = self.bytes();
        grow(to, usize::try_from(bytes).unwrap_or(usize::MAX), bytes)?;
        to.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn check_room(&self, to: &[u8]) -> Result<(), CopyError> {
        let bytes = self.bytes();
        if bytes > to.len() as u64 { Err(CopyError::Room { bytes, room: to.len() }) } else { Ok(()) }
    }

    fn copy_each(
        &mut self,
        timeout: Option<Duration>,
        mut take: impl FnMut(&Slice<'_>) -> Result<(), CopyError>,
    ) -> Result<u64, CopyError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut copied = 0;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let Some(slice) = self.next(left)? else { return Ok(copied) };
            take(&slice)?;
            copied += slice.len() as u64;
        }
    }
}

/// Returns the range of a slice in its message. The message must fit the address space.
fn place(slice: &Slice<'_>) -> std::ops::Range<usize> {
    let start = usize::try_from(slice.offset()).expect("a message that fits memory has offsets within it");
    start..start + slice.len()
}

fn copy(slice: &Slice<'_>, to: &mut [u8]) {
    // The slice lies within the message, as was checked at its delivery. `to` has room for the message, as
    // was checked before.
    to[place(slice)].copy_from_slice(slice);
}

fn copy_growing(slice: &Slice<'_>, to: &mut Vec<u8>, bytes: u64) -> Result<(), CopyError> {
    grow(to, place(slice).end, bytes)?;
    copy(slice, to);
    Ok(())
}

fn grow(to: &mut Vec<u8>, length: usize, bytes: u64) -> Result<(), CopyError> {
    if length > to.len() {
        to.try_reserve(length - to.len()).map_err(|source| CopyError::Memory { bytes, source })?;
        to.resize(length, 0);
    }
    Ok(())
}
