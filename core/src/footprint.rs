//! The footprint that follows the load: how much of the READ share may be in use at once.
//!
//! Little's law says what a load needs: its rate times how long a slab is in use. More than that only waits, in slabs that fall
//! out of the nearest cache meanwhile. How long a slab is in use cannot be told from how long it waits, so the window is found by
//! trying: in turns with the window that stands, another one is used for a while, and what was released under each decides. A
//! smaller one is taken if it costs next to nothing, a larger one if it gains something.
//!
//! First far and wide: windows of all sizes have their turn, since what fits the nearest cache is worth something only once all of
//! it does. When none was better there is a rest, each one longer than the last; and then only the two windows beside the one that
//! stands are tried, so that the footprint stays within half as much again of what the load needs. Far and wide again now and then.
//!
//! Trying tells something only while there is always more to read than the window lets in. Where a load comes in bursts, one after
//! the other, the window grows with them, to no limit at all at last: it is to have what it needs when it needs it. One that never
//! fills its window is left alone: slabs are reused last used first, and so it touches few of them anyway.

/// How long one window is used before the other has its turn.
const EPOCH_NS: u64 = 4_000_000;
/// What of that passes before releases count: what was read under the window before has gone by then.
const SETTLE_NS: u64 = 1_000_000;
/// Turns of each window before it is decided: far and wide, and between neighbours, which differ less.
const PAIRS_FAR: u32 = 12;
const PAIRS_NEAR: u32 = 24;
/// Turns of each before it is decided where all of them differ plainly: by so many thousandths.
const PAIRS_PLAIN: u32 = 3;
const PLAIN_PERMILLE: u64 = 150;
/// A smaller window does as well if it releases this much of what the other does: less is within what turns differ by. It is taken
/// if it does in half of the turns.
const SHRINK_PERMILLE: u64 = 985;
/// A larger one does better if it releases so much. It is taken if it does in two thirds of the turns.
const GROW_PERMILLE: u64 = 1030;
/// The rest after all windows were tried and none was better: the first one, and the longest.
const REST_NS: u64 = 250_000_000;
const REST_NS_MAX: u64 = 8_000_000_000;
/// Rests of the longest kind after which windows of all sizes have their turn again.
const RESTS_FAR: u32 = 16;
/// Of an epoch's looks, those with something left to read that make its load a steady one.
const STEADY_PERMILLE: u64 = 900;
/// What an epoch of bursts weighs, in epochs without one after which it is forgotten; and how much of it makes the window grow: a
/// load that ends is no burst.
const BURST: u32 = 2;
const BURSTS_MAX: u32 = 16 * BURST;

/// What was seen of one window in one turn.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    bytes: u64,
    span_ns: u64,
}

impl Seen {
    /// This rate in thousandths of the other's. `None`: the other released nothing.
    fn permille_of(&self, other: &Self) -> Option<u64> {
        let own = u128::from(self.bytes) * u128::from(other.span_ns) * 1000;
        let others = u128::from(other.bytes) * u128::from(self.span_ns);
        u64::try_from(own.checked_div(others)?).ok()
    }
}

/// One window beside the one that stands. Pairs of turns are counted, not added up: one in which the machine did something else
/// may then be as wrong as it likes.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// The turn of the window that stands, which has no other yet.
    standing: Seen,
    pairs: u32,
    /// Pairs in which the other one did well enough; plainly better; plainly worse.
    good: u32,
    better: u32,
    worse: u32,
}

impl Trial {
    fn pair(&mut self, seen: Seen, larger: bool) {
        // Nothing is released under the window that stands: any larger one is better.
        let nothing = if larger { u64::MAX } else { 0 };
        let permille = seen.permille_of(&self.standing).unwrap_or(nothing);
        self.pairs += 1;
        self.good += u32::from(permille >= if larger { GROW_PERMILLE } else { SHRINK_PERMILLE });
        self.better += u32::from(permille >= 1000 + PLAIN_PERMILLE);
        self.worse += u32::from(permille <= 1000 - PLAIN_PERMILLE);
    }

    fn is_plain(&self) -> bool {
        self.pairs >= PAIRS_PLAIN && (self.better == self.pairs || self.worse == self.pairs)
    }

    /// Whether the other one is to stand; `None`: not yet known.
    fn verdict(&self, larger: bool, pairs_max: u32) -> Option<bool> {
        let of_three = if larger { 2 * self.pairs } else { self.pairs.div_ceil(2) + self.pairs };
        (self.is_plain() || self.pairs >= pairs_max).then_some(3 * self.good >= of_three)
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
    /// Whether windows of all sizes are tried, or those beside the one that stands.
    far: bool,
    /// Whether the last step was to a larger window: the next one likely is, too.
    upward: bool,
    rests: u32,
    /// Steps against the direction of the one before, in a row.
    turnings: u32,
    /// No other is tried before.
    rest_until_ns: u64,
    rest_ns: u64,
    trial: Trial,
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
            looks: 0,
            hungry: 0,
        };
        while !new.is_last(new.step) {
            new.step += 1;
        }
        new.other = new.first();
        new
    }

    /// One that stays where it is.
    #[cfg(test)]
    pub fn fixed(bytes: u64) -> Self {
        Self { step: 0, since_ns: u64::MAX, ..Self::new(bytes, 2 * bytes) }
    }

    /// The window of a step: twice that of the second below, and so about 1.4 times the one below.
    fn bytes_of(&self, step: u32) -> u64 {
        let whole = self.least_bytes.saturating_mul(1 << (step / 2).min(32));
        let bytes = if step.is_multiple_of(2) { whole } else { whole.saturating_mul(181) / 128 };
        bytes.min(self.most_bytes)
    }

    fn is_last(&self, step: u32) -> bool {
        self.bytes_of(step) == self.most_bytes
    }

    /// What is tried first beside the window that stands.
    fn first(&self) -> u32 {
        self.next(self.step).unwrap_or(self.step)
    }

    /// What is tried after a window; `None`: all had their turn. Far and wide every window is half the last one, and after the
    /// smallest comes the largest. Otherwise there are two, the one that likely is better first.
    fn next(&self, other: u32) -> Option<u32> {
        let above = || (!self.is_last(self.step)).then_some(self.step + 1);
        let below = || self.step.checked_sub(1);
        if !self.far {
            let first = if self.upward { above().or_else(below) } else { below().or_else(above) };
            let second = if self.upward { below() } else { above() };
            let next = if other == self.step { first } else { second };
            return next.filter(|&next| next != other);
        }
        let next = other.checked_sub(2).or_else(|| (self.step..).find(|&step| self.is_last(step)))?;
        // Round once: past the one that stands, or past the largest again.
        let passed = other > self.step && (next <= self.step || next >= other);
        (!passed && next != self.step).then_some(next)
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
        if age_ns > 2 * EPOCH_NS || span_ns < EPOCH_NS / 2 {
            // Nobody looked for a while: nothing came, or the machine did something else. Neither is the window's doing.
            return;
        }
        if self.hungry * 1000 < self.looks * STEADY_PERMILLE {
            if self.trying {
                // All that there is fits the window that is tried, or the load is no steady one: neither speaks for it.
                self.trial.pairs += 1;
                self.decide(now_ns);
                return;
            }
            // Not steady: it says nothing of the window that stands, which has its turn again.
            if self.hungry > 0 {
                self.bursts = (self.bursts + BURST).min(BURSTS_MAX);
            }
            if self.bursts >= BURSTS_MAX && !self.is_last(self.step) {
                self.bursts = 0;
                // What is needed when it is steady again is to be found anew.
                (self.far, self.rests, self.rest_ns, self.rest_until_ns) = (true, 0, REST_NS, 0);
                self.stand(self.step + if self.is_last(self.step + 1) { 1 } else { 2 });
            }
            return;
        }
        self.bursts = self.bursts.saturating_sub(1);
        if now_ns < self.rest_until_ns || self.other == self.step {
            return;
        }
        let seen = Seen { bytes: self.bytes, span_ns };
        if self.trying {
            self.trial.pair(seen, self.other > self.step);
            self.decide(now_ns);
        } else {
            self.trial.standing = seen;
            self.trying = true;
        }
    }

    /// After a pair of turns.
    fn decide(&mut self, now_ns: u64) {
        self.trying = false;
        let larger = self.other > self.step;
        match self.trial.verdict(larger, if self.far { PAIRS_FAR } else { PAIRS_NEAR }) {
            None => {}
            Some(true) => {
                // To and fro: what they differ by is not worth looking. From far below to the top again, too.
                let plain = self.trial.is_plain();
                let back = if self.far { larger } else { larger != self.upward };
                let far = self.far;
                self.stand(self.other);
                if back {
                    // Each time for longer; but the first time not for as long as what is tried in vain has come to.
                    let rest_ns = REST_NS.saturating_mul(1 << self.turnings.min(8)).min(REST_NS_MAX);
                    self.rest_until_ns = now_ns.saturating_add(rest_ns);
                    self.turnings += 1;
                    self.far = false;
                    self.try_other(self.first());
                    return;
                }
                self.turnings = 0;
                if plain {
                    // Another load.
                    self.rest_ns = REST_NS;
                } else if !far {
                    self.rest_ns = (self.rest_ns / 2).max(REST_NS);
                }
            }
            Some(false) => match self.next(self.other) {
                Some(next) => self.try_other(next),
                None => self.rest(now_ns),
            },
        }
    }

    /// All had their turn.
    fn rest(&mut self, now_ns: u64) {
        self.turnings = 0;
        self.rest_until_ns = now_ns.saturating_add(self.rest_ns);
        self.rests = if self.rest_ns == REST_NS_MAX { self.rests + 1 } else { 0 };
        self.rest_ns = (self.rest_ns * 2).min(REST_NS_MAX);
        self.far = self.rests == RESTS_FAR;
        if self.far {
            (self.rests, self.rest_ns) = (0, REST_NS);
        }
        self.try_other(self.first());
    }

    /// From now on this window stands.
    fn stand(&mut self, step: u32) {
        self.upward = step > self.step;
        self.step = step;
        self.try_other(self.first());
    }

    /// This one is tried beside the one that stands.
    fn try_other(&mut self, other: u32) {
        self.other = other;
        (self.trial, self.trying) = (Trial::default(), false);
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
        let sizes = [512, 724, 1024, 1448, 2048, 2896, 4096, 5792, 8192, 11584, 12288];
        assert!((0..).zip(sizes).all(|(step, kib)| footprint.bytes_of(step) == kib * KIB));
        assert!(footprint.is_last(10) && !footprint.is_last(9));
    }

    #[test]
    fn every_window_is_tried_once_and_then_it_ends() {
        for last in 0..12 {
            for step in 0..=last {
                for (far, upward) in [(true, false), (false, false), (false, true)] {
                    let most_bytes = Footprint::new(MIB, 1 << 40).bytes_of(last);
                    let mut footprint = Footprint::new(MIB, most_bytes);
                    (footprint.step, footprint.far, footprint.upward) = (step, far, upward);
                    let mut tried = alloc::vec::Vec::new();
                    let mut other = step;
                    while let Some(next) = footprint.next(other) {
                        assert!(
                            next <= last && next != step && !tried.contains(&next),
                            "{last} {step}: {tried:?} {next}"
                        );
                        tried.push(next);
                        other = next;
                    }
                    if !far {
                        let beside = u32::from(step > 0) + u32::from(step < last);
                        assert_eq!(tried.len(), beside as usize, "{last} {step}");
                    } else if step != last {
                        assert!(tried.contains(&last), "{last} {step}: {tried:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn turns_that_nobody_looked_at_decide_nothing() {
        // A larger window is no better, and the machine stands still for 4 ms in every 8.
        let mut footprint = new();
        let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, |window| window.min(MIB) / KIB);
        assert_eq!(footprint.standing_bytes(), MIB);
        for turn in 0..2000 {
            now_ns = run(&mut footprint, now_ns, 4_000_000 + turn % 7 * 500_000, true, |window| {
                window.min(MIB) / KIB
            });
            assert!(footprint.standing_bytes() <= 1448 * KIB, "after {turn}");
            now_ns += 4_000_000;
        }
        assert_eq!(footprint.standing_bytes(), MIB);
    }

    #[test]
    fn a_window_that_lets_everything_in_is_not_tried_for_ever() {
        let mut footprint = new();
        let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, |window| window.min(MIB) / KIB);
        // No more than 1.2 MiB is ever left to read: all of it fits what is tried.
        let mut tried = 0;
        for _ in 0..20_000 {
            let fits = footprint.window_bytes().unwrap_or(12 * MIB) > MIB;
            tried += u32::from(fits);
            now_ns = run(&mut footprint, now_ns, 1_000_000, !fits, |window| window.min(MIB) / KIB);
        }
        assert_eq!(footprint.standing_bytes(), MIB);
        assert!(tried < 1000, "{tried} of 20,000 ms");
    }

    #[test]
    fn a_gentle_slope_is_not_walked_up_and_down() {
        let mut footprint = new();
        let rate = |window: u64| 100_000 - u64::from((12 * MIB / window).ilog2()) * 1000;
        let now_ns = run(&mut footprint, 0, 20_000_000_000, true, rate);
        let (mut changes, mut before) = (0, footprint.standing_bytes());
        for turn in 0..10_000 {
            run(&mut footprint, now_ns + turn * 1_000_000, 1_000_000, true, rate);
            changes += u32::from(core::mem::replace(&mut before, footprint.standing_bytes()) != before);
        }
        assert!(changes <= 4, "{changes} changes in 10 s");
    }

    #[test]
    fn a_load_that_plainly_needs_more_has_it_without_a_rest_between() {
        let mut footprint = new();
        let now_ns = run(&mut footprint, 0, 60_000_000_000, true, |window| window.min(MIB) / KIB);
        assert_eq!(footprint.standing_bytes(), MIB);
        // Nothing is released below 6 MiB: at most one rest, and then step by step.
        run(&mut footprint, now_ns, 10_000_000_000, true, |window| if window < 6 * MIB { 0 } else { 5 });
        assert!(footprint.standing_bytes() >= 6 * MIB);
    }

    #[test]
    fn what_only_pays_far_below_is_found_again_after_bursts() {
        let rate = |window: u64| match window / KIB {
            0..1024 => 700,
            1024 => 1500,
            1025..8192 => 900,
            _ => 1000,
        };
        let mut footprint = new();
        let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
        for _ in 0..2000 {
            now_ns = run(&mut footprint, now_ns, 500_000, true, rate);
            now_ns = run(&mut footprint, now_ns, 500_000, false, rate);
        }
        assert_eq!(footprint.window_bytes(), None);
        run(&mut footprint, now_ns, 4_000_000_000, true, rate);
        assert_eq!(footprint.standing_bytes(), MIB);
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
    fn what_stands_is_exceeded_by_half_at_most_and_all_sizes_are_tried_again_at_last() {
        // Less than 1 MiB is worse, and more is no better, but for all of the pool, later.
        let best = |all: u64| move |window: u64| if window == 12 * MIB { all } else { window.min(MIB) / KIB };
        let mut footprint = new();
        let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, best(1024));
        assert_eq!(footprint.standing_bytes(), MIB);
        let mut largest = 0;
        for _ in 0..60_000 {
            now_ns = run(&mut footprint, now_ns, 1_000_000, true, best(3000));
            largest = largest.max(footprint.window_bytes().unwrap_or(12 * MIB));
        }
        assert_eq!(largest, 1448 * KIB);
        run(&mut footprint, now_ns, 120_000_000_000, true, best(3000));
        assert_eq!(footprint.standing_bytes(), 12 * MIB);
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
