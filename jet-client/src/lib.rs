//! The two ends of Jet that a program links: receiving from the daemon of this host, and sending to a daemon
//! on any host.
//!
//! An application registers a name, and reads received bytes where the NIC put them:
//!
//! ```no_run
//! use jet_client::receive::{RegisterOptions, Session};
//!
//! fn run() -> Result<(), Box<dyn std::error::Error>> {
//!     let session = Session::register(&RegisterOptions::new("store"))?;
//!     loop {
//!         let mut message = session.receive()?;
//!         let mut sum = 0u64;
//!         while let Some(slice) = message.next()? {
//!             // `slice` is `&[u8]` in the daemon's pool; dropping it gives its slabs back.
//!             sum += slice.iter().map(|&byte| u64::from(byte)).sum::<u64>();
//!         }
//!         println!("{} bytes, sum {sum}", message.bytes());
//!         // Dropped after all its slices were taken: the sender hears `Consumed`.
//!     }
//! }
//!
//! fn main() {
//!     if let Err(error) = run() {
//!         eprintln!("{error}");
//!         std::process::exit(1);
//!     }
//! }
//! ```
//!
//! A sender names the daemon and the application, and gets exactly one end for every message:
//!
//! ```no_run
//! use jet_client::Address;
//! use jet_client::send::{Envelope, Sender, SenderOptions};
//!
//! fn run() -> Result<(), Box<dyn std::error::Error>> {
//!     let address: Address = "tcp:127.0.0.1:7450".parse()?;
//!     let mut sender = Sender::connect(&SenderOptions::new(address, "store").in_flight_max(64))?;
//!     // Up to 4 KiB is copied and sent at once ...
//!     sender.send_small(Envelope::new(1).user_header(b"a user header"), b"a small message")?;
//!     // ... more lies in registered memory, and the receiver READs it when it has room in its cache.
//!     let mut buffer = sender.buffer(1 << 20)?;
//!     buffer.fill(7);
//!     sender.send(2, buffer)?;
//!     while let Some(end) = sender.wait()? {
//!         println!("message {}: {} after {:?}", end.tag, end.status, end.latency);
//!     }
//!     Ok(())
//! }
//!
//! fn main() {
//!     if let Err(error) = run() {
//!         eprintln!("{error}");
//!         std::process::exit(1);
//!     }
//! }
//! ```
//!
//! * [`receive`]: sessions, sessions that threads and tasks share, messages, slices.
//! * [`send`]: senders, buffers, and the protocol between a sender and a receiver as a state machine without
//!   I/O.
//! * [`exactly_once`]: what a sender and an application keep so that each message has its effect once.
//! * [`Address`]: where a daemon listens; [`Backoff`]: the waits between attempts of both ends.
//!
//! With the feature `tokio` (default) waits on a [`receive::SharedSession`], on its messages, on a
//! [`send::SharedSender`] and its messages, and on a [`send::Sender`] have an async form. With the feature
//! `bytes` (default) owned slices become `bytes::Bytes`.
//!
//! What this crate does *not* do: it spawns no runtime, and does not interpret messages. It has threads of
//! its own only for senders over `tcp:`, and while a shared session comes back to a new daemon.

// A library does not print: it returns errors.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod backoff;
pub mod exactly_once;
pub mod receive;
pub mod send;
mod setters;
mod shared;
mod spin;
#[cfg(feature = "tokio")]
mod timer;

pub use backoff::Backoff;
pub use jet_fabric::{Address, AddressError};

/// The programs of the page are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/library.md")]
struct LibraryPage;
