//! The first words of a connection, in its private data.
//!
//! A hello fits the 56 bytes that RDMA CM leaves an application in a connection request, so the same bytes work on
//! every fabric. One connection speaks for one sender to one application.

use super::WIRE_VERSION;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest application name, in bytes.
pub const APP_NAME_MAX: usize = 32;
/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 56;

const MAGIC: [u8; 4] = *b"JETh";

/// Feature bits that both ends must know to use; unknown ones are ignored.
pub mod features {
    /// Checksums over payloads are understood; a receiver that leaves this out ignores them.
    pub const CRC32C: u32 = 1;
    /// Congestion signals are understood.
    pub const CONGESTION: u32 = 2;
    /// What this build understands.
    pub const ALL: u32 = CRC32C | CONGESTION;
}

/// An application's name: 1 to 32 bytes of letters, digits, `.`, `_`, `-`, `/` or `:`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AppName {
    bytes: [u8; APP_NAME_MAX],
    used: u8,
}

/// The name is empty, too long, or has a character that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// The name as text.
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

/// What a sender says when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Bits of [`features`].
    pub features: u32,
    /// The sender's own identity, kept over reconnects, so that an application can tell redelivered messages.
    pub sender_id: u64,
    /// Receive entries that the sender keeps posted for acknowledgements.
    pub receive_entries: u16,
    /// The application that this connection's messages are for.
    pub app: AppName,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 4],
    version: u8,
    app_bytes: u8,
    receive_entries: U16,
    features: U32,
    sender_id: U64,
    app: [u8; APP_NAME_MAX],
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<RawHello>() == HELLO_BYTES);

/// What a receiver answers when it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Bits of [`features`] that both ends know.
    pub features: u32,
    /// Changes with every start of the daemon.
    pub incarnation: u64,
    /// SENDs that the sender may make before the next credit arrives.
    pub credit_limit: u64,
    /// The longest message that the receiver takes.
    pub message_bytes_max: u64,
    /// Requests for large messages that the sender may have unfinished at once.
    pub requests_max: u32,
    /// A sender that waits for an end or for credit hears something this often; 0: nothing is promised.
    pub heartbeat_ms: u16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawWelcome {
    magic: [u8; 4],
    version: u8,
    reserved: u8,
    heartbeat_ms: U16,
    features: U32,
    requests_max: U32,
    incarnation: U64,
    credit_limit: U64,
    message_bytes_max: U64,
}

/// Bytes of a [`Welcome`].
pub const WELCOME_BYTES: usize = size_of::<RawWelcome>();

/// Why a receiver refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The hello could not be read.
    Malformed = 1,
    /// Another wire version.
    Version = 2,
    /// As many peers as the configuration allows are connected.
    TooManyPeers = 3,
    /// The daemon is draining.
    Draining = 4,
}

/// Bytes of a [`Refusal`].
pub const REFUSAL_BYTES: usize = 8;

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the receiver could not read the hello; is it a Jet of the same build?",
            Self::Version => "the receiver speaks another wire version; use the same build at both ends",
            Self::TooManyPeers => {
                "the receiver has as many peers as limits.peers allows; raise it or close some"
            }
            Self::Draining => "the receiver is draining; connect to the next daemon",
        })
    }
}

/// Why a hello, a welcome or a refusal could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// Too short.
    Truncated {
        /// Bytes that arrived.
        bytes: usize,
    },
    /// It does not begin as one.
    Magic,
    /// Another wire version.
    Version {
        /// The version found.
        found: u8,
    },
    /// The application's name is not one.
    App,
}

impl core::fmt::Display for HelloError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Truncated { bytes } => write!(f, "a connection's first words are too short: {bytes} bytes"),
            Self::Magic => f.write_str("a connection's first words are not Jet's"),
            Self::Version { found } => write!(f, "wire version {found}, this build speaks {WIRE_VERSION}"),
            Self::App => f.write_str("a connection names no valid application"),
        }
    }
}

impl core::error::Error for HelloError {}

impl Hello {
    /// The bytes for the connection request.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let raw = RawHello {
            magic: MAGIC,
            version: WIRE_VERSION,
            app_bytes: self.app.used,
            receive_entries: self.receive_entries.into(),
            features: self.features.into(),
            sender_id: self.sender_id.into(),
            app: self.app.bytes,
            reserved: [0; 4],
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a connection request's private data; padding behind it is ignored, as RDMA CM pads.
    ///
    /// # Errors
    /// [`HelloError`]; the connecting end is to blame.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let (raw, _) =
            RawHello::ref_from_prefix(bytes).map_err(|_| HelloError::Truncated { bytes: bytes.len() })?;
        check(raw.magic, raw.version)?;
        let name = raw.app.get(..usize::from(raw.app_bytes)).ok_or(HelloError::App)?;
        Ok(Self {
            features: raw.features.get(),
            sender_id: raw.sender_id.get(),
            receive_entries: raw.receive_entries.get(),
            app: AppName::from_bytes(name).map_err(|_| HelloError::App)?,
        })
    }
}

impl Welcome {
    /// The bytes for the accept.
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let raw = RawWelcome {
            magic: MAGIC,
            version: WIRE_VERSION,
            reserved: 0,
            heartbeat_ms: self.heartbeat_ms.into(),
            features: self.features.into(),
            requests_max: self.requests_max.into(),
            incarnation: self.incarnation.into(),
            credit_limit: self.credit_limit.into(),
            message_bytes_max: self.message_bytes_max.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads an accept's private data.
    ///
    /// # Errors
    /// [`HelloError`]; the accepting end is to blame.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let (raw, _) =
            RawWelcome::ref_from_prefix(bytes).map_err(|_| HelloError::Truncated { bytes: bytes.len() })?;
        check(raw.magic, raw.version)?;
        Ok(Self {
            features: raw.features.get(),
            incarnation: raw.incarnation.get(),
            credit_limit: raw.credit_limit.get(),
            message_bytes_max: raw.message_bytes_max.get(),
            requests_max: raw.requests_max.get(),
            heartbeat_ms: raw.heartbeat_ms.get(),
        })
    }
}

impl Refusal {
    /// The bytes for the reject.
    pub fn encode(self) -> [u8; REFUSAL_BYTES] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, WIRE_VERSION, self as u8, 0, 0]
    }

    /// Reads a reject's private data; `None` where it is not one of ours.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let reason = *bytes.get(5).filter(|_| bytes.starts_with(&MAGIC))?;
        [Self::Malformed, Self::Version, Self::TooManyPeers, Self::Draining]
            .into_iter()
            .find(|refusal| *refusal as u8 == reason)
    }
}

fn check(magic: [u8; 4], version: u8) -> Result<(), HelloError> {
    if magic != MAGIC {
        return Err(HelloError::Magic);
    }
    if version != WIRE_VERSION {
        return Err(HelloError::Version { found: version });
    }
    Ok(())
}
