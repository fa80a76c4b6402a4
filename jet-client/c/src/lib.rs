//! `jet-client` for C: receiving from the daemon of this host, and sending to a daemon anywhere. What each
//! function does, and what it promises, stands in `include/jet.h`; here is what keeps those promises whatever
//! the caller does:
//!
//! * [`handles`]: a handle is a number, not an address. One that was freed, or never was one, or is in use by
//!   another thread, is told so.
//! * [`keys`]: so are slices, messages and buffers, within their handle.
//! * [`code`]: errors are codes with text; a panic does not cross the border.
//!
//! What cannot be checked is the caller's promise: that a pointer to a structure, or to bytes that are to be
//! sent, leads to memory of that size.

mod code;
mod handles;
mod keys;
mod receive;
mod send;
mod text;

pub use code::*;
pub use receive::*;
pub use send::*;
