//! Senders come and go.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::config::Checksums;
use crate::effects::{Effects, PeerId};
use crate::messages::Life;
use jet_wire::message::hello::{Hello, Refusal, Welcome, features};
use jet_wire::message::{AckStatus, Versions};

/// A sender was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Who it is from now on.
    pub peer: PeerId,
    /// What to answer it.
    pub welcome: Welcome,
}

impl<P: GrantPolicy> Receiver<P> {
    /// A sender asks to connect. Its connection counts from now on; if it fails, [`Self::handle_peer_lost`]
    /// it. Nothing is sent to it but a farewell before [`Self::handle_connected`].
    ///
    /// # Errors
    /// The [`Refusal`] to answer.
    pub fn handle_hello(&mut self, hello: &Hello) -> Result<Joined, Refusal> {
        let spoken = Versions::SPOKEN;
        let version = spoken.agree(hello.versions).ok_or(Refusal::Version(spoken))?;
        if self.draining {
            return Err(Refusal::Draining);
        }
        let peer = self.registry.join(hello.app, hello.sender_id).ok_or(Refusal::TooManyPeers)?;
        // A sender that says it has none posts some all the same: nothing could ever be said to it otherwise.
        let sends_max = self.config.control_sends_max.min(u32::from(hello.receive_entries)).max(1);
        self.ends.join(peer, sends_max, hello.features & features::CONGESTION != 0, version);
        self.admission.join(peer);
        let room = self.credit_room();
        let credit_limit = self.credit.open(peer, room);
        let checks = if self.config.checksums == Checksums::Off { 0 } else { features::CRC32C };
        let welcome = Welcome {
            versions: spoken.told_to(hello.versions),
            features: hello.features & (features::CONGESTION | checks),
            incarnation: self.incarnation,
            credit_limit,
            message_bytes_max: self.config.message_bytes_max,
            requests_max: self.config.requests_per_peer,
            heartbeat_ms: u16::try_from(self.config.heartbeat_ns / 1_000_000).unwrap_or(u16::MAX),
        };
        Ok(Joined { peer: PeerId(peer), welcome })
    }

    /// Its connection stands: it may be spoken to. `reads_max`: READs that the connection takes at once, as
    /// its two NICs agreed; what is beyond waits here.
    pub fn handle_connected(&mut self, peer: PeerId, reads_max: u32) {
        self.admission.set_reads_max(peer.0, reads_max);
        self.ends.stand(peer.0);
    }

    /// The connection is gone; all its work requests were answered before. What its messages hold comes back.
    pub fn handle_peer_lost(&mut self, peer: PeerId, effects: &mut impl Effects) {
        let index = peer.0;
        if !self.ends.is_connected(index) {
            return;
        }
        debug_assert_eq!(self.admission.reads(index), 0, "every READ was answered before");
        self.credit.close(index);
        self.ends.lose(index, &mut self.messages);
        for message in self.messages.indices() {
            let record = &self.messages[message];
            if record.life == Life::Free || record.peer != index {
                continue;
            }
            let is_decided = record.life.has_failed() || record.life.is_over() || record.reader.is_finished();
            let came = record.arrived == record.length || matches!(record.life, Life::Backlogged { .. });
            self.messages.forget_sender(message);
            if is_decided || came {
                self.settle(message);
                continue;
            }
            self.unlink(message);
            self.delivery.withdraw(message, false, &mut self.messages, effects);
            self.fail(message, AckStatus::PeerLost);
        }
        self.ends.forget(index);
        self.registry.leave(index);
    }
}
