//! What a warmer's thread publishes, and how others read it without waiting for it.

use super::estimate::Resident;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What a [`super::WarmerThread`] has found and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Readings {
    /// What of the region is resident, by the most recent touches; `None` before the first ones.
    pub resident: Option<Resident>,
    /// Touches made in all, but for warming in.
    pub touches: u64,
    /// How often each line was touched.
    pub cycles: u64,
    /// Time on a core that the thread took in all, nanoseconds, calibrating and warming in included.
    pub cpu_ns: u64,
    /// Time that has passed since it began touching in batches, nanoseconds.
    pub running_ns: u64,
    /// Of that, its time on a core, nanoseconds: 1000 times this by `running_ns` are thousandths of a core.
    pub running_cpu_ns: u64,
    /// Touches a second, over the last second or so.
    pub rate_hz: f64,
    /// Thousandths of a core, over the last second or so. What the system charges to nobody is not in it
    /// ([`super::PaceOptions::wake_ns`]).
    pub cost_permille: f64,
}

const WORDS: usize = 11;

impl Readings {
    fn to_words(self) -> [u64; WORDS] {
        // No touches: no reading.
        let resident = self.resident.unwrap_or(Resident {
            share: 0.0,
            low: 0.0,
            high: 0.0,
            touches: 0,
            judged_cached: 0,
        });
        [
            resident.share.to_bits(),
            resident.low.to_bits(),
            resident.high.to_bits(),
            u64::from(resident.touches) << 32 | u64::from(resident.judged_cached),
            self.touches,
            self.cycles,
            self.cpu_ns,
            self.running_ns,
            self.running_cpu_ns,
            self.rate_hz.to_bits(),
            self.cost_permille.to_bits(),
        ]
    }

    fn of_words(words: [u64; WORDS]) -> Self {
        #[allow(clippy::cast_possible_truncation)] // each half is what is wanted
        let (touches, judged_cached) = ((words[3] >> 32) as u32, words[3] as u32);
        let [share, low, high] = [words[0], words[1], words[2]].map(f64::from_bits);
        Self {
            resident: (touches > 0).then_some(Resident { share, low, high, touches, judged_cached }),
            touches: words[4],
            cycles: words[5],
            cpu_ns: words[6],
            running_ns: words[7],
            running_cpu_ns: words[8],
            rate_hz: f64::from_bits(words[9]),
            cost_permille: f64::from_bits(words[10]),
        }
    }
}

/// The latest readings of one writer, for any number of readers: a sequence lock.
///
/// The version is odd while words are being written; a reader that sees it odd, or changed, reads again.
#[derive(Debug, Default)]
pub(super) struct Published {
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Published {
    /// For the one writer.
    pub(super) fn publish(&self, readings: &Readings) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // A: who reads a word stored below also sees the odd version. Pairs with B.
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(readings.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        // C: who sees the even version also sees all words stored above. Pairs with D.
        self.version.store(version + 2, Ordering::Release);
    }

    /// The latest that was published whole.
    pub(super) fn read(&self) -> Readings {
        loop {
            // D: pairs with C.
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let words = std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed));
                // B: pairs with A.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return Readings::of_words(words);
                }
            }
            // The writer needs a few nanoseconds, unless it has lost its core in between.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn numbered(number: u32) -> Readings {
        let figure = f64::from(number);
        let resident =
            Resident { share: figure, low: figure, high: figure, touches: number, judged_cached: number };
        Readings {
            resident: (number > 0).then_some(resident),
            touches: number.into(),
            cycles: number.into(),
            cpu_ns: number.into(),
            running_ns: number.into(),
            running_cpu_ns: number.into(),
            rate_hz: figure,
            cost_permille: figure,
        }
    }

    #[test]
    fn what_is_published_is_read_back() {
        let published = Published::default();
        assert_eq!(published.read(), Readings::default());
        published.publish(&numbered(7));
        assert_eq!(published.read(), numbered(7));
    }

    #[test]
    fn readers_never_see_half_of_it() {
        let published = Published::default();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    let readings = published.read();
                    let number = u32::try_from(readings.touches).unwrap();
                    assert_eq!(readings, numbered(number));
                    assert!(number >= last);
                    last = number;
                }
            });
            for number in 1..200_000 {
                published.publish(&numbered(number));
            }
            over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
    }
}
