//! Noticing a receiver that says nothing any more: one that is stopped, that hangs, or that forgot this
//! sender.
//!
//! A receiver tells those who wait for it, every so often, that it is there. Time is counted in looks, so
//! that a sender that was itself stopped for a while does not take its own absence for the receiver's:
//! however long it was away, that is one look.

/// Looks in a row that found nothing before the receiver is taken for gone. All but one of them cover the
/// span that it may be silent: what is waited for may have begun just before the first. So a silence is
/// noticed after its span, and a quarter of it later at most.
const LOOKS: u8 = 9;

/// What was heard since the last look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Between two looks, in nanoseconds.
    interval_ns: u64,
    /// When the next is due; none: it is not looked.
    next_look_ns: Option<u64>,
    heard: bool,
    /// Looks in a row at which a word was waited for and none had come.
    in_vain: u8,
}

impl Silence {
    /// Silence means nothing.
    pub(super) const NEVER: Self = Self { interval_ns: 0, next_look_ns: None, heard: false, in_vain: 0 };

    /// It means something after `max_ns`, or three of the receiver's heartbeats where that is longer; never,
    /// where it promised none.
    pub(super) fn after(max_ns: u64, heartbeat_ms: u16, now_ns: u64) -> Self {
        if heartbeat_ms == 0 {
            return Self::NEVER;
        }
        let least_ns = 3 * u64::from(heartbeat_ms) * 1_000_000;
        let interval_ns = max_ns.max(least_ns).div_ceil(u64::from(LOOKS - 1));
        Self { interval_ns, next_look_ns: Some(now_ns.saturating_add(interval_ns)), heard: false, in_vain: 0 }
    }

    /// The receiver said something.
    #[inline]
    pub(super) fn heard(&mut self) {
        self.heard = true;
    }

    /// Looks, where that is due. `waits`: only the receiver can bring about what comes next. `true`: it said
    /// nothing for too long; told once.
    pub(super) fn is_over(&mut self, now_ns: u64, waits: bool) -> bool {
        if self.next_look_ns.is_none_or(|at| now_ns < at) {
            return false;
        }
        let heard = core::mem::take(&mut self.heard);
        self.in_vain = if waits && !heard { self.in_vain + 1 } else { 0 };
        if self.in_vain >= LOOKS {
            *self = Self::NEVER;
            return true;
        }
        self.next_look_ns = Some(now_ns.saturating_add(self.interval_ns));
        false
    }

    /// When it is to be looked.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.next_look_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks whenever one is due, from a time on, until it is over or a limit is reached.
    fn over_at(silence: &mut Silence, until_ns: u64) -> Option<u64> {
        while let Some(at) = silence.poll_timeout().filter(|at| *at <= until_ns) {
            if silence.is_over(at, true) {
                return Some(at);
            }
        }
        None
    }

    #[test]
    fn a_receiver_that_says_nothing_is_noticed_after_its_span_and_a_quarter_later_at_most() {
        for last_word_ms in [0, 1, 124, 125, 126, 249] {
            let mut silence = Silence::after(1000 * MS, 100, 0);
            assert_eq!(over_at(&mut silence, last_word_ms * MS), None);
            silence.heard();
            let at = over_at(&mut silence, 10_000 * MS).unwrap() - last_word_ms * MS;
            assert!((1000 * MS..=1250 * MS).contains(&at), "{at} after {last_word_ms} ms");
            assert_eq!(silence.poll_timeout(), None, "told once");
        }
    }

    #[test]
    fn three_heartbeats_are_waited_for_and_a_receiver_without_any_for_ever() {
        let mut silence = Silence::after(MS, 1000, 0);
        assert!(over_at(&mut silence, 60_000 * MS).unwrap() >= 3000 * MS);
        assert_eq!(over_at(&mut Silence::after(MS, 0, 0), u64::MAX), None);
    }

    #[test]
    fn a_word_now_and_then_is_enough() {
        let mut silence = Silence::after(1000 * MS, 100, 0);
        for round in 1..100 {
            silence.heard();
            assert_eq!(over_at(&mut silence, round * 900 * MS), None, "round {round}");
        }
    }

    #[test]
    fn who_waits_for_nothing_takes_no_silence_amiss() {
        let mut silence = Silence::after(1000 * MS, 100, 0);
        for round in 1..20 {
            assert!(!silence.is_over(round * 500 * MS, false));
        }
        // From now on something is waited for: the whole span counts from here.
        assert_eq!(over_at(&mut silence, 10_400 * MS), None);
    }

    #[test]
    fn ones_own_absence_is_one_look() {
        let mut silence = Silence::after(1000 * MS, 100, 0);
        assert!(!silence.is_over(3_600_000 * MS, true));
        silence.heard();
        assert_eq!(over_at(&mut silence, 3_600_900 * MS), None);
    }
}
