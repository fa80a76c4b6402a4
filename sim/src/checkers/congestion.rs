//! Congestion: it is signalled where the configuration says so, and lifted at the end.

use super::{Checker, Look};
use crate::scenario::Scenario;

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
