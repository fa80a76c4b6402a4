//! What the reactor tells of itself when it is asked.

use super::Driver;
use super::orders::Orders;
use crate::daemon::status::{
    EscapeStatus, FaultStatus, MessageStatus, PoolStatus, ReadStatus, Rows, Status, pressure_word,
};
use jet_client::registration::RowsFrom;
use jet_fabric::nic::Nic;

impl Orders {
    /// How things stand, with the first page of rows.
    pub(super) fn status<N: Nic>(&self, now_ns: u64, driver: &Driver<N>) -> Box<Status> {
        let receiver = driver.receiver();
        let stats = receiver.stats();
        Box::new(Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            incarnation: format!("{:016x}", self.about.incarnation),
            uptime_ms: now_ns / 1_000_000,
            draining: receiver.is_draining(),
            listen: self.about.listen.clone(),
            pressure: pressure_word(stats.pressure),
            nic_thread: self.about.nic_thread,
            pool: PoolStatus::new(&stats, self.about.pages, self.about.numa_node),
            reads: ReadStatus::new(&stats, receiver.config().checksums),
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
            nic: driver.counters().into(),
            session_count: stats.sessions,
            peer_count: stats.peers,
            rows: Rows::new(receiver, RowsFrom::START),
        })
    }
}
