//! What the reactor tells of itself when it is asked.

use super::Reactor;
use crate::daemon::status::{
    EscapeStatus, FaultStatus, MessageStatus, PoolStatus, ReadStatus, Rows, Status, pressure_word,
};
use jet_client::registration::RowsFrom;
use jet_fabric::nic::Nic;

impl<N: Nic> Reactor<N> {
    /// How things stand, with the first page of rows.
    pub(super) fn status(&self) -> Box<Status> {
        let stats = self.receiver.stats();
        Box::new(Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            incarnation: format!("{:016x}", self.options.incarnation),
            uptime_ms: self.now_ns() / 1_000_000,
            draining: self.receiver.is_draining(),
            listen: self.options.listen.clone(),
            pressure: pressure_word(stats.pressure),
            nic_thread: self.options.nic_thread,
            pool: PoolStatus::new(&stats, self.options.pages, self.options.numa_node),
            reads: ReadStatus::new(&stats, self.receiver.config().checksums),
            messages: MessageStatus::new(&stats),
            ends: stats.ends.into(),
            escape: EscapeStatus::new(&stats.escape, self.escape_error.as_deref()),
            congestion: Vec::new(),
            cache: None,
            rdma: None,
            faults: FaultStatus {
                peers: stats.peer_faults,
                unresponsive_peers: stats.unresponsive_peers,
                sessions: stats.session_faults,
            },
            nic: self.hands.nic.counters().into(),
            session_count: stats.sessions,
            peer_count: stats.peers,
            rows: self.rows(RowsFrom::START),
        })
    }

    /// A page of rows.
    pub(super) fn rows(&self, from: RowsFrom) -> Rows {
        Rows::new(&self.receiver, from)
    }
}
