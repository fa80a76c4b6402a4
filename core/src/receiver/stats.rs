//! Statistics of the receiver.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{PeerId, SessionId};
use crate::index::NONE;
use crate::stats::{EscapeStats, PeerStats, QuarantineStats, SessionStats, Stats};

impl<P: GrantPolicy> Receiver<P> {
    /// Returns the counters, and the current state of the receiver.
    pub fn stats(&self) -> Stats {
        Stats {
            pool_slabs: self.pool.total(),
            free_slabs: self.pool.free(),
            posted_slabs: self.srq.posted(),
            small_held_slabs: self.small_held_slabs(),
            read_slabs: self.pool.read_used(),
            quarantined_slabs: self.pool.quarantined(),
            retired_slabs: self.pool.retired_unused().0,
            srq_limit_slabs: self.pool.srq_limit(),
            high_water_slabs: self.pool.high_water(),
            line_moves: self.pool.line_moves(),
            reads_in_flight: self.reads.in_use(),
            in_flight_bytes: self.admission.in_flight_bytes(),
            checks_in_flight: self.checks.under_way(),
            checked_bytes: self.checks.checked_bytes(),
            footprint_window_bytes: self.admission.window_bytes(),
            waiting: self.admission.waiting(),
            running: self.admission.running(),
            reads_wait_for: self.admission.waits_for(),
            messages: u32::try_from(self.messages.in_use()).unwrap_or(NONE),
            peers: self.registry.joined(),
            reply_slots_used: self.replies.used(),
            sends_left: self.outbox.sends_left(),
            credit: self.credit.total(),
            credit_lapses: self.credit.lapses(),
            sessions: self.registry.open_count(),
            delivered_bytes: self.stats.delivered_bytes + self.delivery.delivered_bytes(),
            pressure: self.read_pressure(),
            escape: EscapeStats {
                stalled_ns: self.stalled_ns,
                suspended_sessions: self.suspended_sessions(),
                ..self.escape.stats(&self.pool)
            },
            ..self.stats
        }
    }

    fn suspended_sessions(&self) -> u32 {
        let is_suspended =
            |&session: &u32| self.registry.is_open(session) && self.admission.is_suspended(session);
        u32::try_from(self.registry.numbers().filter(is_suspended).count()).unwrap_or(NONE)
    }

    /// Restarts the high-water marks.
    pub fn reset_high_water(&mut self) {
        self.pool.reset_high_water();
        self.stats.reads_high_water = self.reads.in_use();
    }

    /// Returns the statistics of a session; `None` if it is not open.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        let registration = self.registry.registration(session.0)?;
        let session = session.0;
        let (now, so_far) = (self.escape.escaped(session), self.escape.escaped_so_far(session));
        let delivered = self.delivery.delivered(session);
        Some(SessionStats {
            app: registration.name,
            class: registration.class,
            held_slabs: self.escape.held_slabs(session),
            requests: self.admission.requests_of_session(session),
            standstill: self.standstills.stats(session),
            delivered_messages: delivered.messages,
            delivered_bytes: delivered.bytes,
            bytes_per_ms: self.releases.bytes_per_ms(session),
            post_nic_ns: self.releases.post_nic_ns(session),
            post_nic_quantiles_ns: self.releases.post_nic_quantiles_ns(session),
            backlog: self.delivery.backlog(session),
            straggler_slabs: self.escape.straggler_slabs(session),
            replaced_slabs: now.replaced,
            copied_slabs: now.copied,
            memory_slabs: now.memory(),
            replaced_total: so_far.replaced,
            copied_total: so_far.copied,
            spilled_total: so_far.spilled,
            slow: self.escape.is_slow(session),
            suspended: self.admission.is_suspended(session),
            takes_memory: registration.takes_memory,
            shares_name: registration.shares_name,
            senders: self.registry.senders_of(session),
        })
    }

    /// Returns the statistics of an ended session whose slabs are in quarantine; `None` if it has none.
    pub fn quarantine_stats(&self, session: SessionId) -> Option<QuarantineStats> {
        self.quarantine.stats(session.0)
    }

    /// Returns the statistics of a sender; `None` if it is not connected.
    pub fn peer_stats(&self, now_ns: u64, peer: PeerId) -> Option<PeerStats> {
        let peer = peer.0;
        if peer >= self.config.peers_max || !self.outbox.is_connected(peer) {
            return None;
        }
        let stall_free_ns = self.stall_free_ns(now_ns);
        let of_peer = self.reads.in_flight().filter(|read| self.messages[read.message].peer == peer);
        let ages_ns = of_peer.map(|read| stall_free_ns.saturating_sub(read.posted_ns));
        Some(PeerStats {
            sender: self.registry.identity(peer),
            app: self.registry.app_of(peer)?,
            session: self.registry.session_of(peer).map(SessionId),
            arrived: self.credit.arrived(peer),
            credit: self.credit.outstanding(peer),
            unfinished: self.outbox.unfinished(peer),
            requests: self.admission.requests(peer),
            share: self.admission.share(peer, stall_free_ns),
            oldest_read_ns: ages_ns.max().unwrap_or(0),
        })
    }
}
