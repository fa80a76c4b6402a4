//! From how many ticks on a touch came from memory, measured on the spot against lines of known place.
//!
//! The two kinds are taken where they are closest: hits in the last-level cache, the slowest there are (lines
//! that were driven out of the private caches by a set that fits in the last level), and reads of memory in
//! the same DRAM row as the anchor just read (both flushed before), the fastest there are.
//!
//! On a busy host neighbours drive a part of the cached set out before it is touched. These touches look just
//! like those of memory, whose times are known: their share is found from how many of the cached touches lie
//! in the slower half of memory's times, and taken out. What remains is supposed to be hits; so hits that are
//! as slow as the slower half of memory would go unnoticed, and no others.

use super::cache_sizes::CacheSizes;
use super::estimate::{ErrorRates, Judged};
use super::order::Order;
use super::region::{LINE_BYTES, PAGE_BYTES, PAGE_LINES, Region, RegionError};
use super::touch;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Touches of each kind in a round. Lines are touched within some 100 us of the set's last filling, before
/// neighbours on the same host can drive much of it out.
const ROUND_TOUCHES: usize = 256;

/// Rounds after which no more is to be learned: 6144 touches of each kind tell an error rate of 1 % to a
/// quarter of it.
const ROUNDS_MAX: usize = 24;

/// Rounds that are made even where the time is up.
const ROUNDS_MIN: usize = 4;

/// Lines flushed at once before they are touched: few, so that not many of them are each other's neighbours.
const FLUSHED_AT_ONCE: usize = 32;

/// Cached touches that must be left of those that were driven out.
const CACHED_MIN: f64 = 256.0;

/// Both error rates together may come to so many thousandths. At 250 a reading of 2048 touches is still good
/// to 3 %.
const ERRORS_PERMILLE_MAX: u32 = 250;

/// How [`Calibration::measure`] goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CalibrationOptions {
    /// No round begins after so long, nanoseconds, but for the first four. A round takes about a millisecond,
    /// and longer where the thread is kept from running.
    pub span_ns_max: u64,
    /// For the order of touches.
    pub seed: u64,
}

impl Default for CalibrationOptions {
    /// 50 ms: not felt at start.
    fn default() -> Self {
        Self { span_ns_max: 50_000_000, seed: 1 }
    }
}

/// What touches of one kind take, ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// 5 of 100 take no longer.
    pub low_ticks: u32,
    /// Half of them take no longer.
    pub median_ticks: u32,
    /// 95 of 100 take no longer.
    pub high_ticks: u32,
}

/// How to tell a cached touch from memory, and how often that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Calibration {
    /// A touch of so many ticks or more came from memory.
    pub threshold_ticks: u32,
    /// Touches of lines in the last-level cache.
    pub cached: Spread,
    /// Touches of lines in memory.
    pub memory: Spread,
    /// How often a touch is judged wrongly at this threshold.
    pub rates: ErrorRates,
    /// The caches that the sets were made for.
    pub caches: CacheSizes,
    /// The set that lay in the last-level cache, bytes.
    pub set_bytes: usize,
    /// Rounds made.
    pub rounds: u32,
    /// Of the cached set, driven out by others before it was touched, thousandths. Not among the errors.
    pub driven_out_permille: u32,
    /// How long it took, nanoseconds.
    pub span_ns: u64,
}

/// Why there is no calibration, and so no reading.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// Not on this processor.
    #[error(
        "touches cannot be timed on {architecture}: residency is read on x86_64 and aarch64 only; run \
         without it, or read hardware counters"
    )]
    Unsupported {
        /// What it is.
        architecture: &'static str,
    },
    /// No memory for the sets.
    #[error("cannot calibrate the warmer: {0}")]
    Region(#[from] RegionError),
    /// The set that should lie in the cache did not stay there.
    #[error(
        "cannot calibrate the warmer: of a set of {set_bytes} bytes {driven_out_permille} of 1000 were \
         driven out of the last-level cache (said to be of {last_level_bytes} bytes) within a millisecond, \
         in {rounds} rounds; others on this host use it up, or this class of service has too few ways: try \
         again when it is quieter, or give it more"
    )]
    Disturbed {
        /// Rounds made.
        rounds: u32,
        /// How much of the set was driven out.
        driven_out_permille: u32,
        /// The set.
        set_bytes: usize,
        /// What it should fit in.
        last_level_bytes: usize,
    },
    /// Cached touches take as long as those of memory.
    #[error(
        "cannot calibrate the warmer: cached touches take {} ticks ({} to {}), touches of memory {} ({} to \
         {}); at the best threshold {cached_as_memory_permille} and {memory_as_cached_permille} of 1000 \
         would be judged wrongly, and at most {ERRORS_PERMILLE_MAX} together may be: the timer is too \
         coarse, or a hypervisor traps it, or the machine is too busy; try again when it is quieter, or run \
         without this metric",
        cached.median_ticks, cached.low_ticks, cached.high_ticks, memory.median_ticks, memory.low_ticks, memory.high_ticks
    )]
    Indistinct {
        /// Touches of lines in the last-level cache.
        cached: Spread,
        /// Touches of lines in memory.
        memory: Spread,
        /// Cached touches judged to be memory, of 1000.
        cached_as_memory_permille: u32,
        /// Touches of memory judged to be cached, of 1000.
        memory_as_cached_permille: u32,
    },
}

impl Calibration {
    /// Measures, on the core that this thread runs on. The result is for any region, while the machine stays
    /// as it is.
    ///
    /// # Errors
    /// [`CalibrationError`] says what was found and what to do.
    pub fn measure(options: CalibrationOptions) -> Result<Self, CalibrationError> {
        if !touch::SUPPORTED {
            return Err(CalibrationError::Unsupported { architecture: std::env::consts::ARCH });
        }
        let begun = Instant::now();
        let caches = CacheSizes::read();
        let mut set = KnownSet::new(set_bytes(caches), options.seed)?;
        let mut rounds = Vec::with_capacity(ROUNDS_MAX);
        // Its first touches also wait for the code.
        set.round();
        while rounds.len() < ROUNDS_MIN
            || (rounds.len() < ROUNDS_MAX && begun.elapsed() < Duration::from_nanos(options.span_ns_max))
        {
            rounds.push(set.round());
        }
        let judged = judge_rounds(&rounds, caches, set.region.bytes())?;
        let span_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { span_ns, ..judged })
    }

    /// What a touch of so many ticks was.
    #[inline]
    pub fn judge(&self, ticks: u32) -> Judged {
        if ticks < self.threshold_ticks { Judged::Cached } else { Judged::Memory }
    }
}

/// Twice what is private: by the time all of it is written, its first quarter lies in the last level alone.
/// At most half of that level, since others use it too; and no more, since all of it is to be written before
/// others drive it out.
fn set_bytes(caches: CacheSizes) -> usize {
    (2 * caches.private_bytes).min(caches.last_level_bytes / 2).next_multiple_of(PAGE_BYTES)
}

/// The touches of one round, ticks.
struct Round {
    cached: Vec<u32>,
    memory: Vec<u32>,
}

/// Memory whose first quarter is brought to a known place.
struct KnownSet {
    region: Region,
    order: Order,
}

impl KnownSet {
    fn new(bytes: usize, seed: u64) -> Result<Self, RegionError> {
        let region = Region::zeroed(bytes)?;
        let pages = (region.pages() / 4).max(1);
        Ok(Self { order: Order::new((pages * PAGE_LINES) as u64, seed), region })
    }

    fn round(&mut self) -> Round {
        // Written, since a cache may let go of clean lines where it keeps dirty ones.
        for offset in (0..self.region.bytes()).step_by(LINE_BYTES) {
            // SAFETY: within memory of our own that nobody else knows.
            unsafe { self.region.base().add(offset).write_volatile(1) };
        }
        touch::fence();
        let mut cached = Vec::with_capacity(ROUND_TOUCHES);
        while cached.len() < ROUND_TOUCHES {
            let line = self.next_line();
            cached.push(touch::touch(&self.region, line));
        }

        let mut memory = Vec::with_capacity(ROUND_TOUCHES);
        while memory.len() < ROUND_TOUCHES {
            let lines: [usize; FLUSHED_AT_ONCE] = std::array::from_fn(|_| self.next_line());
            for line in lines {
                touch::flush_with_anchor(&self.region, line);
            }
            touch::fence();
            memory.extend(lines.map(|line| touch::touch(&self.region, line)));
        }
        Round { cached, memory }
    }

    /// The next one that may be judged.
    fn next_line(&mut self) -> usize {
        loop {
            let line = self.order.next().expect("an order never ends");
            let line = usize::try_from(line).expect("lines of a region are counted by a usize");
            if touch::is_judged(line) {
                return line;
            }
        }
    }
}

/// The threshold and what it is worth, from touches of known kind.
fn judge_rounds(
    rounds: &[Round],
    caches: CacheSizes,
    set_bytes: usize,
) -> Result<Calibration, CalibrationError> {
    let kinds = Kinds::of(rounds);
    let rounds = count(rounds.len());
    let driven_out_permille = permille(kinds.driven_out);
    let threshold_ticks = kinds.best_threshold();
    let rates = kinds.rates_at(threshold_ticks);
    let [cached_as_memory_permille, memory_as_cached_permille] =
        [rates.cached_as_memory_share(), rates.memory_as_cached_share()].map(permille);
    let (cached, memory) = (kinds.cached_spread(), kinds.memory_spread());
    // In this order: where the two are alike, all hits seem to be driven out.
    if kinds.hits() < CACHED_MIN {
        let last_level_bytes = caches.last_level_bytes;
        return Err(CalibrationError::Disturbed { rounds, driven_out_permille, set_bytes, last_level_bytes });
    }
    if cached_as_memory_permille + memory_as_cached_permille > ERRORS_PERMILLE_MAX {
        return Err(CalibrationError::Indistinct {
            cached,
            memory,
            cached_as_memory_permille,
            memory_as_cached_permille,
        });
    }
    Ok(Calibration {
        threshold_ticks,
        cached,
        memory,
        rates,
        caches,
        set_bytes,
        rounds,
        driven_out_permille,
        span_ns: 0,
    })
}

/// The touches of all rounds, sorted.
struct Kinds {
    cached: Vec<u32>,
    memory: Vec<u32>,
    /// The share of the first that were touches of memory too.
    driven_out: f64,
}

impl Kinds {
    fn of(rounds: &[Round]) -> Self {
        let sorted = |of: fn(&Round) -> &Vec<u32>| {
            let mut ticks: Vec<u32> = rounds.iter().flat_map(|round| of(round).iter().copied()).collect();
            ticks.sort_unstable();
            ticks
        };
        let (cached, memory) = (sorted(|round| &round.cached), sorted(|round| &round.memory));
        // Up to 95 of 100, not to the end: a hit with an interruption in it is no touch of memory.
        let (from, to) = (at(&memory, 500), at(&memory, 950));
        let within = |ticks: &[u32]| share_below(ticks, to) - share_below(ticks, from);
        let driven_out = (within(&cached) / within(&memory).max(0.1)).clamp(0.0, 1.0);
        Self { cached, memory, driven_out }
    }

    /// Cached touches that were not driven out, about.
    fn hits(&self) -> f64 {
        f64::from(count(self.cached.len())) * (1.0 - self.driven_out)
    }

    /// The share of hits that take less than so many ticks.
    fn hits_below(&self, ticks: u32) -> f64 {
        let others = self.driven_out * share_below(&self.memory, ticks);
        ((share_below(&self.cached, ticks) - others) / (1.0 - self.driven_out).max(1e-3)).clamp(0.0, 1.0)
    }

    /// The middle of the thresholds that are as good as the best one up to 2 of 1000: both kinds move when
    /// the machine gets busy, and so there is room on either side.
    fn best_threshold(&self) -> u32 {
        let errors = |threshold| 1.0 - self.hits_below(threshold) + share_below(&self.memory, threshold);
        // Between the quickest and memory's median, just above a cached touch or at one of memory: elsewhere
        // nothing is gained.
        let range = at(&self.cached, 0)..=at(&self.memory, 500);
        let above = self.cached.iter().map(|ticks| ticks.saturating_add(1));
        let mut candidates: Vec<u32> =
            above.chain(self.memory.iter().copied()).filter(|ticks| range.contains(ticks)).collect();
        candidates.sort_unstable();
        candidates.dedup();
        let best = candidates.iter().map(|threshold| errors(*threshold)).fold(f64::INFINITY, f64::min);
        let mut good = candidates.iter().copied().filter(|threshold| errors(*threshold) <= best + 0.002);
        let first = good.next().unwrap_or(*range.end());
        u32::midpoint(first, good.next_back().unwrap_or(first))
    }

    fn rates_at(&self, threshold: u32) -> ErrorRates {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // shares of what fits in 32 bits
        let of = |share: f64, of: f64| (share * of).round() as u32;
        let (hits, memory) = (self.hits(), count(self.memory.len()));
        ErrorRates {
            cached: of(1.0, hits),
            cached_as_memory: of(1.0 - self.hits_below(threshold), hits),
            memory,
            memory_as_cached: of(share_below(&self.memory, threshold), f64::from(memory)),
        }
    }

    fn memory_spread(&self) -> Spread {
        let [low_ticks, median_ticks, high_ticks] = [50, 500, 950].map(|permille| at(&self.memory, permille));
        Spread { low_ticks, median_ticks, high_ticks }
    }

    /// Of the hits among them.
    fn cached_spread(&self) -> Spread {
        let reached = |share: f64| {
            let index = self.cached.partition_point(|ticks| self.hits_below(ticks.saturating_add(1)) < share);
            self.cached.get(index).or(self.cached.last()).copied().unwrap_or(0)
        };
        let [low_ticks, median_ticks, high_ticks] = [0.05, 0.5, 0.95].map(reached);
        Spread { low_ticks, median_ticks, high_ticks }
    }
}

/// The share of the sorted values that are less than this.
fn share_below(sorted: &[u32], ticks: u32) -> f64 {
    let below = sorted.partition_point(|value| *value < ticks);
    f64::from(count(below)) / f64::from(count(sorted.len()).max(1))
}

/// The value that so many thousandths of the sorted values do not exceed.
fn at(sorted: &[u32], permille: usize) -> u32 {
    sorted.get((sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn permille(share: f64) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 1000
    let permille = (share.clamp(0.0, 1.0) * 1000.0).round() as u32;
    permille
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHES: CacheSizes =
        CacheSizes { private_bytes: 2 << 20, last_level_bytes: 105 << 20, assumed: false };

    /// 256 touches of each kind around these ticks.
    fn round(cached: u32, memory: u32) -> Round {
        let around = |ticks: u32| (0..256).map(|touch| ticks + touch % 40).collect();
        Round { cached: around(cached), memory: around(memory) }
    }

    fn judged(rounds: &[Round]) -> Result<Calibration, CalibrationError> {
        judge_rounds(rounds, CACHES, 6 << 20)
    }

    #[test]
    fn the_threshold_lies_in_the_middle_of_the_gap() {
        let calibration = judged(&[round(100, 250), round(102, 252), round(98, 248)]).unwrap();
        assert!((185..=205).contains(&calibration.threshold_ticks), "{calibration:?}");
        assert_eq!(calibration.rates.cached_as_memory + calibration.rates.memory_as_cached, 0);
        assert_eq!((calibration.rates.cached, calibration.rates.memory), (768, 768));
        assert_eq!(calibration.judge(calibration.threshold_ticks), Judged::Memory);
        assert_eq!(calibration.judge(calibration.threshold_ticks - 1), Judged::Cached);
    }

    #[test]
    fn interruptions_do_not_move_it_and_are_counted() {
        let mut rounds: Vec<Round> = (0..4).map(|_| round(100, 250)).collect();
        for round in &mut rounds {
            for touch in 0..8 {
                round.cached[touch * 30] = 40_000;
                round.memory[touch * 30] = 90_000;
            }
        }
        let calibration = judged(&rounds).unwrap();
        assert!((185..=205).contains(&calibration.threshold_ticks), "{calibration:?}");
        assert_eq!((calibration.rates.cached_as_memory, calibration.rates.memory_as_cached), (32, 0));
    }

    #[test]
    fn what_was_driven_out_is_no_error_until_too_little_is_left() {
        let mut rounds: Vec<Round> = (0..4).map(|_| round(100, 250)).collect();
        // Of a fifth round all, of the others some.
        rounds.push(round(250, 250));
        for round in &mut rounds[..4] {
            let memory = round.memory[..64].to_vec();
            round.cached[..64].copy_from_slice(&memory);
        }
        let calibration = judged(&rounds).unwrap();
        assert!((360..=420).contains(&calibration.driven_out_permille), "{calibration:?}");
        assert!(calibration.rates.cached_as_memory <= 40, "{calibration:?}");
        assert!((740..=800).contains(&calibration.rates.cached), "{calibration:?}");
        assert!((185..=205).contains(&calibration.threshold_ticks), "{calibration:?}");
        assert!(calibration.cached.high_ticks < 150, "{calibration:?}");

        let half = judged(&[round(100, 250), round(250, 250), round(250, 250), round(100, 250)]);
        assert!((480..=520).contains(&half.unwrap().driven_out_permille));
        let refused = judged(&[round(250, 250), round(250, 250), round(250, 250)]).unwrap_err().to_string();
        assert!(refused.contains("of a set of 6291456 bytes 1000 of 1000 were driven out"), "{refused}");
    }

    #[test]
    fn kinds_that_look_alike_are_refused_with_their_numbers() {
        for (cached, memory) in [(100, 110), (100, 100), (110, 100)] {
            let refused = judged(&[round(cached, memory), round(cached, memory), round(cached, memory)]);
            let message = refused.unwrap_err().to_string();
            assert!(message.contains("cannot calibrate the warmer"), "{message}");
        }
        let overlapping = judged(&[round(100, 120), round(100, 120), round(100, 120)]);
        let message = overlapping.unwrap_err().to_string();
        assert!(message.contains("touches of memory 138 (121 to 157)"), "{message}");
    }

    #[test]
    fn the_set_is_larger_than_what_is_private_and_leaves_room_in_the_last_level() {
        assert_eq!(set_bytes(CACHES), 4 << 20);
        let small = CacheSizes { private_bytes: 1 << 20, last_level_bytes: 2 << 20, assumed: false };
        assert_eq!(set_bytes(small), 1 << 20);
    }
}
