//! What happened how often: states that a search must reach to be worth something.

use jet_core::Stats;
use jet_fabric::nic::Counters;
use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    /// Counts one.
    pub fn add(&mut self, name: &'static str) {
        self.add_many(name, 1);
    }

    /// Counts several.
    pub fn add_many(&mut self, name: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry(name).or_insert(0) += count;
        }
    }

    /// Returns how often something happened.
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds other counts.
    pub fn merge(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            self.add_many(name, *count);
        }
    }

    /// Adds what a receiver and its NIC have counted.
    pub fn add_stats(&mut self, stats: &Stats, nic: &Counters) {
        let escape = &stats.escape;
        let ends = &stats.ends;
        let counted = [
            ("small messages", stats.small_messages),
            ("large messages", stats.large_messages),
            ("delivered bytes", stats.delivered_bytes),
            ("redelivered", stats.redelivered),
            ("unresponsive peers", stats.unresponsive_peers),
            ("stalled peers", stats.stalled_peers),
            ("session faults", stats.session_faults),
            ("line moves", stats.line_moves),
            ("slabs replaced", escape.replaced_total),
            ("slabs copied", escape.copied_total),
            ("slabs spilled", escape.spilled_total),
            ("copies pinned", escape.copies_pinned),
            ("dangers", escape.dangers),
            ("marks", escape.marks),
            ("signals", escape.signals),
            ("checked bytes", stats.checked_bytes),
            ("end consumed", ends.consumed),
            ("end rejected", ends.rejected),
            ("end busy", ends.busy),
            ("end no application", ends.no_app),
            ("end application gone", ends.app_gone),
            ("READs", nic.reads),
            ("RNR", nic.rnr),
            ("flushed", nic.flushed),
        ];
        for (name, count) in counted {
            self.add_many(name, count);
        }
    }

    /// Returns all names and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, count)| (*name, *count))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(f, "  {name}: {count}")?;
        }
        Ok(())
    }
}
