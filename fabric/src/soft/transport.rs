//! The interface between the software NIC and the transports that carry its bytes.
//!
//! The front (`SoftNic`) owns the [`Tables`]: registered memory, QPs, SRQ, completions, events, READs. A
//! [`Transport`] owns the connections of its kind, in a table of its own indexed by [`Qp::index`], and moves
//! bytes.
//!
//! What `SoftNic` has done before it calls a transport:
//! * `connect`: taken a QP in state [`crate::soft::tables::qps::QpState::Connecting`]. Where `connect` fails,
//!   `SoftNic` gives it back.
//! * `accept`, `reject`: checked that the QP is not stale and is `Requested`.
//! * `disconnect`: checked that the QP is not stale and is `Connecting`, `Requested` or `Connected`.
//! * `post_send`, `post_read`: checked that the QP is `Connected`, that limits hold, that there will be a
//!   place for the completion, and that every local stretch is registered. A READ is in [`Tables::reads`]
//!   already; the transport queues its slot.
//!
//! What a transport does:
//! * It keeps a connection that it accepted among the [`crate::soft::strangers`] until all of the request is
//!   there. Then it calls [`Tables::qps`]`.take(kind, Handshake)`, reads the request, and calls
//!   `set_state(Requested)` and [`Tables::push_event`] with `ConnectRequest`. A request that turns out to be
//!   malformed gives its QP back silently with `qps.release`.
//! * In `accept` it calls [`Tables::agree_on_reads`] with the number of READs that the peer said it answers.
//!   Where no READ could be answered, it ends the connection (`Protocol`); else it calls
//!   [`Tables::connected`]. The connecting end calls `connected` when the answer arrives.
//! * It tells the peer what this end answers, `reads_answered_per_qp_max`, in the request and in the answer
//!   to one. It ends a connection on which more READs of the peer wait, where it can tell.
//! * It completes each posted request once, with `complete_send`, `complete_read`, `complete_receive`.
//! * It sets a deadline in [`Tables::deadlines`] for what a connection waits for. It clears the deadline when
//!   that has happened or the connection ends.
//! * It ends a connection with [`Tables::finish`] after everything outstanding has completed. The QP's index
//!   is free again only after the user polled that event.
//!
//! Statuses, the same over every transport:
//! * A SEND that does not fit into its SRQ entry takes the entry all the same. The entry completes with
//!   `Length`. The SEND completes with `Length` at the end that posted it. Both QPs end with
//!   `WorkRequest(Length)`.
//! * A SEND with a registered payload whose key is gone completes with `LocalProtection` at the end that
//!   posted it, and takes no entry.
//! * A SEND that finds no SRQ entry within `rnr_timeout` (measured where it arrived) completes with
//!   `RnrExhausted` at the end that posted it.
//! * A READ that the peer's region does not allow completes with `RemoteAccess` at the end that posted it.
//!   Both QPs end with `WorkRequest(RemoteAccess)`.

use super::deadlines::Wait;
use super::options::SoftOptions;
use super::tables::Tables;
use super::token::Place;
use crate::address::Address;
use crate::nic::{ConnectError, ListenError, MemoryKey, PostError, PrivateData, Qp, SendRequest};
use rustix::event::epoll::EventFlags;

/// Transport that moves bytes for the software NIC. One thread uses it, and none of its calls block.
pub(crate) trait Transport: Sized + Send {
    /// Makes a transport without connections.
    fn new(options: &SoftOptions) -> Self;

    /// Listens on one more address.
    fn listen(&mut self, tables: &mut Tables, address: &Address) -> Result<Address, ListenError>;

    /// Closes every listener of this transport.
    fn stop_listening(&mut self, tables: &mut Tables);

    /// Starts to connect.
    fn connect(
        &mut self,
        tables: &mut Tables,
        qp: Qp,
        address: &Address,
        private_data: &PrivateData,
    ) -> Result<(), ConnectError>;

    /// Answers a connection request with yes.
    fn accept(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData) -> Result<(), PostError>;

    /// Answers a connection request with no, and calls `qps.release`.
    fn reject(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData);

    /// Begins to end a connection. [`Tables::finish`] with `Local` follows at once, or within
    /// [`SoftOptions::farewell`].
    fn disconnect(&mut self, tables: &mut Tables, qp: Qp);

    /// Takes a SEND, or refuses it with `QueueFull`. `SoftNic` counts it as outstanding after `Ok`.
    fn post_send(&mut self, tables: &mut Tables, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError>;

    /// Takes the READ in slot `read` of [`Tables::reads`]. It stays there until `complete_read`.
    fn post_read(&mut self, tables: &mut Tables, qp: Qp, read: u32);

    /// Shows the peers everything that was posted since the last call.
    fn flush(&mut self, tables: &mut Tables);

    /// Does a bounded amount of work. `true` where there was any.
    fn progress(&mut self, tables: &mut Tables) -> bool;

    /// Acts on a ready descriptor that this transport gave to [`Tables::epoll`]. `false` where the transport
    /// knew it before, and the descriptor is not ready any more.
    fn ready(&mut self, tables: &mut Tables, place: Place, flags: EventFlags) -> bool;

    /// Returns how many polls may pass between two checks of the epoll. Few where data comes through sockets
    /// and the transport waits to be told, `u32::MAX` where no socket is open.
    fn epoll_interval(&self) -> u32;

    /// Acts on a deadline of a connection, of the listeners, or of the strangers, that is over. It is no
    /// longer in [`Tables::deadlines`].
    fn expire(&mut self, tables: &mut Tables, place: Place, wait: Wait);

    /// Prepares to sleep. `false` where there is work.
    fn arm(&mut self, tables: &mut Tables) -> bool;

    /// Notes that a region for remote READs was registered.
    fn registered(&mut self, tables: &mut Tables, key: MemoryKey);

    /// Notes that a region was deregistered. It is no longer in [`Tables::regions`].
    fn deregistered(&mut self, tables: &mut Tables, key: MemoryKey);
}
