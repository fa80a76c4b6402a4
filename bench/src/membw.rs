//! Takes memory bandwidth at a fixed rate, as the antagonist of `residency`, or as a benchmark of its own to
//! run beside another program.
//!
//! Stores go past the caches (`movnti` and its kin). So these stores take memory bandwidth and leave the
//! cache alone, as a program does from which cache has been reserved. Reads and ordinary stores take
//! bandwidth and cache.
//!
//! One core takes only a part of a large server's memory bandwidth: the benchmark `membw` measures its rate.

use crate::report::{Bound, Row};
use std::error::Error;
use std::time::{Duration, Instant};

/// Number of bytes that are touched between two readings of the clock.
const STRETCH_BYTES: usize = 256 << 10;
/// Length of one sample of [`run`].
const TURN: Duration = Duration::from_secs(1);

/// Kinds of memory access that take bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Stores past the caches
    NtWrite,
    /// Ordinary stores
    Write,
    /// Reads
    Read,
}

/// Amount of memory to touch, the kind of access, and the rate.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Args {
    /// Rate in GB/s of the bytes that are stored or read; 0: as much as one core can
    #[arg(long, default_value_t = 0.0, value_name = "GB/S", value_parser = rate)]
    pub rate: f64,
    /// Kind of memory access
    #[arg(long, value_enum, default_value = "nt-write")]
    pub kind: Kind,
    /// Bytes of memory that are gone through again and again; choose more than the cache has
    #[arg(long, default_value_t = 1 << 30, value_name = "BYTES")]
    pub bytes: usize,
}

/// Parses a rate in GB/s.
///
/// # Errors
/// A text that says which rates are allowed.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0);
    rate.ok_or_else(|| "must be a number of GB/s, 0 or more".to_owned())
}

/// Memory to touch, and the place that is touched next.
pub struct Hammer {
    memory: Box<[u64]>,
    kind: Kind,
    next: usize,
    sum: u64,
}

impl Hammer {
    /// Allocates the memory, and touches all of it.
    ///
    /// # Errors
    /// `bytes` is less than what is touched at once, or this processor has no stores past the caches.
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

    /// Touches the next [`STRETCH_BYTES`] of the memory.
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

    /// Touches memory for `span` (without end if `None`) at `rate` GB/s (0: as fast as possible). Returns the
    /// GB/s reached.
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
            // Being ahead of the rate by no more than the clock's grain is not worth a sleep.
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
    // SAFETY: as above; the fence has no requirements.
    unsafe { _mm_sfence() };
}

/// Never runs: Rust has no stores past the caches for processors other than x86-64, so [`Hammer::new`]
/// refuses.
#[cfg(not(target_arch = "x86_64"))]
fn store_past_caches(_stretch: &mut [u64], _value: u64) {
    unreachable!("refused at the start")
}

/// Takes memory bandwidth until the process is killed.
///
/// # Errors
/// As of [`Hammer::new`].
pub fn run_role(args: Args) -> Result<(), Box<dyn Error>> {
    Hammer::new(args.kind, args.bytes)?.run(args.rate, None);
    Ok(())
}

/// Runs the benchmark `membw`: measures the rate that is reached.
///
/// # Errors
/// As of [`Hammer::new`].
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
