//! Parsing of headers: from bytes to checked views. Every mistake in bytes from another host becomes an error
//! here, and none is left for later. The views can also be encoded again, for comparisons by tests,
//! recordings and the fuzzer.
//!
//! Version 1 refuses every byte that it gives no meaning. From version 2 on some of them are skipped, so
//! additions there need no change at an older end. `docs/wire.md` says which.

use super::{
    ACK_RANGES_MAX, AckHeader, AckRange, AckStatus, ByeHeader, CancelHeader, CongestionHeader, CreditHeader,
    CreditReturn, FIRST_VERSION, HEADER_BYTES, HeaderBytes, Kind, PIECES_MAX, Prefix, ReplyHeader,
    RequestFields, RequestHeader, SMALL_USER_HEADER_MAX, SmallFields, SmallHeader, USER_HEADER_MAX, flags,
};
use crate::SLAB_BYTES;
use zerocopy::{FromBytes, IntoBytes};

/// A header that a receiver may get, checked.
#[derive(Clone, Copy, Debug)]
pub enum FromSender<'a> {
    /// A small message; its payload has the stated length.
    Small(&'a SmallHeader),
    /// A request for a large message. Where the user header is the payload, it has the stated length.
    Request(&'a RequestHeader),
    /// The answer to a recall of credit.
    CreditReturn(&'a CreditReturn),
    /// A message that is taken back. Not on connections of version 1.
    Cancel(&'a CancelHeader),
}

/// A header that a sender may get, checked.
#[derive(Clone, Copy, Debug)]
pub enum FromReceiver<'a> {
    /// An acknowledgement: ends of messages.
    Ack(&'a AckHeader),
    /// The end of one message, with a reply of the stated length.
    Reply(&'a ReplyHeader),
    /// A credit limit or a recall.
    Credit(&'a CreditHeader),
    /// A congestion signal: cut the windows.
    Congestion(&'a CongestionHeader),
    /// A farewell: the receiver is about to disconnect.
    Bye(&'a ByeHeader),
}

impl FromSender<'_> {
    /// Encodes again what was read. The header has [`WIRE_VERSION`](super::WIRE_VERSION);
    /// [`HeaderBytes::set_version`] changes that to the version that it was read in. Bytes without a meaning
    /// are zero. A user header or a list of pieces behind the request is its payload, and not part of this.
    ///
    /// # Panics
    /// Panics if the view does not come from [`parse_from_sender`] and has values that no header may have.
    #[must_use]
    pub fn encode(&self) -> HeaderBytes {
        match self {
            Self::Small(small) => SmallHeader::encode(&SmallFields {
                sequence: small.sequence.get(),
                tag: small.tag.get(),
                payload_bytes: small.payload_bytes.get(),
                crc32c: small.crc32c(),
                redelivered: small.redelivered(),
                wants_reply: small.wants_reply(),
                user_header: small.user_header(),
            }),
            Self::Request(request) => RequestHeader::encode(&RequestFields {
                sequence: request.sequence.get(),
                tag: request.tag.get(),
                length: request.length.get(),
                address: request.address.get(),
                key: request.key.get(),
                class: request.class,
                pieces: request.pieces,
                crc32c: request.crc32c(),
                redelivered: request.redelivered(),
                wants_reply: request.wants_reply(),
                // Where the user header is the payload, the header has only its length.
                user_header: request
                    .inline_user_header()
                    .unwrap_or(&[0; USER_HEADER_MAX][..request.user_header_bytes()]),
            }),
            Self::CreditReturn(answer) => CreditReturn::encode(answer.credit_limit.get()),
            Self::Cancel(cancel) => CancelHeader::encode(cancel.sequence.get()),
        }
    }
}

impl FromReceiver<'_> {
    /// Encodes again what was read, like [`FromSender::encode`]. `None`: it has a status or a reason of a
    /// later version, which this build cannot encode.
    ///
    /// # Panics
    /// Panics if the view does not come from [`parse_from_receiver`] and has values that no header may have.
    #[must_use]
    pub fn encode(&self) -> Option<HeaderBytes> {
        Some(match self {
            Self::Ack(ack) => {
                if ack.ranges_of_unknown_status() > 0 {
                    return None;
                }
                let none = AckRange { first: 0, count: 0, status: AckStatus::Consumed };
                let (mut ranges, mut count) = ([none; ACK_RANGES_MAX], 0);
                for (place, range) in ranges.iter_mut().zip(ack.ranges()) {
                    *place = range;
                    count += 1;
                }
                AckHeader::encode(ack.credit_limit.get(), &ranges[..count])
            }
            Self::Reply(reply) => {
                let limit = reply.credit_limit.get();
                ReplyHeader::encode(limit, reply.sequence(), reply.status(), reply.payload_bytes.get())
            }
            Self::Credit(credit) if credit.recall() => CreditHeader::encode(credit.credit_limit.get(), true),
            Self::Credit(credit) => {
                CreditHeader::encode_heartbeat(credit.credit_limit.get(), credit.waits_for())
            }
            Self::Congestion(signal) => CongestionHeader::encode(signal.window_permille.get()),
            Self::Bye(bye) => ByeHeader::encode(bye.reason()?),
        })
    }
}

/// The reason why a header was refused. The other end is to blame in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// There are fewer bytes than a header has.
    Truncated {
        /// Bytes that arrived.
        bytes: usize,
    },
    /// The version is not that of the connection.
    Version {
        /// Version found.
        found: u8,
        /// Version that was agreed on.
        agreed: u8,
    },
    /// The kind does not exist, or this end never gets it.
    Kind {
        /// Kind found.
        found: u8,
    },
    /// Flag bits are set that this build does not know or that do not belong to the kind, or fields are not
    /// zero that must be. From version 2 on, bytes and flags that may be skipped cause no such error.
    Reserved,
    /// The user header is longer than this kind allows.
    UserHeader {
        /// Stated length of the user header.
        bytes: usize,
        /// The most that is allowed.
        max: usize,
    },
    /// The stated payload length is not that of what arrived.
    Payload {
        /// Payload bytes that the header states.
        stated: u64,
        /// Bytes that arrived behind the header.
        arrived: usize,
    },
    /// The requested message has no bytes, or ends beyond the address space.
    Extent {
        /// Stated address of the message's first byte.
        address: u64,
        /// Stated length of the message.
        length: u64,
    },
    /// The list of pieces is not that of a message: its length is not 2 to 16, the pieces together are not
    /// the message, or one of them is empty, ends beyond the address space, or is not the last one and no
    /// multiple of 4096 bytes.
    Pieces {
        /// Index of the piece that is wrong, or the number of pieces where all of them together are wrong.
        index: usize,
    },
    /// A range is empty, wraps around, or has a status that does not exist.
    Range {
        /// Index of the range in the acknowledgement.
        index: usize,
    },
    /// The window that a congestion signal asks for is 0, or more than 1000 thousandths.
    Window {
        /// Stated window in thousandths.
        permille: u32,
    },
    /// The farewell has a reason that this version does not know.
    Reason {
        /// Reason found.
        found: u16,
    },
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Truncated { bytes } => write!(f, "truncated header: {bytes} of {HEADER_BYTES} bytes"),
            Self::Version { found, agreed } => {
                write!(f, "a header of wire version {found} on a connection of version {agreed}")
            }
            Self::Kind { found } => write!(f, "unknown or misdirected kind {found}"),
            Self::Reserved => f.write_str("unknown or misplaced flags, or fields set that must be zero"),
            Self::UserHeader { bytes, max } => {
                write!(f, "user header of {bytes} bytes, at most {max} are allowed")
            }
            Self::Payload { stated, arrived } => {
                write!(f, "header states {stated} payload bytes, {arrived} arrived")
            }
            Self::Extent { address, length } => {
                write!(f, "message at {address:#x} of {length} bytes cannot exist")
            }
            Self::Pieces { index } => {
                write!(
                    f,
                    "a list of pieces that is no message: piece {index} is wrong, or all {index} together"
                )
            }
            Self::Range { index } => {
                write!(f, "acknowledgement range {index} is empty, wraps, or has no status")
            }
            Self::Window { permille } => {
                write!(f, "a window of {permille} thousandths; 1 to 1000 are possible")
            }
            Self::Reason { found } => write!(f, "farewell for the unknown reason {found}"),
        }
    }
}

impl core::error::Error for HeaderError {}

/// Parses a header that a sender sent on a connection of that version. `payload_bytes` is how many bytes
/// arrived behind it.
///
/// # Errors
/// [`HeaderError`], which always blames the sender.
#[inline(always)] // once in the receiver, on every message's way
pub fn parse_from_sender(
    version: u8,
    header: &HeaderBytes,
    payload_bytes: usize,
) -> Result<FromSender<'_>, HeaderError> {
    let bytes = &header.0;
    let prefix = prefix(version, bytes)?;
    let user_bytes = usize::from(prefix.count.get());
    if prefix.kind == Kind::Small as u8 {
        if user_bytes > SMALL_USER_HEADER_MAX {
            return Err(HeaderError::UserHeader { bytes: user_bytes, max: SMALL_USER_HEADER_MAX });
        }
        let small = view::<SmallHeader>(bytes);
        check_flags(version, prefix, message_flags(version))?;
        check_crc32c(prefix, small.crc32c.get())?;
        let stated = small.payload_bytes.get();
        let is_as_stated = stated as usize == payload_bytes
            || (crate::planted!(StatedPayload) && stated as usize <= SLAB_BYTES);
        if !is_as_stated || payload_bytes > SLAB_BYTES {
            return Err(HeaderError::Payload { stated: u64::from(stated), arrived: payload_bytes });
        }
        Ok(FromSender::Small(small))
    } else if prefix.kind == Kind::Request as u8 {
        if user_bytes > USER_HEADER_MAX {
            return Err(HeaderError::UserHeader { bytes: user_bytes, max: USER_HEADER_MAX });
        }
        let request = view::<RequestHeader>(bytes);
        check_flags(version, prefix, message_flags(version))?;
        check_crc32c(prefix, request.crc32c.get())?;
        if version == FIRST_VERSION && request.pieces != 0 {
            return Err(HeaderError::Reserved);
        }
        let behind = request.payload_bytes();
        if behind != payload_bytes {
            return Err(HeaderError::Payload { stated: behind as u64, arrived: payload_bytes });
        }
        check_reserved(version, &request.reserved, REQUEST_SKIPPED)?;
        let (address, length) = (request.address.get(), request.length.get());
        if request.pieces > 0 {
            if address != 0 || request.key.get() != 0 {
                return Err(HeaderError::Reserved);
            }
            if !(2..=PIECES_MAX).contains(&usize::from(request.pieces)) {
                return Err(HeaderError::Pieces { index: request.pieces.into() });
            }
        }
        if length == 0 || address.checked_add(length).is_none() {
            return Err(HeaderError::Extent { address, length });
        }
        Ok(FromSender::Request(request))
    } else if prefix.kind == Kind::CreditReturn as u8 {
        no_payload(payload_bytes)?;
        let credit = view::<CreditReturn>(bytes);
        check_bare(version, prefix, 0, &credit.reserved)?;
        Ok(FromSender::CreditReturn(credit))
    } else if prefix.kind == Kind::Cancel as u8 && version > FIRST_VERSION {
        no_payload(payload_bytes)?;
        let cancel = view::<CancelHeader>(bytes);
        check_bare(version, prefix, 0, &cancel.reserved)?;
        Ok(FromSender::Cancel(cancel))
    } else {
        Err(HeaderError::Kind { found: prefix.kind })
    }
}

/// Parses a header that a receiver sent on a connection of that version. `payload_bytes` is how many bytes
/// arrived behind it.
///
/// # Errors
/// [`HeaderError`], which always blames the receiver.
pub fn parse_from_receiver(
    version: u8,
    header: &HeaderBytes,
    payload_bytes: usize,
) -> Result<FromReceiver<'_>, HeaderError> {
    let bytes = &header.0;
    let prefix = prefix(version, bytes)?;
    if prefix.kind == Kind::Reply as u8 && version > FIRST_VERSION {
        let reply = view::<ReplyHeader>(bytes);
        check_bare(version, prefix, 0, &reply.reserved)?;
        let stated = reply.payload_bytes.get();
        if stated as usize != payload_bytes || payload_bytes > SLAB_BYTES {
            return Err(HeaderError::Payload { stated: u64::from(stated), arrived: payload_bytes });
        }
        if !reply.is_sound(version) {
            return Err(HeaderError::Range { index: 0 });
        }
        return Ok(FromReceiver::Reply(reply));
    }
    no_payload(payload_bytes)?;
    if prefix.kind == Kind::Ack as u8 {
        let ack = view::<AckHeader>(bytes);
        check_flags(version, prefix, 0)?;
        let count = usize::from(prefix.count.get());
        if count > ACK_RANGES_MAX {
            return Err(HeaderError::Range { index: ACK_RANGES_MAX });
        }
        let (used, unused) = ack.ranges.split_at(count);
        if let Some(index) = used.iter().position(|range| !range.is_sound(version)) {
            return Err(HeaderError::Range { index });
        }
        check_reserved(version, &ack.reserved, ACK_SKIPPED)?;
        if !unused.iter().all(|range| is_zero(range.as_bytes())) {
            return Err(HeaderError::Reserved);
        }
        Ok(FromReceiver::Ack(ack))
    } else if prefix.kind == Kind::Credit as u8 {
        let credit = view::<CreditHeader>(bytes);
        // What is waited for lies in bytes that are skipped, so it may have any value.
        let bare = &bytes[core::mem::offset_of!(CreditHeader, reserved)..];
        check_bare(version, prefix, flags::RECALL, bare)?;
        Ok(FromReceiver::Credit(credit))
    } else if prefix.kind == Kind::Congestion as u8 {
        let congestion = view::<CongestionHeader>(bytes);
        check_bare(version, prefix, 0, &congestion.reserved)?;
        // A window of 0 would hold the sender's messages for ever without telling anybody.
        let permille = congestion.window_permille.get();
        if !(1..=1000).contains(&permille) {
            return Err(HeaderError::Window { permille });
        }
        Ok(FromReceiver::Congestion(congestion))
    } else if prefix.kind == Kind::Bye as u8 {
        let bye = view::<ByeHeader>(bytes);
        check_bare(version, prefix, 0, &bye.reserved)?;
        let found = bye.reason.get();
        // A farewell for a reason of a later version is still a farewell.
        if bye.reason().is_none() && (version == FIRST_VERSION || found == 0) {
            return Err(HeaderError::Reason { found });
        }
        Ok(FromReceiver::Bye(bye))
    } else {
        Err(HeaderError::Kind { found: prefix.kind })
    }
}

#[inline]
fn prefix(version: u8, bytes: &[u8; HEADER_BYTES]) -> Result<&Prefix, HeaderError> {
    let (prefix, _) =
        Prefix::ref_from_prefix(bytes).expect("128 bytes hold a prefix, which has no alignment");
    if prefix.version != version {
        return Err(HeaderError::Version { found: prefix.version, agreed: version });
    }
    // Each kind checks its own flags below.
    if prefix.reserved.get() != 0 {
        return Err(HeaderError::Reserved);
    }
    Ok(prefix)
}

/// Returns the flags that a small message and a request may carry.
#[inline]
fn message_flags(version: u8) -> u16 {
    let since_second = if version == FIRST_VERSION { 0 } else { flags::WANTS_REPLY };
    flags::CRC32C | flags::REDELIVERED | since_second
}

#[inline]
fn check_flags(version: u8, prefix: &Prefix, allowed: u16) -> Result<(), HeaderError> {
    let skipped = if version == FIRST_VERSION { 0 } else { flags::SKIPPED };
    if prefix.flags.get() & !(allowed | skipped) == 0 { Ok(()) } else { Err(HeaderError::Reserved) }
}

/// Bytes at the end of a header without a count that are skipped from version 2 on. They are its second cache
/// line.
const BARE_SKIPPED: usize = 64;
/// Bytes without a meaning that are skipped from version 2 on, in requests and acknowledgements: the last
/// eight of them.
const REQUEST_SKIPPED: usize = 8;
const ACK_SKIPPED: usize = 8;

/// Checks that bytes without a meaning are zero, except for those that the version skips.
#[inline]
fn check_reserved(version: u8, reserved: &[u8], skipped: usize) -> Result<(), HeaderError> {
    let skipped = if version == FIRST_VERSION { 0 } else { skipped };
    if is_zero(&reserved[..reserved.len() - skipped]) { Ok(()) } else { Err(HeaderError::Reserved) }
}

/// Checks that a checksum has its flag. Without the flag it would go unchecked, though its sender meant it to
/// be checked.
fn check_crc32c(prefix: &Prefix, crc32c: u32) -> Result<(), HeaderError> {
    if prefix.flags.get() & flags::CRC32C != 0 || crc32c == 0 { Ok(()) } else { Err(HeaderError::Reserved) }
}

/// Checks a header without a count: only the given flags are set, and bytes without a meaning are zero.
fn check_bare(version: u8, prefix: &Prefix, allowed: u16, reserved: &[u8]) -> Result<(), HeaderError> {
    check_flags(version, prefix, allowed)?;
    check_reserved(version, reserved, BARE_SKIPPED)?;
    if prefix.count.get() == 0 { Ok(()) } else { Err(HeaderError::Reserved) }
}

#[inline]
fn is_zero(bytes: &[u8]) -> bool {
    // No early exit, so that many bytes are handled at a time.
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

#[inline]
fn view<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(bytes: &[u8; HEADER_BYTES]) -> &T {
    T::ref_from_bytes(bytes).expect("every header type is unaligned and has HEADER_BYTES")
}

fn no_payload(payload_bytes: usize) -> Result<(), HeaderError> {
    if payload_bytes == 0 { Ok(()) } else { Err(HeaderError::Payload { stated: 0, arrived: payload_bytes }) }
}
