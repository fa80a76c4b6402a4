//! A program's own memory, from which its senders send without a copy.

use super::buffer::SendBuffer;
use jet_fabric::advice::Advised;
use jet_fabric::memory::{AdoptError, SharedMemory};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of the program: an arena, out of which it takes the buffers that it sends.
///
/// Each sender that is to send from it registers it once ([`super::Sender::register`]). A clone is a handle
/// of the same memory, which lives as long as a handle, a buffer, or a sender that registered it.
#[derive(Clone)]
pub struct SendMemory(Arc<Arena>);

/// The memory, and which parts of it are taken.
pub(super) struct Arena {
    memory: Arc<SharedMemory>,
    /// Buffers that live, as ranges: where each begins and ends. They do not overlap.
    taken: Mutex<BTreeMap<usize, usize>>,
}

/// Reason why memory cannot be sent from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendMemoryError {
    /// The memory could not be allocated.
    #[error("cannot get {bytes} bytes to send from: {}",
            Advised { error: source, otherwise: "check the memory limit" })]
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
        /// Error of the system.
        source: io::Error,
    },
    /// The program's file cannot be used.
    #[error(transparent)]
    File(#[from] AdoptError),
}

/// Reason why a range of a memory was not taken. The program is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    /// The range has no byte, or ends before it begins.
    #[error("the range {}..{} has no byte", .range.start, .range.end)]
    Empty {
        /// Range that was asked for.
        range: Range<usize>,
    },
    /// The range ends beyond the memory.
    #[error("the range {}..{} ends beyond the memory's {bytes} bytes", .range.start, .range.end)]
    Beyond {
        /// Range that was asked for.
        range: Range<usize>,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// A buffer that still lives has bytes of the range.
    #[error(
        "bytes of the range {}..{} are taken: a buffer has {}..{}",
        .range.start, .range.end, .by.start, .by.end
    )]
    Taken {
        /// Range that was asked for.
        range: Range<usize>,
        /// Range of the buffer.
        by: Range<usize>,
    },
}

impl SendMemory {
    /// Makes zeroed memory of at least `bytes` bytes, on huge pages where there are enough.
    ///
    /// # Errors
    /// [`SendMemoryError::Memory`].
    pub fn new(bytes: usize) -> Result<Self, SendMemoryError> {
        let memory = SharedMemory::new("jet-send", bytes, true)
            .and_then(|memory| memory.seal_future_writes().map(|()| memory))
            .map_err(|source| SendMemoryError::Memory { bytes, source })?;
        Ok(Self::of(memory))
    }

    /// Makes memory of a file that the program has: one of `memfd_create` with `MFD_ALLOW_SEALING`, on huge
    /// pages or others, of a whole number of pages. Its bytes stay what they are.
    ///
    /// The file is sealed: its length cannot change any more, and nobody can map it for writing later, since
    /// a receiver over `shm:` gets the file. What the program has mapped before stays writable.
    ///
    /// # Safety
    /// As long as a buffer of a range lives ([`Self::take`]), nobody writes the range but through that
    /// buffer, and nobody reads it while the buffer is being written. The range of a buffer that is in flight
    /// is not written at all.
    ///
    /// # Errors
    /// [`SendMemoryError::File`].
    pub unsafe fn from_file(file: OwnedFd) -> Result<Self, SendMemoryError> {
        Ok(Self::of(SharedMemory::adopt(file)?))
    }

    fn of(memory: SharedMemory) -> Self {
        Self(Arc::new(Arena { memory: Arc::new(memory), taken: Mutex::new(BTreeMap::new()) }))
    }

    /// Returns the memory's length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.memory.bytes()
    }

    /// Takes a range of the memory as a buffer. Its bytes are what they were. The range is free again when
    /// the buffer is dropped.
    ///
    /// This takes a lock. A buffer comes back with its message's end, to be used again.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn take(&self, range: Range<usize>) -> Result<SendBuffer, TakeError> {
        if range.is_empty() {
            return Err(TakeError::Empty { range });
        }
        let bytes = self.bytes();
        if range.end > bytes {
            return Err(TakeError::Beyond { range, bytes });
        }
        let mut taken = self.0.taken();
        // Ranges that are taken do not overlap, so only the last one that begins before the end can be in the
        // way.
        if let Some((&start, &end)) = taken.range(..range.end).next_back()
            && end > range.start
        {
            return Err(TakeError::Taken { range, by: start..end });
        }
        taken.insert(range.start, range.end);
        drop(taken);
        Ok(SendBuffer::of_arena(&self.0, range))
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.0
    }
}

impl Arena {
    pub(super) fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Gives back the range that begins there.
    pub(super) fn give(&self, start: usize) {
        self.taken().remove(&start);
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // A panic cannot leave the map half changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendMemory").field("bytes", &self.memory.bytes()).finish_non_exhaustive()
    }
}

impl fmt::Debug for SendMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
