//! Counts of messages by their end.

use super::AckStatus;

/// Counts of ended messages, one for each [`AckStatus`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EndCounts {
    /// Messages that were consumed.
    pub consumed: u64,
    /// Messages that their application rejected.
    pub rejected: u64,
    /// Messages that the receiver had no room to queue.
    pub busy: u64,
    /// Messages to an application that was not registered.
    pub no_app: u64,
    /// Messages whose sender or class was not admitted.
    pub denied: u64,
    /// Messages that were too large.
    pub too_large: u64,
    /// Messages that are corrupt: their checksum did not fit, or their memory was lost.
    pub corrupt: u64,
    /// Messages whose application went away.
    pub app_gone: u64,
    /// Messages that arrived while the daemon was draining.
    pub draining: u64,
    /// Messages whose connection ended before they did.
    pub peer_lost: u64,
    /// Messages that their senders took back.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cancelled: u64,
}

impl EndCounts {
    /// Counts the end of a message.
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
            AckStatus::Cancelled => &mut self.cancelled,
        } += 1;
    }

    /// Returns each count with its name.
    pub fn counts(&self) -> [(&'static str, u64); 11] {
        // Named one by one: a new end has to be added here, too.
        let Self {
            consumed,
            rejected,
            busy,
            no_app,
            denied,
            too_large,
            corrupt,
            app_gone,
            draining,
            peer_lost,
            cancelled,
        } = *self;
        [
            ("consumed", consumed),
            ("rejected", rejected),
            ("busy", busy),
            ("no_app", no_app),
            ("denied", denied),
            ("too_large", too_large),
            ("corrupt", corrupt),
            ("app_gone", app_gone),
            ("draining", draining),
            ("peer_lost", peer_lost),
            ("cancelled", cancelled),
        ]
    }

    /// Returns the number of messages that ended otherwise than consumed.
    pub fn refused(&self) -> u64 {
        // Named one by one: a new end has to be added here, too.
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
            cancelled,
        } = *self;
        let by_application = rejected + app_gone;
        let by_receiver = busy + no_app + denied + too_large + corrupt + draining;
        by_application + by_receiver + peer_lost + cancelled
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::message::status::tests::TRAVEL;
    use std::vec::Vec;

    #[test]
    fn each_end_is_counted_once_and_only_consumed_is_no_refusal() {
        // Besides the ends that travel, the one that a sender finds out itself.
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
