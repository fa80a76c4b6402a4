//! What a warmer's thread publishes.

use super::estimate::Resident;
use serde::Serialize;

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
