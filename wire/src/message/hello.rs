//! The first words of a connection, in its private data.
//!
//! A hello fits the 56 bytes that RDMA CM leaves an application in a connection request, so the same bytes
//! work on every fabric. One connection carries the messages of one sender to one application.
//!
//! First words are sent before a version is agreed on, so all versions share their layout: existing bytes
//! keep their places. `docs/wire.md` says how something is added.

use super::{FIRST_VERSION, Versions};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest application name, in bytes.
pub const APP_NAME_MAX: usize = 32;
/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 56;

const MAGIC: [u8; 4] = *b"JETh";

/// Feature bits: what one end understands, whatever the version. The sender sends all of its own bits. The
/// receiver answers with those of them that it understands, too, and only these are used. Unknown bits are
/// ignored.
pub mod features {
    /// Checksums over payloads are understood; a receiver that leaves this out ignores them.
    pub const CRC32C: u32 = 1;
    /// Congestion signals are understood.
    pub const CONGESTION: u32 = 2;
    /// A receiver's heartbeats say what the sender's messages wait for. Not on connections of version 1.
    pub const WAITS_FOR: u32 = 4;
    /// Ends of messages may bring a reply. A sender that has this has room for a payload of 4096 bytes in
    /// each of its receive entries.
    pub const REPLIES: u32 = 8;
    /// A sender may take messages back. Not on connections of version 1.
    pub const CANCEL: u32 = 16;
    /// Large messages may lie in several pieces. Not on connections of version 1.
    pub const GATHER: u32 = 32;
    /// Bytes of a large message may be pushed behind its request, over `tcp:`. Not on connections of version
    /// 1.
    pub const PUSH: u32 = 64;
    /// All features that this build understands.
    pub const ALL: u32 = CRC32C | CONGESTION | WAITS_FOR | REPLIES | CANCEL | GATHER | PUSH;
}

/// An application's name: 1 to 32 bytes of letters, digits, `.`, `_`, `-`, `/` or `:`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppName {
    bytes: [u8; APP_NAME_MAX],
    used: u8,
}

/// The name is empty, too long, or has a character that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppNameError;

impl core::fmt::Display for AppNameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("an application's name has 1 to 32 characters out of A-Z a-z 0-9 . _ - / :")
    }
}

impl core::error::Error for AppNameError {}

impl AppName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`AppNameError`] says what is allowed.
    pub fn new(name: &str) -> Result<Self, AppNameError> {
        Self::from_bytes(name.as_bytes())
    }

    fn from_bytes(name: &[u8]) -> Result<Self, AppNameError> {
        let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"._-/:".contains(b);
        if name.is_empty() || name.len() > APP_NAME_MAX || !name.iter().all(allowed) {
            return Err(AppNameError);
        }
        let mut bytes = [0; APP_NAME_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Self { bytes, used: u8::try_from(name.len()).map_err(|_| AppNameError)? })
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.used)]).unwrap_or_default()
    }
}

impl core::fmt::Display for AppName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.as_str())
    }
}

impl core::fmt::Debug for AppName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "AppName({})", self.as_str())
    }
}

/// Message with which a sender asks for a connection: its versions, its identity, and the application it
/// sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Versions of the wire format that the sender speaks.
    pub versions: Versions,
    /// Set of [`features`], as bits.
    pub features: u32,
    /// Identity of the sender, kept over reconnects, so that an application can recognize redelivered
    /// messages.
    pub sender_id: u64,
    /// Receive entries that the sender keeps posted for acknowledgements.
    pub receive_entries: u16,
    /// Application that this connection's messages are for.
    pub app: AppName,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 4],
    version_lowest: u8,
    app_bytes: u8,
    receive_entries: U16,
    features: U32,
    sender_id: U64,
    app: [u8; APP_NAME_MAX],
    /// Highest version that the sender speaks; 0: the same as the lowest.
    version_highest: u8,
    /// Byte that is zero in this version. A reader refuses anything else: a later version may use the byte
    /// for something that must be understood.
    understood: u8,
    /// Bytes that are skipped, whatever they are.
    skipped: [u8; 2],
}

const _: () = assert!(size_of::<RawHello>() == HELLO_BYTES);

/// Answer of a receiver that accepts a connection: its versions, and what the sender may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Versions of the wire format that the receiver speaks. This build speaks at least one of them, too.
    pub versions: Versions,
    /// Set of [`features`] that both ends know, as bits.
    pub features: u32,
    /// Number that changes with every start of the daemon.
    pub incarnation: u64,
    /// SENDs that the sender may make before the next credit arrives.
    pub credit_limit: u64,
    /// Bytes of the longest message that the receiver accepts.
    pub message_bytes_max: u64,
    /// The most requests for large messages that the sender may have unfinished at once.
    pub requests_max: u32,
    /// Milliseconds after which a sender that waits for an end or for credit hears something, at the latest;
    /// 0: nothing is promised.
    pub heartbeat_ms: u16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawWelcome {
    magic: [u8; 4],
    version_lowest: u8,
    /// Highest version that the receiver speaks; 0: the same as the lowest.
    version_highest: u8,
    heartbeat_ms: U16,
    features: U32,
    requests_max: U32,
    incarnation: U64,
    credit_limit: U64,
    message_bytes_max: U64,
}

/// Bytes of a [`Welcome`].
pub const WELCOME_BYTES: usize = size_of::<RawWelcome>();

/// The reason why a receiver refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The hello could not be read.
    Malformed,
    /// The two ends have no version of the wire format in common; the receiver speaks these.
    Version(Versions),
    /// The configured number of connected peers is reached.
    TooManyPeers,
    /// The daemon is draining.
    Draining,
}

/// Bytes of a [`Refusal`].
pub const REFUSAL_BYTES: usize = 8;

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Malformed => {
                "the receiver could not read the hello: it may ask for what that Jet does not \
                                know; update the older end"
            }
            Self::Version(theirs) => return no_version_in_common(f, *theirs),
            Self::TooManyPeers => {
                "the receiver has as many peers as limits.peers or its device allows; close some, or raise it"
            }
            Self::Draining => "the receiver is draining; connect to the next daemon",
        })
    }
}

fn no_version_in_common(f: &mut core::fmt::Formatter<'_>, theirs: Versions) -> core::fmt::Result {
    let ours = Versions::SUPPORTED;
    let older = if theirs.highest() < ours.lowest() { "the receiver's" } else { "this end's" };
    write!(
        f,
        "no wire version in common: the receiver speaks {theirs}, this end {ours}; update {older} Jet, or \
         use the same build at both"
    )
}

/// The reason why a hello, a welcome or a refusal could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HelloError {
    /// There are too few bytes.
    Truncated {
        /// Bytes that arrived.
        bytes: usize,
    },
    /// The bytes do not begin with Jet's magic number.
    Magic,
    /// The stated lowest and highest version do not form a range.
    Versions {
        /// Lowest version stated.
        lowest: u8,
        /// Highest version stated.
        highest: u8,
    },
    /// The receiver accepted the connection, but speaks no version that this build speaks.
    NoVersion {
        /// Versions that the receiver speaks.
        theirs: Versions,
    },
    /// The hello asks for something that this build does not know, and that must be understood.
    Unknown,
    /// The application's name is not valid.
    App,
}

impl core::fmt::Display for HelloError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Truncated { bytes } => write!(f, "a connection's first words are too short: {bytes} bytes"),
            Self::Magic => f.write_str("a connection's first words are not Jet's"),
            Self::Versions { lowest, highest } => {
                write!(f, "wire versions from {lowest} to {highest} are none")
            }
            Self::NoVersion { theirs } => no_version_in_common(f, theirs),
            Self::Unknown => f.write_str("a connection asks for what this build does not know; update it"),
            Self::App => f.write_str("a connection names no valid application"),
        }
    }
}

impl core::error::Error for HelloError {}

impl Hello {
    /// Returns the bytes for the connection request.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let raw = RawHello {
            magic: MAGIC,
            version_lowest: self.versions.lowest(),
            app_bytes: self.app.used,
            receive_entries: self.receive_entries.into(),
            features: self.features.into(),
            sender_id: self.sender_id.into(),
            app: self.app.bytes,
            version_highest: self.versions.highest_byte(),
            understood: 0,
            skipped: [0; 2],
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a connection request's private data. Padding behind it is ignored, as RDMA CM pads.
    ///
    /// # Errors
    /// [`HelloError`]; the connecting end is to blame.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let (raw, _) =
            RawHello::ref_from_prefix(bytes).map_err(|_| HelloError::Truncated { bytes: bytes.len() })?;
        let versions = check(raw.magic, raw.version_lowest, raw.version_highest)?;
        if raw.understood != 0 {
            return Err(HelloError::Unknown);
        }
        let name = raw.app.get(..usize::from(raw.app_bytes)).ok_or(HelloError::App)?;
        Ok(Self {
            versions,
            features: raw.features.get(),
            sender_id: raw.sender_id.get(),
            receive_entries: raw.receive_entries.get(),
            app: AppName::from_bytes(name).map_err(|_| HelloError::App)?,
        })
    }
}

impl Welcome {
    /// Returns the bytes for the accept.
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let raw = RawWelcome {
            magic: MAGIC,
            version_lowest: self.versions.lowest(),
            version_highest: self.versions.highest_byte(),
            heartbeat_ms: self.heartbeat_ms.into(),
            features: self.features.into(),
            requests_max: self.requests_max.into(),
            incarnation: self.incarnation.into(),
            credit_limit: self.credit_limit.into(),
            message_bytes_max: self.message_bytes_max.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads an accept's private data. Bytes behind it are ignored: padding, and what later versions add.
    ///
    /// # Errors
    /// [`HelloError`]; the accepting end is to blame.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let (raw, _) =
            RawWelcome::ref_from_prefix(bytes).map_err(|_| HelloError::Truncated { bytes: bytes.len() })?;
        let versions = check(raw.magic, raw.version_lowest, raw.version_highest)?;
        if Versions::SUPPORTED.agree(versions).is_none() {
            return Err(HelloError::NoVersion { theirs: versions });
        }
        Ok(Self {
            versions,
            features: raw.features.get(),
            incarnation: raw.incarnation.get(),
            credit_limit: raw.credit_limit.get(),
            message_bytes_max: raw.message_bytes_max.get(),
            requests_max: raw.requests_max.get(),
            heartbeat_ms: raw.heartbeat_ms.get(),
        })
    }

    /// Returns the version of the connection. It is version 1 for a welcome that was built, not read, with no
    /// version that this build speaks.
    pub fn agreed_version(&self) -> u8 {
        Versions::SUPPORTED.agree(self.versions).unwrap_or(FIRST_VERSION)
    }
}

impl Refusal {
    fn reason(self) -> u8 {
        match self {
            Self::Malformed => 1,
            Self::Version(_) => 2,
            Self::TooManyPeers => 3,
            Self::Draining => 4,
        }
    }

    /// Returns the bytes for the reject.
    pub fn encode(self) -> [u8; REFUSAL_BYTES] {
        let [a, b, c, d] = MAGIC;
        let spoken = if let Self::Version(spoken) = self { spoken } else { Versions::FIRST };
        [a, b, c, d, spoken.lowest(), self.reason(), spoken.highest_byte(), 0]
    }

    /// Reads a reject's private data; `None` if it is not one of Jet's.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let reason = *bytes.get(5).filter(|_| bytes.starts_with(&MAGIC))?;
        let spoken = Versions::from_bytes(bytes[4], bytes.get(6).copied().unwrap_or(0));
        match reason {
            1 => Some(Self::Malformed),
            2 => spoken.map(Self::Version),
            3 => Some(Self::TooManyPeers),
            4 => Some(Self::Draining),
            _ => None,
        }
    }
}

fn check(magic: [u8; 4], lowest: u8, highest: u8) -> Result<Versions, HelloError> {
    if magic != MAGIC {
        return Err(HelloError::Magic);
    }
    Versions::from_bytes(lowest, highest).ok_or(HelloError::Versions { lowest, highest })
}

#[cfg(all(test, not(loom)))]
mod tests;
