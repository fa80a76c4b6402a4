//! Bytes that leave a process: the messages between hosts and the shared session segment.
//!
//! Four rooms, and nothing else:
//!
//! * [`message`]: the headers that a sender and a receiver exchange over a NIC. Little-endian, versioned,
//!   read in place with `zerocopy`; parsing either yields a checked view or a typed error, never a panic.
//! * [`in_place`]: messages of applications, with fields of variable length, read where they lie. The code is
//!   derived.
//! * [`segment`] and [`ring`]: the memory that the daemon shares with one application, with the lock-free
//!   single-producer single-consumer rings and slot words in it.
//! * [`link`] and [`sleep`]: the words by which two ends over
//!   shared memory end a connection, and by which nobody sleeps while there is something to do.
//!
//! This crate is the one home of lock-free algorithms: whatever depends on in which order two threads see
//! each other's stores is here, and model-checked with loom (`RUSTFLAGS="--cfg loom" cargo test -p jet-wire
//! --release`).
//!
//! What this crate does *not* do: it opens no file, maps no memory, makes no system call and reads no clock.
#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod in_place;
pub mod link;
pub mod message;
pub mod ring;
pub mod segment;
pub mod sleep;
mod sync;
mod text;

/// Bytes of one slab: the unit of the pool, and the most payload that a small message carries (Jet §4.2: 4
/// KB).
pub const SLAB_BYTES: usize = 4096;
/// [`SLAB_BYTES`] as the `u32` that lengths on the wire are counted in.
pub const SLAB_BYTES_U32: u32 = 4096;
