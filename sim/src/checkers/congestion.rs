//! Congestion: it is signalled where the configuration says so, and lifted at the end. A signal halves a
//! sender's window, which grows again step by step.

use super::{Checker, Look};
use crate::scenario::Scenario;
use jet_client::send::{ProtocolOptions, ProtocolStats};

/// The window of a sender to whom no congestion is signalled, in thousandths.
const FULL: u32 = 1000;

/// Whether signals are sent at all.
#[derive(Debug)]
pub struct Congestion {
    signals: bool,
}

impl Congestion {
    pub fn new(scenario: &Scenario) -> Self {
        Self { signals: scenario.config.signals && scenario.config.escape.enabled }
    }
}

impl Checker for Congestion {
    fn name(&self) -> &'static str {
        "congestion"
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let signals = look.stats.escape.signals;
        if signals > 0 && !self.signals {
            return Err(format!("{signals} signals were sent though they are switched off"));
        }
        if look.window_permille < FULL && !self.signals {
            return Err(format!("a window is {} of 1000 though nothing is signalled", look.window_permille));
        }
        if look.is_settled && look.window_permille < FULL {
            return Err(format!("a window is still {} of 1000", look.window_permille));
        }
        Ok(())
    }
}

/// How a sender's window was when the sender ran last.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    clock_ns: u64,
    connections: u64,
    signals: u64,
    permille: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { clock_ns: 0, connections: 0, signals: 0, permille: FULL }
    }
}

impl Pace {
    /// Notes how the window is now.
    ///
    /// # Errors
    /// A signal did not halve it, or it grew by more than the steps that were due.
    pub fn note(&mut self, clock_ns: u64, stats: &ProtocolStats, permille: u32) -> Result<(), String> {
        let (connections, signals) = (stats.connections, stats.window.signals);
        let now = Self { clock_ns, connections, signals, permille };
        let before = std::mem::replace(self, now);
        let options = ProtocolOptions::default();
        let interval_ns = u64::try_from(options.recovery_interval.as_nanos()).unwrap_or(u64::MAX);
        let steps = (clock_ns - before.clock_ns) / interval_ns + 1;
        let grown = u64::from(options.recovery_permille) * steps + u64::from(before.permille);
        let most = if signals > before.signals { (grown / 2).clamp(1, u64::from(FULL) / 2) } else { grown };
        if connections == before.connections && u64::from(permille) > most {
            return Err(format!("its window grew: {before:?}, {now:?}"));
        }
        Ok(())
    }
}
