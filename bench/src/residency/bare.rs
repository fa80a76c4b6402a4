//! The bare loop, the machine's limit for any receiver: one thread copies each message into the next place of
//! a ring, and reads it there.

use super::traffic::Shape;
use crate::rig::read_all;
use jet_fabric::memory::SharedMemory;
use std::io;
use std::time::{Duration, Instant};

/// A ring of memory, and a message to copy into it.
pub struct Ring {
    memory: SharedMemory,
    source: Box<[u8]>,
    next: usize,
}

impl Ring {
    /// Makes a ring of `bytes`, rounded up to whole messages. The memory is of the same kind as the
    /// receivers' buffers.
    ///
    /// # Errors
    /// An error of the system.
    pub fn new(bytes: usize, message_bytes: usize) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(message_bytes).next_multiple_of(4096);
        let source = vec![0x5a; message_bytes].into_boxed_slice();
        Ok(Self { memory: SharedMemory::new("jet-bare", bytes, true)?, source, next: 0 })
    }

    /// Copies and reads messages for `span`, and returns GB/s.
    pub fn run(&mut self, span: Duration) -> f64 {
        let bytes = self.source.len();
        let (start, mut messages, mut sum) = (Instant::now(), 0u32, 0u64);
        while start.elapsed() < span {
            // SAFETY: within the ring, whose length is whole messages and more; nobody else knows of this
            // memory.
            let place = unsafe { std::slice::from_raw_parts_mut(self.memory.base().add(self.next), bytes) };
            place.copy_from_slice(&self.source);
            sum = sum.wrapping_add(read_all(std::hint::black_box(place)));
            self.next += bytes;
            if self.next + bytes > self.memory.bytes() {
                self.next = 0;
            }
            messages += 1;
        }
        std::hint::black_box(sum);
        #[allow(clippy::cast_precision_loss)] // a rate
        let bytes = bytes as f64;
        f64::from(messages) * bytes / 1e9 / start.elapsed().as_secs_f64()
    }
}

/// The sizes of rings that are measured: that of a core's own cache, of Jet's pool, and of a conventional
/// receiver's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A ring of 1.5 MiB, which a core's own cache holds.
    Own,
    /// A ring of 12 MiB, as large as Jet's pool.
    Pool,
    /// A ring as large as the messages that may be under way on all connections together.
    Connections,
}

impl Size {
    /// All sizes of rings.
    pub const ALL: [Self; 3] = [Self::Own, Self::Pool, Self::Connections];

    /// Returns the name of a ring of this size in the benchmark's rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "a ring of 1.5 MiB",
            Self::Pool => "a ring of 12 MiB",
            Self::Connections => "a ring of all connections' buffers",
        }
    }

    /// Returns the name of a ring of this size in the table (CSV) and in file names.
    pub fn key(self) -> &'static str {
        match self {
            Self::Own => "bare-own-cache",
            Self::Pool => "bare-pool",
            Self::Connections => "bare-connections",
        }
    }

    /// Returns the number of bytes of a ring of this size.
    pub fn bytes(self, shape: Shape) -> usize {
        match self {
            Self::Own => 3 << 19,
            Self::Pool => 12 << 20,
            Self::Connections => shape.bytes(),
        }
    }
}
