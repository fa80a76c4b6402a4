//! Trees of files as messages: what `jet send` and `jet recv` say to each other.
//!
//! Every message carries a [`header::FileHeader`] as its user header: 32 fixed bytes, little-endian, and then the path
//! where it fits. A small message has room for 64 bytes of path, a large one for 224. Paths are relative, of
//! components that are neither empty nor `.` nor `..`, as raw bytes (they need not be UTF-8).
//!
//! | kind | message | means |
//! |---|---|---|
//! | directory | small, no payload | the directory exists, with these permission bits |
//! | piece | small or large | `payload` bytes of the file at `offset`; a piece that is the whole file completes it |
//! | path | small, the path as payload | from now on (sender, file id) stands for this path; for paths that fit no header |
//! | complete | small, no payload | every piece was consumed: the file takes its name |
//! | abandoned | small, no payload | the sender gave up: what was written of the file is removed |
//!
//! A path message is acknowledged before any message refers to it. A receiver that does not know a reference (it was
//! started again meanwhile) rejects with [`reject::PATH_UNKNOWN`], and the sender says the path again.
//!
//! The receiver keeps no state that a file depends on. Pieces go to a hidden part file
//! `.jet-part-<sender>-<file id>` in the file's directory; they say where they belong, so that one that comes twice
//! changes nothing. Only the sender knows when all were consumed, and then says `complete`. So a receiver, a sender's
//! connection or a daemon may be killed at any moment, and the transfer goes on. A part whose sender was killed stays
//! until `jet recv --sweep`, which is refused while another receiver uses the directory.
//!
//! A message is rejected with the errno of what failed at the receiver, or with a code of [`reject`].
//!
//! * [`header`], [`path`], [`reject`]: the convention itself.
//! * [`walk`], [`sending`]: the sender's end.
//! * [`spans`]: how long messages took.
//! * [`disk`], [`parts`], [`receiving`]: the receiver's end.

pub mod disk;
pub mod header;
pub mod parts;
pub mod path;
pub mod receiving;
pub mod reject;
pub mod sending;
pub mod spans;
pub mod walk;
