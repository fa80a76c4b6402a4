//! The straggler's time: as configured, or longer where the pool's turn is longer, within bounds.
//!
//! A run that its application has held for long does not take part in the recycling (Jet §4.3). A run that
//! waits in a queue does, for it is served in its turn. In a full pool that wait is the time in which the
//! pool's slabs are released once. At 25 GB/s, for which the configured time was chosen, 12 MiB take half a
//! millisecond. At 4 GB/s they take three milliseconds. Then every held run would be a straggler, and escape
//! memory would join the pool though no application keeps anything. So the turn of the pool is measured.

/// Turns of the pool after which a run that is still held is a straggler. One is the wait of the last run in
/// a full queue. The other is for queues that move unevenly, as when receiver and application share a core.
const TURNS: u64 = 2;

/// The longest straggler's time, in multiples of the configured one. A slow application holds all others up
/// by then.
const GROWTH_MAX: u64 = 4;

/// Divisor of the fall: after a turn that does not justify it, the straggler's time in force falls by one
/// part of so many.
const FALL: u64 = 8;

/// Number of spans without a call, each as long as the longest straggler's time, after which the configured
/// time is in force again.
const FORGOTTEN: u64 = 16;

/// The straggler's time in force, and the turn of the pool by which it is measured.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Configured straggler's time, the least that it can be, in nanoseconds.
    least_ns: u64,
    straggler_ns: u64,
    /// Time when the turn began.
    since_ns: u64,
    /// Slabs released from the beginning until the turn began.
    base_slabs: u64,
    /// Whether the pool was scarce in this turn.
    scarce: bool,
}

impl Turn {
    pub fn new(least_ns: u64) -> Self {
        Self { least_ns, straggler_ns: least_ns, since_ns: 0, base_slabs: 0, scarce: false }
    }

    #[inline]
    pub fn straggler_ns(&self) -> u64 {
        self.straggler_ns
    }

    /// Notes the state of the pool: slabs released since the beginning, its number of slabs, and whether it
    /// is scarce now. Returns `true` if the straggler's time may have changed.
    #[inline]
    pub fn note(&mut self, now_ns: u64, released_slabs: u64, total_slabs: u32, scarce: bool) -> bool {
        let slabs = released_slabs - self.base_slabs;
        let span_ns = now_ns.saturating_sub(self.since_ns);
        // While there was room no run waited: a turn counts from where the pool becomes scarce.
        let begins = scarce && !self.scarce;
        let over = slabs >= u64::from(total_slabs) || span_ns >= self.most_ns();
        if begins || over {
            if span_ns >= self.most_ns().saturating_mul(FORGOTTEN) {
                self.straggler_ns = self.least_ns;
            } else if !begins {
                self.end(span_ns, slabs, total_slabs);
            }
            (self.since_ns, self.base_slabs, self.scarce) = (now_ns, released_slabs, scarce);
        }
        over
    }

    #[inline]
    fn most_ns(&self) -> u64 {
        self.least_ns.saturating_mul(GROWTH_MAX)
    }

    /// Ends a turn of the pool. The straggler's time rises at once and falls bit by bit: turns are uneven,
    /// and the longest count.
    fn end(&mut self, span_ns: u64, slabs: u64, total_slabs: u32) {
        let fallen_ns = self.straggler_ns - self.straggler_ns / FALL;
        // With room in the pool no run waits for it. Where nothing was released, it is not known that any
        // does.
        let measured_ns = if self.scarce && slabs > 0 {
            span_ns.saturating_mul(u64::from(total_slabs) * TURNS) / slabs
        } else {
            0
        };
        self.straggler_ns = measured_ns.max(fallen_ns).clamp(self.least_ns, self.most_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST_NS: u64 = 2_000_000;
    const TOTAL: u32 = 3072;

    /// Creates a turn in which the pool is scarce from the beginning.
    fn scarce() -> Turn {
        let mut turn = Turn::new(LEAST_NS);
        assert!(!turn.note(0, 0, TOTAL, true));
        turn
    }

    /// Lets turns pass that take `span_ns` each, with the pool scarce or not all along.
    fn pass(turn: &mut Turn, turns: u64, span_ns: u64, scarce: bool) {
        let (since_ns, base) = (turn.since_ns, turn.base_slabs);
        for number in 1..=turns {
            assert!(!turn.note(since_ns + number * span_ns - 1, base + number * 3072 - 1, TOTAL, scarce));
            assert!(turn.note(since_ns + number * span_ns, base + number * 3072, TOTAL, scarce));
        }
    }

    #[test]
    fn is_what_it_was_configured_where_the_pool_is_quick() {
        let mut turn = scarce();
        // 12 MiB at 25 GB/s.
        pass(&mut turn, 20, 503_000, true);
        assert_eq!(turn.straggler_ns(), LEAST_NS);
    }

    #[test]
    fn is_two_turns_of_a_pool_that_is_slower() {
        let mut turn = scarce();
        // 12 MiB at 4.3 GB/s.
        pass(&mut turn, 1, 2_926_000, true);
        assert_eq!(turn.straggler_ns(), 2 * 2_926_000);
        pass(&mut turn, 20, 2_926_000, true);
        assert_eq!(turn.straggler_ns(), 2 * 2_926_000);
    }

    #[test]
    fn is_four_times_the_configured_at_most() {
        let mut turn = scarce();
        // 1.6 GB/s, then almost nothing: a turn that does not end is noticed before its end.
        pass(&mut turn, 1, 4 * LEAST_NS - 1, true);
        assert_eq!(turn.straggler_ns(), 4 * LEAST_NS);
        let mut turn = scarce();
        assert!(!turn.note(4 * LEAST_NS - 1, 1, TOTAL, true));
        assert!(turn.note(4 * LEAST_NS, 1, TOTAL, true));
        assert_eq!(turn.straggler_ns(), 4 * LEAST_NS);
        let mut endless = Turn::new(u64::MAX);
        endless.note(0, 0, TOTAL, true);
        assert!(endless.note(u64::MAX - 1, u64::MAX, TOTAL, true));
        assert_eq!(endless.straggler_ns(), u64::MAX);
    }

    #[test]
    fn a_turn_with_room_says_nothing_and_one_counts_from_where_it_becomes_scarce() {
        let mut turn = Turn::new(LEAST_NS);
        pass(&mut turn, 20, 3_000_000, false);
        assert_eq!(turn.straggler_ns(), LEAST_NS);
        // A quiet pool, and then one that is used quickly and is full at once.
        assert!(!turn.note(turn.since_ns + 4 * LEAST_NS - 1, turn.base_slabs + 1, TOTAL, true));
        pass(&mut turn, 1, 503_000, true);
        assert_eq!(turn.straggler_ns(), LEAST_NS);
        // It is enough that the pool was scarce once, though it has room again before the turn is over.
        let (since_ns, base) = (turn.since_ns, turn.base_slabs);
        assert!(!turn.note(since_ns + 1_000_000, base + 1000, TOTAL, false));
        assert!(turn.note(since_ns + 3_000_000, base + 3072, TOTAL, false));
        assert_eq!(turn.straggler_ns(), 6_000_000);
        pass(&mut turn, 1, 3_000_000, false);
        assert_eq!(turn.straggler_ns(), 5_250_000);
    }

    #[test]
    fn falls_by_an_eighth_a_turn_and_where_nothing_is_released_too() {
        let mut turn = scarce();
        pass(&mut turn, 1, 3_000_000, true);
        pass(&mut turn, 1, 1_000_000, true);
        assert_eq!(turn.straggler_ns(), 5_250_000);
        // The only application stopped.
        for stop in 1..=7 {
            assert!(turn.note(turn.since_ns + 4 * LEAST_NS, turn.base_slabs, TOTAL, true), "{stop}");
        }
        assert!(turn.straggler_ns() < 2_100_000, "{}", turn.straggler_ns());
        assert!(turn.note(turn.since_ns + 4 * LEAST_NS, turn.base_slabs, TOTAL, true));
        assert_eq!(turn.straggler_ns(), LEAST_NS);
    }

    #[test]
    fn is_forgotten_where_nobody_called_for_long() {
        for scarce_again in [false, true] {
            let mut turn = scarce();
            pass(&mut turn, 1, 3_000_000, true);
            turn.note(turn.since_ns + 3_000_000, turn.base_slabs + 3072, TOTAL, false);
            assert_eq!(turn.straggler_ns(), 6_000_000);
            assert!(turn.note(turn.since_ns + 64 * LEAST_NS, turn.base_slabs, TOTAL, scarce_again));
            assert_eq!(turn.straggler_ns(), LEAST_NS);
        }
    }
}
