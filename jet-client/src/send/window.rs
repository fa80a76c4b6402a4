//! The congestion window: the share of its full windows that a sender may use.
//!
//! A signal of the receiver cuts the share multiplicatively. It is regained additively (Jet §4.3, "mark").

use jet_wire::planted;

/// Counters of the congestion window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowStats {
    /// Congestion signals of the receiver, whatever their effect.
    pub signals: u64,
    /// Signals that made the window smaller. A window of 1, the smallest, is not made smaller.
    pub cuts: u64,
    /// Steps by which the window grew again.
    pub steps: u64,
    /// Smallest window, in thousandths of the full one.
    pub least_permille: u32,
    /// Time for which the window was smaller than the full one, in nanoseconds, up to the last signal or
    /// step.
    pub below_full_ns: u64,
}

impl Default for WindowStats {
    fn default() -> Self {
        Self { signals: 0, cuts: 0, steps: 0, least_permille: FULL, below_full_ns: 0 }
    }
}

/// The window in thousandths, 1 to 1000. A sender whose window is 0 would never continue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    permille: u32,
    recovery_permille: u32,
    recovery_interval_ns: u64,
    grows_at_ns: Option<u64>,
    /// Time up to which `below_full_ns` is counted, while the window is not full.
    counted_ns: u64,
    stats: WindowStats,
}

const FULL: u32 = 1000;

impl Window {
    pub(super) fn new(recovery_permille: u32, recovery_interval_ns: u64) -> Self {
        Self {
            permille: FULL,
            // A step or an interval of 0 would keep a window that was cut from ever becoming full, or from
            // ever stopping to grow.
            recovery_permille: recovery_permille.clamp(1, FULL),
            recovery_interval_ns: recovery_interval_ns.max(1),
            grows_at_ns: None,
            counted_ns: 0,
            stats: WindowStats::default(),
        }
    }

    /// Handles a signal of the receiver: multiplies the present window by `permille` thousandths. A signal of
    /// 1000 restores the full window. The window grows again one interval after the newest signal.
    pub(super) fn signal(&mut self, permille: u32, now_ns: u64) {
        // Steps that are due already are part of the present window.
        self.handle_timeout(now_ns);
        self.stats.signals += 1;
        self.count_to(now_ns);
        let permille = permille.clamp(1, FULL);
        let wanted = if permille == FULL { FULL } else { (self.permille * permille / FULL).max(1) };
        if wanted < self.permille {
            self.stats.cuts += 1;
            self.stats.least_permille = self.stats.least_permille.min(wanted);
        }
        self.set(wanted, now_ns, now_ns);
    }

    /// Restores the full window for a new connection, on which nothing was signalled yet.
    pub(super) fn restart(&mut self, now_ns: u64) {
        self.count_to(now_ns);
        self.set(FULL, now_ns, now_ns);
    }

    /// Grows the window by as many steps as are due.
    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(at) = self.grows_at_ns
            && at <= now_ns
        {
            // The loop is bounded: at most `FULL` steps.
            self.stats.steps += 1;
            self.count_to(now_ns);
            self.set((self.permille + self.recovery_permille).min(FULL), at, now_ns);
        }
    }

    /// Sets the window. It grows next one interval after `since_ns`.
    fn set(&mut self, permille: u32, since_ns: u64, now_ns: u64) {
        self.permille = permille;
        self.counted_ns = now_ns;
        self.grows_at_ns = (permille < FULL && !planted!(CongestionKept))
            .then(|| since_ns.saturating_add(self.recovery_interval_ns));
    }

    fn count_to(&mut self, now_ns: u64) {
        if self.permille < FULL {
            self.stats.below_full_ns += now_ns.saturating_sub(self.counted_ns);
            self.counted_ns = now_ns;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.grows_at_ns
    }

    pub(super) fn permille(&self) -> u32 {
        self.permille
    }

    pub(super) fn stats(&self) -> WindowStats {
        self.stats
    }

    /// Returns this share of a full window, at least 1.
    #[inline]
    pub(super) fn share_of(&self, full: u64) -> u64 {
        if self.permille == FULL {
            return full;
        }
        (full / u64::from(FULL) * u64::from(self.permille)
            + full % u64::from(FULL) * u64::from(self.permille) / u64::from(FULL))
        .max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_cut_what_is_left_and_time_gives_back() {
        let mut window = Window::new(100, 10);
        window.signal(500, 5);
        assert_eq!((window.permille(), window.share_of(10), window.poll_timeout()), (500, 5, Some(15)));
        // Each of two signals within one interval cuts the window. The growth waits for the newer signal.
        window.signal(500, 8);
        assert_eq!((window.permille(), window.poll_timeout()), (250, Some(18)));
        window.signal(800, 9);
        assert_eq!((window.permille(), window.share_of(10), window.poll_timeout()), (200, 2, Some(19)));
        window.handle_timeout(18);
        assert_eq!(window.permille(), 200);
        window.handle_timeout(39);
        assert_eq!((window.permille(), window.poll_timeout()), (500, Some(49)));
        window.handle_timeout(95);
        assert_eq!((window.permille(), window.poll_timeout()), (1000, None));
        let expected = WindowStats { signals: 3, cuts: 3, steps: 8, least_permille: 200, below_full_ns: 90 };
        assert_eq!(window.stats(), expected);
    }

    #[test]
    fn it_never_gets_smaller_than_one_thousandth_and_one_message() {
        let mut window = Window::new(50, 10);
        let mut seen = Vec::new();
        for at in 0..12 {
            window.signal(500, at);
            seen.push(window.permille());
        }
        assert_eq!(seen, [500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1, 1]);
        assert_eq!((window.stats().signals, window.stats().cuts, window.stats().least_permille), (12, 9, 1));
        for full in [1, 3, 999] {
            assert_eq!(window.share_of(full), 1);
        }
        assert_eq!(window.share_of(u64::MAX), u64::MAX / 1000);
        window.signal(0, 12);
        assert_eq!(window.permille(), 1);
    }

    #[test]
    fn all_of_it_comes_back_at_once_where_the_receiver_says_so_or_is_another() {
        let mut window = Window::new(50, 10);
        window.signal(300, 0);
        window.signal(1000, 4);
        assert_eq!(
            (window.permille(), window.share_of(u64::MAX), window.poll_timeout()),
            (1000, u64::MAX, None)
        );
        window.signal(200, 10);
        window.restart(13);
        assert_eq!((window.permille(), window.poll_timeout()), (1000, None));
        let expected = WindowStats { signals: 3, cuts: 2, steps: 0, least_permille: 200, below_full_ns: 7 };
        assert_eq!(window.stats(), expected);
        window.handle_timeout(1000);
        assert_eq!(window.stats(), expected, "a full window is not counted on");
    }

    #[test]
    fn what_was_due_to_grow_back_is_there_before_the_next_cut() {
        let mut window = Window::new(100, 10);
        window.signal(100, 0);
        window.signal(500, 40);
        assert_eq!((window.permille(), window.poll_timeout()), (250, Some(50)));
        assert_eq!((window.stats().steps, window.stats().below_full_ns), (4, 40));
    }

    #[test]
    fn a_step_and_an_interval_of_nothing_still_bring_it_back() {
        let mut window = Window::new(0, 0);
        window.signal(1, 0);
        assert_eq!(window.poll_timeout(), Some(1));
        window.handle_timeout(2000);
        assert_eq!((window.permille(), window.stats().steps), (1000, 999));
    }
}
