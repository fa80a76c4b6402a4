//! Headers that the NIC had no room for: a queue for each peer, so that a peer whose queue pair is full holds
//! up no other peer's headers.

use super::{Posted, Reply};
use jet_core::PeerId;
use jet_fabric::nic::Qp;
use jet_wire::message::HeaderBytes;
use slab::Slab;
use std::collections::VecDeque;

/// The most peers whose headers are tried again in one turn. The others have their turn in the next ones.
const PEERS_PER_TURN: usize = 64;

/// A header that waits, and the next one of the same peer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    qp: Qp,
    header: HeaderBytes,
    reply: Option<Reply>,
    next: Option<usize>,
}

/// First and last waiting header of one peer.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: usize,
    last: usize,
}

/// Waiting headers of all peers.
#[derive(Debug)]
pub(super) struct WaitingHeaders {
    headers: Slab<Waiting>,
    queues: Box<[Option<Queue>]>,
    /// Peers whose headers wait, each once, in the order in which they are tried.
    peers: VecDeque<PeerId>,
}

impl WaitingHeaders {
    /// Makes empty queues for `peers_max` peers, with room for `per_peer` headers of each.
    pub fn new(peers_max: u32, per_peer: u32) -> Self {
        Self {
            headers: Slab::with_capacity((peers_max * per_peer) as usize),
            queues: vec![None; peers_max as usize].into(),
            peers: VecDeque::with_capacity(peers_max as usize),
        }
    }

    /// Returns whether headers of the peer wait.
    #[inline]
    pub fn any_of(&self, peer: PeerId) -> bool {
        // Usually nothing waits for anybody, and no other memory is read.
        !self.peers.is_empty() && self.queues[peer.0 as usize].is_some()
    }

    /// Puts a header behind those of its peer that wait.
    #[cold]
    pub fn push(&mut self, peer: PeerId, qp: Qp, header: &HeaderBytes, reply: Option<Reply>) {
        let key = self.headers.insert(Waiting { qp, header: *header, reply, next: None });
        match &mut self.queues[peer.0 as usize] {
            Some(queue) => {
                self.headers[std::mem::replace(&mut queue.last, key)].next = Some(key);
            }
            queue => {
                *queue = Some(Queue { first: key, last: key });
                self.peers.push_back(peer);
            }
        }
    }

    /// Calls `post` for waiting headers, those of one peer in their order, until the NIC has no room for that
    /// peer. Returns whether any header left its queue.
    #[inline]
    pub fn retry(&mut self, post: impl FnMut(PeerId, Qp, &HeaderBytes, Option<Reply>) -> Posted) -> bool {
        !self.peers.is_empty() && self.retry_some(post)
    }

    #[cold]
    fn retry_some(
        &mut self,
        mut post: impl FnMut(PeerId, Qp, &HeaderBytes, Option<Reply>) -> Posted,
    ) -> bool {
        let mut any = false;
        for _ in 0..self.peers.len().min(PEERS_PER_TURN) {
            let peer = self.peers.pop_front().expect("it was counted");
            let queue = &mut self.queues[peer.0 as usize];
            let mut next = queue.map(|queue| queue.first);
            while let Some(key) = next {
                let waiting = &self.headers[key];
                if post(peer, waiting.qp, &waiting.header, waiting.reply) == Posted::NoRoom {
                    break;
                }
                any = true;
                next = self.headers.remove(key).next;
            }
            match (next, queue.as_mut()) {
                (Some(first), Some(queue)) => {
                    queue.first = first;
                    self.peers.push_back(peer);
                }
                _ => *queue = None,
            }
        }
        any
    }

    /// Returns whether headers of any peer wait.
    pub fn any(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Returns whether headers of a peer wait for whom `is_idle` holds.
    pub fn any_for(&self, is_idle: impl Fn(PeerId) -> bool) -> bool {
        self.peers.iter().any(|&peer| is_idle(peer))
    }

    /// Drops the waiting headers of a peer whose connection is over.
    pub fn drop_of(&mut self, peer: PeerId) {
        let Some(queue) = self.queues[peer.0 as usize].take() else { return };
        let mut next = Some(queue.first);
        while let Some(key) = next {
            next = self.headers.remove(key).next;
        }
        self.peers.retain(|&waiting| waiting != peer);
    }
}
