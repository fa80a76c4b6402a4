//! Times at which a message passed its hand-overs, as the receiving side notes them for the sending one.
//!
//! They lie in memory that both processes map. Time is the system's monotonic clock, which all processes of a
//! machine share. Reading it takes 25 to 50 ns, which a trace adds to each hand-over.

use crate::rig::path_for_children;
use jet_fabric::memory::{Mapping, Protection, SharedMemory};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Messages that have a place. A trace is of so many.
pub(super) const MESSAGES: u64 = 4096;
/// Tag of the first message of a trace. The others follow.
pub(super) const FIRST: u64 = 1;
/// Tag of messages that are not traced: nothing is noted of them, and no clock is read.
pub(super) const UNTRACED: u64 = 0;
/// Hand-overs that have a place: a cache line for each message.
const PLACES: usize = 8;
const BYTES: usize = 4096 * PLACES * size_of::<u64>();

/// Hand-over at the receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The reactor's turn begins in which the message is delivered.
    Turn,
    /// The application has the message.
    Taken,
    /// The application has given the message back.
    GivenBack,
    /// The reactor's turn ends in which the message's end was sent.
    Answered,
}

/// Nanoseconds of the clock that all processes of this machine share.
#[inline]
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Seconds since the machine's start, and below a thousand million nanoseconds.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Memory of the stamps.
pub(super) enum Stamps {
    /// Of the process that made it.
    Own(SharedMemory),
    /// Of a process that it starts.
    Opened(Mapping),
}

impl Stamps {
    pub(super) fn new() -> std::io::Result<Self> {
        SharedMemory::new("jet-stamps", BYTES, false).map(Self::Own)
    }

    /// Opens the memory that another process has made.
    pub(super) fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self::Opened(Mapping::map_received(file.as_fd(), Protection::ReadWrite, BYTES as u64)?))
    }

    /// Returns the path by which a child process opens this memory.
    pub(super) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Own(memory) => Some(path_for_children(memory)),
            Self::Opened(_) => None,
        }
    }

    fn place(&self, message: u64, at: At) -> &AtomicU64 {
        let base = match self {
            Self::Own(memory) => memory.base(),
            Self::Opened(mapping) => mapping.base(),
        };
        let index = usize::try_from(message % MESSAGES).expect("a small number") * PLACES + at as usize;
        // SAFETY: the mapping has `BYTES` bytes and lives as long as `self`; everybody touches it as atomics.
        unsafe { &*base.cast::<AtomicU64>().add(index) }
    }

    /// Notes when a message passed a hand-over.
    #[inline]
    pub(super) fn note(&self, message: u64, at: At, ns: u64) {
        if message != UNTRACED {
            self.place(message, at).store(ns, Ordering::Relaxed);
        }
    }

    /// Notes that a message passes a hand-over now.
    #[inline]
    pub(super) fn note_now(&self, message: u64, at: At) {
        if message != UNTRACED {
            self.note(message, at, now_ns());
        }
    }

    /// Returns when a message passed a hand-over. Whoever asks has heard of the message's end, so what was
    /// noted before that is there. [`At::Answered`] is noted after it, and may not be there for the last one.
    pub(super) fn read(&self, message: u64, at: At) -> u64 {
        self.place(message, at).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_notes_the_other_reads() {
        let own = Stamps::new().unwrap();
        let opened = Stamps::open(&own.path().unwrap()).unwrap();
        opened.note(7, At::Taken, 70);
        opened.note(7, At::Answered, 71);
        opened.note(MESSAGES - 1, At::Turn, 72);
        assert_eq!((own.read(7, At::Taken), own.read(7, At::Answered), own.read(7, At::Turn)), (70, 71, 0));
        assert_eq!(own.read(2 * MESSAGES - 1, At::Turn), 72);
        let before = now_ns();
        assert!(now_ns() >= before && before > 0);
    }
}
