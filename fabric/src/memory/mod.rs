//! Shared memory that can be handed to another process without trusting it.
//!
//! A region is an anonymous file (memfd), mapped once, zeroed, and sealed so that nobody can truncate it
//! under a mapping. A region that came from a stranger is mapped only after its seals were read: a truncated
//! file would otherwise become a SIGBUS in whoever touches the mapping. Memory is allocated before it is
//! touched for the same reason: what cannot be had is an error.

mod control_groups;
mod heap_ring;
mod node;
mod room;
mod shared;

#[cfg(feature = "verbs")]
pub(crate) use node::ThreadPrefers;

pub use heap_ring::{HeapConsumer, HeapProducer, heap_ring};
pub use node::node_of_device;
pub use room::NoRoom;
pub use shared::{MapError, Mapping, Pages, Protection, SharedMemory};
