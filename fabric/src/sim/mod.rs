//! Simulated RNICs, and the network between them, in one process and in time that the caller makes up.
//!
//! A [`Network`] makes NICs ([`SimNic`]) that reach each other, and nobody else. Each keeps to the limits of
//! a [device](crate::limits::Profile), as a NIC on verbs does. Connections are reliable connections (RC):
//! what one end posts arrives in its order, once, or the connection ends. Between connections nothing is
//! ordered.
//!
//! Nothing happens by itself. Everything that is under way has a time at which it happens, and
//! [`Network::advance`] carries out all that is due. The calls of a NIC which take a time do so, too. All
//! that is left to chance is drawn from a seed ([`Conditions::seed`]): the same calls with the same times
//! have the same results.
//!
//! What may go wrong:
//!
//! * A SEND that finds no SRQ entry is tried again after a pause (RNR), and holds up its connection only.
//! * A connection that ends flushes its work some time later. The device reports even later that the
//!   connection takes no SRQ entry any more ("last WQE reached"). SENDs that were on their way may still
//!   arrive, although their sender saw them flushed. READs that were on their way may write parts, the last
//!   one when they are flushed.
//! * Faults that the caller asks for: a connection that is cut, and whose ends notice it at different times
//!   ([`Network::cut`]); a host without power ([`Network::lose`]); a host that stands still
//!   ([`Network::freeze`]); a device that is removed ([`Network::remove`]).
//!
//! Bytes are copied when they arrive, from where they lie then. So an end that changes memory too early is
//! found out.
//!
//! Not modelled: packets (a lost one is a later arrival), congestion inside a switch, and atomic operations.

mod device;
mod ending;
mod handshake;
mod network;
mod nic;
mod options;
mod queue_pair;
mod regions;
mod schedule;
#[cfg(test)]
mod tests;
mod transfer;
mod world;

pub use network::{Happened, Network, NicId, Posted};
pub use nic::SimNic;
pub use options::{Conditions, SimOptions};
