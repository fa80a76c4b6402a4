//! The trait that every NIC implements, and the values that cross it.
//!
//! Rules that hold for every implementation (the conformance suite checks them):
//!
//! * A work request that was posted completes exactly once, with success, an error, or [`Status::Flushed`].
//!   SENDs that were posted between two [`Nic::flush`] may complete together.
//! * SENDs of one QP arrive in the order they were posted, each in one SRQ entry, header in the entry's
//!   header area, payload in its slab.
//! * No SRQ entry there: the sender's NIC waits ("receiver not ready", RNR) and tries again; nothing is lost,
//!   the event is counted, and only that QP waits.
//! * READs of one QP complete in the order they were posted, and its SENDs in theirs. On a device a SEND
//!   completes after the READs that were posted before it, too, and so it does on a software NIC that was
//!   given a profile.
//! * READs under way on one QP are at most what both ends' devices do: [`Event::Connected`] says how many.
//! * A READ with an unknown key or outside the region changes no byte, completes with
//!   [`Status::RemoteAccess`], and takes its QP to the error state, as with verbs.
//! * [`Nic::disconnect`] and a lost peer flush everything outstanding, then report [`Event::Disconnected`]
//!   exactly once; after that the [`Qp`] is stale and every call with it fails with [`PostError::Stale`]. No
//!   memory named by a flushed request is touched after its completion was polled.
//! * After construction, posting and polling allocate nothing.
//! * Time is what [`Nic::poll`], [`Nic::poll_event`] and [`Nic::arm`] are told: nanoseconds from a beginning
//!   of the caller's own, which never go back. Only these three do something because time has passed, and no
//!   software NIC asks a clock. What begins to wait in another call ([`Nic::connect`], [`Nic::disconnect`],
//!   [`Nic::post_read`]) has its whole span from the next of these three. A NIC on a device goes by the
//!   system's clock, as the device does; one on a thread, by its thread's.

use crate::address::Address;
use crate::advice::{self, Advised};
use crate::memory::SharedMemory;
use jet_wire::message::HeaderBytes;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A connection (queue pair). Stale once [`Event::Disconnected`] was polled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qp {
    /// Place in the NIC's table.
    pub index: u32,
    /// Tells this connection from earlier ones at the same place.
    pub generation: u32,
}

/// Names registered memory: to this NIC as a local key, to the other end as a remote one.
///
/// It is a name and no secret: on many devices the next is told from the last. What keeps others from memory
/// is that a READ takes a connection to the NIC that registered it. Whoever has that may read all that is
/// registered with [`Access::RemoteRead`], named to it or not (docs/rdma.md, "Who may read what").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryKey(pub u32);

/// What others may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only this NIC writes it: the receiver's pool and header area. No peer can name it.
    LocalWrite,
    /// Connected peers may READ it: a sender's buffers.
    RemoteRead,
}

/// A stretch of registered local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Whose memory.
    pub key: MemoryKey,
    /// Byte offset from the region's start.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
}

/// An SRQ entry: where the next SEND may land.
#[derive(Clone, Copy, Debug)]
pub struct SrqEntry {
    /// Comes back in the completion.
    pub id: u32,
    /// Exactly [`jet_wire::message::HEADER_BYTES`] bytes, 64-byte aligned.
    pub header: Sge,
    /// The slab; `None` where only header-only SENDs are expected (a sender's end).
    pub payload: Option<Sge>,
}

/// What a SEND carries behind its header.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Nothing.
    None,
    /// At most [`Limits::inline_bytes_max`] bytes, copied before the call returns.
    Inline(&'a [u8]),
    /// At most 4096 registered bytes, left alone until the SEND completes.
    Registered(Sge),
}

/// A SEND. The header is copied before the call returns.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// The header.
    pub header: &'a HeaderBytes,
    /// What follows it.
    pub payload: Payload<'a>,
}

/// A READ of a peer's memory into local memory.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where the bytes lie at the peer, in the terms of [`Nic::remote_address`] there.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
    /// Where they go, in this order; together as long as what is read. At most [`Limits::scatter_max`].
    pub scatter: &'a [Sge],
}

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A SEND arrived; `id` is the SRQ entry's.
    Receive {
        /// The SRQ entry.
        entry: u32,
        /// Payload bytes behind the header.
        payload_bytes: u32,
    },
    /// A SEND of this end was taken by the peer's NIC.
    Send {
        /// The request's id.
        id: u64,
    },
    /// A READ of this end is done.
    Read {
        /// The request's id.
        id: u64,
    },
    /// An SRQ entry came back unused: it was never for a QP, the SRQ is being torn down.
    SrqFlush {
        /// The SRQ entry.
        entry: u32,
    },
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All bytes moved.
    Success,
    /// The QP ended first.
    Flushed,
    /// The peer refused: unknown key, or outside its region.
    RemoteAccess,
    /// A local key is unknown or a stretch lies outside its region.
    LocalProtection,
    /// A SEND arrived that is longer than an SRQ entry, or shorter than a header: the peer's QP is in error.
    Length,
    /// The peer had no SRQ entry for longer than the limit allows.
    RnrExhausted,
    /// A provider's own code that has no name here.
    Other(u32),
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose work.
    pub qp: Qp,
    /// Which work.
    pub work: Work,
    /// Its end.
    pub status: Status,
}

/// The most private data that a connection request or its answer carries here.
pub const PRIVATE_DATA_MAX: usize = 56;

/// Private data, copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; PRIVATE_DATA_MAX],
    used: u8,
}

impl PrivateData {
    /// Copies at most [`PRIVATE_DATA_MAX`] bytes; longer data is `None`.
    pub fn new(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; PRIVATE_DATA_MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { bytes, used: u8::try_from(data.len()).ok()? })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.used)]
    }
}

/// Why a connection ended or was never made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// This end asked for it.
    Local,
    /// The other end closed, or its process died.
    Peer,
    /// The transport failed; an errno.
    Transport(i32),
    /// A work request failed and took the QP with it.
    WorkRequest(Status),
    /// The peer spoke out of turn: a frame or ring index that cannot be.
    Protocol,
}

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks to connect; answer with [`Nic::accept`] or [`Nic::reject`].
    ConnectRequest {
        /// The connection to be.
        qp: Qp,
        /// What the peer said.
        private_data: PrivateData,
    },
    /// A connection stands, at both ends.
    Connected {
        /// The connection.
        qp: Qp,
        /// What the accepting end said (empty at that end itself).
        private_data: PrivateData,
        /// READs that this end may have outstanding on it: the least of what it was made for, of what its
        /// device makes, and of what the peer said that it answers. 0: none at all.
        reads_max: u32,
    },
    /// A connection was refused by the other end.
    Rejected {
        /// The connection that was to be; stale now.
        qp: Qp,
        /// What the refusing end said.
        private_data: PrivateData,
    },
    /// A connection ended, or could not be made; all its work has completed before this.
    Disconnected {
        /// The connection; stale now.
        qp: Qp,
        /// Why.
        reason: DisconnectReason,
    },
    /// The NIC's device is gone, or failed for good: whatever is connected ends, and nothing can be begun any
    /// more. The NIC is to be dropped, once its work is back, so that the device can leave.
    Gone,
}

/// What a NIC can do; asked, not assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Scatter entries of one READ.
    pub scatter_max: u32,
    /// Outstanding READs of one QP, at most; of a connection [`Event::Connected`] says how many.
    pub reads_per_qp_max: u32,
    /// Outstanding READs altogether.
    pub reads_max: u32,
    /// Outstanding SENDs of one QP.
    pub sends_per_qp_max: u32,
    /// SRQ entries.
    pub srq_entries_max: u32,
    /// Bytes of [`Payload::Inline`].
    pub inline_bytes_max: u32,
    /// Connections.
    pub qps_max: u32,
    /// The NUMA node that its device is attached to, where the system knows it: memory that it writes is best
    /// there.
    pub numa_node: Option<u32>,
}

/// What a NIC counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// SENDs that arrived.
    pub receives: u64,
    /// SENDs that were taken.
    pub sends: u64,
    /// READs done.
    pub reads: u64,
    /// Bytes that SENDs and READs brought in.
    pub bytes_in: u64,
    /// Times that a SEND found no SRQ entry.
    pub rnr: u64,
    /// Requests that completed flushed.
    pub flushed: u64,
    /// Peers that were cut off for speaking out of turn.
    pub protocol_errors: u64,
    /// Times that few SRQ entries were left, on devices that tell.
    pub srq_limit_reached: u64,
    /// Connections whose work the device did not give back in time; they were ended without it.
    pub drains_given_up: u64,
    /// Connections of which the device never said that they take no SRQ entry any more.
    pub last_wqe_missed: u64,
}

/// Why memory could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The NIC's table of regions is full.
    #[error("{max} memory regions are registered already; deregister some, or use fewer and larger ones")]
    TooMany {
        /// The table's size.
        max: usize,
    },
    /// The system refused.
    #[error("could not register {bytes} bytes: {}", Advised { error: source, otherwise: "check ulimit -l \
        (memlock)" })]
    System {
        /// Bytes asked for.
        bytes: usize,
        /// What it said.
        source: std::io::Error,
    },
}

/// Why a NIC does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else does.
    #[error("{address} is in use by a running process; stop it or choose another address")]
    InUse {
        /// The address.
        address: Address,
    },
    /// Something else lies where its socket is to be.
    #[error(
        "{address}: there is a file of that name, and it is no socket; move it away or choose another address"
    )]
    NoSocket {
        /// The address.
        address: Address,
    },
    /// This NIC does not speak that kind of address.
    #[error("{address} is not an address for this NIC")]
    WrongFabric {
        /// The address.
        address: Address,
    },
    /// The system refused.
    #[error("cannot listen on {address}: {}", Advised { error: source, otherwise: listen_advice(source) })]
    System {
        /// The address.
        address: Address,
        /// What it said.
        source: std::io::Error,
    },
}

fn listen_advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "its directory is not there: make it, or choose another address",
        std::io::ErrorKind::PermissionDenied => {
            "this user may not make it: run as another, or choose another address"
        }
        std::io::ErrorKind::AddrNotAvailable => "no interface of this host has that address (ip address)",
        _ => "",
    }
}

/// Why a connection attempt did not even begin.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This NIC does not speak that kind of address.
    #[error("{address} is not an address for this NIC")]
    WrongFabric {
        /// The address.
        address: Address,
    },
    /// Nobody listens there, or the system refused.
    #[error("cannot connect to {address}: {source}; {}", advice::of_socket(source, "is jetd running there?"))]
    System {
        /// The address.
        address: Address,
        /// What it said.
        source: std::io::Error,
    },
    /// The NIC's table of connections is full.
    #[error("{max} connections are open already")]
    TooMany {
        /// The table's size.
        max: u32,
    },
}

impl ConnectError {
    /// Whether nobody seems to listen there.
    pub fn is_absence(&self) -> bool {
        const ABSENT: &str = "absent";
        matches!(self, Self::System { source, .. } if advice::of_socket(source, ABSENT) == ABSENT)
    }
}

/// Why a work request was not posted. It will not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full; poll completions and try again.
    #[error("the queue is full; poll completions first")]
    QueueFull,
    /// The QP is gone, or not connected (yet).
    #[error("the connection is gone")]
    Stale,
    /// A local key is unknown, or a stretch lies outside its region.
    #[error("a local stretch of memory is not registered")]
    LocalProtection,
    /// More scatter entries or bytes than [`Limits`] allows, or a READ on a connection that takes none at
    /// all.
    #[error("the request exceeds the NIC's limits")]
    Limit,
}

/// A NIC. One thread uses it; see the module for the rules.
pub trait Nic: Send {
    /// What it can do.
    fn limits(&self) -> Limits;

    /// What it counted.
    fn counters(&self) -> Counters;

    /// Registers memory for as long as the key lives. Slow: at start, or once a buffer.
    ///
    /// # Errors
    /// [`RegisterError`].
    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError>;

    /// Takes a registration back. Requests in flight that name the key fail with an access error; peers'
    /// READs too. Unknown keys are ignored.
    fn deregister(&mut self, key: MemoryKey);

    /// What a peer writes into [`ReadRequest::address`] to read registered memory from `offset` on.
    fn remote_address(&self, key: MemoryKey, offset: u64) -> u64;

    /// Starts to listen; connection requests come as events.
    ///
    /// # Errors
    /// [`ListenError`]; the address returned is the real one (with port 0 resolved).
    fn listen(&mut self, address: &Address) -> Result<Address, ListenError>;

    /// Stops listening: connects fail from now on. Connections stay.
    fn stop_listening(&mut self);

    /// Starts to connect; the outcome comes as an event for the QP returned.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn connect(&mut self, address: &Address, private_data: &PrivateData) -> Result<Qp, ConnectError>;

    /// Accepts a connection request.
    ///
    /// # Errors
    /// [`PostError::Stale`] where the peer has gone meanwhile, or said that it answers no READ though this
    /// end makes some: then [`Event::Disconnected`] follows, with [`DisconnectReason::Protocol`].
    fn accept(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError>;

    /// Refuses a connection request; the QP is stale after this and no event follows.
    fn reject(&mut self, qp: Qp, private_data: &PrivateData);

    /// Ends a connection: flushes its work, then [`Event::Disconnected`]. SENDs posted before that the peer's
    /// NIC can still take are tried first, for a bounded time, so that a farewell arrives.
    fn disconnect(&mut self, qp: Qp);

    /// Gives the SRQ an entry.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], [`PostError::LocalProtection`].
    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError>;

    /// Posts a SEND.
    ///
    /// # Errors
    /// [`PostError`].
    fn post_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError>;

    /// Posts a READ.
    ///
    /// # Errors
    /// [`PostError`]; beyond the connection's `reads_max` it is [`PostError::QueueFull`].
    fn post_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError>;

    /// Rings the doorbell for everything posted since the last time. [`Self::poll`] does so too.
    fn flush(&mut self);

    /// Takes completions, at most as many as fit; returns how many. It is `now_ns`.
    fn poll(&mut self, now_ns: u64, completions: &mut [Completion]) -> usize;

    /// Takes the next connection event. It is `now_ns`.
    fn poll_event(&mut self, now_ns: u64) -> Option<Event>;

    /// Becomes readable when there is something to poll, once [`Self::arm`] said that there is nothing now.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Prepares to sleep on [`Self::wait_fd`]. `false`: there is work, poll instead. It is `now_ns`: the
    /// descriptor becomes readable in time for what has to happen at a time, too.
    fn arm(&mut self, now_ns: u64) -> bool;
}
