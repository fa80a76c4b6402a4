//! The buffers of a conventional receiver: each connection has its own set, or all connections share one
//! pool.
//!
//! The shared pool has the sizes of the pool that SPDK's NVMe-oF target has over RDMA by default.
//! `SPDK_NVMF_RDMA_DEFAULT_NUM_SHARED_BUFFERS` is 4095. A buffer has `SPDK_NVMF_RDMA_DEFAULT_MAX_IO_SIZE /
//! SPDK_NVMF_MAX_SGL_ENTRIES` = 131,072 / 16 bytes (`lib/nvmf/rdma.c`). SPDK uses last in, first out only for
//! the 32 buffers that each thread keeps at hand (`SPDK_NVMF_RDMA_DEFAULT_BUFFER_CACHE_SIZE`). Beneath them
//! lies a ring, first in, first out (`spdk_iobuf_get` and `spdk_iobuf_put` in `lib/thread/iobuf.c`). Here the
//! whole pool is a stack (last in, first out): of the two orders the better one for the cache.

use super::traffic::Shape;
use jet_wire::SLAB_BYTES;
use std::collections::VecDeque;

/// Number of buffers of the shared pool.
const POOL_BUFFERS: u32 = 4095;
/// Number of bytes of each buffer of the shared pool.
const POOL_BUFFER_BYTES: usize = 8 << 10;

/// Kinds of buffers that a conventional receiver can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Each connection has its own buffers, as many as messages may be under way on it
    Own,
    /// All connections share a pool of buffers of 32 MiB
    Shared,
}

/// A receiver's buffers, and which of them are free. Buffers are numbered in the order in which they lie in
/// memory, without gaps.
pub struct Buffers {
    free: Free,
    /// Bytes of one buffer.
    buffer_bytes: usize,
    count: u32,
    in_use: u32,
}

enum Free {
    /// Free buffers by connection, the one that has been free for longest first.
    Own(Vec<VecDeque<u32>>),
    /// Free buffers of the pool, the one that was returned last on top.
    Shared(Vec<u32>),
}

impl Buffers {
    /// Makes the buffers of a receiver, all of them free.
    pub fn new(kind: Kind, shape: Shape) -> Self {
        let (connections, depth) = (shape.connections, shape.depth);
        let (free, buffer_bytes, count) = match kind {
            Kind::Own => {
                let count = u32::try_from(connections * depth).expect("places are counted by 32 bits");
                let each = u32::try_from(depth).expect("as above");
                let own = |first: u32| (first..first + each).collect();
                let free = (0..count).step_by(depth).map(own).collect();
                (Free::Own(free), shape.message_bytes.next_multiple_of(SLAB_BYTES), count)
            }
            // The first buffer is on top.
            Kind::Shared => {
                (Free::Shared((0..POOL_BUFFERS).rev().collect()), POOL_BUFFER_BYTES, POOL_BUFFERS)
            }
        };
        Self { free, buffer_bytes, count, in_use: 0 }
    }

    /// Returns the number of bytes of all buffers together.
    pub fn bytes(&self) -> usize {
        self.count as usize * self.buffer_bytes
    }

    /// Returns the number of bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Takes as many free buffers as `bytes` bytes need, and adds their numbers to `taken`. `false`: there
    /// are not enough free buffers now, and none is taken.
    pub fn take(&mut self, connection: usize, bytes: usize, taken: &mut Vec<u32>) -> bool {
        let count = bytes.div_ceil(self.buffer_bytes).max(1);
        match &mut self.free {
            Free::Own(free) => match free[connection].pop_front() {
                Some(buffer) => taken.push(buffer),
                None => return false,
            },
            Free::Shared(free) => {
                let Some(left) = free.len().checked_sub(count) else { return false };
                taken.extend(free.drain(left..).rev());
            }
        }
        self.in_use += u32::try_from(count).expect("less than there are");
        true
    }

    /// Makes the buffers in `taken` free again, and empties the list.
    pub fn give(&mut self, connection: usize, taken: &mut Vec<u32>) {
        self.in_use -= u32::try_from(taken.len()).expect("less than there are");
        match &mut self.free {
            Free::Own(free) => free[connection].extend(taken.drain(..)),
            Free::Shared(free) => free.extend(taken.drain(..).rev()),
        }
    }

    /// Returns the number of bytes of the buffers that are not free.
    pub fn in_use_bytes(&self) -> usize {
        self.in_use as usize * self.buffer_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { connections: 3, depth: 4, message_bytes: 256 << 10 };

    fn taken(buffers: &mut Buffers, connection: usize, bytes: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        assert!(buffers.take(connection, bytes, &mut taken));
        taken
    }

    #[test]
    fn the_pool_is_spdks_default_and_its_last_given_is_the_first_taken() {
        let mut buffers = Buffers::new(Kind::Shared, SHAPE);
        assert_eq!((buffers.bytes(), buffers.buffer_bytes()), (4095 * 8192, 8192));
        let mut first = taken(&mut buffers, 0, 256 << 10);
        let mut second = taken(&mut buffers, 1, 20_000);
        assert_eq!((first.len(), second.len()), (32, 3));
        let (had, had_last) = (first.clone(), second.clone());
        buffers.give(0, &mut first);
        buffers.give(1, &mut second);
        // The next message gets them, on any connection and in the same order.
        assert_eq!(taken(&mut buffers, 2, 20_000), had_last);
        assert_eq!(taken(&mut buffers, 2, 256 << 10), had);
    }

    #[test]
    fn no_more_of_the_pool_is_gone_through_than_is_in_use_at_once() {
        let mut buffers = Buffers::new(Kind::Shared, SHAPE);
        let mut gone_through = std::collections::BTreeSet::new();
        let mut held: VecDeque<Vec<u32>> = VecDeque::new();
        let mut most = 0;
        for step in 0..1000usize {
            let message = taken(&mut buffers, 0, 4096 + (step * 7919) % 200_000);
            gone_through.extend(message.iter().copied());
            held.push_back(message);
            most = most.max(buffers.in_use_bytes());
            // Given back in an order that is neither of the two: not first in, first out, and not last in,
            // first out.
            let given = if step % 3 == 0 { held.pop_front() } else { held.remove(held.len() / 2) };
            buffers.give(0, &mut given.expect("one was just taken"));
            if step % 5 == 0 && held.len() < 6 {
                held.push_back(taken(&mut buffers, 0, 8192));
                gone_through.extend(held.back().expect("just taken").iter().copied());
                most = most.max(buffers.in_use_bytes());
            }
        }
        assert_eq!(gone_through.len() * 8192, most);
    }

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let mut buffers = Buffers::new(Kind::Shared, SHAPE);
        let mut all = taken(&mut buffers, 0, 4090 * 8192);
        let mut none = Vec::new();
        assert!(!buffers.take(0, 6 * 8192, &mut none) && none.is_empty());
        assert!(buffers.take(0, 5 * 8192, &mut none));
        assert_eq!(buffers.in_use_bytes(), buffers.bytes());
        buffers.give(0, &mut all);
        assert_eq!(buffers.in_use_bytes(), 5 * 8192);
    }

    #[test]
    fn a_connections_own_are_gone_through_in_turn() {
        let mut buffers = Buffers::new(Kind::Own, SHAPE);
        assert_eq!(buffers.bytes(), SHAPE.bytes());
        for turn in [4, 5, 6, 7, 4, 5] {
            let mut own = taken(&mut buffers, 1, 256 << 10);
            assert_eq!(own, [turn]);
            buffers.give(1, &mut own);
        }
        let all: Vec<u32> = (0..4).flat_map(|_| taken(&mut buffers, 2, 1)).collect();
        assert_eq!(all, [8, 9, 10, 11]);
        assert!(!buffers.take(2, 1, &mut Vec::new()));
    }
}
