//! From bytes to checked views. Everything a stranger can get wrong is an error here and nowhere later.

use super::{
    ACK_RANGES_MAX, AckHeader, AckStatus, ByeHeader, CongestionHeader, CreditHeader, CreditReturn,
    HEADER_BYTES, HeaderBytes, Kind, Prefix, RequestHeader, SMALL_USER_HEADER_MAX, SmallHeader,
    USER_HEADER_MAX, WIRE_VERSION, flags,
};
use crate::SLAB_BYTES;
use zerocopy::FromBytes;

/// What a receiver may get.
#[derive(Clone, Copy, Debug)]
pub enum FromSender<'a> {
    /// A small message; its payload has the length that it says.
    Small(&'a SmallHeader),
    /// A request for a large one; where the user header is the payload, it has the length that it says.
    Request(&'a RequestHeader),
    /// The answer to a recall.
    CreditReturn(&'a CreditReturn),
}

/// What a sender may get.
#[derive(Clone, Copy, Debug)]
pub enum FromReceiver<'a> {
    /// Ends of messages.
    Ack(&'a AckHeader),
    /// A credit limit or a recall.
    Credit(&'a CreditHeader),
    /// Cut the windows.
    Congestion(&'a CongestionHeader),
    /// The receiver is about to disconnect.
    Bye(&'a ByeHeader),
}

/// Why a header was refused. The other end is to blame in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    Truncated {
        /// Bytes that arrived.
        bytes: usize,
    },
    /// Another wire version.
    Version {
        /// The version found.
        found: u8,
    },
    /// A kind that does not exist or that this end never gets.
    Kind {
        /// The kind found.
        found: u8,
    },
    /// Flag bits that this version does not know, or reserved bytes that are not zero.
    Reserved,
    /// A user header longer than this kind allows.
    UserHeader {
        /// Its stated length.
        bytes: usize,
        /// The most that is allowed.
        max: usize,
    },
    /// The header states another payload length than what arrived: a length that lies.
    Payload {
        /// Bytes stated.
        stated: u64,
        /// Bytes that arrived behind the header.
        arrived: usize,
    },
    /// A message of no bytes by request, or one that ends beyond the address space.
    Extent {
        /// Stated start.
        address: u64,
        /// Stated length.
        length: u64,
    },
    /// A range that is empty, wraps around, or has a status that does not exist.
    Range {
        /// Its position in the acknowledgement.
        index: usize,
    },
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Truncated { bytes } => write!(f, "truncated header: {bytes} of {HEADER_BYTES} bytes"),
            Self::Version { found } => {
                write!(
                    f,
                    "wire version {found}, this build speaks {WIRE_VERSION}; use the same build at both ends"
                )
            }
            Self::Kind { found } => write!(f, "unknown or misdirected kind {found}"),
            Self::Reserved => f.write_str("unknown flags or reserved bytes set"),
            Self::UserHeader { bytes, max } => {
                write!(f, "user header of {bytes} bytes, at most {max} are allowed")
            }
            Self::Payload { stated, arrived } => {
                write!(f, "header states {stated} payload bytes, {arrived} arrived")
            }
            Self::Extent { address, length } => {
                write!(f, "message at {address:#x} of {length} bytes cannot exist")
            }
            Self::Range { index } => {
                write!(f, "acknowledgement range {index} is empty, wraps, or has no status")
            }
        }
    }
}

impl core::error::Error for HeaderError {}

/// Reads a header that a sender sent; `payload_bytes` is what arrived behind it.
///
/// # Errors
/// [`HeaderError`], which always blames the sender.
pub fn parse_from_sender(header: &HeaderBytes, payload_bytes: usize) -> Result<FromSender<'_>, HeaderError> {
    let bytes = &header.0;
    let prefix = prefix(bytes)?;
    let user_bytes = usize::from(prefix.count.get());
    if prefix.kind == Kind::Small as u8 {
        if user_bytes > SMALL_USER_HEADER_MAX {
            return Err(HeaderError::UserHeader { bytes: user_bytes, max: SMALL_USER_HEADER_MAX });
        }
        let small = view::<SmallHeader>(bytes);
        let stated = small.payload_bytes.get();
        if stated as usize != payload_bytes || payload_bytes > SLAB_BYTES {
            return Err(HeaderError::Payload { stated: u64::from(stated), arrived: payload_bytes });
        }
        Ok(FromSender::Small(small))
    } else if prefix.kind == Kind::Request as u8 {
        if user_bytes > USER_HEADER_MAX {
            return Err(HeaderError::UserHeader { bytes: user_bytes, max: USER_HEADER_MAX });
        }
        let request = view::<RequestHeader>(bytes);
        let behind = if request.user_header_is_payload() { user_bytes } else { 0 };
        if behind != payload_bytes {
            return Err(HeaderError::Payload { stated: behind as u64, arrived: payload_bytes });
        }
        if request.reserved != [0; 15] {
            return Err(HeaderError::Reserved);
        }
        let (address, length) = (request.address.get(), request.length.get());
        if length == 0 || address.checked_add(length).is_none() {
            return Err(HeaderError::Extent { address, length });
        }
        Ok(FromSender::Request(request))
    } else if prefix.kind == Kind::CreditReturn as u8 {
        no_payload(payload_bytes)?;
        Ok(FromSender::CreditReturn(view(bytes)))
    } else {
        Err(HeaderError::Kind { found: prefix.kind })
    }
}

/// Reads a header that a receiver sent; `payload_bytes` is what arrived behind it.
///
/// # Errors
/// [`HeaderError`], which always blames the receiver.
pub fn parse_from_receiver(
    header: &HeaderBytes,
    payload_bytes: usize,
) -> Result<FromReceiver<'_>, HeaderError> {
    let bytes = &header.0;
    let prefix = prefix(bytes)?;
    no_payload(payload_bytes)?;
    if prefix.kind == Kind::Ack as u8 {
        let ack = view::<AckHeader>(bytes);
        let count = usize::from(prefix.count.get());
        if count > ACK_RANGES_MAX {
            return Err(HeaderError::Range { index: ACK_RANGES_MAX });
        }
        for (index, range) in ack.ranges[..count].iter().enumerate() {
            let ends = range.first.get().checked_add(u64::from(range.count.get()));
            if range.count.get() == 0
                || ends.is_none()
                || AckStatus::from_wire(range.status.get(), range.code.get()).is_none()
            {
                return Err(HeaderError::Range { index });
            }
        }
        Ok(FromReceiver::Ack(ack))
    } else if prefix.kind == Kind::Credit as u8 {
        Ok(FromReceiver::Credit(view(bytes)))
    } else if prefix.kind == Kind::Congestion as u8 {
        Ok(FromReceiver::Congestion(view(bytes)))
    } else if prefix.kind == Kind::Bye as u8 {
        Ok(FromReceiver::Bye(view(bytes)))
    } else {
        Err(HeaderError::Kind { found: prefix.kind })
    }
}

fn prefix(bytes: &[u8; HEADER_BYTES]) -> Result<&Prefix, HeaderError> {
    let (prefix, _) =
        Prefix::ref_from_prefix(bytes).expect("128 bytes hold a prefix, which has no alignment");
    if prefix.version != WIRE_VERSION {
        return Err(HeaderError::Version { found: prefix.version });
    }
    if prefix.flags.get() & !flags::KNOWN != 0 || prefix.reserved.get() != 0 {
        return Err(HeaderError::Reserved);
    }
    Ok(prefix)
}

fn view<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(bytes: &[u8; HEADER_BYTES]) -> &T {
    T::ref_from_bytes(bytes).expect("every header type is unaligned and has HEADER_BYTES")
}

fn no_payload(payload_bytes: usize) -> Result<(), HeaderError> {
    if payload_bytes == 0 { Ok(()) } else { Err(HeaderError::Payload { stated: 0, arrived: payload_bytes }) }
}
