//! Headers that carry no message: acknowledgement, credit, congestion, farewell.

use super::status::{self, AckStatus};
use super::{FIRST_VERSION, HEADER_BYTES, HeaderBytes, Kind, Prefix, flags};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most ranges that one acknowledgement carries. They fill the header, so an acknowledgement never has a
/// payload, and a sender needs 128-byte receive entries only.
pub const ACK_RANGES_MAX: usize = 6;

/// The end of consecutive messages: sequences `first ..= first + count - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRange {
    /// Sequence number of the first message.
    pub first: u64,
    /// Number of consecutive sequences, at least 1.
    pub count: u16,
    /// End of these messages.
    pub status: AckStatus,
}

/// An [`AckRange`] as it lies in the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawRange {
    pub first: U64,
    pub count: U16,
    pub status: U16,
    pub code: U32,
}

impl RawRange {
    /// Encodes a range.
    ///
    /// # Panics
    /// Panics if the range is empty or has a status that is never on the wire: the caller's own mistake.
    pub(super) fn encode(range: AckRange) -> Self {
        let (status, code) = range.status.to_wire();
        assert!(
            range.count > 0 && range.status != AckStatus::PeerLost,
            "an acknowledgement cannot say {range:?}"
        );
        Self {
            first: range.first.into(),
            count: range.count.into(),
            status: status.into(),
            code: code.into(),
        }
    }

    /// Returns whether the range is valid. It must not be empty, and lie within the sequences. Its status
    /// must be known, or be one that a later version may have. It has a code only where the status has one.
    pub(super) fn is_sound(&self, version: u8) -> bool {
        let (status, code) = (self.status.get(), self.code.get());
        let is_status = match AckStatus::from_wire(status, code) {
            Some(known) => known.to_wire() == (status, code),
            None => version > FIRST_VERSION && status::has_class(status),
        };
        self.count.get() > 0
            && self.first.get().checked_add(u64::from(self.count.get())).is_some()
            && is_status
    }
}

/// Ends of messages, with the credit limit that follows from them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AckHeader {
    /// Prefix that all headers have; `count` is the number of ranges.
    pub prefix: Prefix,
    /// Total number of SENDs that the sender may have sent on this connection.
    pub credit_limit: U64,
    pub(super) reserved: [u8; 16],
    pub(super) ranges: [RawRange; ACK_RANGES_MAX],
}

/// A new credit limit. With [`flags::RECALL`] it asks for the unused credit above the limit.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CreditHeader {
    /// Prefix that all headers have; `count` is 0.
    pub prefix: Prefix,
    /// Total number of SENDs that the sender may have sent on this connection.
    pub credit_limit: U64,
    pub(super) reserved: [u8; 48],
    /// Number of the [`WaitsFor`]; 0: the receiver knows of none. Written only where both ends have
    /// [`WAITS_FOR`](super::hello::features::WAITS_FOR).
    waits_for: u8,
    skipped: [u8; 63],
}

/// What a sender's messages wait for at the receiver, as a heartbeat says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum WaitsFor {
    /// The application has messages that it has not finished.
    Application = 1,
    /// READs of the sender's memory are under way.
    Reads = 2,
    /// The receiver reads or checks others first.
    Turn = 3,
    /// The receiver's buffers are in use.
    Room = 4,
    /// Something that only a later build knows.
    Other = 255,
}

impl WaitsFor {
    fn from_wire(value: u8) -> Option<Self> {
        match value {
            0 => None,
            1 => Some(Self::Application),
            2 => Some(Self::Reads),
            3 => Some(Self::Turn),
            4 => Some(Self::Room),
            _ => Some(Self::Other),
        }
    }
}

impl core::fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Application => "the application has messages that it has not finished",
            Self::Reads => "READs of this sender's memory are under way",
            Self::Turn => "the receiver reads or checks others first",
            Self::Room => "the receiver's buffers are in use",
            Self::Other => "the receiver gives a reason that this build does not know",
        })
    }
}

/// The answer to a recall. The SEND that carries it counts as one of the sender's SENDs. The sender sends
/// nothing above the limit until it gets a new one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CreditReturn {
    /// Prefix that all headers have; `count` is 0.
    pub prefix: Prefix,
    /// Limit that the sender now keeps to: at least what it has sent, this SEND included.
    pub credit_limit: U64,
    pub(super) reserved: [u8; 112],
}

/// The sender takes one of its large messages back. The SEND that carries it takes no credit: a sender has
/// none while its application keeps it waiting, and that is when messages are taken back. Instead a sender
/// sends one at most for each request of whose end it has not heard. The message ends
/// [`AckStatus::Cancelled`] if not all of it has reached the application, and else as it would have. A
/// receiver that knows of no such message ignores the header, for the message's end may be on its way.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CancelHeader {
    /// Prefix that all headers have; `count` is 0.
    pub prefix: Prefix,
    /// Sequence number of the message.
    pub sequence: U64,
    pub(super) reserved: [u8; 112],
}

/// The receiver's congestion signal (Jet §4.3). A sender multiplies its present windows by `window_permille`
/// thousandths. It lets them grow again step by step while no other signal arrives. Each signal cuts: two of
/// 500 leave a quarter.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CongestionHeader {
    /// Prefix that all headers have; `count` is 0.
    pub prefix: Prefix,
    /// Thousandths of its present windows that the sender keeps, 1 to 1000. 500 halves the windows; 1000
    /// restores the full windows at once.
    pub window_permille: U32,
    pub(super) reserved: [u8; 116],
}

/// The reason why the receiver ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum ByeReason {
    /// The daemon drains: every message has its end, or the time of the drain is over. Connect to the next
    /// daemon. Or another sender wants the place of this one, which was idle. Where there is nothing to send,
    /// connect when there is.
    Draining = 1,
    /// A header could not be read: the sender is broken, or breaks the rules of the agreed version.
    Malformed = 2,
    /// A header had another version than the two ends agreed on.
    Version = 3,
    /// The sender made more SENDs than its credit allowed.
    CreditExceeded = 4,
    /// A READ of the sender's memory failed: unregistered key or a length beyond the region.
    BadMemory = 5,
    /// The sender's NIC took no acknowledgement for long, while the receiver had no record left for other
    /// messages.
    Unresponsive = 6,
}

impl ByeReason {
    /// Returns what a sender that is cut off for this reason has done; `None` for a sender without a fault.
    pub fn fault(self) -> Option<&'static str> {
        match self {
            Self::Draining => None,
            Self::Malformed => Some("it sent a header that cannot be read"),
            Self::Version => Some("it sent a header of another version than the two ends agreed on"),
            Self::CreditExceeded => Some("it sent more messages than its credit allows"),
            Self::BadMemory => Some("its memory cannot be read: the key or the length is wrong"),
            Self::Unresponsive => {
                Some("it took no acknowledgement for long, while there was no room for other messages")
            }
        }
    }

    pub(super) fn from_wire(value: u16) -> Option<Self> {
        [
            Self::Draining,
            Self::Malformed,
            Self::Version,
            Self::CreditExceeded,
            Self::BadMemory,
            Self::Unresponsive,
        ]
        .into_iter()
        .find(|reason| *reason as u16 == value)
    }
}

impl core::fmt::Display for ByeReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Draining => "the receiver is draining",
            Self::Malformed => {
                "the receiver could not read a header: one of the two ends is broken, please \
                                report it"
            }
            Self::Version => {
                "a header came with another wire version than was agreed: one of the two ends \
                              is broken, please report it"
            }
            Self::CreditExceeded => "more messages were sent than the receiver's credit allowed",
            Self::BadMemory => {
                "the receiver could not READ the announced memory: the key is not registered or the length \
                 lies"
            }
            Self::Unresponsive => {
                "this end took no acknowledgement for seconds while the receiver ran out of records \
                 (limits.messages); is it stopped?"
            }
        })
    }
}

/// The receiver's farewell, with the reason why it is about to disconnect.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ByeHeader {
    /// Prefix that all headers have; `count` is 0.
    pub prefix: Prefix,
    /// Number of the [`ByeReason`].
    pub reason: U16,
    pub(super) reserved: [u8; 118],
}

const _: () = assert!(size_of::<AckHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<CreditHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<CreditReturn>() == HEADER_BYTES);
const _: () = assert!(size_of::<CancelHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<CongestionHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<ByeHeader>() == HEADER_BYTES);

impl AckHeader {
    /// Encodes an acknowledgement of at most [`ACK_RANGES_MAX`] ranges.
    ///
    /// # Panics
    /// Panics if there are more ranges than fit. Panics if there is a range that no sender would accept:
    /// empty, or [`AckStatus::PeerLost`].
    pub fn encode(credit_limit: u64, ranges: &[AckRange]) -> HeaderBytes {
        let mut raw =
            [RawRange { first: 0.into(), count: 0.into(), status: 0.into(), code: 0.into() }; ACK_RANGES_MAX];
        for (slot, range) in raw[..ranges.len()].iter_mut().zip(ranges) {
            *slot = RawRange::encode(*range);
        }
        let count = u16::try_from(ranges.len()).expect("at most ACK_RANGES_MAX");
        let header = Self {
            prefix: Prefix::new(Kind::Ack, 0, count),
            credit_limit: credit_limit.into(),
            reserved: [0; 16],
            ranges: raw,
        };
        zerocopy::transmute!(header)
    }

    /// Returns the ranges, which [`super::parse_from_receiver`] has checked. A status that this build does
    /// not know becomes the nearest known status of its class.
    pub fn ranges(&self) -> impl Iterator<Item = AckRange> + '_ {
        self.raw_ranges().iter().filter_map(|raw| {
            let status = AckStatus::from_wire_or_class(raw.status.get(), raw.code.get())?;
            Some(AckRange { first: raw.first.get(), count: raw.count.get(), status })
        })
    }

    /// Returns how many of the ranges have a status that this build does not know.
    pub fn ranges_of_unknown_status(&self) -> usize {
        self.raw_ranges().iter().filter(|raw| !AckStatus::is_known(raw.status.get())).count()
    }

    fn raw_ranges(&self) -> &[RawRange] {
        &self.ranges[..usize::from(self.prefix.count.get()).min(ACK_RANGES_MAX)]
    }
}

impl CreditHeader {
    /// Encodes a credit limit, or a recall down to it.
    pub fn encode(credit_limit: u64, recall: bool) -> HeaderBytes {
        let bits = if recall { flags::RECALL } else { 0 };
        let header = Self {
            prefix: Prefix::new(Kind::Credit, bits, 0),
            credit_limit: credit_limit.into(),
            reserved: [0; 48],
            waits_for: 0,
            skipped: [0; 63],
        };
        zerocopy::transmute!(header)
    }

    /// Encodes a heartbeat: it repeats the credit limit, and says what the sender's messages wait for. On a
    /// connection whose ends do not both have [`WAITS_FOR`](super::hello::features::WAITS_FOR) that is
    /// `None`.
    pub fn encode_heartbeat(credit_limit: u64, waits_for: Option<WaitsFor>) -> HeaderBytes {
        let mut header = Self::encode(credit_limit, false);
        header.0[core::mem::offset_of!(Self, waits_for)] = waits_for.map_or(0, |what| what as u8);
        header
    }

    /// Returns what the sender's messages wait for, where the header says it.
    pub fn waits_for(&self) -> Option<WaitsFor> {
        WaitsFor::from_wire(self.waits_for)
    }

    /// Returns whether unused credit above the limit is to be given back.
    pub fn recall(&self) -> bool {
        self.prefix.flags.get() & flags::RECALL != 0
    }
}

impl CreditReturn {
    /// Encodes the answer to a recall.
    pub fn encode(credit_limit: u64) -> HeaderBytes {
        let header = Self {
            prefix: Prefix::new(Kind::CreditReturn, 0, 0),
            credit_limit: credit_limit.into(),
            reserved: [0; 112],
        };
        zerocopy::transmute!(header)
    }
}

impl CancelHeader {
    /// Encodes that a message is taken back.
    pub fn encode(sequence: u64) -> HeaderBytes {
        let header =
            Self { prefix: Prefix::new(Kind::Cancel, 0, 0), sequence: sequence.into(), reserved: [0; 112] };
        zerocopy::transmute!(header)
    }
}

impl CongestionHeader {
    /// Encodes a congestion signal; `window_permille` is clamped to 1..=1000.
    pub fn encode(window_permille: u32) -> HeaderBytes {
        let header = Self {
            prefix: Prefix::new(Kind::Congestion, 0, 0),
            window_permille: window_permille.clamp(1, 1000).into(),
            reserved: [0; 116],
        };
        zerocopy::transmute!(header)
    }
}

impl ByeHeader {
    /// Encodes a farewell.
    pub fn encode(reason: ByeReason) -> HeaderBytes {
        let header =
            Self { prefix: Prefix::new(Kind::Bye, 0, 0), reason: (reason as u16).into(), reserved: [0; 118] };
        zerocopy::transmute!(header)
    }

    /// Returns the reason, if this build knows it: a later version may have others.
    pub fn reason(&self) -> Option<ByeReason> {
        ByeReason::from_wire(self.reason.get())
    }
}
