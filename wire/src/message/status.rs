//! The end of a message, and its translation for versions that know fewer ends.

/// The end of a message, as its sender hears it. Each message has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AckStatus {
    /// The application released every slice and finished the message.
    Consumed,
    /// The application rejected the message with a code of its own, such as an errno.
    Rejected(u32),
    /// The receiver has no room for another queued request; try again later.
    Busy,
    /// No application of that name is registered.
    NoApp,
    /// The application or the daemon's configuration does not admit this sender or class.
    Denied,
    /// The message is longer than the receiver accepts.
    TooLarge,
    /// The bytes that arrived do not have the checksum that the sender gave, or the receiver's memory lost
    /// them.
    Corrupt,
    /// The application went away before it finished the message.
    AppGone,
    /// The daemon is draining and takes nothing new.
    Draining,
    /// The connection ended before the message did. It is never on the wire: a sender decides it itself.
    PeerLost,
    /// The sender took the message back before all of it had reached the application, which did not consume
    /// it and may have got a part.
    Cancelled,
}

impl AckStatus {
    /// Each status once, with the code 0 where it has one.
    pub const ALL: [Self; 11] = [
        Self::Consumed,
        Self::Rejected(0),
        Self::Busy,
        Self::NoApp,
        Self::Denied,
        Self::TooLarge,
        Self::Corrupt,
        Self::AppGone,
        Self::Draining,
        Self::PeerLost,
        Self::Cancelled,
    ];

    /// Returns the number of the status, and the application's code, as they are on the wire. They never
    /// change. The number of [`Self::PeerLost`] is one that never travels.
    pub fn to_wire(self) -> (u16, u32) {
        match self {
            Self::Consumed => (0, 0),
            Self::Rejected(code) => (1, code),
            Self::Busy => (2, 0),
            Self::NoApp => (3, 0),
            Self::Denied => (4, 0),
            Self::TooLarge => (5, 0),
            Self::Corrupt => (6, 0),
            Self::AppGone => (7, 0),
            Self::Draining => (8, 0),
            Self::PeerLost => (PEER_LOST, 0),
            Self::Cancelled => (CANCELLED, 0),
        }
    }

    pub(super) fn from_wire(status: u16, code: u32) -> Option<Self> {
        Some(match status {
            0 => Self::Consumed,
            1 => Self::Rejected(code),
            2 => Self::Busy,
            3 => Self::NoApp,
            4 => Self::Denied,
            5 => Self::TooLarge,
            6 => Self::Corrupt,
            7 => Self::AppGone,
            8 => Self::Draining,
            CANCELLED => Self::Cancelled,
            _ => return None,
        })
    }

    /// Returns whether this build knows the status of that number.
    pub(super) fn is_known(status: u16) -> bool {
        Self::from_wire(status, 0).is_some()
    }

    /// Decodes a status like [`Self::from_wire`], except that an unknown one becomes the nearest of its
    /// class. `None`: it has no class.
    pub(super) fn from_wire_or_class(status: u16, code: u32) -> Option<Self> {
        Self::from_wire(status, code).or_else(|| nearest_of_class(status, code))
    }

    /// Returns the status that a sender hears on a connection of that version. It is the status itself where
    /// the version has it, else the nearest that the version has.
    #[must_use]
    #[inline(always)] // on every message's way
    pub fn known_in(self, version: u8) -> Self {
        if version >= NEWEST_STATUS_SINCE || self == Self::PeerLost {
            self
        } else {
            self.nearest_known(version)
        }
    }

    #[cold]
    fn nearest_known(self, version: u8) -> Self {
        let (status, code) = self.to_wire();
        let nearest = nearest_in(&STATUSES, status, version);
        Self::from_wire(nearest, if nearest == REJECTED { code } else { 0 }).unwrap_or(self)
    }
}

/// A row of the table of statuses: a status, and how older versions treat it.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Number of the status on the wire.
    status: u16,
    /// First version that has the status.
    since: u8,
    /// Number of the status that earlier versions hear instead. It promises no more than this one does.
    nearest: u16,
}

/// All statuses that are sent on the wire. A later one gets a number of its class, the version that
/// introduces it, and its nearest status.
const STATUSES: [Row; 10] = [
    Row { status: 0, since: 1, nearest: 0 },
    Row { status: REJECTED, since: 1, nearest: REJECTED },
    Row { status: 2, since: 1, nearest: 2 },
    Row { status: 3, since: 1, nearest: 3 },
    Row { status: 4, since: 1, nearest: 4 },
    Row { status: 5, since: 1, nearest: 5 },
    Row { status: 6, since: 1, nearest: 6 },
    Row { status: 7, since: 1, nearest: 7 },
    Row { status: 8, since: 1, nearest: 8 },
    // Only who asked for it hears it.
    Row { status: CANCELLED, since: 2, nearest: 7 },
];

const REJECTED: u16 = 1;
const PEER_LOST: u16 = 9;
const CANCELLED: u16 = 0x601;

/// Version from which on every status is known.
const NEWEST_STATUS_SINCE: u8 = newest(&STATUSES);

const fn newest(rows: &[Row]) -> u8 {
    let (mut newest, mut at) = (0, 0);
    while at < rows.len() {
        if rows[at].since > newest {
            newest = rows[at].since;
        }
        at += 1;
    }
    newest
}

/// Returns the status itself where the version has it, else the nearest that the version has.
fn nearest_in(rows: &[Row], status: u16, version: u8) -> u16 {
    let mut said = status;
    // Each step goes to an older version, so there are no more steps than rows.
    for _ in rows {
        match rows.iter().find(|row| row.status == said && row.since > version) {
            Some(row) => said = row.nearest,
            None => break,
        }
    }
    said
}

/// Returns whether a number that this build does not know may be a later version's status. Numbers below
/// 0x100 are version 1's, and no more will be added.
pub(super) const fn has_class(status: u16) -> bool {
    status >= 0x100
}

/// Returns the known status that stands for a later version's status, chosen by its class.
fn nearest_of_class(status: u16, code: u32) -> Option<AckStatus> {
    Some(match status >> 8 {
        0 => return None,
        1 => AckStatus::Consumed,
        2 => AckStatus::Rejected(code),
        3 => AckStatus::Busy,
        4 => AckStatus::Denied,
        5 => AckStatus::Corrupt,
        // All other classes, too: the application may have got a part of such a message, and no end says that
        // it got all.
        _ => AckStatus::AppGone,
    })
}

impl core::fmt::Display for AckStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Consumed => f.write_str("consumed"),
            Self::Rejected(code) => write!(f, "rejected by the application with code {code}"),
            Self::Busy => f.write_str("busy: the receiver's queue is full; send again later"),
            Self::NoApp => {
                f.write_str("no application of that name is registered at the receiver; start it first")
            }
            Self::Denied => f.write_str(
                "denied by the receiver's configuration: it has no such class \
                (admission.classes)",
            ),
            Self::TooLarge => {
                f.write_str("too large: split the message or raise the receiver's message_bytes_max")
            }
            Self::Corrupt => f.write_str(
                "corrupt: the bytes read do not match the sender's checksum, or the \
                receiver's memory lost them",
            ),
            Self::AppGone => f.write_str("the application went away before it finished the message"),
            Self::Draining => f.write_str("the receiver is draining; send to the next daemon"),
            Self::PeerLost => f.write_str("the connection was lost and not made again in time"),
            Self::Cancelled => f.write_str("the sender took the message back, or its deadline passed"),
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::message::{FIRST_VERSION, Versions};
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// All statuses that are sent on the wire, by their numbers.
    pub(in crate::message) const TRAVEL: [AckStatus; 10] = [
        AckStatus::Consumed,
        AckStatus::Rejected(28),
        AckStatus::Busy,
        AckStatus::NoApp,
        AckStatus::Denied,
        AckStatus::TooLarge,
        AckStatus::Corrupt,
        AckStatus::AppGone,
        AckStatus::Draining,
        AckStatus::Cancelled,
    ];

    /// Returns [`STATUSES`] with later additions: one of version 2, one of version 3 whose nearest is that,
    /// and a rejection of version 3.
    fn later() -> Vec<Row> {
        let mut rows = STATUSES.to_vec();
        rows.push(Row { status: 0x301, since: 2, nearest: 2 });
        rows.push(Row { status: 0x302, since: 3, nearest: 0x301 });
        rows.push(Row { status: 0x201, since: 3, nearest: REJECTED });
        rows
    }

    #[test]
    fn every_status_that_travels_has_its_row() {
        let numbers: BTreeSet<_> = STATUSES.iter().map(|row| row.status).collect();
        assert_eq!(numbers, TRAVEL.iter().map(|status| status.to_wire().0).collect());
        assert!(!numbers.contains(&PEER_LOST), "it never travels");
        let all: BTreeSet<_> = AckStatus::ALL.iter().map(|status| status.to_wire().0).collect();
        assert_eq!(all, numbers.iter().copied().chain([PEER_LOST]).collect());
        for number in 0..=u16::MAX {
            assert_eq!(AckStatus::is_known(number), numbers.contains(&number), "{number}");
        }
    }

    #[test]
    fn every_status_is_said_to_every_version_as_one_that_it_has() {
        for status in TRAVEL {
            for version in Versions::SUPPORTED.lowest()..=Versions::SUPPORTED.highest() {
                let said = status.known_in(version);
                let row = STATUSES.iter().find(|row| row.status == said.to_wire().0).unwrap();
                assert!(row.since <= version, "{status:?} is said to version {version} as {said:?}");
                let own = STATUSES.iter().find(|row| row.status == status.to_wire().0).unwrap();
                assert!(own.since > version || said == status, "{status:?} is known, and said as {said:?}");
            }
        }
        assert_eq!(AckStatus::PeerLost.known_in(FIRST_VERSION), AckStatus::PeerLost);
    }

    #[test]
    fn a_later_status_is_said_to_older_versions_as_the_nearest_that_each_has() {
        let rows = later();
        assert_eq!(newest(&rows), 3);
        for (status, said) in
            [(0x302, [2, 0x301, 0x302]), (0x301, [2, 0x301, 0x301]), (0x201, [1, 1, 0x201]), (8, [8, 8, 8])]
        {
            for (version, said) in (1..).zip(said) {
                assert_eq!(nearest_in(&rows, status, version), said, "{status:#x} to version {version}");
            }
        }
    }

    /// Checks that table and classes agree for version 1. Otherwise an older sender would hear different ends
    /// from receivers that know its version and receivers that do not.
    #[test]
    fn a_status_of_a_class_is_said_to_version_1_as_what_its_class_is_taken_for() {
        for row in STATUSES.iter().chain(&later()) {
            let by_table = nearest_in(&later(), row.status, FIRST_VERSION);
            let by_class = nearest_of_class(row.status, 0).map(|status| status.to_wire().0);
            assert_eq!(by_class.unwrap_or(row.status), by_table, "{:#x}", row.status);
            assert_eq!(has_class(row.status), row.since > FIRST_VERSION, "{:#x}", row.status);
        }
    }

    #[test]
    fn an_unknown_status_is_taken_by_its_class_and_never_for_more_than_that() {
        let taken = |status| AckStatus::from_wire_or_class(status, 28);
        for number in 0..=u16::MAX {
            let expected = match number {
                0..=8 | CANCELLED => AckStatus::from_wire(number, 28),
                9..=0xff => None,
                0x100..=0x1ff => Some(AckStatus::Consumed),
                0x200..=0x2ff => Some(AckStatus::Rejected(28)),
                0x300..=0x3ff => Some(AckStatus::Busy),
                0x400..=0x4ff => Some(AckStatus::Denied),
                0x500..=0x5ff => Some(AckStatus::Corrupt),
                _ => Some(AckStatus::AppGone),
            };
            assert_eq!(taken(number), expected, "{number:#x}");
        }
    }
}
