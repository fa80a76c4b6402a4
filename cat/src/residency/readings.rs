//! Results that a warmer's thread publishes.

use super::estimate::Resident;
use serde::Serialize;

/// Results and costs of a [`super::WarmerThread`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Readings {
    /// Share of the region that is resident, by the most recent touches; `None` before the first judged
    /// touch.
    pub resident: Option<Resident>,
    /// Number of touches so far, without the reads that warm the region in at start.
    pub touches: u64,
    /// Number of complete cycles: how often each line was touched.
    pub cycles: u64,
    /// CPU time of the thread in nanoseconds, including calibration and warming in.
    pub cpu_ns: u64,
    /// Time since the thread began touching in batches, in nanoseconds.
    pub running_ns: u64,
    /// CPU time within `running_ns`, in nanoseconds. Times 1000 and divided by `running_ns` it gives
    /// thousandths of a core.
    pub running_cpu_ns: u64,
    /// Touches per second, averaged over about the last second.
    pub rate_hz: f64,
    /// CPU time in thousandths of a core, averaged over about the last second. Time that the system charges
    /// to no thread is not included ([`super::PaceOptions::wake_ns`]).
    pub cost_permille: f64,
}
