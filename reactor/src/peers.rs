//! Which queue pair is which sender's.

use jet_core::PeerId;
use jet_fabric::nic::Qp;

/// Peers and their queue pairs.
pub(crate) struct Peers {
    qps: Box<[Option<Qp>]>,
    /// Peer by the QP's index, with the QP's generation.
    peers: Box<[Option<(u32, PeerId)>]>,
}

impl Peers {
    /// None is bound.
    pub fn new(peers_max: u32, qps_max: u32) -> Self {
        Self { qps: vec![None; peers_max as usize].into(), peers: vec![None; qps_max as usize].into() }
    }

    /// The peer of a QP.
    #[inline]
    pub fn peer(&self, qp: Qp) -> Option<PeerId> {
        let (generation, peer) = (*self.peers.get(qp.index as usize)?)?;
        (generation == qp.generation).then_some(peer)
    }

    /// The QP of a peer.
    #[inline]
    pub fn qp(&self, peer: PeerId) -> Option<Qp> {
        self.qps[peer.0 as usize]
    }

    /// From now on this QP is this peer.
    pub fn bind(&mut self, qp: Qp, peer: PeerId) {
        self.peers[qp.index as usize] = Some((qp.generation, peer));
        self.qps[peer.0 as usize] = Some(qp);
    }

    /// This QP is gone.
    pub fn unbind(&mut self, qp: Qp) -> Option<PeerId> {
        let peer = self.peer(qp)?;
        self.peers[qp.index as usize] = None;
        self.qps[peer.0 as usize] = None;
        Some(peer)
    }

    /// Peers that are bound to a QP.
    pub fn bound(&self) -> usize {
        self.qps.iter().flatten().count()
    }
}
