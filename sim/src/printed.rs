//! A scenario as it is printed: every option that the seed chose, in words.

use crate::scenario::{ApplicationPlan, Habit, Kind, Scenario, SenderPlan};
use jet_core::Config;
use std::collections::BTreeSet;
use std::fmt;

impl Habit {
    /// Returns the habit in words.
    fn words(self) -> &'static str {
        match self {
            Self::Fast => "gives each run back at once",
            Self::Slow => "is slow with each run",
            Self::Stalling => "stalls now and then",
            Self::OneByOne => "reads one message after the other",
            Self::Collecting => "gives a message back once it has all of it",
            Self::Pinning => "pins what it reads",
            Self::Choosy => "holds what half of the senders send",
            Self::Disk => "writes to a disk",
        }
    }
}

impl fmt::Display for ApplicationPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, habit, run_ns, parallel, late_ns, .. } = self;
        let Self { rejects_permille, takes_memory, shares_name, class, breaks, is_absent, .. } = self;
        write!(f, "application app-{name}, class {class}: ")?;
        if *is_absent {
            return f.write_str("never registers");
        }
        write!(f, "{}, {run_ns} ns for a run, {parallel} runs at once", habit.words())?;
        if *late_ns > 0 {
            write!(f, ", finishes a message up to {late_ns} ns after its last slices")?;
        }
        if *rejects_permille > 0 {
            write!(f, ", rejects {rejects_permille} of 1000 messages")?;
        }
        f.write_str(if *takes_memory { ", takes escape memory" } else { "" })?;
        f.write_str(if *shares_name { ", shares its name" } else { "" })?;
        f.write_str(if *breaks { ", breaks its session" } else { "" })
    }
}

impl fmt::Display for SenderPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { app, messages, depth, large_permille, large_bytes, small_bytes, .. } = self;
        let Self { class, checksums, retries, patience_ns, receiver_timeout_ns, .. } = self;
        let Self { profile, bytes_per_us, leaves, wants_replies, takes_back, .. } = self;
        write!(
            f,
            "sender on {profile}, class {class}: {messages} messages to app-{app}, {depth} outstanding, \
             {large_permille} of 1000 large ones, up to {small_bytes} and {large_bytes} bytes"
        )?;
        f.write_str(if *checksums { ", with checksums" } else { "" })?;
        write!(f, ", {} for {patience_ns} ns", if *retries { "tries again" } else { "connects again" })?;
        write!(f, ", gives the receiver up after {receiver_timeout_ns} ns or three heartbeats")?;
        if let Some(bytes) = bytes_per_us {
            write!(f, ", slow: {bytes} bytes/us")?;
        }
        f.write_str(if *wants_replies { ", wants replies" } else { "" })?;
        f.write_str(if *takes_back { ", takes messages back" } else { "" })?;
        f.write_str(if *leaves { ", leaves at its end" } else { "" })
    }
}

/// Returns the receiver's numbers that are not the defaults, each with its name.
fn numbers(config: &Config) -> Vec<String> {
    // Field by field, so that no number is forgotten that somebody adds.
    let fields = |config: &Config| format!("{config:#?}");
    let defaults = fields(&Config::default());
    let defaults: BTreeSet<_> = defaults.lines().map(str::trim).collect();
    let drawn = fields(config);
    let differing = drawn.lines().map(str::trim).filter(|line| !defaults.contains(line));
    differing.map(|line| line.trim_end_matches(',').replace(": ", " ")).collect()
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, conditions: network, profile, config, faults, .. } = self;
        let Self { turn_ns, wake_ns, job_ns, faults_max, fault_ns, calm_ns, settle_ns, .. } = self;
        let about = match self.kind {
            Kind::Anything => "",
            Kind::Contended => ": many senders, and nothing fails",
            Kind::Stopped => ": an application stops, and nothing fails",
        };
        writeln!(f, "seed {seed}{about}")?;
        writeln!(
            f,
            "  network: {} to {} ns, {} bytes/us, RNR after {} ns, kernel {} ns, flush {} ns, \
             last WQE {} ns, of 1000 ends {} without, silence {} ns, {} of 1000 requests refused, \
             {} entries taken at an end",
            network.latency_ns,
            network.latency_ns + network.jitter_ns,
            network.bytes_per_us,
            network.rnr_ns,
            network.kernel_ns,
            network.flush_ns,
            network.last_wqe_ns,
            network.last_wqe_missing_permille,
            network.silence_ns,
            network.refusals_permille,
            network.entries_taken_max
        )?;
        writeln!(f, "  threads: a turn {turn_ns} ns, a wake-up {wake_ns} ns, a job {job_ns} ns at most")?;
        if faults.is_empty() {
            writeln!(f, "  faults: none")?;
        } else {
            let names: Vec<_> = faults.iter().map(|fault| fault.name()).collect();
            writeln!(f, "  faults: at most {faults_max}, {fault_ns} ns apart, of {}", names.join(" "))?;
        }
        writeln!(f, "  calm from {calm_ns} ns on, and then {settle_ns} ns to settle")?;
        writeln!(f, "  receiver on {profile}, beside the defaults: {}", numbers(config).join(", "))?;
        if !self.tells_processes {
            writeln!(f, "  the receiver cannot tell applications' processes apart")?;
        }
        self.applications.iter().try_for_each(|application| writeln!(f, "  {application}"))?;
        self.senders.iter().try_for_each(|sender| writeln!(f, "  {sender}"))?;
        self.cheats.iter().try_for_each(|cheat| writeln!(f, "  {cheat}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_not_printed_and_every_other_number_is() {
        assert!(numbers(&Config::default()).is_empty());
        let defaults = Config::default();
        let mut config = Config { pool_slabs: defaults.pool_slabs + 1, reads_max: 3, ..defaults };
        config.escape.straggler_ns = 7;
        let expected =
            [format!("pool_slabs {}", config.pool_slabs), "reads_max 3".into(), "straggler_ns 7".into()];
        let mut printed = numbers(&config);
        printed.sort();
        assert_eq!(printed, expected);
    }

    #[test]
    fn scenarios_that_differ_are_printed_differently() {
        let scenario = (1..).map(Scenario::of).find(|scenario| !scenario.cheats.is_empty()).unwrap();
        let printed = scenario.to_string();
        assert!(!printed.contains('{'), "{printed}");
        let mut others = Vec::new();
        let mut other = |change: fn(&mut Scenario)| {
            let mut changed = scenario.clone();
            change(&mut changed);
            others.push(changed.to_string());
        };
        other(|scenario| scenario.seed += 1);
        other(|scenario| scenario.conditions.flush_ns += 1);
        other(|scenario| scenario.config.tick_ns += 1);
        other(|scenario| scenario.faults_max += 1);
        other(|scenario| scenario.job_ns += 1);
        other(|scenario| scenario.applications[0].run_ns += 1);
        other(|scenario| scenario.applications[0].is_absent = true);
        other(|scenario| scenario.senders[0].depth += 1);
        other(|scenario| scenario.senders[0].patience_ns += 1);
        other(|scenario| scenario.senders[0].bytes_per_us = Some(3));
        other(|scenario| scenario.senders[0].leaves ^= true);
        other(|scenario| scenario.senders[0].wants_replies ^= true);
        other(|scenario| scenario.senders[0].takes_back ^= true);
        other(|scenario| scenario.applications[0].shares_name ^= true);
        other(|scenario| scenario.cheats[0].actions += 1);
        other(|scenario| scenario.cheats[0].is_deaf ^= true);
        other(|scenario| drop(scenario.cheats.pop()));
        for other in &others {
            assert_ne!(*other, printed);
        }
    }
}
