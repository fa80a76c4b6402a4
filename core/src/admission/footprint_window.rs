//! The footprint window that follows the load: the most bytes of the READ share that may be in use at once.
//!
//! Little's law says what a load needs: its rate times how long a slab is in use. Anything beyond that only
//! waits, in slabs that meanwhile fall out of the nearest cache. A measured waiting time does not tell how
//! long slabs have to be in use. So the window is found by trial. The current window and a candidate window
//! are used in alternating epochs, and the bytes released under each decide. A smaller candidate replaces the
//! current window if it costs next to nothing, a larger one if it gains something.
//!
//! The search begins far: it tries candidates of all sizes, because what fits the nearest cache pays only
//! once all of it fits. When no candidate was better, the search rests, each time longer than before. After
//! that it is near: it tries only the two neighbours of the current window. So the footprint stays within one
//! and a half times what the load needs. From time to time the search is far again.
//!
//! A trial means something only while there is always more to read than the current window lets in. Where a
//! load comes in bursts, the window grows with each series of bursts until it is no limit: the load is to
//! have what it needs when it needs it. A load that never fills its window is left alone. Slabs that were
//! used last are used first again, so such a load touches few slabs anyway.

/// Nanoseconds of an epoch: the time for which the current window or the candidate is used before the other.
const EPOCH_NS: u64 = 4_000_000;
/// Nanoseconds at the beginning of an epoch in which releases do not count. Fragments that were read under
/// the previous window are released in that time.
const SETTLE_NS: u64 = 1_000_000;
/// Pairs of epochs after which a trial in a far search is decided.
const PAIRS_FAR: u32 = 12;
/// Pairs of epochs after which a trial between neighbouring windows is decided, which differ less.
const PAIRS_NEAR: u32 = 24;
/// Pairs of epochs after which a trial may be decided early, if all of them differ plainly in the same
/// direction.
const PAIRS_PLAIN: u32 = 3;
/// Thousandths by which the rates in a pair of epochs must differ, at least, to differ plainly.
const PLAIN_PERMILLE: u64 = 150;
/// Thousandths of the current window's rate at which a smaller candidate counts as no worse: even with one
/// window, the rates of two epochs differ by that much. The smaller candidate is taken if it reaches this in
/// half of the pairs.
const SHRINK_PERMILLE: u64 = 985;
/// Thousandths of the current window's rate at which a larger candidate counts as better. The larger
/// candidate is taken if it reaches this in two thirds of the pairs.
const GROW_PERMILLE: u64 = 1030;
/// Nanoseconds of the first rest after all candidates were tried and none was better.
const REST_NS: u64 = 250_000_000;
/// Nanoseconds of the longest rest after all candidates were tried and none was better.
const REST_NS_MAX: u64 = 8_000_000_000;
/// Number of rests of the longest span after which the search tries candidates of all sizes again.
const RESTS_FAR: u32 = 16;
/// Thousandths of an epoch's calls of [`FootprintWindow::check`] that must find something left to read, so
/// that the load counts as steady.
const STEADY_PERMILLE: u64 = 900;
/// Weight of an epoch in which the load came in bursts: so many steady epochs cancel it.
const BURST: u32 = 2;
/// Sum of the weights of epochs with bursts at which the window grows. A load that merely ends once stays
/// below that sum.
const BURSTS_MAX: u32 = 16 * BURST;

/// Bytes released in one epoch, in which one window was used, and the time in which they were released.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    bytes: u64,
    span_ns: u64,
}

impl Seen {
    /// Returns the rate of these releases in thousandths of the other rate. `None`: nothing was released in
    /// the other epoch.
    fn permille_of(&self, other: &Self) -> Option<u64> {
        let own = u128::from(self.bytes) * u128::from(other.span_ns) * 1000;
        let others = u128::from(other.bytes) * u128::from(self.span_ns);
        u64::try_from(own.checked_div(others)?).ok()
    }
}

/// The trial of one candidate against the current window. Each pair of epochs, one with each window, counts
/// once, whatever its bytes. So a pair in which the machine did something else counts no more than any other.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// The current window's epoch, to be compared with the candidate's epoch that follows it.
    current: Seen,
    pairs: u32,
    /// Pairs in which the candidate did well enough for its size: a larger one better, a smaller one no
    /// worse.
    good: u32,
    /// Pairs in which the candidate was plainly better.
    better: u32,
    /// Pairs in which the candidate was plainly worse.
    worse: u32,
}

impl Trial {
    fn pair(&mut self, seen: Seen, larger: bool) {
        // Where nothing is released under the current window, any larger one is better.
        let nothing = if larger { u64::MAX } else { 0 };
        let permille = seen.permille_of(&self.current).unwrap_or(nothing);
        self.pairs += 1;
        self.good += u32::from(permille >= if larger { GROW_PERMILLE } else { SHRINK_PERMILLE });
        self.better += u32::from(permille >= 1000 + PLAIN_PERMILLE);
        self.worse += u32::from(permille <= 1000 - PLAIN_PERMILLE);
    }

    fn is_plain(&self) -> bool {
        self.pairs >= PAIRS_PLAIN && (self.better == self.pairs || self.worse == self.pairs)
    }

    /// Returns whether the candidate is to replace the current window; `None` while that is not known yet.
    fn verdict(&self, larger: bool, pairs_max: u32) -> Option<bool> {
        let of_three = if larger { 2 * self.pairs } else { self.pairs.div_ceil(2) + self.pairs };
        (self.is_plain() || self.pairs >= pairs_max).then_some(3 * self.good >= of_three)
    }
}

/// The current window, and the candidate that is tried beside it.
#[derive(Clone, Debug)]
pub(crate) struct FootprintWindow {
    /// Bytes of the smallest window.
    least_bytes: u64,
    /// Bytes of the largest window, which leaves the READ share without a limit.
    most_bytes: u64,
    /// Step of the current window: its place on the scale of window sizes, from 0 for the smallest.
    current: u32,
    /// Step of the candidate on the scale of window sizes.
    candidate: u32,
    /// Whether the candidate is in use now, not the current window.
    trying: bool,
    /// Whether candidates of all sizes are tried, or only the neighbours of the current window.
    far: bool,
    /// Whether the last change made the window larger: then the next change is likely to do so, too.
    upward: bool,
    rests: u32,
    /// Changes of the window in a row, each in the opposite direction to the one before.
    turnings: u32,
    /// Time before which no candidate is tried.
    rest_until_ns: u64,
    rest_ns: u64,
    trial: Trial,
    /// Sum of the weights of epochs in which the load came in bursts, less the steady epochs.
    bursts: u32,
    /// Time when the present epoch began.
    since_ns: u64,
    /// Time from which the present epoch's releases count; `None` until then.
    counts_since_ns: Option<u64>,
    bytes: u64,
    checks: u64,
    checks_with_more: u64,
}

impl FootprintWindow {
    /// Creates a window between `least_bytes` and `most_bytes`. It begins at `most_bytes`, which is no limit.
    pub fn new(least_bytes: u64, most_bytes: u64) -> Self {
        let mut new = Self {
            least_bytes,
            most_bytes,
            current: 0,
            candidate: 0,
            trying: false,
            far: true,
            upward: false,
            rests: 0,
            turnings: 0,
            rest_until_ns: 0,
            rest_ns: REST_NS,
            trial: Trial::default(),
            bursts: 0,
            since_ns: 0,
            counts_since_ns: None,
            bytes: 0,
            checks: 0,
            checks_with_more: 0,
        };
        while !new.is_last(new.current) {
            new.current += 1;
        }
        new.candidate = new.first();
        new
    }

    /// Creates a window that never changes.
    #[cfg(test)]
    pub fn fixed(bytes: u64) -> Self {
        Self { current: 0, since_ns: u64::MAX, ..Self::new(bytes, 2 * bytes) }
    }

    /// Returns the bytes of the window at a step. Each window is twice the one two steps below. At an odd
    /// step it is half as large again as the one below. The smallest window has room for two fragments, so
    /// each window has room for more fragments than the one below.
    fn bytes_of(&self, step: u32) -> u64 {
        let whole = self.least_bytes.saturating_mul(1 << (step / 2).min(32));
        let bytes = if step.is_multiple_of(2) { whole } else { whole.saturating_mul(3) / 2 };
        bytes.min(self.most_bytes)
    }

    fn is_last(&self, step: u32) -> bool {
        self.bytes_of(step) == self.most_bytes
    }

    /// Returns the first candidate to try beside the current window.
    fn first(&self) -> u32 {
        self.next(self.current).unwrap_or(self.current)
    }

    /// Returns the candidate to try after `tried`; `None` when all were tried. In a far search each candidate
    /// is half of the last one, and after the smallest comes the largest. In a near search there are two
    /// candidates, the more promising one first.
    fn next(&self, tried: u32) -> Option<u32> {
        let above = || (!self.is_last(self.current)).then_some(self.current + 1);
        let below = || self.current.checked_sub(1);
        if !self.far {
            let first = if self.upward { above().or_else(below) } else { below().or_else(above) };
            let second = if self.upward { below() } else { above() };
            let next = if tried == self.current { first } else { second };
            return next.filter(|&next| next != tried);
        }
        // Only the smallest window times powers of two, whatever the largest is.
        let next =
            tried.checked_sub(2 - tried % 2).or_else(|| (self.current..).find(|&step| self.is_last(step)))?;
        // One round is complete past the current window, or past the largest one for the second time.
        let passed = tried > self.current && (next <= self.current || next >= tried);
        (!passed && next != self.current).then_some(next)
    }

    /// Returns the step of the window that is in use now: the current window's or the candidate's.
    fn in_use(&self) -> u32 {
        if self.trying { self.candidate } else { self.current }
    }

    /// Returns the bytes of the READ share that may be in use now; `None` while there is no limit.
    pub fn window_bytes(&self) -> Option<u64> {
        let in_use = self.in_use();
        (!self.is_last(in_use)).then(|| self.bytes_of(in_use))
    }

    /// Returns the bytes of the current window, whatever candidate is tried beside it.
    pub fn current_bytes(&self) -> u64 {
        self.bytes_of(self.current)
    }

    /// Counts bytes of the READ share that were released.
    pub fn released(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Records, after the grants of a turn, whether the load fills the window. Ends the epoch when its time
    /// is over. `has_more_to_read`: something is left to read.
    pub fn check(&mut self, now_ns: u64, has_more_to_read: bool) {
        let age_ns = now_ns.saturating_sub(self.since_ns);
        if age_ns < SETTLE_NS {
            return;
        }
        if self.counts_since_ns.is_none() {
            self.counts_since_ns = Some(now_ns);
            (self.bytes, self.checks, self.checks_with_more) = (0, 0, 0);
        }
        self.checks += 1;
        self.checks_with_more += u64::from(has_more_to_read);
        if age_ns >= EPOCH_NS {
            self.end_epoch(now_ns);
        }
    }

    fn end_epoch(&mut self, now_ns: u64) {
        let span_ns = now_ns - self.counts_since_ns.take().unwrap_or(now_ns);
        let age_ns = now_ns - core::mem::replace(&mut self.since_ns, now_ns);
        if age_ns > 2 * EPOCH_NS || span_ns < EPOCH_NS / 2 {
            // Nobody called for a while: nothing arrived, or the machine did something else. Neither is due
            // to the window.
            return;
        }
        if self.checks_with_more * 1000 < self.checks * STEADY_PERMILLE {
            if self.trying {
                // All that waits fits the candidate, or the load is not steady: neither speaks for the
                // candidate.
                self.trial.pairs += 1;
                self.decide(now_ns);
                return;
            }
            // A load that is not steady says nothing about the current window. That window has another epoch.
            if self.checks_with_more > 0 {
                self.bursts = (self.bursts + BURST).min(BURSTS_MAX);
            }
            if self.bursts >= BURSTS_MAX && !self.is_last(self.current) {
                self.bursts = 0;
                // What the load needs once it is steady again has to be found anew.
                (self.far, self.rests, self.rest_ns, self.rest_until_ns) = (true, 0, REST_NS, 0);
                self.set_current(self.current + if self.is_last(self.current + 1) { 1 } else { 2 });
            }
            return;
        }
        self.bursts = self.bursts.saturating_sub(1);
        if now_ns < self.rest_until_ns || self.candidate == self.current {
            return;
        }
        let seen = Seen { bytes: self.bytes, span_ns };
        if self.trying {
            self.trial.pair(seen, self.candidate > self.current);
            self.decide(now_ns);
        } else {
            self.trial.current = seen;
            self.trying = true;
        }
    }

    /// Decides the trial after a pair of epochs, if it can be decided.
    fn decide(&mut self, now_ns: u64) {
        self.trying = false;
        let larger = self.candidate > self.current;
        match self.trial.verdict(larger, if self.far { PAIRS_FAR } else { PAIRS_NEAR }) {
            None => {}
            Some(true) => self.take(larger, now_ns),
            Some(false) => match self.next(self.candidate) {
                Some(next) => self.try_candidate(next),
                None => self.rest(now_ns),
            },
        }
    }

    /// Makes the candidate the current window, because it did better.
    fn take(&mut self, larger: bool, now_ns: u64) {
        let (far, plain) = (self.far, self.trial.is_plain());
        // The window went to and fro: the difference is not worth more trials. In a far search that is also a
        // step from far below up to the largest again.
        let back = if far { larger } else { larger != self.upward };
        if back {
            // Each such rest is longer than the one before. The first one begins small, however long the
            // rests after vain trials have become.
            let rest_ns = (REST_NS << self.turnings.min(8)).min(REST_NS_MAX);
            self.rest_until_ns = now_ns.saturating_add(rest_ns);
            self.turnings += 1;
            self.far = false;
        } else {
            self.turnings = 0;
            if plain {
                // The load has changed.
                self.rest_ns = REST_NS;
            } else if !far {
                self.rest_ns = (self.rest_ns / 2).max(REST_NS);
            }
        }
        self.set_current(self.candidate);
    }

    /// Begins a rest after all candidates were tried in vain.
    fn rest(&mut self, now_ns: u64) {
        self.turnings = 0;
        self.rest_until_ns = now_ns.saturating_add(self.rest_ns);
        self.rests = if self.rest_ns == REST_NS_MAX { self.rests + 1 } else { 0 };
        self.rest_ns = (self.rest_ns * 2).min(REST_NS_MAX);
        self.far = self.rests == RESTS_FAR;
        if self.far {
            (self.rests, self.rest_ns) = (0, REST_NS);
        }
        self.try_candidate(self.first());
    }

    /// Makes the window at a step the current window.
    fn set_current(&mut self, step: u32) {
        self.upward = step > self.current;
        self.current = step;
        self.try_candidate(self.first());
    }

    /// Begins the trial of a candidate beside the current window.
    fn try_candidate(&mut self, candidate: u32) {
        self.candidate = candidate;
        (self.trial, self.trying) = (Trial::default(), false);
    }
}

/// Returns the cache footprint that a session was measured to have (Jet §3.2, §4): its throughput times its
/// post-NIC time. `None`: it was not measured yet.
pub(super) fn measured_footprint_bytes(bytes_per_ms: u64, post_nic_ns: u64) -> Option<u64> {
    if bytes_per_ms == 0 || post_nic_ns == 0 {
        return None;
    }
    let expected = u128::from(bytes_per_ms) * u128::from(post_nic_ns) / 1_000_000;
    Some(u64::try_from(expected).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
