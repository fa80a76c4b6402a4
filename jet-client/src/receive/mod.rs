//! The receiving end: an application's session with the daemon of its host.
//!
//! The bytes of a [`Slice`] lie where the NIC put them, in the daemon's pool, mapped read-only. They belong
//! to the application until the slice is dropped. Then the slab is free again, and the next message lands in
//! the same cache lines. So give slices back as soon as their bytes were used: the longer slabs are held, the
//! larger the pool has to be.
//!
//! The daemon may move data that an application leaves unread to escape memory, which is mapped read-only as
//! well. So one slow application does not hold the cache of the others (Jet §4.3). The application need not
//! care: it finds a run in its place when it takes the run, and from then on the run stays there.
//!
//! An application that keeps everything it gets comes to a standstill. This happens where a message is larger
//! than the pool, or where the application holds all slabs, slots or messages that it may. Nothing more
//! arrives before it gives something back, and it gets the error [`HoldsAll`]. To get the whole of a message,
//! copy it out: [`Message::copy_to`], [`Message::read_to_end`].
//!
//! A [`Session`] is for one thread, and lends messages and slices. A [`SharedSession`] is for any number of
//! threads and tasks, and gives them away.
//!
//! **Giving back.** What was given back is shown to the daemon together: after 16 entries or 64 slabs, at the
//! next wait, at the next poll that finds nothing, or by `flush`. Only then may the slabs be used again, and
//! does a sender hear of its message's end. A shared session shows the end of a message at once. Where the
//! ring for it is full, giving back waits until the daemon has read some of it, or is gone.
//!
//! After [`Session::register`] nothing here allocates, locks, or makes a system call for a message or a
//! slice. Exceptions: to sleep, and to wake a daemon that sleeps; polls in vain, of which each 4096th checks
//! whether the daemon lives; `read_to_end`. A shared session takes a lock for each step, and allocates to
//! sleep.

mod error;
mod message;
mod release;
mod session;
mod shared;
mod slice;
mod table;
#[cfg(test)]
mod tests;
mod wait;
mod whole;

pub use error::{Fault, HoldsAll, NotReplied, ReceiveError, RegisterError, ReplyError, SliceError};
pub use jet_control::{CONTROL_SOCKET, ControlError, ErrorCode};
pub use jet_fabric::memory::MapError;
pub use jet_wire::ring::RingError;
pub use jet_wire::segment::{HeldLimit, SegmentError};
pub use message::{DetachedMessage, Message, Verdict};
#[doc(hidden)]
pub use session::SessionParts;
pub use session::{RegisterOptions, Session, SessionStats};
#[cfg(feature = "tokio")]
pub use shared::{Messages, OwnedSlices};
pub use shared::{OwnedMessage, OwnedSlice, SharedSession};
pub use slice::{DetachedSlice, Slabs, Slice};
pub use whole::CopyError;

/// Code that a sender gets when the application dropped the sender's message before it had all of it, or
/// while panicking.
pub const REJECT_DROPPED: u32 = u32::MAX;
