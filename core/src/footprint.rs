//! The footprint that follows the load: how much of the READ share may be in use at once.
//!
//! Little's law says what a load needs: its rate times how long a slab is in use. More than that only waits, in slabs that fall
//! out of the nearest cache meanwhile. How long a slab is in use cannot be told from how long it waits, so the window is found by
//! trying: in turns with the window that stands, another one is used for a while, and what was released under each decides. A
//! smaller one is taken if it costs next to nothing, a larger one if it gains something. All windows have their turn, not only the
//! next ones: what fits the nearest cache is worth something only once all of it does. When none was better there is a rest, each
//! one longer than the last.
//!
//! Trying tells something only while there is always more to read than the window lets in. Where a load comes in bursts, one after
//! the other, the window grows with them, to no limit at all at last: it is to have what it needs when it needs it. One that never
//! fills its window is left alone: slabs are reused last used first, and so it touches few of them anyway.

/// How long one window is used before the other has its turn.
const EPOCH_NS: u64 = 4_000_000;
/// What of that passes before releases count: what was read under the window before has gone by then.
const SETTLE_NS: u64 = 1_000_000;
/// Turns of each window, at most, before it is decided.
const PAIRS_MAX: u32 = 12;
/// Turns of each before a difference that is plain decides.
const PAIRS_MIN: u32 = 3;
/// A difference of so many thousandths is plain.
const PLAIN_PERMILLE: u64 = 150;
/// A smaller window is taken if it releases this much of what the other does: less is within what turns differ by, and what is
/// too small is left again for the gain.
const SHRINK_PERMILLE: u64 = 960;
/// A larger one is taken if it releases so much.
const GROW_PERMILLE: u64 = 1050;
/// The rest after all windows were tried and none was better: the first one, and the longest.
const REST_NS: u64 = 250_000_000;
const REST_NS_MAX: u64 = 8_000_000_000;
/// Of an epoch's looks, those with something left to read that make its load a steady one.
const STEADY_PERMILLE: u64 = 900;
/// What an epoch of bursts weighs, in epochs without one after which it is forgotten; and how much of it makes the window grow: a
/// load that ends is no burst.
const BURST: u32 = 8;
const BURSTS_MAX: u32 = 3 * BURST;

/// What was seen of one window.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    bytes: u64,
    span_ns: u64,
}

impl Tried {
    /// This rate in thousandths of the other's. `None`: the other released nothing.
    fn permille_of(&self, other: &Self) -> Option<u64> {
        let own = u128::from(self.bytes) * u128::from(other.span_ns) * 1000;
        let others = u128::from(other.bytes) * u128::from(self.span_ns);
        u64::try_from(own.checked_div(others)?).ok()
    }
}

/// The window, and what is tried beside it.
#[derive(Clone, Debug)]
pub(crate) struct Footprint {
    /// The smallest window.
    least_bytes: u64,
    /// The largest one, which is no limit.
    most_bytes: u64,
    /// The window that stands.
    step: u32,
    /// The one that is tried.
    other: u32,
    /// Whether it is the turn of the one that is tried.
    trying: bool,
    /// No other is tried before.
    rest_until_ns: u64,
    rest_ns: u64,
    standing: Tried,
    tried: Tried,
    pairs: u32,
    /// Epochs of bursts, less those without.
    bursts: u32,
    /// When the epoch began, and when its releases began to count.
    since_ns: u64,
    counts_since_ns: Option<u64>,
    bytes: u64,
    looks: u64,
    hungry: u64,
}

impl Footprint {
    /// From `least_bytes` to `most_bytes`, which is no limit, and with which it begins.
    pub fn new(least_bytes: u64, most_bytes: u64) -> Self {
        let mut new = Self {
            least_bytes,
            most_bytes,
            step: 0,
            other: 0,
            trying: false,
            rest_until_ns: 0,
            rest_ns: REST_NS,
            standing: Tried::default(),
            tried: Tried::default(),
            pairs: 0,
            bursts: 0,
            since_ns: 0,
            counts_since_ns: None,
            bytes: 0,
            looks: 0,
            hungry: 0,
        };
        while !new.is_last(new.step) {
            new.step += 1;
        }
        new.other = new.beside(new.step);
        new
    }

    /// One that stays where it is.
    #[cfg(test)]
    pub fn fixed(bytes: u64) -> Self {
        Self { step: 0, since_ns: u64::MAX, ..Self::new(bytes, 2 * bytes) }
    }

    /// The window of a step: each is twice the one below.
    fn bytes_of(&self, step: u32) -> u64 {
        self.least_bytes.saturating_mul(1 << step.min(32)).min(self.most_bytes)
    }

    fn is_last(&self, step: u32) -> bool {
        self.bytes_of(step) == self.most_bytes
    }

    /// What is tried after a window: the one below, after the smallest the largest.
    fn beside(&self, step: u32) -> u32 {
        let largest = || (step..).find(|&above| self.is_last(above)).unwrap_or(step);
        step.checked_sub(1).unwrap_or_else(largest)
    }

    /// The step that has its turn.
    fn current(&self) -> u32 {
        if self.trying { self.other } else { self.step }
    }

    /// Bytes of the READ share that may be in use now; `None`: as many as there are.
    pub fn window_bytes(&self) -> Option<u64> {
        let current = self.current();
        (!self.is_last(current)).then(|| self.bytes_of(current))
    }

    /// The window that stands, whatever is tried beside it.
    pub fn standing_bytes(&self) -> u64 {
        self.bytes_of(self.step)
    }

    /// Bytes of the READ share were released.
    pub fn released(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// The grants of a turn are made; `hungry`: something is left to read.
    pub fn look(&mut self, now_ns: u64, hungry: bool) {
        let age_ns = now_ns.saturating_sub(self.since_ns);
        if age_ns < SETTLE_NS {
            return;
        }
        if self.counts_since_ns.is_none() {
            self.counts_since_ns = Some(now_ns);
            (self.bytes, self.looks, self.hungry) = (0, 0, 0);
        }
        self.looks += 1;
        self.hungry += u64::from(hungry);
        if age_ns >= EPOCH_NS {
            self.end_epoch(now_ns);
        }
    }

    fn end_epoch(&mut self, now_ns: u64) {
        let span_ns = now_ns - self.counts_since_ns.take().unwrap_or(now_ns);
        let age_ns = now_ns - core::mem::replace(&mut self.since_ns, now_ns);
        if age_ns > 2 * EPOCH_NS {
            // Nobody looked for a while: nothing came, or the machine did something else. Neither is the window's doing.
            return;
        }
        if self.hungry * 1000 < self.looks * STEADY_PERMILLE {
            // Not steady: it says nothing of the window that it had, which has its turn again.
            if self.hungry > 0 {
                self.bursts = (self.bursts + BURST).min(BURSTS_MAX);
            }
            if self.bursts >= BURSTS_MAX && !self.is_last(self.step) {
                self.bursts = 0;
                self.stand(self.step + 1);
            }
            return;
        }
        self.bursts = self.bursts.saturating_sub(1);
        if now_ns < self.rest_until_ns {
            return;
        }
        let seen = if self.trying { &mut self.tried } else { &mut self.standing };
        seen.bytes += self.bytes;
        seen.span_ns += span_ns;
        self.pairs += u32::from(self.trying);
        if !self.trying || !self.decide(now_ns) {
            self.trying = !self.trying;
        }
    }

    /// After a pair of turns: whether there is a decision.
    fn decide(&mut self, now_ns: u64) -> bool {
        let larger = self.other > self.step;
        // Nothing is released under the window that stands: any larger one is better.
        let nothing = if larger { u64::MAX } else { 0 };
        let permille = self.tried.permille_of(&self.standing).unwrap_or(nothing);
        let plain = permille.abs_diff(1000) >= PLAIN_PERMILLE && self.pairs >= PAIRS_MIN;
        if self.pairs < PAIRS_MAX && !plain {
            return false;
        }
        if permille >= if larger { GROW_PERMILLE } else { SHRINK_PERMILLE } {
            self.rest_ns = REST_NS;
            self.stand(self.other);
            return true;
        }
        let next = self.beside(self.other);
        self.try_other(if next == self.step { self.beside(next) } else { next });
        if self.beside(self.step) == self.other {
            // All had their turn.
            self.rest_until_ns = now_ns.saturating_add(self.rest_ns);
            self.rest_ns = (self.rest_ns * 2).min(REST_NS_MAX);
        }
        true
    }

    /// From now on this window stands.
    fn stand(&mut self, step: u32) {
        self.step = step;
        self.try_other(self.beside(step));
    }

    /// This one is tried beside the one that stands.
    fn try_other(&mut self, other: u32) {
        self.other = other;
        (self.standing, self.tried) = (Tried::default(), Tried::default());
        (self.pairs, self.trying) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// A load whose rate depends on the window, for so long.
    fn run(
        footprint: &mut Footprint,
        from_ns: u64,
        span_ns: u64,
        hungry: bool,
        rate: impl Fn(u64) -> u64,
    ) -> u64 {
        const TURN_NS: u64 = 50_000;
        let mut now_ns = from_ns;
        while now_ns < from_ns + span_ns {
            now_ns += TURN_NS;
            let window = footprint.window_bytes().unwrap_or(12 * MIB);
            footprint.released(rate(window) * TURN_NS / 1000);
            footprint.look(now_ns, hungry);
        }
        now_ns
    }

    fn new() -> Footprint {
        Footprint::new(MIB / 2, 12 * MIB)
    }

    #[test]
    fn windows_double_up_to_no_limit() {
        let footprint = new();
        let sizes = [512, 1024, 2048, 4096, 8192, 12288];
        assert!((0..).zip(sizes).all(|(step, kib)| footprint.bytes_of(step) == kib * KIB));
        assert!(footprint.is_last(5) && !footprint.is_last(4));
    }

    #[test]
    fn what_is_too_much_is_taken_away_and_no_more() {
        // Whatever is below 4 MiB is too little; above it nothing is gained.
        let mut footprint = new();
        assert_eq!(footprint.window_bytes(), None);
        run(&mut footprint, 0, 4_000_000_000, true, |window| window.min(4 * MIB) / KIB);
        assert_eq!(footprint.standing_bytes(), 4 * MIB);
    }

    #[test]
    fn what_falls_out_of_the_cache_beyond_two_is_kept_at_two() {
        let rate = |window: u64| if window <= 2 * MIB { window.min(MIB) / KIB } else { 800 };
        let mut footprint = new();
        let now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
        assert!((MIB..=2 * MIB).contains(&footprint.standing_bytes()));
        // The load changes: all of the pool is needed now, and found.
        let now_ns = run(&mut footprint, now_ns, 6_000_000_000, true, |window| window / KIB);
        assert_eq!(footprint.standing_bytes(), 12 * MIB);
        // And back.
        run(&mut footprint, now_ns, 8_000_000_000, true, rate);
        assert!((MIB..=2 * MIB).contains(&footprint.standing_bytes()));
    }

    #[test]
    fn a_window_that_only_pays_far_below_is_found() {
        // All of what does not fit 1 MiB is as good, and a little better than what nearly does.
        let rate = |window: u64| match window / KIB {
            0..1024 => 700,
            1024 => 1500,
            1025..8192 => 900,
            _ => 1000,
        };
        let mut footprint = new();
        run(&mut footprint, 0, 4_000_000_000, true, rate);
        assert_eq!(footprint.standing_bytes(), MIB);
    }

    #[test]
    fn what_is_tried_in_vain_is_tried_ever_less() {
        let mut footprint = new();
        // Only all of the pool will do.
        let rate = |window: u64| if window < 12 * MIB { 500 } else { 1000 };
        let now_ns = run(&mut footprint, 0, 60_000_000_000, true, rate);
        let mut tried = 0;
        for turn in 0..20_000 {
            run(&mut footprint, now_ns + turn * 1_000_000, 1_000_000, true, rate);
            tried += u32::from(footprint.window_bytes().is_some());
        }
        assert_eq!(footprint.standing_bytes(), 12 * MIB);
        assert!(tried < 400, "{tried} of 20,000 ms");
    }

    #[test]
    fn a_load_that_ends_now_and_then_keeps_its_window() {
        let rate = |window: u64| if window <= MIB { window / KIB } else { 500 };
        let mut footprint = new();
        let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
        assert_eq!(footprint.standing_bytes(), MIB);
        for _ in 0..10 {
            now_ns = run(&mut footprint, now_ns, 1_501_000_000, true, rate);
            now_ns = run(&mut footprint, now_ns, 501_000_000, false, |_| 0);
            assert_eq!(footprint.standing_bytes(), MIB);
        }
    }

    #[test]
    fn a_pause_that_nobody_looked_at_says_nothing() {
        let rate = |window: u64| if window <= MIB { window / KIB } else { 500 };
        let mut footprint = new();
        let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
        assert_eq!(footprint.standing_bytes(), MIB);
        for turn in 0..2000 {
            // Each time a little later in an epoch.
            now_ns = run(&mut footprint, now_ns, 20_000_000 + turn * 50_000, true, rate);
            assert_eq!(footprint.standing_bytes(), MIB, "after {turn} pauses");
            now_ns += 5_000_000_000;
        }
    }

    #[test]
    fn bursts_have_the_whole_pool_and_an_idle_window_stays() {
        let mut footprint = new();
        let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, |_| 3);
        let before = footprint.standing_bytes();
        assert_eq!(before, MIB / 2);
        now_ns = run(&mut footprint, now_ns, 1_000_000_000, false, |_| 1);
        assert_eq!(footprint.standing_bytes(), before);
        for _ in 0..2000 {
            now_ns = run(&mut footprint, now_ns, 500_000, true, |_| 3);
            now_ns = run(&mut footprint, now_ns, 500_000, false, |_| 1);
        }
        assert_eq!(footprint.window_bytes(), None);
    }

    #[test]
    fn a_window_that_releases_nothing_is_left() {
        // A message is longer than the window, and its application gives nothing back before it has all of it.
        let mut footprint = new();
        run(&mut footprint, 0, 2_000_000_000, true, |window| if window < 6 * MIB { 0 } else { 5 });
        assert!(footprint.standing_bytes() >= 6 * MIB);
    }
}
