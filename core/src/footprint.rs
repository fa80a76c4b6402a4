//! The footprint that follows the load: how much of the READ share may be in use at once.
//!
//! Little's law says what a load needs: its rate times how long a slab is in use. More than that only waits, in slabs that fall
//! out of the nearest cache meanwhile. How long a slab is in use cannot be told from how long it waits, so the window is found by
//! trying: in turns with the window that stands, one that is a step smaller or larger is used for a while, and what was released
//! under each decides. A smaller one is taken if it costs nothing, a larger one if it gains something.
//!
//! Trying tells something only while there is always more to read than the window lets in. A load that comes in bursts has its
//! whole window whenever it needs it: the window grows, to no limit at all at last. One that never fills its window is left alone:
//! slabs are reused last used first, and so it touches few of them anyway.

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
/// Of an epoch's looks, those with something left to read that make its load a steady one.
const STEADY_PERMILLE: u64 = 900;

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
    /// Whether the one that is tried is larger.
    upwards: bool,
    /// Whether it is the turn of the one that is tried.
    trying: bool,
    standing: Tried,
    tried: Tried,
    pairs: u32,
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
            upwards: false,
            trying: false,
            standing: Tried::default(),
            tried: Tried::default(),
            pairs: 0,
            since_ns: 0,
            counts_since_ns: None,
            bytes: 0,
            looks: 0,
            hungry: 0,
        };
        while !new.is_last(new.step) {
            new.step += 1;
        }
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

    /// The step that has its turn.
    fn current(&self) -> u32 {
        match (self.trying, self.upwards) {
            (false, _) => self.step,
            (true, true) => self.step + 1,
            (true, false) => self.step - 1,
        }
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
        self.since_ns = now_ns;
        if self.hungry * 1000 < self.looks * STEADY_PERMILLE {
            // Not steady: nothing is compared. What was held up has more room next time.
            let held_up = self.hungry > 0;
            let step = if held_up && !self.is_last(self.step) { self.step + 1 } else { self.step };
            return self.stand(step, self.upwards);
        }
        let seen = if self.trying { &mut self.tried } else { &mut self.standing };
        seen.bytes += self.bytes;
        seen.span_ns += span_ns;
        self.pairs += u32::from(self.trying);
        if self.trying && self.decide() {
            return;
        }
        self.trying = !self.trying;
    }

    /// After a pair of turns: whether there is a decision.
    fn decide(&mut self) -> bool {
        let Some(permille) = self.tried.permille_of(&self.standing) else {
            // Nothing is released under the window that stands: any other is better.
            self.stand(if self.upwards { self.step + 1 } else { self.step }, true);
            return true;
        };
        let plain = permille.abs_diff(1000) >= PLAIN_PERMILLE && self.pairs >= PAIRS_MIN;
        if self.pairs < PAIRS_MAX && !plain {
            return false;
        }
        match self.upwards {
            // What gained once may gain again; what did not is tried the other way.
            true if permille >= GROW_PERMILLE => self.stand(self.step + 1, true),
            false if permille >= SHRINK_PERMILLE => self.stand(self.step - 1, false),
            upwards => self.stand(self.step, !upwards),
        }
        true
    }

    /// From now on this window stands, and one beside it is tried.
    fn stand(&mut self, step: u32, upwards: bool) {
        self.step = step;
        self.upwards = if self.is_last(step) { false } else { upwards || step == 0 };
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
