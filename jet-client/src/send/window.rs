//! The congestion window: what share of its full windows a sender may use.

/// In thousandths. Cut by the receiver's signal, regained in steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    permille: u32,
    recovery_permille: u32,
    recovery_interval_ns: u64,
    grows_at_ns: Option<u64>,
}

const FULL: u32 = 1000;

impl Window {
    pub(super) fn new(recovery_permille: u32, recovery_interval_ns: u64) -> Self {
        Self { permille: FULL, recovery_permille, recovery_interval_ns, grows_at_ns: None }
    }

    /// The receiver's signal: cut to that share of the full window; 1000 gives all of it back.
    pub(super) fn signal(&mut self, permille: u32, now_ns: u64) {
        let permille = permille.clamp(1, FULL);
        self.permille = if permille == FULL { FULL } else { self.permille.min(permille) };
        self.grows_at_ns = (self.permille < FULL).then(|| now_ns.saturating_add(self.recovery_interval_ns));
    }

    /// Grows by as many steps as are due.
    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(at) = self.grows_at_ns
            && at <= now_ns
        {
            self.permille = (self.permille + self.recovery_permille.max(1)).min(FULL);
            self.grows_at_ns =
                (self.permille < FULL).then(|| at.saturating_add(self.recovery_interval_ns.max(1)));
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.grows_at_ns
    }

    pub(super) fn permille(&self) -> u32 {
        self.permille
    }

    /// That share of a full window, at least 1.
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
    fn a_signal_cuts_and_time_gives_back() {
        let mut window = Window::new(100, 10);
        window.signal(300, 5);
        window.signal(800, 5);
        assert_eq!((window.permille(), window.share_of(10), window.poll_timeout()), (300, 3, Some(15)));
        window.handle_timeout(14);
        assert_eq!(window.permille(), 300);
        window.handle_timeout(35);
        assert_eq!(window.permille(), 600);
        window.handle_timeout(1000);
        assert_eq!((window.permille(), window.poll_timeout()), (1000, None));
        window.signal(0, 0);
        assert_eq!((window.permille(), window.share_of(10)), (1, 1));
        window.signal(1000, 0);
        assert_eq!((window.share_of(u64::MAX), window.poll_timeout()), (u64::MAX, None));
    }
}
