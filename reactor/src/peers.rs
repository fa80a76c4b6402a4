//! The queue pairs of the senders.

use jet_core::PeerId;
use jet_fabric::nic::Qp;

/// Peers and their queue pairs.
pub(crate) struct Peers {
    qps: Box<[Option<Qp>]>,
    /// Peer by the QP's index, with the QP's generation.
    peers: Box<[Option<(u32, PeerId)>]>,
}

impl Peers {
    /// Makes a table without bound queue pairs.
    pub fn new(peers_max: u32, qps_max: u32) -> Self {
        Self { qps: vec![None; peers_max as usize].into(), peers: vec![None; qps_max as usize].into() }
    }

    /// Returns the peer of a QP.
    #[inline]
    pub fn peer(&self, qp: Qp) -> Option<PeerId> {
        let (generation, peer) = (*self.peers.get(qp.index as usize)?)?;
        (generation == qp.generation).then_some(peer)
    }

    /// Returns the QP of a peer.
    #[inline]
    pub fn qp(&self, peer: PeerId) -> Option<Qp> {
        self.qps[peer.0 as usize]
    }

    /// Binds a QP to a peer.
    pub fn bind(&mut self, qp: Qp, peer: PeerId) {
        self.peers[qp.index as usize] = Some((qp.generation, peer));
        self.qps[peer.0 as usize] = Some(qp);
    }

    /// Unbinds a QP that is gone, and returns its peer.
    pub fn unbind(&mut self, qp: Qp) -> Option<PeerId> {
        let peer = self.peer(qp)?;
        self.peers[qp.index as usize] = None;
        self.qps[peer.0 as usize] = None;
        Some(peer)
    }

    /// Returns the number of peers that are bound to a QP.
    pub fn bound(&self) -> usize {
        self.qps.iter().flatten().count()
    }
}
