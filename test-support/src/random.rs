//! Numbers from a seed.

/// A sequence of numbers.
pub struct Random(fastrand::Rng);

impl Random {
    /// The numbers of this seed.
    pub fn seeded(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// The numbers of the seed that this environment variable has, or else of this one. Says of which, under
    /// that name.
    ///
    /// # Panics
    /// If the variable has something else.
    pub fn seeded_by(variable: &str, name: &str, seed: u64) -> Self {
        let seed = std::env::var(variable).ok().map_or(seed, |text| {
            text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
        });
        eprintln!("{name}: {variable}={seed}");
        Self::seeded(seed)
    }

    /// The next one; there is always one.
    #[expect(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    /// Below `end`, as a size.
    pub fn size_below(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("below a usize")
    }

    /// One of these.
    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.size_below(of.len())]
    }

    /// Another generator that this one seeds.
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }
}
