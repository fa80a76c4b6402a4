//! The trait that every NIC implements, and the values that its calls take and return.
//!
//! Rules that hold for every implementation (the conformance suite checks them):
//!
//! * A work request that was posted completes exactly once: with success, an error, or [`Status::Flushed`].
//!   SENDs may complete together, and some tens of microseconds after they were taken.
//! * SENDs of one QP arrive in the order they were posted. Each takes one SRQ entry: its header goes to the
//!   entry's header area, its payload to the entry's slab.
//! * A SEND that finds no SRQ entry is not lost: the sender's NIC waits ("receiver not ready", RNR) and tries
//!   again. The event is counted, and only that QP waits.
//! * READs of one QP complete in the order they were posted, and so do its SENDs. On a device, a SEND also
//!   completes after the READs that were posted before it. A software NIC that was given a profile does the
//!   same.
//! * READs under way on one QP never exceed what the devices of both ends allow: [`Event::Connected`] says
//!   how many.
//! * A READ with an unknown key, or outside the region, changes no byte. It completes with
//!   [`Status::RemoteAccess`], and takes its QP to the error state, as with verbs.
//! * [`Nic::disconnect`] and a lost peer flush everything outstanding, then report [`Event::Disconnected`]
//!   exactly once. After that the [`Qp`] is stale, and every call with it fails with [`PostError::Stale`]. No
//!   memory named by a flushed request is touched after its completion was polled.
//! * After construction, posting and polling allocate nothing.
//! * The caller passes the time to [`Nic::poll`], [`Nic::poll_event`] and [`Nic::arm`]: nanoseconds from a
//!   beginning of the caller's choice, which never go back. Only these three calls act because time has
//!   passed, and no software NIC reads a clock. A wait that begins in another call ([`Nic::connect`],
//!   [`Nic::disconnect`], [`Nic::post_read`]) counts its whole span from the next of these three calls. A NIC
//!   on a device uses the system's clock, as the device does. A NIC that runs on a thread of its own uses
//!   that thread's clock.

use crate::address::Address;
use crate::advice::{self, Advised};
use crate::memory::SharedMemory;
pub use crate::source::Source;
use jet_wire::message::HeaderBytes;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Handle of a connection (queue pair). It is stale once [`Event::Disconnected`] was polled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qp {
    /// Place in the NIC's table of connections.
    pub index: u32,
    /// Number that tells this connection from earlier ones at the same place.
    pub generation: u32,
}

/// Key that names registered memory: to this NIC as a local key, to the peer as a remote one.
///
/// The key is no secret: on many devices it can be guessed from an earlier one. Memory is protected because a
/// READ needs a connection to the NIC that registered it. A peer with such a connection may read all memory
/// that is registered with [`Access::RemoteRead`], whether it was told the key or not (docs/rdma.md, "Who may
/// read what").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryKey(pub u32);

/// Access that a NIC and its peers have to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only this NIC writes the memory: the receiver's pool and header area. No peer can name it.
    LocalWrite,
    /// Connected peers may READ the memory: a sender's buffers.
    RemoteRead,
}

/// Stretch of registered local memory (scatter/gather entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Key of the region that the stretch lies in.
    pub key: MemoryKey,
    /// Byte offset from the region's start.
    pub offset: u64,
    /// Length of the stretch in bytes.
    pub bytes: u32,
}

/// Entry of the shared receive queue: memory where one SEND may land.
#[derive(Clone, Copy, Debug)]
pub struct SrqEntry {
    /// Caller's number for the entry; its completion returns it.
    pub id: u32,
    /// Memory for the header: exactly [`jet_wire::message::HEADER_BYTES`] bytes, 64-byte aligned.
    pub header: Sge,
    /// Memory for the payload: a slab. `None` where only SENDs without payload are expected (a sender's end).
    pub payload: Option<Sge>,
}

/// Payload of a SEND, behind its header.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// No payload.
    None,
    /// Inline bytes, at most [`Limits::inline_bytes_max`]. They are copied before the call returns.
    Inline(&'a [u8]),
    /// Registered memory, at most 4096 bytes. The caller must not change them until the SEND completes.
    Registered(Sge),
}

/// SEND to be posted. Its header is copied before the call returns.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Caller's number for the SEND; its completion returns it.
    pub id: u64,
    /// Header of the message.
    pub header: &'a HeaderBytes,
    /// Payload that follows the header.
    pub payload: Payload<'a>,
}

/// READ of a peer's memory into local memory, to be posted.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest<'a> {
    /// Caller's number for the READ; its completion returns it.
    pub id: u64,
    /// Address of the bytes at the peer, as [`Nic::remote_address`] returned it there.
    pub address: u64,
    /// Peer's key of the memory.
    pub key: u32,
    /// Local stretches that the bytes go to, in this order. Their total length is the length of the READ. At
    /// most [`Limits::scatter_max`] stretches.
    pub scatter: &'a [Sge],
}

/// Work that a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// SEND of the peer that arrived.
    Receive {
        /// Number of the SRQ entry that the SEND took.
        entry: u32,
        /// Payload bytes behind the header.
        payload_bytes: u32,
    },
    /// SEND of this end that the peer's NIC took.
    Send {
        /// Number of the request.
        id: u64,
    },
    /// READ of this end that is done.
    Read {
        /// Number of the request.
        id: u64,
    },
    /// SRQ entry that comes back unused: the SRQ is being torn down, or a connection had taken the entry of
    /// which nothing else is left. The completion's QP means nothing.
    SrqFlush {
        /// Number of the SRQ entry.
        entry: u32,
    },
}

/// Outcome of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// All bytes were moved.
    Success,
    /// The QP ended before the request was done.
    Flushed,
    /// The peer refused the READ: its key is unknown, or the bytes lie outside its region.
    RemoteAccess,
    /// A local key is unknown, or a stretch lies outside its region.
    LocalProtection,
    /// The SEND was longer than its SRQ entry, or shorter than a header. Its connection ends.
    Length,
    /// The peer had no SRQ entry for longer than the limit allows.
    RnrExhausted,
    /// Provider's own error code, for an outcome without a name here.
    Other(u32),
}

/// Completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Connection whose work completed.
    pub qp: Qp,
    /// Work that completed.
    pub work: Work,
    /// Outcome of the work.
    pub status: Status,
}

impl Completion {
    /// Value for places in which [`Nic::poll`] has not put a completion yet.
    pub const UNUSED: Self =
        Self { qp: Qp { index: 0, generation: 0 }, work: Work::Send { id: 0 }, status: Status::Flushed };
}

/// Most bytes of private data that a connection request or its answer carries in Jet.
pub const PRIVATE_DATA_MAX: usize = 56;

/// Copy of the private data of a connection request or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; PRIVATE_DATA_MAX],
    used: u8,
}

impl PrivateData {
    /// Copies the data. `None` where it is longer than [`PRIVATE_DATA_MAX`] bytes.
    pub fn new(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; PRIVATE_DATA_MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { bytes, used: u8::try_from(data.len()).ok()? })
    }

    /// Returns the bytes of the data.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.used)]
    }
}

/// Reason why a connection ended or was never made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The user of this end ended the connection.
    Local,
    /// The other end closed the connection, or its process died.
    Peer,
    /// The transport failed with this errno.
    Transport(i32),
    /// A work request failed with this status, which ends its connection.
    WorkRequest(Status),
    /// The peer broke the protocol: it sent a frame, or set a ring index, that cannot be.
    Protocol,
    /// The peer could not take a region of this end, or not read it. Only over `shm:`.
    Region(RegionError),
}

/// Reason why an end of a connection over `shm:` could not take a region of the other end, or not read it.
/// The other end is to blame, but for [`Self::ReceiverFull`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The region is no memory file, or one that can be truncated.
    #[error("it is no memfd, or not sealed; seal the memfd with F_SEAL_SHRINK before registering it")]
    NotSealed,
    /// The other end registered too many regions, or one key twice.
    #[error("there are too many regions, or two with one key; register fewer and larger ones")]
    TooMany,
    /// The region is empty, or the other end's regions have too many bytes together.
    #[error("it is empty, or all regions together have too many bytes; register less memory")]
    TooLarge,
    /// The system could not read the region: its memory was lost, or its file cannot be read.
    #[error("its memory cannot be read; make and register another region")]
    Unreadable,
    /// The connections of the other end's process have as many regions as one process may have.
    #[error(
        "this process's connections to the receiver have as many regions as one process may have there, \
         three quarters of all; open fewer connections, or register fewer and larger regions"
    )]
    Share,
    /// The reading end has as many regions of all its peers as it may.
    #[error(
        "the receiver reads as many regions as it can, of all senders on this host together; stop some of \
         them, or raise the descriptors of the jetd there (ulimit -n, in a service LimitNOFILE)"
    )]
    ReceiverFull,
}

/// Change of a connection or of the NIC, which [`Nic::poll_event`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks to connect; answer with [`Nic::accept`] or [`Nic::reject`].
    ConnectRequest {
        /// Handle of the connection that is asked for.
        qp: Qp,
        /// Where the request comes from.
        source: Source,
        /// Private data of the peer's request.
        private_data: PrivateData,
    },
    /// A connection is ready for work at both ends.
    Connected {
        /// Handle of the connection.
        qp: Qp,
        /// Private data of the accepting end (empty at that end itself).
        private_data: PrivateData,
        /// READs that this end may have outstanding on the connection. 0 means none at all.
        ///
        /// The least of three numbers: what the NIC was made for, what its device makes, and what the peer
        /// said that it answers.
        reads_max: u32,
    },
    /// The other end refused a connection.
    Rejected {
        /// Handle of the refused connection; stale now.
        qp: Qp,
        /// Private data of the refusing end.
        private_data: PrivateData,
    },
    /// A connection ended, or could not be made. All its work has completed before this event.
    Disconnected {
        /// Handle of the connection; stale now.
        qp: Qp,
        /// Reason for the end.
        reason: DisconnectReason,
    },
    /// The NIC's device is gone, or failed for good.
    ///
    /// All connections end, and no call can begin anything any more. Once all its work has completed the NIC
    /// must be dropped, so that the system can remove the device.
    Gone,
}

/// Limits of a NIC. Its users ask for them with [`Nic::limits`], and assume none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Scatter entries of one READ, at most.
    pub scatter_max: u32,
    /// Outstanding READs of one QP, at most. [`Event::Connected`] says how many a connection may have.
    pub reads_per_qp_max: u32,
    /// Outstanding READs of all QPs together, at most.
    pub reads_max: u32,
    /// Outstanding SENDs of one QP, at most.
    pub sends_per_qp_max: u32,
    /// Entries of the SRQ, at most.
    pub srq_entries_max: u32,
    /// Bytes of a [`Payload::Inline`], at most.
    pub inline_bytes_max: u32,
    /// Connections, at most.
    pub qps_max: u32,
    /// NUMA node that the NIC's device is attached to, where the system knows it. Memory that the NIC writes
    /// is best there.
    pub numa_node: Option<u32>,
}

/// Counters of a NIC since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// SENDs that arrived.
    pub receives: u64,
    /// SENDs of this end that the peers' NICs took.
    pub sends: u64,
    /// READs of this end that are done.
    pub reads: u64,
    /// Bytes that SENDs and READs brought to this end.
    pub bytes_in: u64,
    /// Times that a SEND found no SRQ entry (RNR).
    pub rnr: u64,
    /// Requests that completed with [`Status::Flushed`].
    pub flushed: u64,
    /// Peers that were cut off because they broke the protocol.
    pub protocol_errors: u64,
    /// Connections that were not taken because their host is in none of the allowed networks
    /// ([`crate::networks`]).
    pub networks_refused: u64,
    /// Times that few SRQ entries were left, on devices that report it.
    pub srq_limit_reached: u64,
    /// Connections that were ended although the device had not completed all their work in time.
    pub drains_given_up: u64,
    /// Connections of which the device never reported that they take no SRQ entry any more ("last WQE
    /// reached").
    pub last_wqe_missed: u64,
}

/// Reason why memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The NIC's table of regions is full.
    #[error("{max} memory regions are registered already; deregister some, or use fewer and larger ones")]
    TooMany {
        /// Regions that the table holds.
        max: usize,
    },
    /// The system refused to register the memory.
    #[error("could not register {bytes} bytes: {}", Advised { error: source, otherwise: "check ulimit -l \
        (memlock)" })]
    System {
        /// Bytes that were to be registered.
        bytes: usize,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// Reason why a NIC does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens on the address.
    #[error("{address} is in use by a running process; stop it or choose another address")]
    InUse {
        /// Address to listen on.
        address: Address,
    },
    /// A file that is no socket lies at the address's path.
    #[error(
        "{address}: there is a file of that name, and it is no socket; move it away or choose another address"
    )]
    NoSocket {
        /// Address to listen on.
        address: Address,
    },
    /// This NIC does not support that kind of address.
    #[error("{address} is not an address for this NIC")]
    WrongFabric {
        /// Address to listen on.
        address: Address,
    },
    /// The system refused to listen.
    #[error("cannot listen on {address}: {}", Advised { error: source, otherwise: listen_advice(source) })]
    System {
        /// Address to listen on.
        address: Address,
        /// Error of the system.
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

/// Reason why a connection attempt did not even begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This NIC does not support that kind of address.
    #[error("{address} is not an address for this NIC")]
    WrongFabric {
        /// Address to connect to.
        address: Address,
    },
    /// Nobody listens at the address, or the system refused.
    #[error("cannot connect to {address}: {source}; {}", advice::of_socket(source, "is jetd running there?"))]
    System {
        /// Address to connect to.
        address: Address,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A NIC listens at the address, but so many connections wait to be accepted that one more finds no room.
    /// Only over `shm:`; over the other fabrics such a connection waits by itself.
    #[error(
        "too many connections wait at {address}; try again, and if that does not help: is the jetd there \
         stopped, or does a program connect there without end?"
    )]
    Busy {
        /// Address to connect to.
        address: Address,
    },
    /// The NIC's table of connections is full.
    #[error("{max} connections are open already")]
    TooMany {
        /// Connections that the table holds.
        max: u32,
    },
}

impl ConnectError {
    /// Whether the error suggests that nobody listens at the address.
    pub fn is_absence(&self) -> bool {
        const ABSENT: &str = "absent";
        matches!(self, Self::System { source, .. } if advice::of_socket(source, ABSENT) == ABSENT)
    }
}

/// Reason why a work request was not posted. Such a request has no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue that takes such requests is full; poll completions and try again.
    #[error("the queue is full; poll completions first")]
    QueueFull,
    /// The connection is gone, or not ready yet.
    #[error("the connection is gone")]
    Stale,
    /// A local key is unknown, or a stretch lies outside its region.
    #[error("a local stretch of memory is not registered")]
    LocalProtection,
    /// The request has more scatter entries or bytes than [`Limits`] allows, or it is a READ on a connection
    /// that takes no READs.
    #[error("the request exceeds the NIC's limits")]
    Limit,
}

/// NIC that one thread uses. The module's documentation has the rules for all implementations.
pub trait Nic: Send {
    /// Returns the NIC's limits.
    fn limits(&self) -> Limits;

    /// Returns what the NIC has counted since it was made.
    fn counters(&self) -> Counters;

    /// Registers memory with the NIC until [`Self::deregister`]. This is slow: call it at start, or once for
    /// each buffer.
    ///
    /// # Errors
    /// [`RegisterError`].
    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError>;

    /// Takes a registration back. An unknown key is ignored.
    ///
    /// Requests in flight that name the key fail with an access error, and so do READs of peers.
    fn deregister(&mut self, key: MemoryKey);

    /// Returns the address that a peer writes into [`ReadRequest::address`] to read registered memory from
    /// `offset` on.
    fn remote_address(&self, key: MemoryKey, offset: u64) -> u64;

    /// Starts to listen, and returns the real address (with port 0 resolved). Connection requests come as
    /// events.
    ///
    /// # Errors
    /// [`ListenError`].
    fn listen(&mut self, address: &Address) -> Result<Address, ListenError>;

    /// Stops listening: connection attempts fail from now on. Existing connections stay.
    fn stop_listening(&mut self);

    /// Starts to connect, and returns the connection's handle. The outcome comes as an event for it.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn connect(&mut self, address: &Address, private_data: &PrivateData) -> Result<Qp, ConnectError>;

    /// Accepts a connection request.
    ///
    /// # Errors
    /// [`PostError::Stale`] where the peer has gone meanwhile. The same error where this end makes READs and
    /// the peer said that it answers none; then [`Event::Disconnected`] follows, with
    /// [`DisconnectReason::Protocol`].
    fn accept(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError>;

    /// Refuses a connection request. The handle is stale after this, and no event follows.
    fn reject(&mut self, qp: Qp, private_data: &PrivateData);

    /// Ends a connection: flushes its work, then reports [`Event::Disconnected`].
    ///
    /// SENDs that were posted before, and that the peer's NIC can still take, are tried first for a bounded
    /// time. So a farewell message that was posted before still arrives.
    fn disconnect(&mut self, qp: Qp);

    /// Posts an entry to the SRQ.
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
    /// [`PostError`]; [`PostError::QueueFull`] where the connection has `reads_max` READs outstanding.
    fn post_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError>;

    /// Says that the peer is about to READ memory of this end, because of the SEND that was posted last.
    ///
    /// It is a hint: where the fabric can, the bytes go with the SEND, and the READ is done without asking
    /// for them (`tcp:`, for READs of exactly these bytes, at most 256 KiB). `address` and `key` are those
    /// that the READ will name.
    ///
    /// The bytes may be sent at any time while the memory is registered. A READ of them may bring what they
    /// were at any time since this call, so they are not to be changed until that READ is done, or is sure
    /// not to come. Both ends' users must have agreed on it, since NICs of earlier builds know of no offers.
    fn offer(&mut self, qp: Qp, address: u64, key: u32, bytes: u32) {
        let _ = (qp, address, key, bytes);
    }

    /// Rings the NIC's doorbell, so that the NIC begins all that was posted since the last call.
    /// [`Self::poll`] does so, too.
    fn flush(&mut self);

    /// Takes completions, at most as many as fit into the slice, and returns how many. `now_ns` is the time
    /// in nanoseconds.
    fn poll(&mut self, now_ns: u64, completions: &mut [Completion]) -> usize;

    /// Takes the next connection event. `now_ns` is the time in nanoseconds.
    fn poll_event(&mut self, now_ns: u64) -> Option<Event>;

    /// Returns a descriptor to sleep on. It becomes readable when there is something to poll, once
    /// [`Self::arm`] has returned `true`.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Prepares to sleep on [`Self::wait_fd`]. `false` where there is work: poll instead.
    ///
    /// `now_ns` is the time in nanoseconds. The descriptor also becomes readable in time for whatever the NIC
    /// must do at a later time.
    fn arm(&mut self, now_ns: u64) -> bool;
}
