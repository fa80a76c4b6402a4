//! What the receiver asks of its driver.

use crate::pool::Run;
use jet_wire::message::HeaderBytes;
use jet_wire::segment::{Delivery, HeldLimit};

/// A connected sender: an index below `Config::peers_max`, free for another after its loss was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);

/// A registered application: an index below `Config::sessions_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub u32);

/// The process of an application, by the system's number. It is one process's for as long as that process
/// holds anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);

/// A READ in flight: an index below `Config::reads_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(pub u32);

/// Where a READ reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The sender's address.
    pub address: u64,
    /// The sender's key.
    pub key: u32,
}

/// A copy under way: an index below `Config::copies_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyId(pub u32);

/// A delivered run that is to be copied to escape memory (Jet §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscapeCopy {
    /// Which.
    pub id: CopyId,
    /// Whose run.
    pub session: SessionId,
    /// Its slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u16,
    /// Where it lies.
    pub from: Run,
    /// Where it is to lie: as many slabs.
    pub to: Run,
}

/// Why a copy was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRefused {
    /// The application is reading the run.
    Pinned,
    /// Nobody can copy now.
    NoRoom,
}

/// Why a slab was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFailed {
    /// The slab cannot be read.
    Source,
    /// The other one cannot be written.
    Target,
}

/// An application released what it must not. Its session is over; nobody else is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseError {
    /// No such kind of entry, or reserved bytes set.
    Kind {
        /// The kind found.
        found: u8,
    },
    /// No such slot.
    Slot {
        /// The slot named.
        slot: u32,
    },
    /// The slot holds nothing, or another run than the one named: released twice, or never held.
    NotHeld {
        /// The slot named.
        slot: u32,
    },
    /// The slices lie outside the run, or are none.
    Slices {
        /// The slot named.
        slot: u32,
        /// First slice named.
        first: u16,
        /// Slices named.
        count: u16,
    },
    /// The message named is not open.
    Message {
        /// The message named.
        message: u32,
    },
    /// A message was finished as consumed before all of it was delivered.
    Early {
        /// The message named.
        message: u32,
    },
    /// The release ring's index cannot be.
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
            Self::Ring => f.write_str("the release ring's index cannot be: the segment was scribbled over"),
        }
    }
}

impl core::error::Error for ReleaseError {}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The application closed it or died.
    Gone,
    /// The application broke the protocol of its segment.
    Release {
        /// How.
        error: ReleaseError,
        /// Slabs that it held: they are in quarantine.
        held_slabs: u32,
    },
    /// The driver ended it; its application may live on.
    Ended {
        /// Slabs that it held: they are in quarantine.
        held_slabs: u32,
    },
}

impl SessionEnd {
    /// Whether it ended for what its application did, which may live on and hold what it held.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Gone)
    }
}

/// An application that holds all that it may: more waits for it, and nothing comes before it gives something
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// What it has used up.
    pub limit: HeldLimit,
    /// How long it stands.
    pub stage: StandstillStage,
}

/// How long a standstill stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandstillStage {
    /// It is told for the first time.
    First,
    /// For the second: it is not merely slow.
    Lasting,
    /// It was told twice before, or more often.
    Again,
}

/// What the driver is to do. Commands are to be carried out in the order of the calls; none may call back.
pub trait Commands {
    /// Post SRQ entry `entry` with slab `slab`.
    fn post_srq(&mut self, entry: u32, slab: u32);

    /// READ `bytes` from the peer into the runs, in their order. The last slab may be filled in part. Answer
    /// with `handle_read_done`, also where it could not be posted.
    fn post_read(&mut self, peer: PeerId, read: ReadId, remote: Remote, bytes: u32, runs: &[Run]);

    /// SEND a header to the peer. Answer with `handle_sent` when its NIC took it.
    fn send(&mut self, peer: PeerId, header: &HeaderBytes);

    /// End the connection after what was sent. Answer with `handle_peer_lost`.
    fn disconnect(&mut self, peer: PeerId);

    /// Publish the slot and append the descriptor to the session's delivery ring. `user_header` is whole;
    /// where it does not fit the descriptor it goes to the message's header cell first.
    fn deliver(&mut self, session: SessionId, delivery: &Delivery, user_header: &[u8]);

    /// Tell the application that its session is over and let go of it. No answer.
    fn close_session(&mut self, session: SessionId, end: SessionEnd);

    /// Tell the application that it holds all that it may, or that this is over.
    fn tell_standstill(&mut self, session: SessionId, standstill: Option<Standstill>);

    /// Copy a run, and answer with `handle_copied`. Both runs stay as they are until then.
    ///
    /// # Errors
    /// [`CopyRefused`]: nothing was begun, no answer comes.
    fn begin_copy(&mut self, copy: &EscapeCopy) -> Result<(), CopyRefused>;

    /// Copy a slab's first bytes now.
    ///
    /// # Errors
    /// [`CopyFailed`], also where the slab turned out to be lost after it was copied: what was read may be
    /// zeros. Tell `handle_poisoned` before the next flush.
    fn copy_slab(&mut self, from: u32, to: u32, bytes: u32) -> Result<(), CopyFailed>;

    /// Have the NIC mark congestion earlier (`true`), or as it did before (`false`).
    fn mark(&mut self, on: bool);

    /// Have the CRC32C of a READ's first `bytes` made elsewhere, and answer with `handle_checked` or
    /// `handle_check_failed`. The runs stay as they are until then. At most one check of each READ is under
    /// way. Called only with [`Checksums::Workers`].
    ///
    /// [`Checksums::Workers`]: crate::config::Checksums::Workers
    fn begin_check(&mut self, read: ReadId, bytes: u32, runs: &[Run]);
}

/// What the driver is asked about what only it can see. It answers at once.
pub trait Questions {
    /// The first bytes of a slab whose SEND arrived, and which is not posted again yet: asked for where a
    /// user header lies there.
    fn payload(&self, slab: u32, bytes: u32) -> &[u8];

    /// After its copy: does the application find the run at its new place from now on? `false`: it is reading
    /// the run where it lies, and goes on finding it there.
    fn relocate(&mut self, copy: &EscapeCopy) -> bool;
}

/// Sums of bytes.
pub trait Sums {
    /// CRC32C of a slab's first bytes, going on from `crc`. `None`: they cannot be read; tell
    /// `handle_poisoned` before the next flush.
    fn crc32c(&mut self, crc: u32, slab: u32, bytes: u32) -> Option<u32>;

    /// CRC32C of two stretches, one behind the other, from those of both; `second_bytes` is how long the
    /// second is.
    fn combine_crc32c(first: u32, second: u32, second_bytes: u32) -> u32 {
        jet_wire::message::combine_crc32c(first, second, second_bytes)
    }
}

/// The driver's hands: whoever carries out commands, answers questions and makes sums.
pub trait Effects: Commands + Questions + Sums {}

impl<T: Commands + Questions + Sums> Effects for T {}
