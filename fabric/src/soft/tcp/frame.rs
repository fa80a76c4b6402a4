//! The format of the bytes on a `tcp:` connection: frames, each a 32-byte little-endian header and, for some
//! kinds, bytes behind it.
//!
//! | kind | `length` | `id` | other fields | bytes behind |
//! |---|---|---|---|---|
//! | `Connect`, `Accept` | of the private data | READs that its sender answers at once | | private data |
//! | `Reject` | of the private data | | | private data |
//! | `Asked` | | | | |
//! | `Send` | of header and payload | | | message header, payload |
//! | `SendAck` | | SENDs taken since the connection began | | |
//! | `SendError` | | SENDs taken before the SEND that failed | `status` | |
//! | `ReadRequest` | of what is read | the READ's place in the order of READs | `address`, `key` | |
//! | `ReadResponse` | of this piece of the answer | the READ's place in the order of READs | | this piece of the answer |
//! | `ReadEnd` | | the READ's place in the order of READs | | |
//! | `ReadError` | | the READ's place in the order of READs | `status` | |
//! | `AskRoom` | | | | |
//! | `Room` | | bytes that may be offered since the connection began | | |
//! | `Offer` | of what will be pushed | | `address`, `key` | |
//! | `Push` | of what was offered | | | what was offered |
//! | `PushEnd` | | | `status`, or zero | |
//! | `Bye` | | | | |
//!
//! A piece of an answer to a READ counts only once its `ReadEnd` has arrived. A `ReadError` instead of the
//! `ReadEnd` says that the memory was deregistered while the piece was being written, and that the bytes of
//! the piece are not valid.
//!
//! What an end offers with `Offer` it pushes later, in the order of the offers: with `Push`, and a `PushEnd`
//! that says whether the bytes are valid. A `PushEnd` alone says that nothing is pushed for the offer. The
//! frames of pushing ([`super::connection`]) are sent only where the users of both ends have agreed on it, so
//! an earlier build never sees one.
//!
//! Fields that a kind does not use are zero, and a receiver refuses anything else. This module handles bytes
//! only: it knows no sockets, and does not decide which frame may follow which.

use crate::nic::{PRIVATE_DATA_MAX, Status};
use jet_wire::SLAB_BYTES;
use jet_wire::message::HEADER_BYTES;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a frame's header.
pub(super) const FRAME_BYTES: usize = 32;
/// Version of the framing that this build uses.
pub(super) const FRAME_VERSION: u8 = 2;
/// Most bytes behind one `ReadResponse`.
///
/// Longer READs are answered in pieces, so that a SEND waits behind one piece at most. The value is the
/// paper's fragment, so the usual READ is one piece.
pub(super) const READ_PIECE_MAX: u32 = 256 << 10;
/// Room that an offer takes at least, however short it is: so the room bounds the number of offers, too. Both
/// ends count so.
pub(super) const OFFER_COUNTS_MIN: u64 = 16 << 10;
/// Most bytes behind a `Send`.
pub(super) const SEND_BYTES_MAX: u32 = 4096 + HEADER;
/// Bytes of a message's header, as a `u32` for lengths on the stream.
pub(super) const HEADER: u32 = 128;
/// [`PRIVATE_DATA_MAX`], as a `u32` for lengths on the stream.
const PRIVATE_MAX: u32 = 56;

const _: () = assert!(SEND_BYTES_MAX as usize == SLAB_BYTES + HEADER_BYTES);
const _: () = assert!(HEADER as usize == HEADER_BYTES && PRIVATE_MAX as usize == PRIVATE_DATA_MAX);
const _: () = assert!(size_of::<RawFrame>() == FRAME_BYTES);

const MAGIC: [u8; 2] = *b"JF";

/// Frame header as it is on the stream.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFrame {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    length: U32,
    id: U64,
    address: U64,
    key: U32,
    status: u8,
    reserved: [u8; 3],
}

/// Values of [`RawFrame::kind`].
mod kind {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const ACCEPT: u8 = 2;
    pub(super) const REJECT: u8 = 3;
    pub(super) const SEND: u8 = 4;
    pub(super) const SEND_ACK: u8 = 5;
    pub(super) const SEND_ERROR: u8 = 6;
    pub(super) const READ_REQUEST: u8 = 7;
    pub(super) const READ_RESPONSE: u8 = 8;
    pub(super) const READ_ERROR: u8 = 9;
    pub(super) const BYE: u8 = 10;
    pub(super) const READ_END: u8 = 11;
    pub(super) const ASKED: u8 = 12;
    pub(super) const ASK_ROOM: u8 = 13;
    pub(super) const ROOM: u8 = 14;
    pub(super) const OFFER: u8 = 15;
    pub(super) const PUSH: u8 = 16;
    pub(super) const PUSH_END: u8 = 17;
}

/// Reason that a peer gives for a failed request of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A READ's key is unknown, or the READ leaves the region.
    RemoteAccess,
    /// A SEND is longer than its SRQ entry.
    Length,
    /// A SEND found no SRQ entry for too long.
    RnrExhausted,
}

impl Fault {
    fn code(self) -> u8 {
        match self {
            Self::RemoteAccess => 1,
            Self::Length => 2,
            Self::RnrExhausted => 3,
        }
    }

    fn from_code(code: u8) -> Result<Self, FrameError> {
        match code {
            1 => Ok(Self::RemoteAccess),
            2 => Ok(Self::Length),
            3 => Ok(Self::RnrExhausted),
            found => Err(FrameError::Status { found }),
        }
    }

    /// Returns the status with which the request completes.
    pub(super) fn status(self) -> Status {
        match self {
            Self::RemoteAccess => Status::RemoteAccess,
            Self::Length => Status::Length,
            Self::RnrExhausted => Status::RnrExhausted,
        }
    }
}

/// Checked frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// First frame of the connecting end: asks for a connection.
    Connect {
        /// Bytes of private data behind the header.
        private_bytes: u32,
        /// READs of the other end that the connecting end answers at once.
        reads_answered: u64,
    },
    /// Listening end's answer: the connection is accepted.
    Accept {
        /// Bytes of private data behind the header.
        private_bytes: u32,
        /// READs of the other end that the listening end answers at once.
        reads_answered: u64,
    },
    /// Listening end's answer: the connection is refused. No frame follows.
    Reject {
        /// Bytes of private data behind the header.
        private_bytes: u32,
    },
    /// The listening end has the request, and its user decides.
    Asked,
    /// SEND: a message header and this many bytes of payload follow.
    Send {
        /// Bytes of payload behind the message header.
        payload_bytes: u32,
    },
    /// Acknowledgement of SENDs.
    SendAck {
        /// SENDs that were taken since the connection began.
        taken: u64,
    },
    /// The SEND behind the first `taken` ones failed; the QP of the frame's sender is in error.
    SendError {
        /// SENDs that were taken before the failed one.
        taken: u64,
        /// Reason for the failure.
        fault: Fault,
    },
    /// Request of the peer to read memory of this end.
    ReadRequest {
        /// Place in the order of the peer's READs.
        id: u64,
        /// Address of the bytes.
        address: u64,
        /// Key of the region.
        key: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// Next piece of the answer to a READ of this end.
    ReadResponse {
        /// Place of the READ in the order of this end's READs.
        id: u64,
        /// Bytes of the piece, which follow the header.
        bytes: u32,
    },
    /// The piece of an answer to a READ that came before this frame is complete and valid.
    ReadEnd {
        /// Place of the READ in the order of this end's READs.
        id: u64,
    },
    /// A READ of this end failed; the QP of the frame's sender is in error.
    ReadError {
        /// Place of the READ in the order of this end's READs.
        id: u64,
        /// Reason for the failure.
        fault: Fault,
    },
    /// Question for room to push bytes in.
    AskRoom,
    /// Room for pushed bytes.
    Room {
        /// Bytes that the peer may offer since the connection began, where an offer counts for 16 KiB at
        /// least.
        limit: u64,
    },
    /// Announcement that these bytes will be pushed, because the peer is about to READ them.
    Offer {
        /// Address of the bytes, as the READ will name it.
        address: u64,
        /// Key of the region, as the READ will name it.
        key: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// The bytes of the oldest offer.
    Push {
        /// Number of bytes, which follow the header.
        bytes: u32,
    },
    /// End of the oldest offer.
    PushEnd {
        /// Why the bytes are not valid, or were not sent at all. `None`: they are valid.
        fault: Option<Fault>,
    },
    /// Farewell: nothing follows.
    Bye,
}

/// Reason why bytes are no frame. The peer is to blame in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("the stream does not speak Jet's framing (it begins with {found:02x?})")]
    Magic { found: [u8; 2] },
    #[error("framing version {found}, this build speaks {FRAME_VERSION}; use the same build at both ends")]
    Version { found: u8 },
    #[error("unknown frame kind {found}")]
    Kind { found: u8 },
    #[error("a frame of kind {kind} states {length} bytes; {min} to {max} are allowed")]
    Length { kind: u8, length: u32, min: u32, max: u32 },
    #[error("unknown fault code {found}")]
    Status { found: u8 },
    #[error("a field that frames of kind {kind} do not use is not zero")]
    Reserved { kind: u8 },
}

impl Frame {
    /// Parses and checks a frame header.
    pub(super) fn parse(bytes: &[u8; FRAME_BYTES]) -> Result<Self, FrameError> {
        let raw = RawFrame::ref_from_bytes(bytes).expect("unaligned and of this size");
        if raw.magic != MAGIC {
            return Err(FrameError::Magic { found: raw.magic });
        }
        if raw.version != FRAME_VERSION {
            return Err(FrameError::Version { found: raw.version });
        }
        let frame = Self::from_raw(raw)?;
        // The meaning of each field is decided in one place: a header is valid if `to_bytes` would write the
        // same.
        if frame.to_bytes() == *bytes { Ok(frame) } else { Err(FrameError::Reserved { kind: raw.kind }) }
    }

    fn from_raw(raw: &RawFrame) -> Result<Self, FrameError> {
        let (id, length) = (raw.id.get(), raw.length.get());
        let within = |min: u32, max: u32| {
            if (min..=max).contains(&length) {
                Ok(length)
            } else {
                Err(FrameError::Length { kind: raw.kind, length, min, max })
            }
        };
        let private = || within(0, PRIVATE_MAX);
        Ok(match raw.kind {
            kind::CONNECT => Self::Connect { private_bytes: private()?, reads_answered: id },
            kind::ACCEPT => Self::Accept { private_bytes: private()?, reads_answered: id },
            kind::REJECT => Self::Reject { private_bytes: private()? },
            kind::SEND => Self::Send { payload_bytes: within(HEADER, SEND_BYTES_MAX)? - HEADER },
            kind::SEND_ACK => Self::SendAck { taken: id },
            kind::SEND_ERROR => Self::SendError { taken: id, fault: Fault::from_code(raw.status)? },
            kind::READ_REQUEST => {
                Self::ReadRequest { id, address: raw.address.get(), key: raw.key.get(), bytes: length }
            }
            kind::READ_RESPONSE => Self::ReadResponse { id, bytes: within(0, READ_PIECE_MAX)? },
            kind::READ_END => Self::ReadEnd { id },
            kind::READ_ERROR => Self::ReadError { id, fault: Fault::from_code(raw.status)? },
            kind::BYE => Self::Bye,
            kind::ASKED => Self::Asked,
            kind::ASK_ROOM => Self::AskRoom,
            kind::ROOM => Self::Room { limit: id },
            kind::OFFER => Self::Offer {
                address: raw.address.get(),
                key: raw.key.get(),
                bytes: within(1, READ_PIECE_MAX)?,
            },
            kind::PUSH => Self::Push { bytes: within(1, READ_PIECE_MAX)? },
            kind::PUSH_END => {
                let fault = (raw.status != 0).then(|| Fault::from_code(raw.status));
                Self::PushEnd { fault: fault.transpose()? }
            }
            found => return Err(FrameError::Kind { found }),
        })
    }

    /// Returns the header's bytes.
    pub(super) fn to_bytes(self) -> [u8; FRAME_BYTES] {
        let (mut id, mut length, mut address, mut key, mut status) = (0, 0, 0, 0, 0);
        let kind = match self {
            Self::Connect { private_bytes, reads_answered } => {
                (length, id) = (private_bytes, reads_answered);
                kind::CONNECT
            }
            Self::Accept { private_bytes, reads_answered } => {
                (length, id) = (private_bytes, reads_answered);
                kind::ACCEPT
            }
            Self::Reject { private_bytes } => {
                length = private_bytes;
                kind::REJECT
            }
            Self::Send { payload_bytes } => {
                length = HEADER + payload_bytes;
                kind::SEND
            }
            Self::SendAck { taken } => {
                id = taken;
                kind::SEND_ACK
            }
            Self::SendError { taken, fault } => {
                (id, status) = (taken, fault.code());
                kind::SEND_ERROR
            }
            Self::ReadRequest { id: place, address: at, key: of, bytes } => {
                (id, address, key, length) = (place, at, of, bytes);
                kind::READ_REQUEST
            }
            Self::ReadResponse { id: place, bytes } => {
                (id, length) = (place, bytes);
                kind::READ_RESPONSE
            }
            Self::ReadEnd { id: place } => {
                id = place;
                kind::READ_END
            }
            Self::ReadError { id: place, fault } => {
                (id, status) = (place, fault.code());
                kind::READ_ERROR
            }
            Self::AskRoom => kind::ASK_ROOM,
            Self::Room { limit } => {
                id = limit;
                kind::ROOM
            }
            Self::Offer { address: at, key: of, bytes } => {
                (address, key, length) = (at, of, bytes);
                kind::OFFER
            }
            Self::Push { bytes } => {
                length = bytes;
                kind::PUSH
            }
            Self::PushEnd { fault } => {
                status = fault.map_or(0, Fault::code);
                kind::PUSH_END
            }
            Self::Bye => kind::BYE,
            Self::Asked => kind::ASKED,
        };
        let raw = RawFrame {
            magic: MAGIC,
            version: FRAME_VERSION,
            kind,
            length: length.into(),
            id: id.into(),
            address: address.into(),
            key: key.into(),
            status,
            reserved: [0; 3],
        };
        zerocopy::transmute!(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fault() -> impl Strategy<Value = Fault> {
        prop_oneof![Just(Fault::RemoteAccess), Just(Fault::Length), Just(Fault::RnrExhausted)]
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let private = 0..=PRIVATE_MAX;
        prop_oneof![
            (private.clone(), any::<u64>())
                .prop_map(|(private_bytes, reads_answered)| Frame::Connect { private_bytes, reads_answered }),
            (private.clone(), any::<u64>())
                .prop_map(|(private_bytes, reads_answered)| Frame::Accept { private_bytes, reads_answered }),
            private.prop_map(|private_bytes| Frame::Reject { private_bytes }),
            (0..=SEND_BYTES_MAX - HEADER).prop_map(|payload_bytes| Frame::Send { payload_bytes }),
            any::<u64>().prop_map(|taken| Frame::SendAck { taken }),
            (any::<u64>(), fault()).prop_map(|(taken, fault)| Frame::SendError { taken, fault }),
            any::<(u64, u64, u32, u32)>().prop_map(|(id, address, key, bytes)| Frame::ReadRequest {
                id,
                address,
                key,
                bytes
            }),
            (any::<u64>(), 0..=READ_PIECE_MAX).prop_map(|(id, bytes)| Frame::ReadResponse { id, bytes }),
            any::<u64>().prop_map(|id| Frame::ReadEnd { id }),
            (any::<u64>(), fault()).prop_map(|(id, fault)| Frame::ReadError { id, fault }),
            Just(Frame::AskRoom),
            any::<u64>().prop_map(|limit| Frame::Room { limit }),
            (any::<(u64, u32)>(), 1..=READ_PIECE_MAX).prop_map(|((address, key), bytes)| Frame::Offer {
                address,
                key,
                bytes
            }),
            (1..=READ_PIECE_MAX).prop_map(|bytes| Frame::Push { bytes }),
            prop::option::of(fault()).prop_map(|fault| Frame::PushEnd { fault }),
            Just(Frame::Bye),
            Just(Frame::Asked),
        ]
    }

    proptest! {
        #[test]
        fn frames_read_as_they_were_written(frame in frame()) {
            prop_assert_eq!(Frame::parse(&frame.to_bytes()), Ok(frame));
        }

        #[test]
        fn what_is_taken_for_a_frame_is_exactly_one(
            bytes in any::<[u8; FRAME_BYTES]>(),
            head in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if head {
                bytes[..3].copy_from_slice(&[MAGIC[0], MAGIC[1], FRAME_VERSION]);
                bytes[3] %= 19;
            }
            if let Ok(frame) = Frame::parse(&bytes) {
                prop_assert_eq!(frame.to_bytes(), bytes);
            }
        }

        #[test]
        fn one_wrong_byte_never_passes_for_the_same_frame(
            frame in frame(), at in 0..FRAME_BYTES, flip in 1..=u8::MAX
        ) {
            let mut bytes = frame.to_bytes();
            bytes[at] ^= flip;
            prop_assert_ne!(Frame::parse(&bytes), Ok(frame));
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let with_length = |frame: Frame, length: u32| {
            let mut bytes = frame.to_bytes();
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            Frame::parse(&bytes)
        };
        for (frame, length) in [
            (Frame::Connect { private_bytes: 0, reads_answered: 1 }, PRIVATE_MAX + 1),
            (Frame::Send { payload_bytes: 0 }, HEADER - 1),
            (Frame::Send { payload_bytes: 0 }, SEND_BYTES_MAX + 1),
            (Frame::ReadResponse { id: 0, bytes: 0 }, READ_PIECE_MAX + 1),
            (Frame::Offer { address: 0, key: 0, bytes: 1 }, 0),
            (Frame::Offer { address: 0, key: 0, bytes: 1 }, READ_PIECE_MAX + 1),
            (Frame::Push { bytes: 1 }, 0),
            (Frame::Push { bytes: 1 }, READ_PIECE_MAX + 1),
            (Frame::Send { payload_bytes: 0 }, u32::MAX),
        ] {
            assert!(
                matches!(with_length(frame, length), Err(FrameError::Length { .. })),
                "{frame:?} {length}"
            );
        }
        assert_eq!(with_length(Frame::Bye, 1), Err(FrameError::Reserved { kind: kind::BYE }));
    }
}
