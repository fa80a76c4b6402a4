//! Memory bandwidth taken at a fixed rate: the antagonist of `residency`, and a load of its own beside any
//! other.
//!
//! Stores go past the caches (`movnti` and its kin), so what it takes is the memory's bandwidth and not the
//! cache: as where the cache is reserved. Reads and ordinary stores take both.
//!
//! It cannot take more than one core brings about, and of a large server's memory that is a part: see the row
//! of its own rate.

use crate::report::{Bound, Row};
use std::error::Error;
use std::time::{Duration, Instant};

/// What is done at once, between two looks at the clock.
const STRETCH_BYTES: usize = 256 << 10;
/// How long a turn of [`run`] lasts.
const TURN: Duration = Duration::from_secs(1);

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Stores past the caches
    NtWrite,
    /// Ordinary stores
    Write,
    /// Reads
    Read,
}

/// What is taken.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Args {
    /// GB/s, of what is stored or read; 0: as much as one core can
    #[arg(long, default_value_t = 0.0, value_name = "GB/S", value_parser = rate)]
    pub rate: f64,
    /// How
    #[arg(long, value_enum, default_value = "nt-write")]
    pub kind: Kind,
    /// Bytes of memory that are gone through; more than the cache has
    #[arg(long, default_value_t = 1 << 30, value_name = "BYTES")]
    pub bytes: usize,
}

/// A rate that can be kept.
///
/// # Errors
/// What it must be.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0);
    rate.ok_or_else(|| "must be a number of GB/s, 0 or more".to_owned())
}

/// Memory, and how far it was gone through.
pub struct Hammer {
    memory: Box<[u64]>,
    kind: Kind,
    next: usize,
    sum: u64,
}

impl Hammer {
    /// Takes memory, and touches it all.
    ///
    /// # Errors
    /// Where it is less than what is done at once, or this processor has no such stores.
    pub fn new(kind: Kind, bytes: usize) -> Result<Self, Box<dyn Error>> {
        if bytes < STRETCH_BYTES {
            return Err(format!("--bytes must be {STRETCH_BYTES} at least").into());
        }
        if kind == Kind::NtWrite && cfg!(not(target_arch = "x86_64")) {
            return Err("stores past the caches are there on x86-64 only; take --kind write".into());
        }
        let words = bytes / STRETCH_BYTES * (STRETCH_BYTES / size_of::<u64>());
        Ok(Self { memory: vec![1; words].into_boxed_slice(), kind, next: 0, sum: 0 })
    }

    /// The next stretch.
    fn go(&mut self) {
        let words = STRETCH_BYTES / size_of::<u64>();
        let stretch = &mut self.memory[self.next..self.next + words];
        match self.kind {
            Kind::NtWrite => store_past_caches(stretch, self.sum),
            Kind::Write => stretch.fill(self.sum),
            Kind::Read => self.sum = stretch.iter().fold(self.sum, |sum, word| sum.wrapping_add(*word)),
        }
        std::hint::black_box(&mut self.memory);
        self.next = (self.next + words) % self.memory.len();
    }

    /// Goes on for so long at a rate; gives the GB/s that it came to.
    pub fn run(&mut self, rate: f64, span: Option<Duration>) -> f64 {
        let start = Instant::now();
        let mut stretches = 0u32;
        loop {
            let elapsed = start.elapsed();
            let bytes = f64::from(stretches) * STRETCH_BYTES as f64;
            if span.is_some_and(|span| elapsed >= span) {
                return bytes / 1e9 / elapsed.as_secs_f64();
            }
            let due_s = if rate > 0.0 { bytes / 1e9 / rate } else { 0.0 };
            let ahead_s = due_s - elapsed.as_secs_f64();
            // What it is ahead of its rate it sleeps; a clock's grain of it is not worth a sleep.
            if ahead_s > 100e-6 {
                std::thread::sleep(Duration::from_secs_f64(ahead_s));
            }
            self.go();
            stretches = stretches.wrapping_add(1);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn store_past_caches(stretch: &mut [u64], value: u64) {
    use std::arch::x86_64::{_mm_sfence, _mm_stream_si64};
    for word in &mut *stretch {
        // SAFETY: SSE2 is part of x86-64, and the word is this slice's.
        unsafe { _mm_stream_si64(std::ptr::from_mut(word).cast(), value.cast_signed()) };
    }
    // SAFETY: as above; nothing is asked of it.
    unsafe { _mm_sfence() };
}

/// Rust has no such stores for other processors: [`Hammer::new`] refuses.
#[cfg(not(target_arch = "x86_64"))]
fn store_past_caches(_stretch: &mut [u64], _value: u64) {
    unreachable!("refused at the start")
}

/// Runs until the process is killed.
///
/// # Errors
/// See [`Hammer::new`].
pub fn live(args: Args) -> Result<(), Box<dyn Error>> {
    Hammer::new(args.kind, args.bytes)?.run(args.rate, None);
    Ok(())
}

/// Runs the benchmark: the rate that comes about.
///
/// # Errors
/// See [`Hammer::new`].
pub fn run(samples: u32, args: Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut hammer = Hammer::new(args.kind, args.bytes)?;
    let rates = (0..samples).map(|_| hammer.run(args.rate, Some(TURN))).collect();
    let what = match args.kind {
        Kind::NtWrite => "stores past the caches",
        Kind::Write => "stores",
        Kind::Read => "reads",
    };
    Ok(vec![Row::new("membw", &format!("{what}, one core"), "GB/s", rates, Bound::None)])
}
