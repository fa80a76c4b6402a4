//! Arrival and loss of senders.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::config::Checksums;
use crate::effects::{Effects, PeerId, SourceId};
use crate::index::NONE;
use crate::messages::MessageState;
use jet_wire::message::hello::{Hello, Refusal, Welcome, features};
use jet_wire::message::{AckStatus, ByeReason, FIRST_VERSION, Versions};
use jet_wire::planted;

/// Senders that are leaving at once, at most, because they were idle and others wanted their places.
const LEAVING_MAX: u32 = 16;

/// A sender that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Index of the sender.
    pub peer: PeerId,
    /// The answer to the sender's hello.
    pub welcome: Welcome,
}

impl<P: GrantPolicy> Receiver<P> {
    /// Handles a sender that asks to connect, and lets it in if it may. Its connection counts from this call;
    /// if the connection fails, call [`Self::handle_peer_lost`]. Before [`Self::handle_connected`] nothing
    /// but a farewell is sent to it.
    ///
    /// Where there are as many senders as there may be, one is asked to leave, so that the next attempt finds
    /// a place: the one that has been idle for longest, of sources that have no fewer places than this one.
    /// Where none is idle, a source that has more gives one up.
    ///
    /// # Errors
    /// [`Refusal`] is the answer to send.
    pub fn handle_hello(
        &mut self,
        now_ns: u64,
        hello: &Hello,
        source: SourceId,
        effects: &mut impl Effects,
    ) -> Result<Joined, Refusal> {
        self.outbox.set_turn_time(self.turn_time(now_ns));
        let supported = Versions::SUPPORTED;
        let version = supported.agree(hello.versions).ok_or(Refusal::Version(supported))?;
        if self.draining {
            return Err(Refusal::Draining);
        }
        let mut joined = self.join(now_ns, hello, source);
        if joined.is_none() {
            // Peers that are gone make room for others.
            self.forget_lost_peers(effects);
            joined = self.join(now_ns, hello, source);
        }
        let Some(peer) = joined else {
            self.make_room_for(now_ns, source, effects);
            return Err(Refusal::TooManyPeers);
        };
        // A sender that claims no receive entries posts some all the same: nothing could ever be sent to it
        // otherwise.
        let sends_max = self.config.control_sends_max.min(u32::from(hello.receive_entries)).max(1);
        let checks = if self.config.checksums == Checksums::Off { 0 } else { features::CRC32C };
        // A reason lies in bytes that the first version refuses.
        let reasons = if version == FIRST_VERSION { 0 } else { features::WAITS_FOR };
        let has_replies = version > FIRST_VERSION && self.replies.are_offered();
        let replies = if has_replies { features::REPLIES } else { 0 };
        let cancel = if version == FIRST_VERSION { 0 } else { features::CANCEL };
        let gather = if version == FIRST_VERSION { 0 } else { features::GATHER };
        // What is pushed is the NIC's affair: the receiver READs in any case.
        let push = if version == FIRST_VERSION { 0 } else { features::PUSH };
        let offered = features::CONGESTION | checks | reasons | replies | cancel | gather | push;
        let agreed = hello.features & offered;
        self.outbox.join(peer, sends_max, agreed, version);
        self.admission.join(now_ns, peer);
        self.admission.hear();
        let room = self.credit_room();
        let credit_limit = self.credit.open(peer, room);
        let welcome = Welcome {
            versions: supported.announced_to(hello.versions),
            features: agreed,
            incarnation: self.incarnation,
            credit_limit,
            message_bytes_max: self.config.message_bytes_max,
            requests_max: self.config.requests_per_peer,
            heartbeat_ms: u16::try_from(self.config.heartbeat_ns / 1_000_000).unwrap_or(u16::MAX),
        };
        Ok(Joined { peer: PeerId(peer), welcome })
    }

    /// Gives a sender a place, where there is one for its source.
    fn join(&mut self, now_ns: u64, hello: &Hello, source: SourceId) -> Option<u32> {
        let free = self.config.peers_max - self.registry.joined();
        if self.places.are_kept_from(source, free, LEAVING_MAX, now_ns) {
            return None;
        }
        let peer = self.registry.join(hello.app, hello.sender_id)?;
        self.places.join(peer, source);
        self.replies.join(peer, source, hello.app);
        Some(peer)
    }

    /// Asks a sender to leave, for one of a source that was refused a place.
    fn make_room_for(&mut self, now_ns: u64, source: SourceId, effects: &mut impl Effects) {
        let has = self.places.of(source);
        let most = self.places.refuse(source, now_ns);
        // Who comes again and again empties no more places than that.
        if self.outbox.leaving() >= LEAVING_MAX {
            return;
        }
        let places = &self.places;
        let idle = self.outbox.longest_idle(now_ns, |peer| places.of_source_of(peer) >= has);
        let leaves = idle.or_else(|| {
            // One at a time: its senders have messages under way.
            let most = most.filter(|_| self.outbox.leaving() == 0)?;
            self.outbox.longest_quiet(|peer| places.of_source_of(peer) == most)
        });
        if let Some(peer) = leaves {
            self.expel(peer, ByeReason::Draining, effects);
        }
    }

    /// Handles a connection that is established: the peer may be sent something. `reads_max`: how many READs
    /// the connection takes at once, as its two NICs agreed. Further READs wait in admission.
    pub fn handle_connected(&mut self, peer: PeerId, reads_max: u32) {
        let reads_max = if planted!(DepthIsDeath) { 1000 } else { reads_max };
        self.admission.set_reads_max(peer.0, reads_max);
        self.outbox.mark_established(peer.0);
    }

    /// Handles the loss of a connection. All its work requests must have been answered before. The slabs of
    /// its messages come back with the next flush, which looks once for the messages of all peers lost until
    /// then: a rack that fails takes a thousand peers at once.
    pub fn handle_peer_lost(&mut self, peer: PeerId) {
        if self.outbox.lose(peer.0) {
            debug_assert_eq!(self.admission.reads(peer.0), 0, "every READ was answered before");
            self.lost.push(peer.0);
        }
    }

    /// Ends the messages of peers that are gone, and frees the peers' indices.
    #[inline]
    pub(super) fn forget_lost_peers(&mut self, effects: &mut impl Effects) {
        if !self.lost.is_empty() {
            self.forget_lost(effects);
        }
    }

    #[cold]
    fn forget_lost(&mut self, effects: &mut impl Effects) {
        self.credit.close(&self.lost);
        for &peer in &self.lost {
            let replies = &mut self.replies;
            self.outbox.drop_ends(peer, &mut self.messages, |message| replies.forget(peer, message));
            self.replies.lose(peer);
        }
        for message in self.messages.indices() {
            let record = &self.messages[message];
            if record.state != MessageState::Free && record.peer != NONE && self.outbox.is_lost(record.peer) {
                self.end_message_of_lost(message, effects);
            }
        }
        self.outbox.forget(&self.lost);
        for peer in self.lost.drain(..) {
            self.registry.leave(peer);
            self.places.leave(peer);
            self.replies.leave(peer);
        }
    }

    /// Ends a message whose peer is gone, unless it came or has its end already.
    fn end_message_of_lost(&mut self, message: u32, effects: &mut impl Effects) {
        let record = &self.messages[message];
        let record_peer = record.peer;
        let came = record.arrived == record.length || matches!(record.state, MessageState::Backlogged { .. });
        let goes_on = record.is_decided() || came;
        if !goes_on {
            self.unlink(message);
        }
        // READs of it may be under check: they are no business of admission any more.
        self.admission.leave_running(message, &mut self.messages);
        self.replies.forget(record_peer, message);
        self.messages.forget_sender(message);
        if goes_on {
            self.settle(message);
        } else {
            self.withdraw(message, false, effects);
            self.fail(message, AckStatus::PeerLost);
        }
    }
}
