//! Windows: no more READs and bytes are in flight than the configuration says, of all peers and of each.

use super::{Checker, Look};
use crate::scenario::Scenario;
use jet_core::Stats;

/// The windows' sizes.
#[derive(Debug)]
pub struct Windows {
    reads_max: u32,
    in_flight_bytes: u64,
    /// READs and bytes that one peer may have in flight.
    peer_reads: u32,
    peer_bytes: u64,
    has_shares: bool,
}

impl Windows {
    pub fn new(scenario: &Scenario) -> Self {
        let config = &scenario.config;
        let percent = config.peer_share_percent;
        let peer_bytes = config.in_flight_bytes * u64::from(percent) / 100;
        Self {
            reads_max: config.reads_max,
            in_flight_bytes: config.in_flight_bytes,
            peer_reads: (config.reads_max * percent / 100).max(1),
            peer_bytes: peer_bytes.max(u64::from(config.fragment_bytes)),
            has_shares: percent < 100,
        }
    }
}

impl Checker for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let Stats { reads_in_flight, in_flight_bytes, waiting, running, .. } = *look.stats;
        if reads_in_flight > self.reads_max || in_flight_bytes > self.in_flight_bytes {
            return Err(format!("{reads_in_flight} READs and {in_flight_bytes} bytes are in flight"));
        }
        if look.nic_reads > reads_in_flight {
            let under_way = look.nic_reads;
            return Err(format!("the NIC has {under_way} READs, and {reads_in_flight} are counted"));
        }
        let (mut reads, mut bytes) = (0, 0);
        for peer in look.peers {
            let share = &peer.share;
            (reads, bytes) = (reads + share.reads, bytes + share.in_flight_bytes);
            let is_beyond = share.reads > self.peer_reads || share.in_flight_bytes > self.peer_bytes;
            let is_unmeasured = share.usual_ns == 0 && share.reads > 1;
            if share.reads > share.reads_max || (self.has_shares && (is_beyond || is_unmeasured)) {
                return Err(format!("sender {:x} has more in flight than its share: {share:?}", peer.sender));
            }
        }
        // Of peers that are leaving there may be more.
        if reads > reads_in_flight || bytes > in_flight_bytes {
            return Err(format!(
                "peers have {reads} READs and {bytes} bytes in flight, all have {reads_in_flight} and \
                 {in_flight_bytes}"
            ));
        }
        if look.is_settled && (reads_in_flight > 0 || in_flight_bytes > 0 || waiting > 0 || running > 0) {
            return Err(format!(
                "{reads_in_flight} READs, {in_flight_bytes} bytes, {waiting} waiting and {running} running \
                 messages are left"
            ));
        }
        Ok(())
    }
}
