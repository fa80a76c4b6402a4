//! How many messages ended how.

use super::AckStatus;

/// Ends of messages, one count for each [`AckStatus`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EndCounts {
    /// Consumed.
    pub consumed: u64,
    /// Rejected by their application.
    pub rejected: u64,
    /// No room to queue.
    pub busy: u64,
    /// No such application.
    pub no_app: u64,
    /// Not admitted.
    pub denied: u64,
    /// Too large.
    pub too_large: u64,
    /// Checksum did not fit.
    pub corrupt: u64,
    /// The application went away.
    pub app_gone: u64,
    /// Came while the daemon was draining.
    pub draining: u64,
    /// The connection ended before they did.
    pub peer_lost: u64,
}

impl EndCounts {
    /// Counts a message's end.
    #[inline]
    pub fn add(&mut self, status: AckStatus) {
        if status == AckStatus::Consumed {
            self.consumed += 1;
        } else {
            self.add_other(status);
        }
    }

    #[cold]
    fn add_other(&mut self, status: AckStatus) {
        *match status {
            AckStatus::Consumed => &mut self.consumed,
            AckStatus::Rejected(_) => &mut self.rejected,
            AckStatus::Busy => &mut self.busy,
            AckStatus::NoApp => &mut self.no_app,
            AckStatus::Denied => &mut self.denied,
            AckStatus::TooLarge => &mut self.too_large,
            AckStatus::Corrupt => &mut self.corrupt,
            AckStatus::AppGone => &mut self.app_gone,
            AckStatus::Draining => &mut self.draining,
            AckStatus::PeerLost => &mut self.peer_lost,
        } += 1;
    }

    /// All that are not `consumed`.
    pub fn refused(&self) -> u64 {
        // Named one by one: an end that is added has to be added here, too.
        let Self {
            consumed: _,
            rejected,
            busy,
            no_app,
            denied,
            too_large,
            corrupt,
            app_gone,
            draining,
            peer_lost,
        } = *self;
        rejected + busy + no_app + denied + too_large + corrupt + app_gone + draining + peer_lost
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::message::status::tests::TRAVEL;
    use std::vec::Vec;

    #[test]
    fn each_end_is_counted_once_and_only_consumed_is_no_refusal() {
        // Beside those that travel: what a sender finds out by itself.
        let ends: Vec<_> = TRAVEL.into_iter().chain([AckStatus::PeerLost]).collect();
        let count = |&end: &AckStatus| {
            let mut counts = EndCounts::default();
            counts.add(end);
            assert_eq!(counts.consumed + counts.refused(), 1, "{end:?}");
            assert_eq!(counts.refused() == 0, end == AckStatus::Consumed, "{end:?}");
            counts
        };
        let counted: Vec<_> = ends.iter().map(count).collect();
        for (number, counts) in counted.iter().enumerate() {
            assert!(!counted[..number].contains(counts), "{:?} has a count of its own", ends[number]);
        }
    }
}
