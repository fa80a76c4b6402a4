//! Random order in which lines are touched: each line once a cycle, without a record of the lines already
//! touched.

use super::region::PAGE_BYTES;

/// Endless walk over `0..lines`, which visits each number once a cycle, in another order every cycle.
///
/// A counter is scrambled by steps that are each invertible: multiplication by an odd number, and xor of the
/// high half onto the low one. So different counts give different numbers. Numbers beyond the last line are
/// skipped. A congruential generator would also visit each number once, but its low bits, which select the
/// line within a page, repeat with a short period.
///
/// The same seed gives the same walk. Taking a number needs a few nanoseconds, and less than two counts on
/// average.
#[derive(Clone, Debug)]
pub struct Order {
    lines: u64,
    mask: u64,
    fold_bits: u32,
    seed: u64,
    cycle: u64,
    key: [u64; 4],
    count: u64,
    left: u64,
}

impl Order {
    /// Makes a walk over `0..lines`.
    ///
    /// # Panics
    /// Where `lines` is 0, or more than 2^63.
    pub fn new(lines: u64, seed: u64) -> Self {
        assert!(lines > 0 && lines <= 1 << 63, "an order of {lines} lines");
        let mask = lines.next_power_of_two() - 1;
        let fold_bits = (mask.count_ones() / 2).max(1);
        let mut order = Self { lines, mask, fold_bits, seed, cycle: 0, key: [0; 4], count: 0, left: lines };
        order.begin(0);
        order
    }

    /// Returns the number of complete cycles.
    pub fn cycles(&self) -> u64 {
        self.cycle
    }

    fn begin(&mut self, cycle: u64) {
        let mut random = fastrand::Rng::with_seed(self.seed ^ cycle.wrapping_mul(PAGE_BYTES as u64 + 1));
        self.key = std::array::from_fn(|_| random.u64(..));
        (self.cycle, self.count, self.left) = (cycle, 0, self.lines);
    }

    fn scramble(&self, count: u64) -> u64 {
        let [add, first, second, third] = self.key;
        let mut number = count.wrapping_add(add) & self.mask;
        for factor in [first, second, third] {
            number = number.wrapping_mul(factor | 1) & self.mask;
            number ^= number >> self.fold_bits;
        }
        number
    }
}

impl Iterator for Order {
    type Item = u64;

    /// Returns the next number; never `None`.
    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            self.begin(self.cycle + 1);
        }
        self.left -= 1;
        // The loop ends: this cycle still has at least one number below `lines`.
        loop {
            let number = self.scramble(self.count);
            self.count += 1;
            if number < self.lines {
                return Some(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_line_comes_once_a_cycle(lines in 1u64..5000, seed: u64) {
            let mut order = Order::new(lines, seed);
            for cycle in 0..3 {
                let mut seen = vec![false; usize::try_from(lines).unwrap()];
                for _ in 0..lines {
                    let line = usize::try_from(order.next().unwrap()).unwrap();
                    prop_assert!(!std::mem::replace(&mut seen[line], true), "line {} twice in cycle \
                        {}", line, cycle);
                    prop_assert_eq!(order.cycles(), cycle);
                }
                prop_assert!(seen.iter().all(|seen| *seen));
            }
        }
    }

    #[test]
    fn cycles_and_seeds_differ_and_a_seed_repeats() {
        let take = |seed, skip: usize| Order::new(4096, seed).skip(skip).take(64).collect::<Vec<_>>();
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(2, 0));
        assert_ne!(take(1, 0), take(1, 4096));
    }

    #[test]
    fn the_first_of_a_large_region_are_spread_over_it_and_over_the_page() {
        // Touches in 12 MiB: a window's worth must be a fair sample. By chance the fullest of 16 parts gets
        // 300 of 4096.
        for seed in 0..8 {
            let lines: Vec<u64> = Order::new(196_608, seed).take(4096).collect();
            for part in 0..16 {
                let in_part = lines.iter().filter(|line| **line / 12_288 == part).count();
                let in_place = lines.iter().filter(|line| **line % 16 == part).count();
                assert!((180..340).contains(&in_part), "seed {seed}: {in_part} in part {part}");
                assert!((180..340).contains(&in_place), "seed {seed}: {in_place} at place {part}");
            }
            let steps = lines.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 64).count();
            assert!(steps < 32, "seed {seed}: {steps} steps within a page's length");
        }
    }

    #[test]
    fn one_line_is_an_order_too() {
        assert_eq!(Order::new(1, 9).take(3).collect::<Vec<_>>(), [0, 0, 0]);
    }
}
