//! Pseudo-random numbers from a seed.

/// A generator of pseudo-random numbers.
pub struct Random(fastrand::Rng);

impl Random {
    /// Makes the generator of this seed.
    pub fn seeded(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Makes a generator. The seed is the value of the environment variable `variable`, or else `seed`. The
    /// seed is printed together with `name`.
    ///
    /// # Panics
    /// If the variable is set to something that is not a number.
    pub fn seeded_by(variable: &str, name: &str, seed: u64) -> Self {
        let seed = std::env::var(variable).ok().map_or(seed, |text| {
            text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
        });
        eprintln!("{name}: {variable}={seed}");
        Self::seeded(seed)
    }

    /// Returns the next number. The sequence never ends.
    #[expect(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    /// Returns a number below `end`, as a size.
    pub fn size_below(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("below a usize")
    }

    /// Picks one of the elements of `of`.
    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.size_below(of.len())]
    }

    /// Makes another generator, seeded by this one.
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }
}
