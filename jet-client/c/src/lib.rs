//! `jet-client` for C: receiving from the daemon of this host, and sending to a daemon on any host.
//! `include/jet.h` describes what each function does and promises. These modules keep the promises whatever
//! the caller does:
//!
//! * `handles`: a handle is a number, not an address. A call with a handle that was freed, that never was
//!   one, or that another thread is using gets an error.
//! * `keys`: slices, messages and buffers are named in the same way, within their handle.
//! * `code`: errors are codes with text; a panic does not cross into C.
//!
//! The library cannot check that a pointer to a structure, or to bytes that are to be sent, leads to memory
//! of that size. That is the caller's promise.

mod code;
mod event_loop;
mod handles;
mod keys;
mod receive;
mod send;
mod text;

pub use code::*;
pub use event_loop::*;
pub use receive::*;
pub use send::*;
