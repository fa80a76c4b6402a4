//! Bytes that leave a process: the messages between hosts and the shared session segment.
//!
//! The crate has five parts, and nothing else:
//!
//! * [`message`]: the headers that a sender and a receiver exchange over a NIC. They are little-endian,
//!   versioned, and read in place with `zerocopy`. Parsing returns a checked view or a typed error, and never
//!   panics.
//! * [`in_place`]: messages of applications, with fields of variable length, read where they lie. The code is
//!   derived.
//! * [`segment`] and [`ring`]: the memory that the daemon shares with one application, with the lock-free
//!   single-producer single-consumer rings and slot words in it.
//! * [`link`] and [`sleep`]: shared words. With those of `link` two ends over shared memory end a connection.
//!   With those of `sleep` no end sleeps while there is something to do.
//! * [`turn`]: words by which the calls of one process take turns at an object, without waiting.
//!
//! Lock-free algorithms belong in this crate: code that depends on the order in which two threads see each
//! other's stores. They are model-checked with loom
//! (`RUSTFLAGS="--cfg loom" cargo test -p jet-wire --release`).
//!
//! What this crate does *not* do: it opens no file, maps no memory, makes no system call and reads no clock.
#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod in_place;
pub mod link;
pub mod message;
pub mod planted;
pub mod ring;
pub mod segment;
pub mod sleep;
mod sync;
mod text;
pub mod turn;

/// Bytes of one slab: the unit of the pool, and the most payload that a small message carries (Jet §4.2: 4
/// KB).
pub const SLAB_BYTES: usize = 4096;
/// [`SLAB_BYTES`] as a `u32`, the type of lengths on the wire.
pub const SLAB_BYTES_U32: u32 = 4096;
