//! What happened how often: states that a search must reach to be worth something.

use crate::event::Event;
use jet_client::send::ProtocolStats;
use jet_core::{ReadsWaitFor, Stats};
use jet_fabric::nic::Counters;
use jet_wire::message::AckStatus;
use std::collections::BTreeMap;
use std::fmt;

/// States that a swarm of few seeds reaches. What is beyond them would be a search for nothing.
pub const RARE: [&str; 90] = [
    "READs wait for room",
    "READs wait for senders",
    "READs wait for the window",
    "checked bytes",
    "checks under way",
    "clock-jump",
    "connections half open",
    "copies failed",
    "copies pinned",
    "copies under way",
    "credit lapsed",
    "cut",
    "dangers",
    "delivered again",
    "deregister",
    "drain",
    "end application gone",
    "end busy",
    "end cancelled",
    "end consumed",
    "end draining",
    "end no application",
    "end rejected",
    "flushed",
    "freeze",
    "given application gone",
    "given busy",
    "given cancelled",
    "given corrupt",
    "given denied",
    "given draining",
    "given lost",
    "given no application",
    "given rejected",
    "given too large",
    "half-open",
    "held back for a fault",
    "hello",
    "keys",
    "kill-application",
    "leave",
    "line moves",
    "lose-sender",
    "marks",
    "mismatch",
    "name taken",
    "no session left",
    "overspend",
    "peers cut off",
    "read from escape memory",
    "recalls of credit",
    "redelivered at the receiver",
    "registered while draining",
    "remove-device",
    "remove-receiver-device",
    "repeat",
    "requests refused by a queue",
    "restart-receiver",
    "return-credit",
    "scramble",
    "scribble",
    "sender-clock-jump",
    "sent again after a lost connection",
    "sent again after an end that passes",
    "session ended for a fault",
    "sessions suspended",
    "signals",
    "sizes",
    "slabs copied",
    "slabs in quarantine",
    "slabs replaced",
    "slabs spilled",
    "stall",
    "stalled peers",
    "window cuts",
    "window steps",
    "withdrawn",
    "wrong release",
    "lives on after its fault",
    "stopped until the calm",
    "RNR",
    "ends of connections that no device told",
    "finished later",
    "receiver lost its power",
    "replies",
    "sessions that go on",
    "sessions that share a name",
    "taken back",
    "told of a standstill",
    "unresponsive peers",
];

fn end_name(status: AckStatus) -> &'static str {
    match status {
        AckStatus::Consumed => "end consumed",
        AckStatus::Rejected(_) => "end rejected",
        AckStatus::Busy => "end busy",
        AckStatus::NoApp => "end no application",
        AckStatus::AppGone => "end application gone",
        AckStatus::Draining => "end draining",
        AckStatus::PeerLost => "end peer lost",
        AckStatus::Cancelled => "end cancelled",
        AckStatus::Denied => "end denied",
        AckStatus::TooLarge => "end too large",
        AckStatus::Corrupt => "end corrupt",
        // The checker of fates refuses it.
        _ => "end of another kind",
    }
}

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
            ("redelivered at the receiver", stats.redelivered),
            ("unresponsive peers", stats.unresponsive_peers),
            ("stalled peers", stats.stalled_peers),
            ("session faults", stats.session_faults),
            ("line moves", stats.line_moves),
            ("credit lapsed", stats.credit_lapses),
            ("slabs replaced", escape.replaced_total),
            ("slabs copied", escape.copied_total),
            ("slabs spilled", escape.spilled_total),
            ("copies pinned", escape.copies_pinned),
            ("copies failed", escape.copies_failed),
            ("dangers", escape.dangers),
            ("marks", escape.marks),
            ("signals", escape.signals),
            ("checked bytes", stats.checked_bytes),
            ("given consumed", ends.consumed),
            ("given rejected", ends.rejected),
            ("given busy", ends.busy),
            ("given no application", ends.no_app),
            ("given application gone", ends.app_gone),
            ("given denied", ends.denied),
            ("given too large", ends.too_large),
            ("given corrupt", ends.corrupt),
            ("given draining", ends.draining),
            ("given lost", ends.peer_lost),
            ("given cancelled", ends.cancelled),
            ("peers cut off", stats.peer_faults),
            ("READs", nic.reads),
            ("RNR", nic.rnr),
            ("flushed", nic.flushed),
            ("ends of connections that no device told", nic.last_wqe_missed),
        ];
        for (name, count) in counted {
            self.add_many(name, count);
        }
    }

    /// Adds what a sender's protocol has counted.
    pub fn add_sender(&mut self, stats: &ProtocolStats) {
        let counted = [
            ("sent again after a lost connection", stats.redelivered),
            ("sent again after an end that passes", stats.retried),
            ("connections", stats.connections),
            ("recalls of credit", stats.recalls),
            ("receiver timeouts", stats.receiver_timeouts),
            ("progress timeouts", stats.progress_timeouts),
            ("acknowledgements ignored", stats.acks_ignored),
            ("headers stray", stats.headers_stray),
            ("window cuts", stats.window.cuts),
            ("window steps", stats.window.steps),
        ];
        for (name, count) in counted {
            self.add_many(name, count);
        }
    }

    /// Adds what an event shows.
    pub fn add_event(&mut self, event: &Event) {
        match event {
            Event::Ended { status, .. } => self.add(end_name(*status)),
            Event::Withdrawn { .. } => self.add("withdrawn"),
            Event::TakenBack { .. } => self.add("taken back"),
            Event::Read { escaped: true, .. } => self.add("read from escape memory"),
            Event::Delivered { redelivered: true, first: true, .. } => self.add("delivered again"),
            Event::Fault(fault) => self.add(fault.name()),
            _ => {}
        }
    }

    /// Adds what a look at the receiver shows of its state.
    pub fn add_look(&mut self, stats: &Stats) {
        let waits = match stats.reads_wait_for {
            ReadsWaitFor::Nothing => "READs wait for nothing",
            ReadsWaitFor::Room => "READs wait for room",
            ReadsWaitFor::Window => "READs wait for the window",
            ReadsWaitFor::Senders => "READs wait for senders",
        };
        self.add(waits);
        let states = [
            ("sessions suspended", stats.escape.suspended_sessions),
            ("checks under way", stats.checks_in_flight),
            ("copies under way", stats.escape.copies_in_flight),
            ("slabs in quarantine", stats.quarantined_slabs),
        ];
        for (name, count) in states {
            self.add_many(name, u64::from(count > 0));
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
