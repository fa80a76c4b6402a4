//! The receiver: its state, its clockwork, and what is told about it. Each input has a file of its own.

mod arrival;
mod bar;
mod check;
mod escape;
mod grant;
mod order;
mod peers;
mod poison;
mod release;
mod sessions;
mod settle;
mod speech;
mod standstill;

pub use arrival::Arrival;
pub use peers::Joined;
pub use release::ReleaseError;
pub use sessions::OpenError;
pub(crate) use standstill::Stillness;

use crate::admission::{GrantPolicy, StrictWithAging};
use crate::config::{CLASSES_MAX, Config, ConfigError};
use crate::credit::Credit;
use crate::effects::{Copy, Effects, PeerId, SessionId};
use crate::ends::{Ends, Moment};
use crate::footprint::Footprint;
use crate::message::{MessageList, Messages, NONE, State};
use crate::peer::Peer;
use crate::pool::Pool;
use crate::quarantine::Quarantine;
use crate::read::Reads;
use crate::registry::Registry;
use crate::session::Session;
use crate::srq::Srq;
use crate::stats::{EscapeStats, PeerStats, SessionStats, Stats};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use escape::MemoryMeter;
use jet_escape::Escape;

/// Work of one class: messages that wait, and those that are being read.
#[derive(Clone, Copy, Debug)]
struct ClassQueue {
    waiting: MessageList,
    running: MessageList,
}

impl ClassQueue {
    const EMPTY: Self = Self { waiting: MessageList::EMPTY, running: MessageList::EMPTY };

    /// What its turn is about: what runs, else what waits.
    fn head(&self) -> Option<u32> {
        self.running.head().or_else(|| self.waiting.head())
    }
}

/// The receiver on a host, as a state machine. See the crate's text for the order of calls.
#[derive(Debug)]
pub struct Receiver<P: GrantPolicy = StrictWithAging> {
    config: Config,
    policy: P,
    incarnation: u64,
    pool: Pool,
    messages: Messages,
    reads: Reads,
    registry: Registry,
    ends: Ends,
    credit: Credit,
    quarantine: Quarantine,
    peers: Box<[Peer]>,
    sessions: Box<[Session]>,
    queues: [ClassQueue; CLASSES_MAX],
    running: u32,
    footprint_bytes: u64,
    in_flight_bytes: u64,
    /// How much of the READ share may be in use, where that follows the load.
    following: Option<Footprint>,
    /// Slabs that stragglers held when they were counted last.
    straggler_slabs: u32,
    srq: Srq,
    draining: bool,
    last_tick_ns: u64,
    /// For how long altogether nobody called.
    stalled_ns: u64,
    stats: Stats,
    escape: Escape,
    next_evaluation_ns: u64,
    copies: Box<[Option<Copy>]>,
    free_copies: Vec<u32>,
    /// READs that are being checked elsewhere.
    checks: u32,
    meter: MemoryMeter,
    /// The NIC marks earlier than it usually does.
    marking: bool,
    /// Where among the active senders the last congestion signal went.
    signal_cursor: usize,
    /// Sessions that are barred, or have parked messages left.
    reviewed_sessions: Vec<u32>,
    /// A session is barred because the pool has no room for what waits: pressure, however many slabs are posted.
    waits_for_room: bool,
}

/// The time less that in which nobody called: see [`Receiver::handle_stall`].
#[inline]
fn attended_ns(now_ns: u64, stalled_ns: u64) -> u64 {
    now_ns.saturating_sub(stalled_ns)
}

impl Receiver<StrictWithAging> {
    /// A receiver with strict priority between classes and an aging bound. `incarnation` tells this start from others.
    ///
    /// # Errors
    /// [`ConfigError`] names the number that does not fit.
    pub fn new(config: Config, incarnation: u64) -> Result<Self, ConfigError> {
        Self::with_policy(config, incarnation, StrictWithAging { aging_ns: config.aging_ns })
    }
}

impl<P: GrantPolicy> Receiver<P> {
    /// A receiver whose grants another policy decides.
    ///
    /// # Errors
    /// [`ConfigError`] names the number that does not fit.
    pub fn with_policy(config: Config, incarnation: u64, policy: P) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            policy,
            incarnation,
            pool: Pool::new(
                config.pool_slabs,
                config.srq_slabs,
                config.srq_floor_slabs,
                config.escape_shape(),
            )
            .with_read_floor(if config.escape.enabled {
                config.fragment_bytes / jet_wire::SLAB_BYTES_U32
            } else {
                0
            }),
            messages: Messages::new(config.messages_max),
            reads: Reads::new(config.reads_max),
            registry: Registry::new(config.peers_max, config.sessions_max),
            ends: Ends::new(config.peers_max, config.heartbeat_ns),
            credit: Credit::new(config.peers_max, config.credit_max),
            quarantine: Quarantine::new(config.sessions_max, config.quarantine_ns),
            peers: vec![Peer::default(); config.peers_max as usize].into_boxed_slice(),
            sessions: (0..config.sessions_max)
                .map(|_| Session::new(config.session_slots, config.session_messages))
                .collect(),
            queues: [ClassQueue::EMPTY; CLASSES_MAX],
            running: 0,
            footprint_bytes: 0,
            in_flight_bytes: 0,
            following: config.footprint_follows.then(|| {
                let least = 2 * u64::from(config.fragment_bytes);
                Footprint::new(least, u64::from(config.pool_slabs) * jet_wire::SLAB_BYTES as u64)
            }),
            straggler_slabs: 0,
            srq: Srq::new(config.srq_slabs, config.srq_floor_slabs),
            draining: false,
            last_tick_ns: 0,
            stalled_ns: 0,
            stats: Stats::default(),
            escape: Escape::new(config.escape, config.sessions_max, config.session_slots),
            next_evaluation_ns: 0,
            copies: vec![None; config.copies_max as usize].into_boxed_slice(),
            free_copies: (0..config.copies_max).rev().collect(),
            checks: 0,
            meter: MemoryMeter::default(),
            marking: false,
            signal_cursor: 0,
            reviewed_sessions: Vec::with_capacity(config.sessions_max as usize),
            waits_for_room: false,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Posts the first SRQ entries.
    pub fn start(&mut self, now_ns: u64, effects: &mut impl Effects) {
        self.last_tick_ns = now_ns;
        self.top_up(effects);
    }

    /// After a batch of inputs: grants READs, gives credit, sends what is due, tops up the SRQ.
    pub fn flush(&mut self, now_ns: u64, effects: &mut impl Effects) {
        self.ends.set_moment(Moment { now_ns, attended_ns: self.attended_ns(now_ns) });
        self.relieve(now_ns, effects);
        if !self.reviewed_sessions.is_empty() {
            self.review_sessions(now_ns);
        }
        if self.running > 0 || self.has_waiting() {
            self.grant(now_ns, effects);
        }
        if let Some(following) = &mut self.following {
            // What is parked with its session is left to read, too.
            let hungry =
                !self.reviewed_sessions.is_empty() || self.queues.iter().any(|queue| queue.head().is_some());
            following.look(now_ns, hungry);
        }
        self.speak(effects);
        self.top_up(effects);
    }

    /// When [`Self::handle_tick`] is due: `None` while nothing changes with time.
    pub fn next_tick_ns(&self) -> Option<u64> {
        let restless = self.credit.total() > 0
            || self.messages.in_use() > 0
            // What a process may still read comes back when it lets go: no tick sees that.
            || self.quarantine.passes()
            || self.registry.numbers().any(|session| self.registry.is_open(session) && self.sessions[session as usize].bytes_per_ms > 0);
        let tick_ns = restless.then(|| self.last_tick_ns + self.config.tick_ns);
        [tick_ns, self.next_idle_evaluation_ns()].into_iter().flatten().min()
    }

    /// The driver calls later than it was to: it, or all of the machine, stood still for so long. What applications hold did not
    /// grow older meanwhile, for whether they gave something back, or could have, was not looked at. To be called before anything
    /// else of a turn, with no more than the time since the turn before.
    pub fn handle_stall(&mut self, span_ns: u64) {
        self.stalled_ns = self.stalled_ns.saturating_add(span_ns);
    }

    /// The clock by which applications hold what they hold: it stands still while nobody looks.
    #[inline]
    fn attended_ns(&self, now_ns: u64) -> u64 {
        attended_ns(now_ns, self.stalled_ns)
    }

    /// Whether a tick is due: cheap enough to ask at every turn.
    #[inline]
    pub fn next_tick_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_tick_ns) >= self.config.tick_ns
            || self.next_idle_evaluation_ns().is_some_and(|next_ns| now_ns >= next_ns)
    }

    /// Time passed: rates, ages, credit that is not used, quarantines that end. Call [`Self::flush`] afterwards.
    pub fn handle_tick(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let span_ns = now_ns.saturating_sub(self.last_tick_ns);
        if span_ns < self.config.tick_ns {
            return;
        }
        self.last_tick_ns = now_ns;
        let most_held_slabs = self.most_held_slabs();
        for session in 0..self.config.sessions_max {
            if self.registry.is_open(session) {
                self.sessions[session as usize].tick(span_ns);
                self.look_for_standstill(now_ns, session, most_held_slabs, effects);
            } else {
                self.look_at_quarantine(now_ns, session);
            }
        }
        self.decay_credit(effects);
        self.pool.restore_line();
        self.escape.count_stragglers(self.attended_ns(now_ns));
        if self.following.is_some() {
            let slabs = (0..self.config.sessions_max).map(|session| self.escape.straggler_slabs(session));
            self.straggler_slabs = slabs.sum();
        }
        self.meter.note(now_ns, self.pool.escape_used());
        self.credit.feed_barred();
        self.part_with_the_unresponsive(now_ns, effects);
        self.reassure(now_ns, effects);
    }

    /// From now on every new message is answered `Draining` and every new peer refused; what is known goes on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether every message has its end and every end is on its way.
    pub fn is_drained(&self) -> bool {
        self.reads.in_use() == 0
            && self
                .messages
                .indices()
                .all(|m| self.messages[m].state == State::Free || self.messages[m].acked)
            && self.ends.are_told()
    }

    fn has_waiting(&self) -> bool {
        self.queues.iter().any(|queue| queue.waiting.len() > 0)
    }

    /// Posts SRQ entries until there are as many as there is credit, and the reserve.
    fn top_up(&mut self, effects: &mut impl Effects) {
        let reserve = self.config.srq_reserve_entries;
        let wanted = u32::try_from(self.credit.total()).unwrap_or(NONE).saturating_add(reserve);
        let records = self.records_unreserved();
        self.srq.top_up(wanted.min(self.config.srq_slabs), records, &mut self.pool, effects);
    }

    /// The slab that was posted with an SRQ entry; `None`: it is not posted.
    pub fn slab_of(&self, entry: u32) -> Option<u32> {
        self.srq.slab_of(entry)
    }

    /// What was counted, and how things stand.
    pub fn stats(&self) -> Stats {
        let waiting = self.queues.iter().map(|queue| queue.waiting.len()).sum::<u32>() + self.parked();
        let free = self.pool.free();
        Stats {
            pool_slabs: self.pool.total(),
            free_slabs: free,
            posted_slabs: self.srq.posted(),
            small_held_slabs: self.small_held_slabs(),
            read_slabs: self.pool.read_used(),
            quarantined_slabs: self.pool.quarantined(),
            retired_slabs: self.pool.gone().0,
            srq_limit_slabs: self.pool.srq_limit(),
            high_water_slabs: self.pool.high_water(),
            line_moves: self.pool.line_moves(),
            reads_in_flight: self.reads.in_use(),
            in_flight_bytes: self.in_flight_bytes,
            checks_in_flight: self.checks,
            footprint_window_bytes: self.following.as_ref().map(Footprint::standing_bytes),
            waiting,
            running: self.running,
            messages: u32::try_from(self.messages.in_use()).unwrap_or(NONE),
            peers: self.registry.joined(),
            sessions: self.registry.open_count(),
            delivered_bytes: self.stats.delivered_bytes
                + self.sessions.iter().map(|session| session.delivered_bytes).sum::<u64>(),
            pressure: self.read_pressure(),
            escape: EscapeStats {
                enabled: self.config.escape.enabled,
                memory_slabs: self.pool.escape_slabs(),
                memory_ready: self.pool.escape_ready(),
                memory_used: self.pool.escape_used(),
                memory_used_max: self.pool.escape_used_max(),
                memory_retired: self.pool.gone().1,
                memory_used_slab_ms: self.meter.slab_ms(),
                replaced_now: self.pool.replaced(),
                copied_now: self.pool.copied(),
                straggler_ns: self.escape.straggler_ns(),
                stalled_ns: self.stalled_ns,
                granted_now: self.pool.granted(),
                copies_in_flight: self.config.copies_max - u32::try_from(self.free_copies.len()).unwrap_or(0),
                barred_sessions: self.barred(),
                ..self.stats.escape
            },
            ..self.stats
        }
    }

    /// Starts the high-water marks anew.
    pub fn reset_high_water(&mut self) {
        self.pool.reset_high_water();
        self.stats.reads_high_water = self.reads.in_use();
    }

    /// One session; `None` where it is not open.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        let registration = self.registry.registration(session.0)?;
        let record = &self.sessions[session.0 as usize];
        let quantile = |permille| record.post_nic.quantile_ns(permille);
        Some(SessionStats {
            app: registration.name,
            class: registration.class,
            held_slabs: self.held_slabs(session.0),
            standstill: self.standstill(session.0),
            delivered_messages: record.delivered_messages,
            delivered_bytes: record.delivered_bytes,
            bytes_per_ms: record.bytes_per_ms,
            post_nic_ns: record.post_nic_ns,
            post_nic_quantiles_ns: [quantile(500), quantile(990), quantile(999), record.post_nic.max_ns()],
            backlog: record.backlog.len(),
            straggler_slabs: self.escape.straggler_slabs(session.0),
            replaced_slabs: record.now.replaced,
            copied_slabs: record.now.copied,
            memory_slabs: record.now.memory(),
            replaced_total: record.escaped.replaced,
            copied_total: record.escaped.copied,
            granted_total: record.escaped.granted,
            slow: self.escape.is_slow(session.0),
            barred: record.barred,
            takes_memory: registration.takes_memory,
        })
    }

    /// One sender; `None` where it is not connected.
    pub fn peer_stats(&self, peer: PeerId) -> Option<PeerStats> {
        if peer.0 >= self.config.peers_max || !self.ends.is_connected(peer.0) {
            return None;
        }
        Some(PeerStats {
            sender: self.registry.identity(peer.0),
            app: self.registry.app_of(peer.0)?,
            arrived: self.credit.arrived(peer.0),
            credit: self.credit.outstanding(peer.0),
            unfinished: self.ends.unfinished(peer.0),
            reads_max: self.peers[peer.0 as usize].reads_max,
        })
    }
}

#[cfg(test)]
mod tests;
