//! The queue pairs of the senders.

use jet_core::PeerId;
use jet_fabric::nic::Qp;
use jet_wire::message::hello::AppName;

/// A peer's queue pair, and the SENDs that were posted to it and have not completed.
#[derive(Clone, Copy, Debug, Default)]
struct Bound {
    qp: Option<Qp>,
    sends: u32,
}

/// Peers and their queue pairs.
pub(crate) struct Peers {
    bound: Box<[Bound]>,
    /// Application to which a bound peer sends.
    applications: Box<[Option<AppName>]>,
    /// Peer by the QP's index, with the QP's generation.
    peers: Box<[Option<(u32, PeerId)>]>,
}

impl Peers {
    /// Makes a table without bound queue pairs.
    pub fn new(peers_max: u32, qps_max: u32) -> Self {
        Self {
            bound: vec![Bound::default(); peers_max as usize].into(),
            applications: vec![None; peers_max as usize].into(),
            peers: vec![None; qps_max as usize].into(),
        }
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
        self.bound[peer.0 as usize].qp
    }

    /// Counts a SEND to the peer that was posted.
    #[inline]
    pub fn send_posted(&mut self, peer: PeerId) {
        self.bound[peer.0 as usize].sends += 1;
    }

    /// Counts a SEND to the peer that completed.
    #[inline]
    pub fn send_completed(&mut self, peer: PeerId) {
        let sends = &mut self.bound[peer.0 as usize].sends;
        debug_assert!(*sends > 0, "a SEND completes once");
        *sends = sends.saturating_sub(1);
    }

    /// Returns how many SENDs to the peer are under way.
    pub fn sends(&self, peer: PeerId) -> u32 {
        self.bound[peer.0 as usize].sends
    }

    /// Returns the name of the application to which a peer sends; none before the
    /// first peer of that number.
    pub fn application(&self, peer: PeerId) -> Option<&str> {
        self.applications[peer.0 as usize].as_ref().map(AppName::as_str)
    }

    /// Binds a QP to a peer that sends to an application.
    pub fn bind(&mut self, qp: Qp, peer: PeerId, application: AppName) {
        self.applications[peer.0 as usize] = Some(application);
        self.peers[qp.index as usize] = Some((qp.generation, peer));
        self.bound[peer.0 as usize] = Bound { qp: Some(qp), sends: 0 };
    }

    /// Unbinds a QP that is gone, and returns its peer. The peer's application stays until the next peer.
    pub fn unbind(&mut self, qp: Qp) -> Option<PeerId> {
        let peer = self.peer(qp)?;
        self.peers[qp.index as usize] = None;
        self.bound[peer.0 as usize].qp = None;
        Some(peer)
    }

    /// Returns the number of peers that are bound to a QP.
    pub fn bound(&self) -> usize {
        self.bound.iter().filter(|bound| bound.qp.is_some()).count()
    }
}
