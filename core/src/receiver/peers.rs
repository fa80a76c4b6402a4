//! Senders come and go.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::config::Checksums;
use crate::effects::{Effects, PeerId};
use crate::message::{MessageList, NONE, State};
use crate::peer::Peer;
use jet_wire::message::hello::{Hello, Refusal, Welcome, features};
use jet_wire::message::{AckStatus, ByeHeader, ByeReason};

/// A sender was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Who it is from now on.
    pub peer: PeerId,
    /// What to answer it.
    pub welcome: Welcome,
}

impl<P: GrantPolicy> Receiver<P> {
    /// A sender asks to connect. Its connection counts from now on; if it fails, [`Self::handle_peer_lost`] it. Nothing is
    /// sent to it but a farewell before [`Self::handle_connected`].
    ///
    /// # Errors
    /// The [`Refusal`] to answer.
    pub fn handle_hello(&mut self, hello: &Hello) -> Result<Joined, Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        let peer = self.free_peers.pop().ok_or(Refusal::TooManyPeers)?;
        let Some(app) = self.use_app(hello.app) else {
            self.free_peers.push(peer);
            return Err(Refusal::TooManyPeers);
        };
        let signals = hello.features & features::CONGESTION != 0;
        self.peers[peer as usize] = Peer {
            connected: true,
            signals,
            sender: hello.sender_id,
            app,
            // A sender that says it has none posts some all the same: nothing could ever be said to it otherwise.
            sends_max: self.config.control_sends_max.min(u32::from(hello.receive_entries)).max(1),
            spoken_ns: self.flushed_ns,
            spoken_attended_ns: self.flushed_attended_ns,
            ..Peer::GONE
        };
        let credit_limit = self.first_credit(peer);
        let checks = if self.config.checksums == Checksums::Off { 0 } else { features::CRC32C };
        let welcome = Welcome {
            features: hello.features & (features::CONGESTION | checks),
            incarnation: self.incarnation,
            credit_limit,
            message_bytes_max: self.config.message_bytes_max,
            requests_max: self.config.requests_per_peer,
            heartbeat_ms: u16::try_from(self.config.heartbeat_ns / 1_000_000).unwrap_or(u16::MAX),
        };
        Ok(Joined { peer: PeerId(peer), welcome })
    }

    /// Its connection stands: it may be spoken to. `reads_max`: READs that the connection takes at once, as its two NICs agreed;
    /// what is beyond waits here.
    pub fn handle_connected(&mut self, peer: PeerId, reads_max: u32) {
        let record = &mut self.peers[peer.0 as usize];
        record.stands = true;
        record.reads_max = reads_max;
        self.mark_dirty(peer.0);
    }

    /// The connection is gone; all its work requests were answered before. What its messages hold comes back.
    pub fn handle_peer_lost(&mut self, peer: PeerId, effects: &mut impl Effects) {
        let index = peer.0;
        if !self.peers[index as usize].connected {
            return;
        }
        debug_assert_eq!(self.peers[index as usize].reads, 0, "every READ was answered before");
        self.drop_credit(index);
        // Ends that nobody will hear any more.
        let mut overflow = core::mem::replace(&mut self.peers[index as usize].overflow, MessageList::EMPTY);
        while let Some(message) = overflow.pop(&self.messages) {
            self.messages[message].acked = true;
            self.messages[message].peer = NONE;
            self.free_if_settled(message);
        }
        for message in self.messages.indices() {
            let record = &self.messages[message];
            if record.state == State::Free || record.peer != index {
                continue;
            }
            let complete =
                record.arrived == record.length || record.state == State::Backlogged || record.ended;
            self.messages[message].peer = NONE;
            if complete || self.messages[message].finished || self.messages[message].failure.is_some() {
                self.settle(message);
                continue;
            }
            self.unlink(message);
            self.withdraw(message, false, effects);
            self.fail(message, AckStatus::PeerLost);
        }
        let app = self.peers[index as usize].app;
        self.peers[index as usize] = Peer::GONE;
        self.dirty_peers.retain(|&dirty| dirty != index);
        self.hungry_peers.retain(|&hungry| hungry != index);
        self.barred_peers.retain(|&barred| barred != index);
        self.active_peers.retain(|&active| active != index);
        self.drop_app(app);
        self.free_peers.push(index);
    }

    /// Says farewell and ends the connection; the driver reports the loss.
    pub(super) fn expel(&mut self, peer: u32, reason: ByeReason, effects: &mut impl Effects) {
        let record = &mut self.peers[peer as usize];
        if record.leaving || !record.connected {
            return;
        }
        record.leaving = true;
        self.stats.peer_faults += u64::from(!matches!(reason, ByeReason::Draining | ByeReason::Unresponsive));
        self.stats.unresponsive_peers += u64::from(reason == ByeReason::Unresponsive);
        effects.send(PeerId(peer), &ByeHeader::encode(reason));
        effects.disconnect(PeerId(peer));
    }

    /// Says farewell to every peer, at the end of a drain.
    pub fn disconnect_all(&mut self, effects: &mut impl Effects) {
        for peer in 0..self.config.peers_max {
            self.expel(peer, ByeReason::Draining, effects);
        }
    }
}
