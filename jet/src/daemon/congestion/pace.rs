//! Timing of changes to the NIC: at most one change in the hold time (`congestion.hold_ms`), always to the
//! reactor's newest wish, and repeated where restoring failed.

use std::time::{Duration, Instant};

/// Longest time between two attempts to restore settings, while restoring fails.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Next step of the thread that changes the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Lower the NIC's settings (`true`), or restore them (`false`).
    Apply(bool),
    /// Ask for the next step again after this time, or at a new wish of the reactor.
    Wait(Duration),
    /// Ask for the next step again at a new wish of the reactor.
    Rest,
}

#[derive(Debug)]
pub(super) struct Pace {
    hold: Duration,
    applied: bool,
    changed: Option<Instant>,
    /// Time after which a failed restoring is tried again.
    retry: Duration,
}

impl Pace {
    pub(super) fn new(hold: Duration) -> Self {
        Self { hold, applied: false, changed: None, retry: hold }
    }

    /// Returns the next step for this wish of the reactor: `true` to lower settings. `unfinished` says that
    /// settings still have to be restored.
    pub(super) fn step(&self, now: Instant, wish: bool, unfinished: bool) -> Step {
        let after = match wish == self.applied {
            false => self.hold,
            true if !wish && unfinished => self.retry,
            true => return Step::Rest,
        };
        match self.changed.map(|changed| (changed + after).saturating_duration_since(now)) {
            Some(left) if !left.is_zero() => Step::Wait(left),
            _ => Step::Apply(wish),
        }
    }

    /// Notes that a step that carries out this wish was done at `now`.
    pub(super) fn applied(&mut self, now: Instant, wish: bool) {
        let again = wish == self.applied;
        self.retry =
            if again { self.retry.saturating_mul(2).min(RETRY_MAX.max(self.hold)) } else { self.hold };
        self.applied = wish;
        self.changed = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_millis(100);

    #[test]
    fn the_first_wish_is_carried_out_at_once() {
        let (pace, now) = (Pace::new(HOLD), Instant::now());
        assert_eq!(pace.step(now, false, false), Step::Rest);
        assert_eq!(pace.step(now, true, false), Step::Apply(true));
    }

    #[test]
    fn flapping_is_passed_over_and_the_newest_wish_holds() {
        let (mut pace, start) = (Pace::new(HOLD), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        pace.applied(start, true);
        assert_eq!(pace.step(at(10), false, false), Step::Wait(Duration::from_millis(90)));
        assert_eq!(pace.step(at(20), true, false), Step::Rest);
        assert_eq!(pace.step(at(99), false, false), Step::Wait(Duration::from_millis(1)));
        assert_eq!(pace.step(at(100), false, false), Step::Apply(false));
        pace.applied(at(100), false);
        assert_eq!(pace.step(at(150), true, false), Step::Wait(Duration::from_millis(50)));
        assert_eq!(pace.step(at(151), false, false), Step::Rest);
    }

    #[test]
    fn restoring_that_fails_is_tried_again_more_and_more_rarely() {
        let (mut pace, start) = (Pace::new(HOLD), Instant::now());
        pace.applied(start, true);
        let mut now = start + HOLD;
        pace.applied(now, false);
        for wait_ms in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            let wait = Duration::from_millis(wait_ms);
            assert_eq!(pace.step(now, false, true), Step::Wait(wait));
            now += wait;
            assert_eq!(pace.step(now, false, true), Step::Apply(false));
            pace.applied(now, false);
        }
        assert_eq!(pace.step(now, false, false), Step::Rest);
        // Danger returns meanwhile: lowering only waits for the hold time, not for the longer pause of
        // restoring.
        assert_eq!(pace.step(now, true, true), Step::Wait(HOLD));
        pace.applied(now + HOLD, true);
        pace.applied(now + HOLD * 2, false);
        assert_eq!(pace.step(now + HOLD * 2, false, true), Step::Wait(HOLD));
    }

    #[test]
    fn what_an_earlier_daemon_left_is_tried_again() {
        let (pace, now) = (Pace::new(HOLD), Instant::now());
        assert_eq!(pace.step(now, false, true), Step::Apply(false));
    }
}
