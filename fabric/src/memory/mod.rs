//! Shared memory that can be handed to another process without trusting it.
//!
//! A region is an anonymous file (memfd), mapped once, zeroed, and sealed so that nobody can truncate it under a
//! mapping. A region that came from a stranger is mapped only after its seals were read: a truncated file would
//! otherwise become a SIGBUS in whoever touches the mapping.

mod heap_ring;
mod node;
mod shared;

pub use heap_ring::{HeapConsumer, HeapProducer, heap_ring};
pub use shared::{MapError, Mapping, Pages, Protection, SharedMemory};
