//! Which waiting message goes next: decided here and nowhere else (Jet §3.2 step 2, §5).

use crate::config::CLASSES_MAX;

/// The head of one class's work: what waited longest in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueHead {
    /// The class, 0 the most urgent.
    pub class: u8,
    /// Since when it waits for a READ.
    pub since_ns: u64,
}

/// Decides which class is granted the next READ. Within a class it is first come, first served.
pub trait GrantPolicy {
    /// The class to serve; `heads[c]` is `None` where class c has nothing that waits.
    fn next_class(&self, heads: &[Option<QueueHead>; CLASSES_MAX], now_ns: u64) -> Option<u8>;
}

/// The most urgent class first; but what has waited beyond the aging bound goes ahead, the longest wait first, so that
/// no class starves.
#[derive(Clone, Copy, Debug)]
pub struct StrictWithAging {
    /// The bound.
    pub aging_ns: u64,
}

impl GrantPolicy for StrictWithAging {
    fn next_class(&self, heads: &[Option<QueueHead>; CLASSES_MAX], now_ns: u64) -> Option<u8> {
        let waiting = || heads.iter().flatten();
        let aged = waiting()
            .filter(|head| now_ns.saturating_sub(head.since_ns) > self.aging_ns)
            .min_by_key(|head| (head.since_ns, head.class));
        aged.or_else(|| waiting().min_by_key(|head| head.class)).map(|head| head.class)
    }
}

/// Expected cache footprint of a message: throughput times post-NIC time of its session, but no more than the message
/// has and no less than one fragment of it (Jet §3.2, §4). A session that was not measured yet counts in full.
pub(crate) fn footprint_bytes(length: u64, fragment_bytes: u32, bytes_per_ms: u64, post_nic_ns: u64) -> u64 {
    let least = length.min(u64::from(fragment_bytes));
    if bytes_per_ms == 0 || post_nic_ns == 0 {
        return length;
    }
    let expected = u128::from(bytes_per_ms) * u128::from(post_nic_ns) / 1_000_000;
    u64::try_from(expected).unwrap_or(u64::MAX).clamp(least, length)
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
        assert_eq!(policy.next_class(&heads(&[]), 1000), None);
    }

    #[test]
    fn a_footprint_is_littles_law_within_the_message() {
        // 10 GB/s for 200 us are 2 MB.
        assert_eq!(footprint_bytes(64 << 20, 256 << 10, 10_000_000, 200_000), 2_000_000);
        assert_eq!(footprint_bytes(64 << 20, 256 << 10, 1000, 1000), 256 << 10);
        assert_eq!(footprint_bytes(100, 256 << 10, 1000, 1000), 100);
        assert_eq!(footprint_bytes(64 << 20, 256 << 10, 0, 0), 64 << 20);
        assert_eq!(footprint_bytes(1 << 40, 256 << 10, u64::MAX, u64::MAX), 1 << 40);
    }
}
