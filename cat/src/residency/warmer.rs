//! Touching a region and telling from it what is resident.

use super::calibration::{Calibration, CalibrationError, CalibrationOptions};
use super::estimate::{Resident, Window};
use super::order::Order;
use super::pace::{BatchCost, PaceError, PaceOptions};
use super::region::{PAGE_BYTES, PAGE_LINES, Region, RegionError};
use super::touch;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::ops::Range;

/// Touches at the start of a batch that bring its code and nothing else.
const PRACTICE_TOUCHES: usize = 4;

/// How a [`Warmer`] and a [`super::WarmerThread`] work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WarmerOptions {
    /// How many touches a reading rests on: the most recent ones. At least 1.
    ///
    /// 2048: the interval (95 %) is 4 % wide at worst; see [`PaceOptions::rate_hz_min`] for how old they are.
    pub window_touches: u32,
    /// For the order of touches.
    pub seed: u64,
    /// How it is calibrated at start.
    pub calibration: CalibrationOptions,
    /// How fast the thread touches.
    pub pace: PaceOptions,
    /// Whether the thread warms the whole region in at start, which is not paced: reads it in order, three
    /// times.
    pub warm_in: bool,
    /// The core that the thread stays on, and through whose caches it therefore sees; `None`: wherever there
    /// is room.
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

/// Why there is no warmer.
#[derive(Debug, thiserror::Error)]
pub enum WarmerError {
    /// Touches cannot be judged.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// The pace contradicts itself.
    #[error(transparent)]
    Pace(#[from] PaceError),
    /// There is no window.
    #[error("the warmer's window_touches is 0, but a reading rests on 1 touch at least")]
    Window,
    /// No memory for the page that touching is practised on.
    #[error("cannot make a warmer: {0}")]
    Region(#[from] RegionError),
}

impl WarmerOptions {
    /// Checks that they make sense together.
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

/// Touches the lines of a region in random order, each once a cycle, and judges where each came from.
///
/// It has no thread and keeps no pace of its own: whoever calls [`Self::touch_batch`] does.
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
    /// For this region, calibrated here and now: that takes up to 50 ms.
    ///
    /// # Errors
    /// [`WarmerError`].
    pub fn new(region: Region, options: WarmerOptions) -> Result<Self, WarmerError> {
        options.check()?;
        let calibration = Calibration::measure(options.calibration)?;
        Self::calibrated(region, calibration, options)
    }

    /// For this region, with a calibration that was measured before.
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

    /// Touches the next so many lines; what that took is time of this thread on its core. It neither
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

    /// Reads the whole region once in order: some milliseconds for 12 MiB. Nothing is judged. Some caches
    /// keep only what was used more than once, and so two or three calls bring in what one does not.
    pub fn warm_in(&mut self) -> BatchCost {
        self.warm_in_pages(0..self.region.pages())
    }

    /// As [`Self::warm_in`], for a part; pages beyond the last one are none.
    pub(super) fn warm_in_pages(&mut self, pages: Range<usize>) -> BatchCost {
        let begun_ns = thread_cpu_ns();
        let lines = pages.start * PAGE_LINES..pages.end.min(self.region.pages()) * PAGE_LINES;
        let touches = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        for line in lines {
            touch::read(&self.region, line);
        }
        BatchCost { touches, span_ns: thread_cpu_ns() - begun_ns }
    }

    /// What the recent touches tell; `None` before the first one that could be judged.
    ///
    /// In small regions, or after a long pause, the touches of the window may be from the last cycle and
    /// before.
    pub fn resident(&self) -> Option<Resident> {
        self.window.resident()
    }

    /// Measures the calibration anew and forgets the touches judged by the old one: for a machine that has
    /// become much busier or quieter. On an error all stays as it was.
    ///
    /// # Errors
    /// [`CalibrationError`].
    pub fn recalibrate(&mut self, options: CalibrationOptions) -> Result<(), CalibrationError> {
        self.calibration = Calibration::measure(options)?;
        self.window.restart(self.calibration.rates);
        Ok(())
    }

    /// By what touches are judged.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// What is touched.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Touches made in batches since it was made.
    pub fn touches(&self) -> u64 {
        self.touches
    }

    /// How often each line was touched in batches.
    pub fn cycles(&self) -> u64 {
        self.order.cycles()
    }
}

/// Time that this thread has spent on a core, nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    let part = |part: i64| u64::try_from(part).expect("a thread's time is not negative");
    part(spent.tv_sec) * 1_000_000_000 + part(spent.tv_nsec)
}
