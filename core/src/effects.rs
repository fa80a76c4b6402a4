//! Effects: what the receiver asks of its driver.

use crate::pool::Run;
use jet_wire::message::{ByeReason, HeaderBytes};
use jet_wire::segment::{Delivery, HeldLimit};

/// A connected sender: an index below `Config::peers_max`. Another sender may get the index after the loss of
/// this one was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);

/// A registered application: an index below `Config::sessions_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub u32);

/// The process of an application, by the system's number. The number stays with that process for as long as
/// it holds anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);

/// The user of an application's process, by the system's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

/// Where a sender comes from: a host, or a process of this one. Who connects cannot choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u128);

/// A READ in flight: an index below `Config::reads_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(pub u32);

/// The sender's memory that a READ reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the sender's memory.
    pub address: u64,
    /// Key of the sender's memory region.
    pub key: u32,
}

/// A copy under way: an index below `Config::copies_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyId(pub u32);

/// A delivered run to copy to escape memory (Jet §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscapeCopy {
    /// Index of the copy.
    pub id: CopyId,
    /// Session that holds the run.
    pub session: SessionId,
    /// Slot of the run.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u16,
    /// Slabs that the run occupies now.
    pub from: Run,
    /// Slabs of escape memory to copy to, as many as the run has.
    pub to: Run,
}

/// The reason why a copy was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRefused {
    /// The application is reading the run.
    Pinned,
    /// No worker can take another copy now.
    NoRoom,
}

/// The reason why a slab was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFailed {
    /// The source slab cannot be read.
    Source,
    /// The target slab cannot be written.
    Target,
}

/// A release that breaks the rules of the segment. It ends the application's session, and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseError {
    /// The entry's kind is unknown, or reserved bytes are set.
    Kind {
        /// Kind that the entry states.
        found: u8,
    },
    /// The slot does not exist.
    Slot {
        /// Slot that the entry names.
        slot: u32,
    },
    /// The slot holds nothing, or another run than the one named: released twice, or never held.
    NotHeld {
        /// Slot that the entry names.
        slot: u32,
    },
    /// The slices lie outside the run, or the entry names no slices.
    Slices {
        /// Slot that the entry names.
        slot: u32,
        /// First slice that the entry names.
        first: u16,
        /// Number of slices that the entry names.
        count: u16,
    },
    /// The message that the entry names is not open: the application has no such message, or finished it
    /// before.
    Message {
        /// Message that the entry names.
        message: u32,
    },
    /// A message was finished as consumed before all of it was delivered.
    Early {
        /// Message that the entry names.
        message: u32,
    },
    /// A message was replied to whose sender wants no reply, or the reply is longer than 4096 bytes.
    Reply {
        /// Message that the entry names.
        message: u32,
        /// Bytes of the reply.
        bytes: u16,
    },
    /// The release ring's index is impossible.
    Ring,
}

impl core::fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Kind { found } => write!(f, "release entry of unknown kind {found}"),
            Self::Slot { slot } => write!(f, "released slot {slot}, which does not exist"),
            Self::NotHeld { slot } => write!(f, "released slot {slot}, which the application does not hold"),
            Self::Slices { slot, first, count } => {
                let end = u32::from(first) + u32::from(count);
                write!(f, "released slices {first}..{end} of slot {slot}, which it does not hold")
            }
            Self::Message { message } => write!(f, "finished message {message}, which is not open"),
            Self::Early { message } => {
                write!(f, "finished message {message} as consumed before all of it came")
            }
            Self::Reply { message, bytes } => write!(
                f,
                "replied with {bytes} bytes to message {message}, whose sender wants none, or not so many, \
                 or they cannot be read"
            ),
            Self::Ring => f.write_str("the release ring's index cannot be: the segment was scribbled over"),
        }
    }
}

impl core::error::Error for ReleaseError {}

/// The reason why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The application closed the session or died.
    Gone,
    /// The application broke the protocol of its segment.
    Release {
        /// The rule that was broken.
        error: ReleaseError,
        /// Slabs that the session held: they are in quarantine.
        held_slabs: u32,
    },
    /// The driver ended the session; its application may live on.
    Ended {
        /// Slabs that the session held: they are in quarantine.
        held_slabs: u32,
    },
}

impl SessionEnd {
    /// Returns whether the session ended because of what its application did. Such an application may live on
    /// and keep what it held.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Gone)
    }
}

/// A standstill: the application holds all that it may while more waits for it. Nothing arrives before the
/// application gives something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// The limit that the session has reached.
    pub limit: HeldLimit,
    /// Stage of the standstill, by how often the application was told.
    pub stage: StandstillStage,
}

/// Stages of a standstill, by how often the application was told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandstillStage {
    /// The application is told for the first time.
    First,
    /// The application is told for the second time: it is not merely slow.
    Lasting,
    /// The application was told twice before, or more often.
    Again,
}

/// Commands for the driver. It carries them out in the order of the calls, and must not call the receiver
/// back from them.
pub trait Commands {
    /// Posts SRQ entry `entry` with slab `slab`.
    fn post_srq(&mut self, entry: u32, slab: u32);

    /// READs `bytes` from the peer into the runs, in their order. The last slab may be filled in part. The
    /// driver answers with `handle_read_done`, also where the READ could not be posted.
    fn post_read(&mut self, peer: PeerId, read: ReadId, remote: Remote, bytes: u32, runs: &[Run]);

    /// SENDs a header to the peer. The driver answers with `handle_sent` when its NIC has taken the header.
    fn send(&mut self, peer: PeerId, header: &HeaderBytes);

    /// SENDs a reply to the peer: a header, and the first `bytes` bytes of a slot for replies. The driver
    /// answers with `handle_sent` when its NIC has taken both, and with `handle_reply_sent`. The slot stays
    /// as it is until then, or until the peer is lost.
    fn send_reply(&mut self, peer: PeerId, header: &HeaderBytes, slot: u32, bytes: u32);

    /// Copies the first `bytes` bytes of the reply cell of a session's message into a slot for replies, at
    /// once. Returns `false` where they cannot be read.
    fn take_reply(&mut self, session: SessionId, message: u32, slot: u32, bytes: u32) -> bool;

    /// Ends the connection after what was sent on it before. The driver answers with `handle_peer_lost`. For
    /// [`ByeReason::BadMemory`], `message` is the sequence number of the message that could not be read.
    fn disconnect(&mut self, peer: PeerId, reason: ByeReason, message: Option<u64>);

    /// Publishes the slot and appends the descriptor to the session's delivery ring. `user_header` is the
    /// whole header; one that does not fit the descriptor goes to the message's header cell first.
    fn deliver(&mut self, session: SessionId, delivery: &Delivery, user_header: &[u8]);

    /// Tells the application that its session is over, and lets go of the session. There is no answer.
    fn close_session(&mut self, session: SessionId, end: SessionEnd);

    /// Tells the application that it holds all that it may, or (`None`) that the standstill is over.
    fn report_standstill(&mut self, session: SessionId, standstill: Option<Standstill>);

    /// Begins to copy a run. The driver answers with `handle_copied`. Both runs stay as they are until then.
    ///
    /// # Errors
    /// [`CopyRefused`]: nothing was begun, and there is no answer.
    fn begin_copy(&mut self, copy: &EscapeCopy) -> Result<(), CopyRefused>;

    /// Copies a slab's first `bytes` bytes at once.
    ///
    /// # Errors
    /// [`CopyFailed`], also where the slab turned out to be lost after it was copied, for the bytes may be
    /// zeros. The driver calls `handle_poisoned` before the next flush.
    fn copy_slab(&mut self, from: u32, to: u32, bytes: u32) -> Result<(), CopyFailed>;

    /// Makes the NIC mark congestion earlier (`true`), or as it usually does (`false`).
    fn mark(&mut self, on: bool);

    /// Has a worker make the CRC32C of a READ's first `bytes`. The driver answers with `handle_checked` or
    /// `handle_check_failed`. The runs stay as they are until then. At most one check of each READ is under
    /// way. Called only with [`Checksums::Workers`].
    ///
    /// [`Checksums::Workers`]: crate::config::Checksums::Workers
    fn begin_check(&mut self, read: ReadId, bytes: u32, runs: &[Run]);
}

/// Questions about what only the driver can see. It answers at once.
pub trait Questions {
    /// Returns the first bytes of a slab whose SEND arrived, and which is not posted again yet. The receiver
    /// asks where a user header or a list of pieces lies in the slab.
    fn payload(&self, slab: u32, bytes: u32) -> &[u8];

    /// Moves a run to its new place after its copy, so that the application finds it there. Returns `false`
    /// if the application is reading the run: then it still finds the run at the old place.
    fn relocate(&mut self, copy: &EscapeCopy) -> bool;
}

/// Checksums of bytes.
pub trait Sums {
    /// Returns the CRC32C of a slab's first bytes, continued from `crc`. `None`: the bytes cannot be read;
    /// the driver calls `handle_poisoned` before the next flush.
    fn crc32c(&mut self, crc: u32, slab: u32, bytes: u32) -> Option<u32>;

    /// Returns the CRC32C of two byte ranges, one behind the other, from the CRC32C of each. `second_bytes`
    /// is the length of the second.
    fn combine_crc32c(first: u32, second: u32, second_bytes: u32) -> u32 {
        jet_wire::message::combine_crc32c(first, second, second_bytes)
    }
}

/// All effects of a driver: it carries out commands, answers questions and makes checksums.
pub trait Effects: Commands + Questions + Sums {}

impl<T: Commands + Questions + Sums> Effects for T {}
