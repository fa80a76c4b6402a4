//! Calibration of the judgement whether a cache or memory served a touch, which is a timed read of a cache
//! line. It measures on the spot, with lines whose place is known, the number of ticks from which on a touch
//! counts as served by memory.
//!
//! Cached touches and touches of memory are measured where their durations are closest. The slowest hits are
//! hits in the last-level cache, of lines that a set fitting in that cache has driven out of the private
//! caches. The fastest reads of memory are those in the same DRAM row as the anchor that was just read; both
//! were flushed before.
//!
//! On a busy host neighbours drive a part of the cached set out before it is touched. These touches have the
//! same times as those of memory, which are known. Their share is computed from how many of the cached
//! touches lie in the slower half of memory's times, and is taken out. The remaining touches are supposed to
//! be hits. So hits that are as slow as the slower half of memory would go unnoticed, but no others.

use super::cache_sizes::CacheSizes;
use super::estimate::{ErrorRates, Judged};
use super::order::Order;
use super::region::{LINE_BYTES, PAGE_BYTES, PAGE_LINES, Region, RegionError};
use super::touch;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Touches of cached lines in a round of the calibration, and as many of lines in memory. They are made
/// within some 100 us after the set was last filled, before neighbours on the same host can drive much of it
/// out.
const ROUND_TOUCHES: usize = 256;

/// Most rounds of a calibration. They make 6144 touches of cached lines, and as many of lines in memory.
/// These determine an error rate of 1 % to within a quarter of it, and more would add little.
const ROUNDS_MAX: usize = 24;

/// Fewest rounds of a calibration, made even when the time is up.
const ROUNDS_MIN: usize = 4;

/// Lines that are flushed together before they are touched. They are few, so that not many are neighbours of
/// each other.
const FLUSHED_AT_ONCE: usize = 32;

/// Fewest touches of the cached set that must have been hits, without those of lines that were driven out.
const CACHED_MIN: f64 = 256.0;

/// Highest sum of both error rates with which a calibration succeeds, in thousandths. At 250 a reading of
/// 2048 touches is still accurate to 3 %.
const ERRORS_PERMILLE_MAX: u32 = 250;

/// Options of [`Calibration::measure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CalibrationOptions {
    /// Time after which no further round begins, in nanoseconds; the first four are always made. A round
    /// takes about a millisecond, and longer where the thread is kept from running.
    pub span_ns_max: u64,
    /// Seed for the order of touches.
    pub seed: u64,
}

impl Default for CalibrationOptions {
    /// Returns the default options: 50 ms and a fixed seed. Nobody notices that a start takes 50 ms longer.
    fn default() -> Self {
        Self { span_ns_max: 50_000_000, seed: 1 }
    }
}

/// Distribution of the durations of one kind of touches, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Duration that 5 of 100 touches do not exceed.
    pub low_ticks: u32,
    /// Duration that half of the touches do not exceed.
    pub median_ticks: u32,
    /// Duration that 95 of 100 touches do not exceed.
    pub high_ticks: u32,
}

/// Rule that tells a cached touch from one served by memory, with its error rates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Calibration {
    /// Threshold: a touch of so many ticks or more counts as served by memory.
    pub threshold_ticks: u32,
    /// Durations of touches of lines in the last-level cache.
    pub cached: Spread,
    /// Durations of touches of lines in memory.
    pub memory: Spread,
    /// Error rates of the judgement at this threshold.
    pub rates: ErrorRates,
    /// Cache sizes from which the size of the calibration's set of lines was derived.
    pub caches: CacheSizes,
    /// Size in bytes of the set of lines that lay in the last-level cache during the calibration.
    pub set_bytes: usize,
    /// Number of rounds that were made.
    pub rounds: u32,
    /// Share of the cached set that others drove out before it was touched, in thousandths. It does not count
    /// as error.
    pub driven_out_permille: u32,
    /// Duration of the calibration in nanoseconds.
    pub span_ns: u64,
}

/// Reason why a calibration failed. Without a calibration the resident share is not read.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// Touches cannot be timed on this processor architecture.
    #[error(
        "touches cannot be timed on {architecture}: residency is read on x86_64 and aarch64 only; run \
         without it, or read hardware counters"
    )]
    Unsupported {
        /// Name of the architecture.
        architecture: &'static str,
    },
    /// There was no memory for the calibration's set of lines.
    #[error("cannot calibrate the warmer: {0}")]
    Region(#[from] RegionError),
    /// Too much of the set that should lie in the cache was driven out.
    #[error(
        "cannot calibrate the warmer: of a set of {set_bytes} bytes {driven_out_permille} of 1000 were \
         driven out of the last-level cache (said to be of {last_level_bytes} bytes) within a millisecond, \
         in {rounds} rounds; others on this host use it up, or this class of service has too few ways: try \
         again when it is quieter, or give it more"
    )]
    Disturbed {
        /// Number of rounds that were made.
        rounds: u32,
        /// Share of the set that was driven out, in thousandths.
        driven_out_permille: u32,
        /// Size of the set in bytes.
        set_bytes: usize,
        /// Size of the last-level cache in bytes, into which the set should fit.
        last_level_bytes: usize,
    },
    /// Cached touches take about as long as those of memory.
    #[error(
        "cannot calibrate the warmer: cached touches take {} ticks ({} to {}), touches of memory {} ({} to \
         {}); at the best threshold {cached_as_memory_permille} and {memory_as_cached_permille} of 1000 \
         would be judged wrongly, and at most {ERRORS_PERMILLE_MAX} together may be: the timer is too \
         coarse, or a hypervisor traps it, or the machine is too busy; try again when it is quieter, or run \
         without this metric",
        cached.median_ticks, cached.low_ticks, cached.high_ticks,
        memory.median_ticks, memory.low_ticks, memory.high_ticks
    )]
    Indistinct {
        /// Durations of touches of lines in the last-level cache.
        cached: Spread,
        /// Durations of touches of lines in memory.
        memory: Spread,
        /// Share of cached touches that would be judged to be in memory, in thousandths.
        cached_as_memory_permille: u32,
        /// Share of touches of memory that would be judged to be cached, in thousandths.
        memory_as_cached_permille: u32,
    },
}

impl Calibration {
    /// Measures a calibration on the core that the calling thread runs on. It is valid for any region,
    /// until the machine becomes much busier or quieter.
    ///
    /// # Errors
    /// [`CalibrationError`] says what was found and what to do.
    pub fn measure(options: CalibrationOptions) -> Result<Self, CalibrationError> {
        if !touch::SUPPORTED {
            return Err(CalibrationError::Unsupported { architecture: std::env::consts::ARCH });
        }
        let begun = Instant::now();
        let caches = CacheSizes::read();
        let mut set = CalibrationSet::new(set_bytes(caches), options.seed)?;
        let mut rounds = Vec::with_capacity(ROUNDS_MAX);
        // Not counted: the first round's touches also wait for the code to be fetched.
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

    /// Judges by its duration, in ticks, whether a cache or memory served a touch.
    #[inline]
    pub fn judge(&self, ticks: u32) -> Judged {
        if ticks < self.threshold_ticks { Judged::Cached } else { Judged::Memory }
    }
}

/// Returns the size of the calibration's set of lines in bytes: twice the private cache. By the time the
/// whole set is written, its first quarter lies in the last-level cache alone.
///
/// It is at most half of the last-level cache, since others use that cache, too. It is not larger, since the
/// whole set must be written before others drive it out.
fn set_bytes(caches: CacheSizes) -> usize {
    (2 * caches.private_bytes).min(caches.last_level_bytes / 2).next_multiple_of(PAGE_BYTES)
}

/// Durations of the touches of one round, in ticks.
struct Round {
    cached: Vec<u32>,
    memory: Vec<u32>,
}

/// Memory whose first quarter is brought to a known place: the last-level cache, or memory.
struct CalibrationSet {
    region: Region,
    order: Order,
}

impl CalibrationSet {
    fn new(bytes: usize, seed: u64) -> Result<Self, RegionError> {
        let region = Region::zeroed(bytes)?;
        let pages = (region.pages() / 4).max(1);
        Ok(Self { order: Order::new((pages * PAGE_LINES) as u64, seed), region })
    }

    fn round(&mut self) -> Round {
        // Written, since some caches drop clean lines where they keep dirty ones.
        for offset in (0..self.region.bytes()).step_by(LINE_BYTES) {
            // SAFETY: the address is within this set's own memory, which no other code uses.
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

    /// Returns the next line whose touch may be judged.
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

/// Computes the threshold and its error rates from touches of lines whose place was known.
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
    // The order matters: where both kinds take equally long, all hits seem to be driven out.
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

/// Durations of the touches of all rounds, sorted, in ticks.
struct Kinds {
    cached: Vec<u32>,
    memory: Vec<u32>,
    /// Share of the touches in `cached` whose lines had been driven out, so that memory served them.
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
        // The slower half ends at the 95th percentile: beyond it lie hits that were interrupted, which are no
        // touches of memory.
        let (from, to) = (at(&memory, 500), at(&memory, 950));
        let within = |ticks: &[u32]| share_below(ticks, to) - share_below(ticks, from);
        let driven_out = (within(&cached) / within(&memory).max(0.1)).clamp(0.0, 1.0);
        Self { cached, memory, driven_out }
    }

    /// Returns about how many of the cached touches were hits.
    fn hits(&self) -> f64 {
        f64::from(count(self.cached.len())) * (1.0 - self.driven_out)
    }

    /// Returns the share of hits that take less than so many ticks.
    fn hits_below(&self, ticks: u32) -> f64 {
        let others = self.driven_out * share_below(&self.memory, ticks);
        ((share_below(&self.cached, ticks) - others) / (1.0 - self.driven_out).max(1e-3)).clamp(0.0, 1.0)
    }

    /// Returns the middle of all thresholds whose error exceeds the best one's by at most 2 of 1000. Both
    /// kinds' durations change when the machine gets busy, so the threshold has room on either side.
    fn best_threshold(&self) -> u32 {
        let errors = |threshold| 1.0 - self.hits_below(threshold) + share_below(&self.memory, threshold);
        // The error is smallest just above a cached touch or at a touch of memory, between the quickest touch
        // and memory's median. No other threshold needs to be tried.
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

    /// Returns the distribution of the hits among the cached touches.
    fn cached_spread(&self) -> Spread {
        let reached = |share: f64| {
            let index = self.cached.partition_point(|ticks| self.hits_below(ticks.saturating_add(1)) < share);
            self.cached.get(index).or(self.cached.last()).copied().unwrap_or(0)
        };
        let [low_ticks, median_ticks, high_ticks] = [0.05, 0.5, 0.95].map(reached);
        Spread { low_ticks, median_ticks, high_ticks }
    }
}

/// Returns the share of the sorted values that are less than `ticks`.
fn share_below(sorted: &[u32], ticks: u32) -> f64 {
    let below = sorted.partition_point(|value| *value < ticks);
    f64::from(count(below)) / f64::from(count(sorted.len()).max(1))
}

/// Returns the value that so many thousandths of the sorted values do not exceed.
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

    /// Returns a round of 256 touches of each kind around these ticks.
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
        // Of a fifth round all lines were driven out, of the other rounds some.
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
