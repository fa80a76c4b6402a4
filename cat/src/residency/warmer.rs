//! Warmer: touches a region and measures which share of it is resident.

use super::calibration::{Calibration, CalibrationError, CalibrationOptions};
use super::estimate::{Resident, Window};
use super::order::Order;
use super::pace::{BatchCost, PaceError, PaceOptions};
use super::region::{PAGE_BYTES, PAGE_LINES, Region, RegionError};
use super::touch;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::ops::Range;

/// Touches at the start of a batch that only bring the code into the cache.
const PRACTICE_TOUCHES: usize = 4;

/// Options of a [`Warmer`] and of a [`super::WarmerThread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WarmerOptions {
    /// Number of most recent touches that a reading rests on. At least 1.
    ///
    /// Default 2048: the 95 % interval is at most 4 % wide. [`PaceOptions::rate_hz_min`] determines how old
    /// the touches are.
    pub window_touches: u32,
    /// Seed for the order of touches.
    pub seed: u64,
    /// Options of the calibration at start.
    pub calibration: CalibrationOptions,
    /// Limits for the rate at which the thread touches.
    pub pace: PaceOptions,
    /// Whether the thread first warms the whole region in: it reads the region in order, three times, as fast
    /// as it can.
    pub warm_in: bool,
    /// Core that the thread is bound to, and whose caches it therefore measures; `None` means any core.
    pub cpu: Option<usize>,
}

impl Default for WarmerOptions {
    fn default() -> Self {
        Self {
            window_touches: 2048,
            seed: 1,
            calibration: CalibrationOptions::default(),
            pace: PaceOptions::default(),
            warm_in: true,
            cpu: None,
        }
    }
}

/// Reason why a warmer could not be made.
#[derive(Debug, thiserror::Error)]
pub enum WarmerError {
    /// The calibration failed, so touches cannot be judged.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// The options of the pace contradict each other.
    #[error(transparent)]
    Pace(#[from] PaceError),
    /// The window is empty: `window_touches` is 0.
    #[error("the warmer's window_touches is 0, but a reading rests on 1 touch at least")]
    Window,
    /// There was no memory for the page of the practice touches.
    #[error("cannot make a warmer: {0}")]
    Region(#[from] RegionError),
}

impl WarmerOptions {
    /// Checks that the options fit together.
    ///
    /// # Errors
    /// [`WarmerError::Pace`] or [`WarmerError::Window`].
    pub fn check(&self) -> Result<(), WarmerError> {
        self.pace.check()?;
        if self.window_touches == 0 {
            return Err(WarmerError::Window);
        }
        Ok(())
    }
}

/// Warmer of a region: touches the lines in random order, each once a cycle, and judges whether a cache or
/// memory served each touch.
///
/// It has no thread and keeps no pace. The caller of [`Self::touch_batch`] provides both.
#[derive(Debug)]
pub struct Warmer {
    region: Region,
    order: Order,
    calibration: Calibration,
    window: Window,
    practice: Region,
    touches: u64,
}

impl Warmer {
    /// Makes a warmer for a region, with a calibration that is measured now. That takes up to 50 ms with the
    /// default options.
    ///
    /// # Errors
    /// [`WarmerError`].
    pub fn new(region: Region, options: WarmerOptions) -> Result<Self, WarmerError> {
        options.check()?;
        let calibration = Calibration::measure(options.calibration)?;
        Self::calibrated(region, calibration, options)
    }

    /// Makes a warmer for a region, with a calibration that was measured before.
    ///
    /// # Errors
    /// [`WarmerError`].
    pub fn calibrated(
        region: Region,
        calibration: Calibration,
        options: WarmerOptions,
    ) -> Result<Self, WarmerError> {
        options.check()?;
        Ok(Self {
            order: Order::new(region.lines() as u64, options.seed),
            window: Window::new(options.window_touches, calibration.rates),
            practice: Region::zeroed(PAGE_BYTES)?,
            region,
            calibration,
            touches: 0,
        })
    }

    /// Touches the next `touches` lines, and returns the CPU time of this thread that it took. It neither
    /// allocates nor sleeps.
    pub fn touch_batch(&mut self, touches: u32) -> BatchCost {
        let begun_ns = thread_cpu_ns();
        for line in 0..PRACTICE_TOUCHES {
            touch::touch(&self.practice, line);
        }
        for _ in 0..touches {
            let line = self.order.next().expect("an order never ends");
            let line = usize::try_from(line).expect("lines of a region are counted by a usize");
            let ticks = touch::touch(&self.region, line);
            if touch::is_judged(line) {
                self.window.record(self.calibration.judge(ticks));
            }
        }
        self.touches += u64::from(touches);
        BatchCost { touches, span_ns: thread_cpu_ns() - begun_ns }
    }

    /// Reads the whole region once in order, which takes some milliseconds for 12 MiB. Nothing is judged.
    ///
    /// Some caches keep only lines that were used more than once. There two or three calls bring in what one
    /// does not.
    pub fn warm_in(&mut self) -> BatchCost {
        self.warm_in_pages(0..self.region.pages())
    }

    /// Reads a part of the region like [`Self::warm_in`]. Pages beyond the region's end are ignored.
    pub(super) fn warm_in_pages(&mut self, pages: Range<usize>) -> BatchCost {
        let begun_ns = thread_cpu_ns();
        let lines = pages.start * PAGE_LINES..pages.end.min(self.region.pages()) * PAGE_LINES;
        let touches = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        for line in lines {
            touch::read(&self.region, line);
        }
        BatchCost { touches, span_ns: thread_cpu_ns() - begun_ns }
    }

    /// Estimates the resident share from the recent touches; `None` before the first touch that could be
    /// judged.
    ///
    /// In a small region, or after a long pause, the touches of the window may belong to the last cycle and
    /// earlier ones.
    pub fn resident(&self) -> Option<Resident> {
        self.window.resident()
    }

    /// Measures a new calibration, and forgets the touches that were judged by the old one. This is meant for
    /// a machine that has become much busier or quieter. On an error nothing changes.
    ///
    /// # Errors
    /// [`CalibrationError`].
    pub fn recalibrate(&mut self, options: CalibrationOptions) -> Result<(), CalibrationError> {
        self.calibration = Calibration::measure(options)?;
        self.window.restart(self.calibration.rates);
        Ok(())
    }

    /// Returns the calibration by which touches are judged.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Returns the region that is touched.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the number of touches in batches so far.
    pub fn touches(&self) -> u64 {
        self.touches
    }

    /// Returns the number of complete cycles: how often batches have touched each line.
    pub fn cycles(&self) -> u64 {
        self.order.cycles()
    }
}

/// Returns the CPU time of the calling thread in nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    let part = |part: i64| u64::try_from(part).expect("a thread's time is not negative");
    part(spent.tv_sec) * 1_000_000_000 + part(spent.tv_nsec)
}
