//! The whole of a message, copied out: each slice is given back as soon as it was copied, so that the message
//! may be larger than the pool.

use super::error::SliceError;
use super::message::Message;
use super::slice::Slice;
use std::collections::TryReserveError;
use std::time::{Duration, Instant};

/// Why a message was not copied out, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The place is too small. Nothing was taken.
    #[error("the message has {bytes} bytes, and the place for it {room}")]
    Room {
        /// The message's length.
        bytes: u64,
        /// The place's.
        room: usize,
    },
    /// There is no memory for it. The slice at fault was given back, and its bytes are lost.
    #[error(
        "there is no memory for a message of {bytes} bytes: {source}; check its length before, or reject it"
    )]
    Memory {
        /// The message's length.
        bytes: u64,
        /// What the allocator said.
        source: TryReserveError,
    },
    /// The next slice did not come. What came before it was copied; where it is only late, copy again: what
    /// is missing follows.
    #[error(transparent)]
    Slice(#[from] SliceError),
}

impl Message<'_> {
    /// Copies what is left of the message to where it belongs in `to`, which is the place of the whole
    /// message, and gives each slice back at once. Waits for what has not come, without limit or at most so
    /// long altogether. Returns how many bytes it copied: all of the message, but for slices that were taken
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

    /// As [`Self::copy_to`], with a vector as the place, which grows as slices come and has the message's
    /// length at the end. So no more memory is taken than for what came, whatever length the sender
    /// announced. What was taken before is left as it is, or zeros.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn read_to_end(&mut self, to: &mut Vec<u8>, timeout: Option<Duration>) -> Result<u64, CopyError> {
        let bytes = self.bytes();
        let copied = self.copy_each(timeout, |slice| copy_growing(slice, to, bytes))?;
        self.fit(to)?;
        Ok(copied)
    }

    /// As [`Self::copy_to`]. Cancelled, it loses nothing: copy again.
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

    /// As [`Self::read_to_end`]. Cancelled, it loses nothing: read again, with the same vector.
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

    /// All of it came, as far as it was not taken before: the vector gets its length.
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

/// Where a slice lies in its message, which is known to fit what can be addressed.
fn place(slice: &Slice<'_>) -> std::ops::Range<usize> {
    let start = usize::try_from(slice.offset()).expect("a message that fits memory has offsets within it");
    start..start + slice.len()
}

fn copy(slice: &Slice<'_>, to: &mut [u8]) {
    // Within the message, which `to` has room for: checked when the slice was delivered, and before.
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
