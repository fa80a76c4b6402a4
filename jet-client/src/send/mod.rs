//! The sending end: messages from this process's registered memory to an application behind a daemon.
//!
//! [`Sender`] is what a program uses. Its rules live in [`protocol`], a state machine without I/O, which the simulator
//! drives, too.

mod buffer;
mod connection;
mod driver;
mod error;
mod exchange;
mod nic;
mod options;
pub mod protocol;
mod sender;
mod silence;
mod table;
#[cfg(feature = "tokio")]
mod timer;
mod window;

pub use buffer::SendBuffer;
pub use error::{BufferError, SendConnectError, SendError, WaitError};
pub use jet_wire::message::AckStatus;
pub use options::{Backoff, ProtocolOptions, RdmaOptions, RetryPolicy};
pub use protocol::{ProtocolStats, SubmitError};
pub use sender::{Completion, Sender, SenderOptions, SenderStats, Ticket};
pub use window::WindowStats;

#[cfg(test)]
mod congestion_tests;
#[cfg(test)]
mod driver_tests;
#[cfg(test)]
mod protocol_tests;
#[cfg(test)]
mod sender_tests;
#[cfg(test)]
mod silence_tests;
#[cfg(test)]
mod version_tests;
