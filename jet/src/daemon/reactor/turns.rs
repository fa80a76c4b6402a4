//! When the reactor's turns begin, and how long they take. Both follow from the one time that the reactor
//! reads before each turn, so that nothing here reads a clock.

/// Longest time in nanoseconds that a turn and waking up normally take. A turn takes microseconds, or 1 ms if
/// it copies and checks megabytes. Any time beyond that counts as a stall of the reactor or the machine.
const TURN_NS_MAX: u64 = 1_000_000;
/// Unit in nanoseconds to which epoll rounds up the length of a sleep.
const SLEEP_UNIT_NS: u64 = 1_000_000;

/// Times of the reactor's turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Latest time at which the next turn should begin. A later turn begins after a stall.
    due_ns: Option<u64>,
    /// Beginning of the last turn, if the reactor only works from it until the next one.
    began_ns: Option<u64>,
    longest_ns: u64,
}

impl Turns {
    /// Begins a turn, and so ends the one before. Returns by how much it begins later than it should.
    pub fn begin(&mut self, now_ns: u64) -> Option<u64> {
        self.end(now_ns);
        self.began_ns = Some(now_ns);
        let due_ns = self.due_ns.replace(due_ns(now_ns, 0));
        due_ns.and_then(|due_ns| now_ns.checked_sub(due_ns))
    }

    /// Ends the turn before the next one begins: what comes in between is no part of either.
    pub fn end(&mut self, now_ns: u64) {
        if let Some(began_ns) = self.began_ns.take() {
            self.longest_ns = self.longest_ns.max(now_ns.saturating_sub(began_ns));
        }
    }

    /// Notes that the reactor gives its core to others before the next turn. The last turn, which found
    /// nothing to do, is not measured: nobody reads the time at its end.
    pub fn give_way(&mut self) {
        self.began_ns = None;
    }

    /// Notes that the reactor sleeps before the next turn, for at most `span_ns` if that is bounded. The time
    /// until then is no stall, because the reactor wants to sleep.
    pub fn sleep(&mut self, now_ns: u64, span_ns: Option<u64>) {
        self.give_way();
        self.due_ns = span_ns.map(|span_ns| due_ns(now_ns, span_ns));
    }

    /// Returns the length of the longest turn so far, in nanoseconds.
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }
}

/// Returns the latest time at which the reactor should poll for work again, after a sleep of at most
/// `sleep_ns`.
fn due_ns(now_ns: u64, sleep_ns: u64) -> u64 {
    let sleep_ns = sleep_ns.checked_next_multiple_of(SLEEP_UNIT_NS).unwrap_or(u64::MAX);
    now_ns.saturating_add(sleep_ns).saturating_add(TURN_NS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_that_was_wanted_is_no_stall() {
        assert_eq!(due_ns(7, 0), 7 + TURN_NS_MAX);
        assert_eq!(due_ns(7, 500_000), 7 + 1_000_000 + TURN_NS_MAX);
        assert_eq!(due_ns(7, 1_000_001), 7 + 2_000_000 + TURN_NS_MAX);
        assert_eq!(due_ns(7, u64::MAX), u64::MAX);
    }

    #[test]
    fn the_longest_turn_has_no_time_in_which_the_reactor_slept_or_gave_way() {
        let mut turns = Turns::default();
        assert_eq!((turns.begin(1_000), turns.longest_ns()), (None, 0));
        assert_eq!((turns.begin(1_700), turns.longest_ns()), (None, 700));
        turns.begin(2_000);
        assert_eq!(turns.longest_ns(), 700, "a shorter one");
        turns.sleep(2_000, Some(5_000_000));
        assert_eq!((turns.begin(5_002_000), turns.longest_ns()), (None, 700));
        turns.give_way();
        turns.begin(5_900_000);
        assert_eq!(turns.longest_ns(), 700);
        turns.end(5_900_800);
        turns.begin(6_400_000);
        assert_eq!(turns.longest_ns(), 800, "measured until its end");
        // A stall in the middle of a turn is late, and part of the turn.
        assert_eq!(turns.begin(6_400_000 + TURN_NS_MAX + 3), Some(3));
        assert_eq!(turns.longest_ns(), TURN_NS_MAX + 3);
    }
}
