//! Shared memory that can be passed to another process without trusting that process.
//!
//! A region is an anonymous file (memfd) that is mapped once, zeroed, and sealed. The seals keep anybody from
//! truncating it under a mapping: touching a truncated mapping raises SIGBUS. So a region that came from
//! another process is mapped only after its seals were read. Memory is allocated before it is touched for the
//! same reason: a lack of memory is then an error, not a signal.

mod control_groups;
mod heap_ring;
mod lost;
mod node;
mod room;
mod shared;

pub(crate) use lost::touch;
#[cfg(feature = "verbs")]
pub(crate) use node::ThreadPrefers;

pub use heap_ring::{HeapConsumer, HeapProducer, heap_ring};
pub use node::node_of_device;
pub use room::NoRoom;
pub use shared::{
    AdoptError, MapError, Mapping, Pages, Protection, SharedMemory, is_on_huge_pages, received_bytes,
};
