//! Posting READs and headers: what the NIC has no room for waits, what it refuses for any other reason ends its connection.

use super::hands::Hands;
use jet_core::pool::Run;
use jet_core::{FRAGMENT_SLABS_MAX, PeerId, ReadId, Remote};
use jet_fabric::nic::{Nic, Payload, PostError, Qp, ReadRequest, SendRequest};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::HeaderBytes;

/// A READ that the NIC had no room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRead {
    peer: PeerId,
    read: ReadId,
    remote: Remote,
    bytes: u32,
    runs: [Run; FRAGMENT_SLABS_MAX as usize],
    run_count: usize,
}

/// A header that the NIC had no room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingHeader {
    qp: Qp,
    peer: PeerId,
    header: HeaderBytes,
}

/// What became of a request that was to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posting {
    Done,
    /// The NIC has no room now: what is outstanding makes some.
    NoRoom,
    /// It never will be.
    Over,
}

impl<N: Nic> Hands<N> {
    /// Posts a READ, now or when there is room: behind those that wait already.
    pub(super) fn post_or_keep_read(
        &mut self,
        peer: PeerId,
        read: ReadId,
        remote: Remote,
        bytes: u32,
        runs: &[Run],
    ) {
        if self.waiting_reads.is_empty()
            && self.post_read_now(peer, read, remote, bytes, runs) != Posting::NoRoom
        {
            return;
        }
        let mut kept = [Run::default(); FRAGMENT_SLABS_MAX as usize];
        kept[..runs.len()].copy_from_slice(runs);
        let waiting = WaitingRead { peer, read, remote, bytes, runs: kept, run_count: runs.len() };
        self.waiting_reads.push_back(waiting);
    }

    /// Posts READs that the NIC had no room for. Those that are outstanding wake the reactor when they end.
    pub(super) fn post_waiting_reads(&mut self) {
        while let Some(waiting) = self.waiting_reads.pop_front() {
            let WaitingRead { peer, read, remote, bytes, runs, run_count } = waiting;
            if self.post_read_now(peer, read, remote, bytes, &runs[..run_count]) == Posting::NoRoom {
                self.waiting_reads.push_front(waiting);
                return;
            }
        }
    }

    /// A peer's connection is over: none of its READs that wait will be posted.
    pub(super) fn give_up_reads(&mut self, peer: PeerId) {
        let unposted = &mut self.unposted_reads;
        self.waiting_reads.retain(|waiting| {
            if waiting.peer == peer {
                unposted.push(waiting.read);
            }
            waiting.peer != peer
        });
    }

    fn post_read_now(
        &mut self,
        peer: PeerId,
        read: ReadId,
        remote: Remote,
        bytes: u32,
        runs: &[Run],
    ) -> Posting {
        self.scatter.clear();
        let mut left = bytes;
        for &run in runs {
            let part = left.min(run.count * SLAB_BYTES_U32);
            let sge = self.sge(run, part);
            self.scatter.push(sge);
            left -= part;
        }
        let request = ReadRequest {
            id: u64::from(read.0),
            address: remote.address,
            key: remote.key,
            scatter: &self.scatter,
        };
        let posting = match self.qps[peer.0 as usize] {
            Some(qp) => {
                let posted = self.nic.post_read(qp, request);
                self.after_posting(qp, posted)
            }
            None => Posting::Over,
        };
        if posting == Posting::Over {
            self.unposted_reads.push(read);
        }
        posting
    }

    /// Posts a header, now or when there is room: behind those that wait already, so that a peer's keep their order.
    pub(super) fn post_or_keep_header(&mut self, peer: PeerId, header: &HeaderBytes) {
        let Some(qp) = self.qps[peer.0 as usize] else { return };
        if !self.unsent.is_empty() || self.post_header_now(qp, peer, header) == Posting::NoRoom {
            self.unsent.push_back(WaitingHeader { qp, peer, header: *header });
        }
    }

    /// Posts headers that the NIC had no room for; `true` while some still wait.
    pub(super) fn send_rest(&mut self) -> bool {
        while let Some(waiting) = self.unsent.pop_front() {
            if self.post_header_now(waiting.qp, waiting.peer, &waiting.header) == Posting::NoRoom {
                self.unsent.push_front(waiting);
                return true;
            }
        }
        false
    }

    fn post_header_now(&mut self, qp: Qp, peer: PeerId, header: &HeaderBytes) -> Posting {
        let request = SendRequest { id: u64::from(peer.0), header, payload: Payload::None };
        let posted = self.nic.post_send(qp, request);
        self.after_posting(qp, posted)
    }

    /// What becomes of a request for a connection, after what the NIC said of it.
    fn after_posting(&mut self, qp: Qp, posted: Result<(), PostError>) -> Posting {
        match posted {
            Ok(()) => Posting::Done,
            Err(PostError::QueueFull) => Posting::NoRoom,
            // Its end is on the way, and the receiver hears of its READs before it.
            Err(PostError::Stale) => Posting::Over,
            // A connection on which something cannot be posted would keep its sender waiting for ever.
            Err(PostError::LocalProtection | PostError::Limit) => {
                self.nic.disconnect(qp);
                Posting::Over
            }
        }
    }
}
