//! The seam between the software NIC and what carries its bytes.
//!
//! The front (`SoftNic`) owns the [`Tables`]: registered memory, QPs, SRQ, completions, events, READs. A
//! [`Transport`] owns the connections of its kind, in a table of its own indexed by [`Qp::index`], and moves
//! bytes.
//!
//! What `SoftNic` has done before it calls a transport:
//! * `connect`: taken a QP in state [`crate::soft::tables::qps::QpState::Connecting`]. Where `connect` fails,
//!   `SoftNic` gives it back.
//! * `accept`, `reject`: seen that the QP lives and is `Requested`.
//! * `disconnect`: seen that the QP lives and is `Connecting`, `Requested` or `Connected`.
//! * `post_send`, `post_read`: seen that the QP is `Connected`, that limits hold, that there will be a place
//!   for the completion, and that every local stretch is registered. A READ is in [`Tables::reads`] already;
//!   the transport queues its slot.
//!
//! What a transport does:
//! * for a request that arrives: [`Tables::qps`]`.take(kind, Handshake)`, and once it is whole
//!   `set_state(Requested)` and [`Tables::push_event`] with `ConnectRequest`; a socket that goes before that
//!   gives its QP back silently with `qps.release`;
//! * `accept`: [`Tables::agree_on_reads`] with what the peer said that it answers, and the end of the
//!   connection (`Protocol`) where there could be none; else [`Tables::connected`]. The connecting end does
//!   so when the answer comes;
//! * says what this end answers, `reads_answered_per_qp_max`, in the request and in the answer to one, and
//!   ends a connection on which more READs of the peer wait, where it can tell;
//! * completes each posted request once, with `complete_send`, `complete_read`, `complete_receive`;
//! * says in [`Tables::deadlines`] what a connection waits for, and takes it back when it came or the
//!   connection ends;
//! * ends a connection with [`Tables::finish`] after everything outstanding has completed; the QP's index
//!   comes back only after the user polled that event.
//!
//! Statuses, the same over every transport: a SEND that does not fit takes its SRQ entry, which completes
//! with `Length`; the SEND completes with `Length` at its poster; both QPs end with `WorkRequest(Length)`. A
//! registered payload whose key is gone completes with `LocalProtection` at its poster and takes no entry. A
//! SEND without an SRQ entry beyond `rnr_timeout` (measured where it arrived) completes with `RnrExhausted`
//! at its poster. A READ that the peer's region does not allow completes with `RemoteAccess` at its poster,
//! and both QPs end with `WorkRequest(RemoteAccess)`.

use super::deadlines::Wait;
use super::options::SoftOptions;
use super::tables::Tables;
use super::token::Place;
use crate::address::Address;
use crate::nic::{ConnectError, ListenError, MemoryKey, PostError, PrivateData, Qp, SendRequest};
use rustix::event::epoll::EventFlags;

/// What moves bytes for the software NIC. One thread; nothing here blocks.
pub(crate) trait Transport: Sized + Send {
    /// A transport with no connections.
    fn new(options: &SoftOptions) -> Self;

    /// Listens, besides where it listens already.
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

    /// Answers a request with yes.
    fn accept(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData) -> Result<(), PostError>;

    /// Answers a request with no, and calls `qps.release`.
    fn reject(&mut self, tables: &mut Tables, qp: Qp, private_data: &PrivateData);

    /// Begins to end a connection; [`Tables::finish`] with `Local` comes at once or within
    /// [`SoftOptions::farewell`].
    fn disconnect(&mut self, tables: &mut Tables, qp: Qp);

    /// Takes a SEND; may refuse with `QueueFull`. `SoftNic` counts it as outstanding after `Ok`.
    fn post_send(&mut self, tables: &mut Tables, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError>;

    /// Takes the READ in slot `read` of [`Tables::reads`]; it stays there until `complete_read`.
    fn post_read(&mut self, tables: &mut Tables, qp: Qp, read: u32);

    /// Shows the peers everything posted since the last time.
    fn flush(&mut self, tables: &mut Tables);

    /// Does a bounded amount of work; `true` where there was any.
    fn progress(&mut self, tables: &mut Tables) -> bool;

    /// A descriptor that this transport gave to [`Tables::epoll`] is ready.
    fn ready(&mut self, tables: &mut Tables, place: Place, flags: EventFlags);

    /// Polls between two looks at the epoll that this transport can bear: 1 where its data comes through
    /// sockets, `u32::MAX` where it has none.
    fn look_interval(&self) -> u32;

    /// What a connection, or the listeners, waited for did not come in time; it is in [`Tables::deadlines`]
    /// no longer.
    fn expire(&mut self, tables: &mut Tables, place: Place, wait: Wait);

    /// Prepares to sleep; `false` where there is work.
    fn arm(&mut self, tables: &mut Tables) -> bool;

    /// A region for remote READ was registered.
    fn registered(&mut self, tables: &mut Tables, key: MemoryKey);

    /// A region was taken back; it is in [`Tables::regions`] no longer.
    fn deregistered(&mut self, tables: &mut Tables, key: MemoryKey);
}
