//! The receiving end: an application's session with the daemon of its host.
//!
//! The bytes of a [`Slice`] lie where the NIC put them, in the daemon's pool, mapped read-only. They are the
//! application's until the slice is dropped; then the slab goes back and the next message lands in the same
//! cache lines. So give slices back as soon as their bytes were used: time in the buffer is what the pool
//! pays for.
//!
//! What an application leaves lying unread the daemon may move to escape memory, mapped read-only as well, so
//! that one slow application does not hold the cache of the others (Jet §4.3). The application notices
//! nothing: it finds a run where it is when it takes it, and from then on the run stays there.
//!
//! An application that keeps all that it gets comes to a standstill where a message is larger than the pool,
//! or where it has all the slabs, slots or messages that it may: nothing more comes before it gives something
//! back. [`HoldsAll`] says so. Who wants the whole of a message copies it out: [`Message::copy_to`],
//! [`Message::read_to_end`].
//!
//! After [`Session::register`] nothing here allocates, locks, or makes a system call, except to sleep and to
//! wake a daemon that sleeps.

mod error;
mod message;
mod release;
mod session;
mod slice;
mod table;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(test)]
mod tests;
mod wait;
mod whole;

pub use error::{Fault, HoldsAll, ReceiveError, RegisterError, SliceError};
pub use jet_control::{CONTROL_SOCKET, ControlError, ErrorCode};
pub use jet_wire::segment::HeldLimit;
pub use message::{DetachedMessage, Message, Verdict};
#[doc(hidden)]
pub use session::SessionParts;
pub use session::{RegisterOptions, Session, SessionStats};
pub use slice::{DetachedSlice, Slice, Slices};
pub use whole::CopyError;

/// The code that a sender hears when the application dropped its message before it had all of it, or while
/// panicking.
pub const REJECT_DROPPED: u32 = u32::MAX;
