//! Trees of files as messages: the convention between `jet send` and `jet recv`.
//!
//! Every message carries a [`header::FileHeader`] as its user header: 32 fixed bytes, little-endian, and then
//! the path if it fits. A small message has room for 64 bytes of path, a large one for 224. Paths are
//! relative. Their components are neither empty nor `.` nor `..`. Paths are raw bytes and need not be UTF-8.
//!
//! | kind | message | means |
//! |---|---|---|
//! | directory | small, no payload | the directory exists, with these permission bits |
//! | whole | small or large | the payload is a whole file: the receiver writes it and gives it its name |
//! | begin | small, no payload | a file of several messages begins: the receiver makes its part, empty |
//! | piece | small or large | the payload is a piece of a file that has begun, at `offset` |
//! | hole | small, no payload | a range of a file that has begun is a hole, with its offset and length |
//! | complete | small, no payload | all was consumed: the file takes its name, if it can be proven |
//! | path | small | the payload is a path that fits no header: it stands for (sender, file id) from now on |
//! | abandoned | small, no payload | the sender gave up: the receiver removes the file's part |
//!
//! A path message is acknowledged before any message refers to it, and a beginning before any piece follows.
//! A receiver that was started again does not know the path any more. Such a receiver rejects the message
//! with [`reject::PATH_UNKNOWN`], and the sender sends the path again.
//!
//! Pieces and holes begin at multiples of 4 KiB, and end at one or at the file's end. They go to a hidden
//! part file `.jet-part-<sender>-<file id>` in the file's directory. Each piece or hole carries its offset in
//! the file, so a second delivery of a piece changes nothing. Only a beginning makes a part. A piece whose
//! part does not exist is rejected with [`reject::PART_GONE`]. The sender then sends the whole file again,
//! under another file id.
//!
//! A receiver accounts for everything that it wrote itself: every extent, and a hash ([`proof`]) of the bytes
//! as they arrived in memory. `complete` carries the hash that the sender made while it read. Bytes that an
//! earlier receiver wrote before it was killed are read again and hashed. Without a proof the file is sent
//! again. If `complete` is delivered again when the file has its name already, the file is read again, too.
//!
//! A transfer therefore continues although a receiver, a sender's connection or a daemon is killed, parts are
//! removed, or another directory takes the place of `--out`. The parts of a killed sender stay until a sweep
//! by `jet recv --sweep`. That command is refused while another receiver uses the directory.
//!
//! The sender checks its file with every piece and hole, and before `complete`. A file that was changed or
//! replaced meanwhile is sent again, and refused when it keeps changing. docs/files.md says which changes
//! these checks do not show.
//!
//! A message is rejected with the errno of the receiver's system, or with a code of [`reject`].
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
