//! Detection of a receiver that gets nowhere: one that is stopped, that hangs, or that forgot this sender or
//! one of its messages.
//!
//! A receiver sends a heartbeat at intervals to the senders that wait for it. The heartbeat says what they
//! wait for: an application that takes its time, say. A heartbeat without a reason is no word: something was
//! lost.
//!
//! The timeout is counted in looks, not in time. So a sender that was stopped for a while does not mistake
//! its own absence for the receiver's: however long it was away, that is one check.

/// Checks in a row that found nothing before the receiver counts as gone. All but one of them cover the
/// timeout, because the wait may have begun just before the first check. So the timeout is noticed when it is
/// over, and at most a quarter of it later.
const CHECKS: u8 = 9;

/// Checks in a row that found nothing at all, after which the receiver counts as silent. Where there are
/// heartbeats, one of four checks finds one: the timeout is three heartbeats at the least.
const SILENT_CHECKS: u8 = 6;

/// How a receiver got nowhere for the time of the timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// It sent nothing.
    Silent,
    /// It sent heartbeats, which named nothing that the sender waits for.
    WithoutReason,
}

/// Timeout for a receiver that gets nowhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiverTimeout {
    /// Nanoseconds between two checks whether the receiver sent something.
    interval_ns: u64,
    /// Time of the next check; `None`: there are no checks.
    next_look_ns: Option<u64>,
    /// Whether a word arrived since the last check.
    heard: bool,
    /// Whether a heartbeat without a reason arrived since the last check.
    lives: bool,
    /// Checks in a row before which nothing at all had arrived.
    silent: u8,
    /// Checks in a row at which the sender waited for the receiver, and no word had arrived.
    in_vain: u8,
}

impl ReceiverTimeout {
    /// A timeout that never ends.
    pub(super) const NEVER: Self =
        Self { interval_ns: 0, next_look_ns: None, heard: false, lives: false, silent: 0, in_vain: 0 };

    /// Makes a timeout of `max_ns`, or of three of the receiver's heartbeats where that is longer. A receiver
    /// without heartbeats has no timeout.
    pub(super) fn after(max_ns: u64, heartbeat_ms: u16, now_ns: u64) -> Self {
        if heartbeat_ms == 0 {
            return Self::NEVER;
        }
        let least_ns = 3 * u64::from(heartbeat_ms) * 1_000_000;
        let interval_ns = max_ns.max(least_ns).div_ceil(u64::from(CHECKS - 1));
        Self { interval_ns, next_look_ns: Some(now_ns.saturating_add(interval_ns)), ..Self::NEVER }
    }

    /// Notes that the receiver sent a word: something that moves on, or a reason why nothing does.
    #[inline]
    pub(super) fn note_word(&mut self) {
        self.heard = true;
    }

    /// Notes a heartbeat that is no word.
    pub(super) fn note_sign_of_life(&mut self) {
        self.lives = true;
    }

    /// Checks whether the timeout is over, if a check is due. `waits` says whether the sender waits for
    /// something that only the receiver can send. Returns, once, how the timeout is over.
    pub(super) fn over(&mut self, now_ns: u64, waits: bool) -> Option<Over> {
        if self.next_look_ns.is_none_or(|at| now_ns < at) {
            return None;
        }
        let (heard, lives) = (core::mem::take(&mut self.heard), core::mem::take(&mut self.lives));
        self.in_vain = if heard || !waits { 0 } else { self.in_vain + 1 };
        self.silent = if heard || lives || !waits { 0 } else { self.silent + 1 };
        if self.in_vain >= CHECKS {
            let over = if self.silent < SILENT_CHECKS { Over::WithoutReason } else { Over::Silent };
            *self = Self::NEVER;
            return Some(over);
        }
        self.next_look_ns = Some(now_ns.saturating_add(self.interval_ns));
        None
    }

    /// Returns the time of the next check.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.next_look_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Checks whenever a check is due, until the timeout is over or `until_ns` is reached. Returns the time
    /// when it was over.
    fn over_at(timeout: &mut ReceiverTimeout, until_ns: u64) -> Option<u64> {
        while let Some(at) = timeout.poll_timeout().filter(|at| *at <= until_ns) {
            if timeout.over(at, true).is_some() {
                return Some(at);
            }
        }
        None
    }

    #[test]
    fn a_receiver_that_says_nothing_is_noticed_after_its_span_and_a_quarter_later_at_most() {
        for last_word_ms in [0, 1, 124, 125, 126, 249] {
            let mut timeout = ReceiverTimeout::after(1000 * MS, 100, 0);
            assert_eq!(over_at(&mut timeout, last_word_ms * MS), None);
            timeout.note_word();
            let at = over_at(&mut timeout, 10_000 * MS).unwrap() - last_word_ms * MS;
            assert!((1000 * MS..=1250 * MS).contains(&at), "{at} after {last_word_ms} ms");
            assert_eq!(timeout.poll_timeout(), None, "told once");
        }
    }

    #[test]
    fn three_heartbeats_are_waited_for_and_a_receiver_without_any_for_ever() {
        let mut timeout = ReceiverTimeout::after(MS, 1000, 0);
        assert!(over_at(&mut timeout, 60_000 * MS).unwrap() >= 3000 * MS);
        assert_eq!(over_at(&mut ReceiverTimeout::after(MS, 0, 0), u64::MAX), None);
    }

    #[test]
    fn a_word_now_and_then_is_enough() {
        let mut timeout = ReceiverTimeout::after(1000 * MS, 100, 0);
        for round in 1..100 {
            timeout.note_word();
            assert_eq!(over_at(&mut timeout, round * 900 * MS), None, "round {round}");
        }
    }

    #[test]
    fn who_waits_for_nothing_takes_no_silence_amiss() {
        let mut timeout = ReceiverTimeout::after(1000 * MS, 100, 0);
        for round in 1..20 {
            assert_eq!(timeout.over(round * 500 * MS, false), None);
        }
        // The sender waits from here on, so the whole timeout counts from here.
        assert_eq!(over_at(&mut timeout, 10_400 * MS), None);
    }

    #[test]
    fn ones_own_absence_is_one_look() {
        let mut timeout = ReceiverTimeout::after(1000 * MS, 100, 0);
        assert_eq!(timeout.over(3_600_000 * MS, true), None);
        timeout.note_word();
        assert_eq!(over_at(&mut timeout, 3_600_900 * MS), None);
    }
}
