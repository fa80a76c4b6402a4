//! The sending end: messages from this process's registered memory to an application behind a daemon.
//!
//! Programs use [`Sender`], which has a clock, NICs by address, and sleeping. Below it [`Driver`] moves
//! messages over a NIC that is handed in, with time as a value. The driver's rules are in [`protocol`], a
//! state machine without I/O. A simulator can use the driver or the protocol.

mod buffer;
mod connection;
mod copies;
mod driver;
mod envelope;
mod error;
mod exchange;
mod held;
mod memory;
mod nic;
mod options;
mod posting;
pub mod protocol;
mod receiver_timeout;
mod replies;
mod sender;
mod sending;
mod shared;
mod submission;
mod table;
#[cfg(test)]
mod tests;
mod window;

pub use buffer::SendBuffer;
pub use driver::{Driver, Ended, NicSource, RECEIVE_ENTRIES};
pub use envelope::Envelope;
pub use error::{
    BufferError, CallError, DeregisterError, NotGathered, NotSent, SendConnectError, SendError, WaitError,
};
pub use jet_fabric::memory::AdoptError;
pub use jet_fabric::nic::{ConnectError, Counters, DisconnectReason, RegionError, RegisterError};
pub use jet_wire::message::hello::{AppNameError, HelloError, Refusal};
pub use jet_wire::message::{AckStatus, ByeReason, SMALL_USER_HEADER_MAX, USER_HEADER_MAX, WaitsFor};
pub use memory::{SendMemory, SendMemoryError, TakeError};
pub use options::{Identity, ProtocolOptions, RdmaOptions, RetryPolicy, SenderOptions};
pub use protocol::{ProtocolStats, SubmitError};
pub use replies::Reply;
pub use sender::{Completion, Sender, SenderStats};
pub use shared::{SendHandle, SharedSender};
pub use submission::Ticket;
pub use window::WindowStats;
