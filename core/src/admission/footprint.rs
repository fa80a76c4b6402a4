//! The footprint that follows the load: how much of the READ share may be in use at once.
//!
//! Little's law says what a load needs: its rate times how long a slab is in use. More than that only waits,
//! in slabs that fall out of the nearest cache meanwhile. How long a slab is in use cannot be told from how
//! long it waits, so the window is found by trying: in turns with the window that stands, another one is used
//! for a while, and what was released under each decides. A smaller one is taken if it costs next to nothing,
//! a larger one if it gains something.
//!
//! First far and wide: windows of all sizes have their turn, since what fits the nearest cache is worth
//! something only once all of it does. When none was better there is a rest, each one longer than the last;
//! and then only the two windows beside the one that stands are tried, so that the footprint stays within
//! half as much again of what the load needs. Far and wide again now and then.
//!
//! Trying tells something only while there is always more to read than the window lets in. Where a load comes
//! in bursts, one after the other, the window grows with them, to no limit at all at last: it is to have what
//! it needs when it needs it. One that never fills its window is left alone: slabs are reused last used
//! first, and so it touches few of them anyway.

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
/// A smaller window does as well if it releases this much of what the other does: less is within what turns
/// differ by. It is taken if it does in half of the turns.
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
/// What an epoch of bursts weighs, in epochs without one after which it is forgotten; and how much of it
/// makes the window grow: a load that ends is no burst.
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

/// One window beside the one that stands. Pairs of turns are counted, not added up: one in which the machine
/// did something else may then be as wrong as it likes.
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

    /// The window of a step: twice that of the second below; between the two, half as much again. With a
    /// smallest one of two fragments, which are read in one, each holds more of them than the one below.
    fn bytes_of(&self, step: u32) -> u64 {
        let whole = self.least_bytes.saturating_mul(1 << (step / 2).min(32));
        let bytes = if step.is_multiple_of(2) { whole } else { whole.saturating_mul(3) / 2 };
        bytes.min(self.most_bytes)
    }

    fn is_last(&self, step: u32) -> bool {
        self.bytes_of(step) == self.most_bytes
    }

    /// What is tried first beside the window that stands.
    fn first(&self) -> u32 {
        self.next(self.step).unwrap_or(self.step)
    }

    /// What is tried after a window; `None`: all had their turn. Far and wide each is half of the last one,
    /// and after the smallest comes the largest. Otherwise there are two, the one that likely is better
    /// first.
    fn next(&self, other: u32) -> Option<u32> {
        let above = || (!self.is_last(self.step)).then_some(self.step + 1);
        let below = || self.step.checked_sub(1);
        if !self.far {
            let first = if self.upward { above().or_else(below) } else { below().or_else(above) };
            let second = if self.upward { below() } else { above() };
            let next = if other == self.step { first } else { second };
            return next.filter(|&next| next != other);
        }
        // Only powers of two of the smallest, whatever the largest is.
        let next =
            other.checked_sub(2 - other % 2).or_else(|| (self.step..).find(|&step| self.is_last(step)))?;
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
            // Nobody looked for a while: nothing came, or the machine did something else. Neither is the
            // window's doing.
            return;
        }
        if self.hungry * 1000 < self.looks * STEADY_PERMILLE {
            if self.trying {
                // All that there is fits the window that is tried, or the load is no steady one: neither
                // speaks for it.
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
            Some(true) => self.take(larger, now_ns),
            Some(false) => match self.next(self.other) {
                Some(next) => self.try_other(next),
                None => self.rest(now_ns),
            },
        }
    }

    /// The one that was tried does better, and stands from now on.
    fn take(&mut self, larger: bool, now_ns: u64) {
        let (far, plain) = (self.far, self.trial.is_plain());
        // To and fro: what they differ by is not worth looking. From far below to the top again, too.
        let back = if far { larger } else { larger != self.upward };
        if back {
            // Each time for longer; but the first time not for as long as what is tried in vain has come to.
            let rest_ns = (REST_NS << self.turnings.min(8)).min(REST_NS_MAX);
            self.rest_until_ns = now_ns.saturating_add(rest_ns);
            self.turnings += 1;
            self.far = false;
        } else {
            self.turnings = 0;
            if plain {
                // Another load.
                self.rest_ns = REST_NS;
            } else if !far {
                self.rest_ns = (self.rest_ns / 2).max(REST_NS);
            }
        }
        self.stand(self.other);
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

/// Expected cache footprint of a message: throughput times post-NIC time of its session, but no more than the
/// message has and no less than one fragment of it (Jet §3.2, §4). A session that was not measured yet counts
/// in full.
pub(super) fn footprint_bytes(length: u64, fragment_bytes: u32, bytes_per_ms: u64, post_nic_ns: u64) -> u64 {
    let least = length.min(u64::from(fragment_bytes));
    if bytes_per_ms == 0 || post_nic_ns == 0 {
        return length;
    }
    let expected = u128::from(bytes_per_ms) * u128::from(post_nic_ns) / 1_000_000;
    u64::try_from(expected).unwrap_or(u64::MAX).clamp(least, length)
}

#[cfg(test)]
mod tests;
