//! Trees of files as messages: what `jet send` and `jet recv` say to each other.
//!
//! Every message carries a [`header::FileHeader`] as its user header: 32 fixed bytes, little-endian, and then
//! the path where it fits. A small message has room for 64 bytes of path, a large one for 224. Paths are
//! relative, of components that are neither empty nor `.` nor `..`, as raw bytes (they need not be UTF-8).
//!
//! | kind | message | means |
//! |---|---|---|
//! | directory | small, no payload | the directory exists, with these permission bits |
//! | whole | small or large | the payload is a whole file: it is written and takes its name |
//! | begin | small, no payload | a file of several messages begins: its part is made, empty |
//! | piece | small or large | `payload` bytes of a file that has begun, at `offset` |
//! | hole | small, no payload | so many bytes at `offset` are a hole |
//! | complete | small, no payload | all pieces and holes were consumed: the file takes its name, if that can be proven |
//! | path | small, the path as payload | from now on (sender, file id) stands for this path; for paths that fit no header |
//! | abandoned | small, no payload | the sender gave up: what was written of the file is removed |
//!
//! A path message is acknowledged before any message refers to it, a beginning before any piece follows. A
//! receiver that does not know a reference (it was started again meanwhile) rejects with
//! [`reject::PATH_UNKNOWN`], and the sender says the path again.
//!
//! Pieces and holes begin at multiples of 4 KiB, and end at one or at the file's end. They go to a hidden
//! part file `.jet-part-<sender>-<file id>` in the file's directory; they say where they belong, so that one
//! that comes twice changes nothing. Only a beginning makes a part. A piece whose part is not there is
//! rejected with [`reject::PART_GONE`], and the sender begins again under another file id, with every piece.
//!
//! What a receiver wrote itself it accounts for: every extent, and a hash ([`proof`]) of what arrived in
//! memory. `complete` carries the hash that the sender made while it read. What an earlier receiver wrote,
//! who was killed, is read again and hashed before it is believed; without a proof it is sent again. So is a
//! file that has its name already when `complete` comes again. So a receiver, a sender's connection or a
//! daemon may be killed at any moment, parts may be removed and `--out` may become another, and the transfer
//! goes on. A part whose sender was killed stays until `jet recv --sweep`, which is refused while another
//! receiver uses the directory.
//!
//! The sender looks at its file with every piece and hole, and before `complete`: one that was changed or
//! replaced meanwhile is sent again, and refused when it goes on changing. docs/files.md says what these
//! looks do not show.
//!
//! A message is rejected with the errno of what failed at the receiver, or with a code of [`reject`].
//!
//! * [`header`], [`path`], [`proof`], [`reject`]: the convention itself.
//! * [`walk`], [`sending`]: the sender's end.
//! * [`spans`]: how long messages took.
//! * [`disk`], [`parts`], [`receiving`]: the receiver's end.

pub mod disk;
pub mod header;
pub mod parts;
pub mod path;
pub mod proof;
pub mod receiving;
pub mod reject;
pub mod sending;
pub mod spans;
#[cfg(test)]
mod test_session;
pub mod walk;
