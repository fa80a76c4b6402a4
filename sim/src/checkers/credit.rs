//! Credit: senders that keep to it are not cut off for it, and find a receive entry for each SEND. All of
//! them together have no more than the receive queue may have entries.

use super::{Checker, Look};
use crate::event::Event;
use crate::scenario::{Kind, Scenario};

/// What senders may have, and what may end a session.
#[derive(Debug)]
pub struct Credit {
    credit_max: u64,
    /// SRQ entries for senders that were idle, and the most senders that were there.
    reserve: u32,
    peers: u32,
    /// Entries that the receive queue has at most. How many it may have at a time depends on what READs use,
    /// and senders keep credit that they got before.
    entries: u32,
    /// Whether nobody breaks the rules.
    is_honest: bool,
    /// Whether applications give everything back at once.
    is_fast: bool,
    /// Sessions that their applications broke, in the receiver's present life.
    broken: u64,
}

impl Credit {
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            credit_max: scenario.config.credit_max.into(),
            reserve: scenario.config.srq_reserve_entries,
            peers: 0,
            entries: scenario.config.srq_slabs,
            is_honest: scenario.cheats.is_empty(),
            is_fast: scenario.kind == Kind::Contended,
            broken: 0,
        }
    }
}

impl Checker for Credit {
    fn name(&self) -> &'static str {
        "credit"
    }

    fn note(&mut self, _now_ns: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::Broke { .. } => self.broken += 1,
            Event::ReceiverBegan { .. } => self.broken = 0,
            _ => {}
        }
        Ok(())
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let stats = look.stats;
        if stats.peer_faults > 0 && self.is_honest {
            return Err(format!("{} senders were cut off for breaking the rules", stats.peer_faults));
        }
        if stats.session_faults > self.broken {
            let (ended, broken) = (stats.session_faults, self.broken);
            return Err(format!("{ended} sessions were ended for what they released, and {broken} broke"));
        }
        // An idle sender keeps one credit, for which no entry is posted beyond the reserve. Where
        // applications hold all slabs of small messages, senders have credit for what is given back next.
        self.peers = self.peers.max(stats.peers);
        if self.is_fast && look.nic.rnr > 0 && self.peers <= self.reserve {
            let (rnr, peers, reserve) = (look.nic.rnr, self.peers, self.reserve);
            let credit: Vec<_> = look.peers.iter().map(|peer| peer.credit).collect();
            return Err(format!(
                "{rnr} SENDs of {peers} senders found no entry, and {reserve} are in reserve: credit \
                 {credit:?}, {stats:?}"
            ));
        }
        // Beyond the budget each idle sender has one, and a sender that does not answer a recall what it had.
        let all: u64 = look.peers.iter().map(|peer| peer.credit).sum();
        if stats.credit > all {
            return Err(format!(
                "{} credit is counted, and senders have {all}: {:?}",
                stats.credit, look.peers
            ));
        }
        if stats.credit_lapses == 0 && all > u64::from(self.entries + stats.peers) {
            let (entries, peers) = (self.entries, stats.peers);
            return Err(format!(
                "{peers} senders have {all} credit, and there are {entries} entries at most"
            ));
        }
        let rich = look.peers.iter().find(|peer| peer.credit > self.credit_max);
        rich.map_or(Ok(()), |peer| Err(format!("a sender has more credit than anybody may have: {peer:?}")))
    }
}
