//! Windows: no more READs and bytes are in flight than the configuration says.

use super::Checker;
use crate::scenario::Scenario;
use jet_core::Stats;

/// The windows' sizes.
#[derive(Debug)]
pub struct Windows {
    reads_max: u32,
    in_flight_bytes: u64,
}

impl Windows {
    pub fn new(scenario: &Scenario) -> Self {
        let config = &scenario.config;
        Self { reads_max: config.reads_max, in_flight_bytes: config.in_flight_bytes }
    }
}

impl Checker for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn look(&mut self, _now_ns: u64, stats: &Stats, is_settled: bool) -> Result<(), String> {
        let Stats { reads_in_flight, in_flight_bytes, waiting, running, .. } = *stats;
        if reads_in_flight > self.reads_max || in_flight_bytes > self.in_flight_bytes {
            return Err(format!("{reads_in_flight} READs and {in_flight_bytes} bytes are in flight"));
        }
        if is_settled && (reads_in_flight > 0 || in_flight_bytes > 0 || waiting > 0 || running > 0) {
            return Err(format!(
                "{reads_in_flight} READs, {in_flight_bytes} bytes, {waiting} waiting and {running} running \
                 messages are left"
            ));
        }
        Ok(())
    }
}
