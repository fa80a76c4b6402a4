//! The policy for which class goes next (Jet §5), chosen by the receiver's creator.

use crate::config::CLASSES_MAX;
use jet_wire::planted;

/// A class that has something to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueHead {
    /// The class, 0 the most urgent.
    pub class: u8,
    /// Time since when the class has had something to read and was granted nothing, in nanoseconds of the
    /// driver's clock.
    pub since_ns: u64,
}

/// A policy that decides which class is granted the next READ. Within a class senders take turns.
pub trait GrantPolicy {
    /// Returns the class to serve. `heads[c]` belongs to class `c`, and is `None` where nothing of that class
    /// waits.
    fn next_class(&self, heads: &[Option<QueueHead>; CLASSES_MAX], now_ns: u64) -> Option<u8>;

    /// Returns the nanoseconds for which a class waits at most before it goes ahead of more urgent ones;
    /// `u64::MAX`: it waits for ever.
    fn aging_ns(&self) -> u64;
}

/// A policy of strict priority: the most urgent class goes first. A class that was granted nothing for longer
/// than the aging bound goes before the more urgent ones, for one fragment; of several such classes, the one
/// that has waited longest. So no class starves.
#[derive(Clone, Copy, Debug)]
pub struct StrictWithAging {
    /// Aging bound: nanoseconds of waiting after which a class goes before more urgent ones.
    pub aging_ns: u64,
}

impl GrantPolicy for StrictWithAging {
    fn next_class(&self, heads: &[Option<QueueHead>; CLASSES_MAX], now_ns: u64) -> Option<u8> {
        // One pass over the heads: this is called about three times for each READ.
        let (mut first, mut aged) = (None, None::<&QueueHead>);
        for head in heads.iter().flatten() {
            first = first.or(Some(head));
            if now_ns.saturating_sub(head.since_ns) > self.aging_ns
                && !planted!(AgingSkipped)
                && aged.is_none_or(|oldest| head.since_ns < oldest.since_ns)
            {
                aged = Some(head);
            }
        }
        aged.or(first).map(|head| head.class)
    }

    fn aging_ns(&self) -> u64 {
        self.aging_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(waits: &[(u8, u64)]) -> [Option<QueueHead>; CLASSES_MAX] {
        let mut heads = [None; CLASSES_MAX];
        for &(class, since_ns) in waits {
            heads[usize::from(class)] = Some(QueueHead { class, since_ns });
        }
        heads
    }

    #[test]
    fn the_most_urgent_goes_first_until_another_has_aged() {
        let policy = StrictWithAging { aging_ns: 100 };
        assert_eq!(policy.next_class(&heads(&[(0, 990), (2, 950)]), 1000), Some(0));
        assert_eq!(policy.next_class(&heads(&[(0, 990), (2, 899)]), 1000), Some(2));
        assert_eq!(policy.next_class(&heads(&[(1, 800), (2, 700), (3, 990)]), 1000), Some(2));
        assert_eq!(
            policy.next_class(&heads(&[(1, 700), (2, 700)]), 1000),
            Some(1),
            "of those that waited as long"
        );
        assert_eq!(policy.next_class(&heads(&[]), 1000), None);
    }
}
