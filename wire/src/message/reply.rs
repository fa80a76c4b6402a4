//! Header of a reply: the end of one message, with bytes of its application behind the header.

use super::control::{AckRange, RawRange};
use super::{AckStatus, HeaderBytes, Kind, Prefix};
use crate::SLAB_BYTES;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The end of one message that its application replied to. It counts as one of the receiver's SENDs, as an
/// acknowledgement does.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReplyHeader {
    /// Prefix that all headers have; `count` is 0.
    pub prefix: Prefix,
    /// Total number of SENDs that the sender may have sent on this connection.
    pub credit_limit: U64,
    /// End of the message: one sequence, consumed or rejected.
    pub(super) end: RawRange,
    /// Bytes of the reply behind the header, 0 to 4096.
    pub payload_bytes: U32,
    pub(super) reserved: [u8; 92],
}

const _: () = assert!(size_of::<ReplyHeader>() == super::HEADER_BYTES);

impl ReplyHeader {
    /// Encodes a header. The reply must follow as the payload.
    ///
    /// # Panics
    /// Panics if the reply is longer than 4096 bytes, or the status is another than consumed or rejected: the
    /// caller's own mistake.
    pub fn encode(credit_limit: u64, sequence: u64, status: AckStatus, payload_bytes: u32) -> HeaderBytes {
        assert!(payload_bytes as usize <= SLAB_BYTES, "a reply of {payload_bytes} bytes");
        assert!(is_replied(status), "{status} has no reply");
        let header = Self {
            prefix: Prefix::new(Kind::Reply, 0, 0),
            credit_limit: credit_limit.into(),
            end: RawRange::encode(AckRange { first: sequence, count: 1, status }),
            payload_bytes: payload_bytes.into(),
            reserved: [0; 92],
        };
        zerocopy::transmute!(header)
    }

    /// Returns the sequence number of the message.
    pub fn sequence(&self) -> u64 {
        self.end.first.get()
    }

    /// Returns the message's end. The header was parsed, so it is consumed or rejected.
    pub fn status(&self) -> AckStatus {
        AckStatus::from_wire(self.end.status.get(), self.end.code.get()).unwrap_or(AckStatus::Consumed)
    }

    /// Returns whether the end is sound: that of one message that its application ended.
    pub(super) fn is_sound(&self, version: u8) -> bool {
        let status = AckStatus::from_wire(self.end.status.get(), self.end.code.get());
        self.end.is_sound(version) && self.end.count.get() == 1 && status.is_some_and(is_replied)
    }
}

/// Returns whether a message may have a reply that ended so.
fn is_replied(status: AckStatus) -> bool {
    matches!(status, AckStatus::Consumed | AckStatus::Rejected(_))
}
