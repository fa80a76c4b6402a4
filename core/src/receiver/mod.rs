//! The receiver: it connects the mechanisms, none of which knows another, and passes the time to them. Each
//! kind of input has a file of its own. `small` and `large` show in order how a small and a large message are
//! handled.

#[macro_use]
mod view;

mod arrival;
mod cancel;
mod consumers;
mod escape_run;
mod heartbeats;
mod held_limits;
mod large;
mod peer_headers;
mod peers;
mod poison;
mod records;
mod release;
mod replies;
mod sessions;
mod settle;
mod small;
mod stats;

pub use arrival::Arrival;
pub use peers::Joined;
pub use sessions::OpenError;

use crate::admission::{Admission, GrantPolicy, Reserve, StrictWithAging};
use crate::checks::Checks;
use crate::config::{Config, ConfigError};
use crate::credit::Credit;
use crate::delivery::Delivery;
use crate::effects::Effects;
use crate::escape::Escape;
use crate::index::{IndexSet, NONE};
use crate::messages::{MessageState, Messages};
use crate::outbox::Outbox;
use crate::places::Places;
use crate::pool::Pool;
use crate::quarantine::Quarantine;
use crate::reads::Reads;
use crate::registry::Registry;
use crate::releases::Releases;
use crate::replies::Replies;
use crate::slots::Slots;
use crate::srq::Srq;
use crate::standstill::Standstills;
use crate::stats::Stats;
use crate::time::TurnTime;
use alloc::vec::Vec;

/// The receiver on a host, as a state machine. The crate's documentation has the order of calls.
#[derive(Debug)]
pub struct Receiver<P: GrantPolicy = StrictWithAging> {
    config: Config,
    incarnation: u64,
    draining: bool,
    last_tick_ns: u64,
    /// Nanoseconds altogether in which the driver did not call though a call was due.
    stalled_ns: u64,
    /// Position, in the list of active senders, of the last one checked for a congestion signal.
    signal_cursor: usize,
    stats: Stats,
    /// Peers that are gone, of which the next flush forgets what they leave behind.
    lost: Vec<u32>,
    pool: Pool,
    messages: Messages,
    slots: Slots,
    reads: Reads,
    srq: Srq,
    credit: Credit,
    outbox: Outbox,
    registry: Registry,
    delivery: Delivery,
    escape: Escape,
    releases: Releases,
    replies: Replies,
    admission: Admission<P>,
    checks: Checks,
    quarantine: Quarantine,
    standstills: Standstills,
    /// Sessions whose senders were refused credit since the last tick.
    refused_sessions: IndexSet,
    /// Sessions from which a message was withdrawn since the last flush while small ones wait there.
    withdrawn_from: Vec<u32>,
    places: Places,
}

/// Returns the time without the spans in which the driver did not call: see [`Receiver::handle_stall`].
#[inline]
fn stall_free_ns(now_ns: u64, stalled_ns: u64) -> u64 {
    now_ns.saturating_sub(stalled_ns)
}

impl Receiver<StrictWithAging> {
    /// Creates a receiver with strict priority between classes and an aging bound. `incarnation` tells this
    /// start of the daemon from others.
    ///
    /// # Errors
    /// [`ConfigError`] names the number that does not fit.
    pub fn new(config: Config, incarnation: u64) -> Result<Self, ConfigError> {
        Self::with_policy(config, incarnation, StrictWithAging { aging_ns: config.aging_ns })
    }
}

impl<P: GrantPolicy> Receiver<P> {
    /// Creates a receiver with another policy for grants.
    ///
    /// # Errors
    /// [`ConfigError`] names the number that does not fit.
    pub fn with_policy(config: Config, incarnation: u64, policy: P) -> Result<Self, ConfigError> {
        config.check()?;
        let (peers, sessions) = (config.peers_max, config.sessions_max);
        let read_floor = Reserve::of(&config).map_or(0, |reserve| reserve.read_floor(config.pool_slabs));
        Ok(Self {
            config,
            incarnation,
            draining: false,
            last_tick_ns: 0,
            stalled_ns: 0,
            signal_cursor: 0,
            stats: Stats::default(),
            lost: Vec::with_capacity(peers as usize),
            pool: Pool::new(
                config.pool_slabs,
                config.srq_slabs,
                config.srq_floor_slabs,
                config.escape_shape(),
            )
            .with_read_floor(read_floor),
            messages: Messages::new(config.messages_max),
            slots: Slots::new(sessions, config.session_slots),
            reads: Reads::new(config.reads_max),
            srq: Srq::new(config.srq_slabs, config.srq_floor_slabs),
            credit: Credit::new(peers, config.credit_max),
            outbox: Outbox::new(peers, config.sends_max, config.heartbeat_ns),
            registry: Registry::new(peers, sessions, config.name_kept_ns),
            delivery: Delivery::new(sessions, config.session_messages),
            escape: Escape::new(&config),
            releases: Releases::new(sessions),
            replies: Replies::new(
                config.reply_slots,
                config.replies_per_peer,
                (peers, sessions, config.messages_max),
            ),
            admission: Admission::new(&config, policy),
            checks: Checks::new(config.checksums),
            quarantine: Quarantine::new(sessions, config.quarantine_ns),
            standstills: Standstills::new(sessions),
            refused_sessions: IndexSet::new(sessions),
            withdrawn_from: Vec::with_capacity(sessions as usize),
            places: Places::new(config.peers_max),
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Posts the first SRQ entries.
    pub fn start(&mut self, now_ns: u64, effects: &mut impl Effects) {
        self.last_tick_ns = now_ns;
        self.top_up(effects);
    }

    /// Grants READs, gives credit, sends peers the headers that are due and tops up the SRQ. To be called
    /// after each batch of inputs.
    pub fn flush(&mut self, now_ns: u64, effects: &mut impl Effects) {
        self.forget_lost_peers(effects);
        if !self.withdrawn_from.is_empty() {
            self.deliver_after_withdrawals(now_ns, effects);
        }
        self.outbox.set_turn_time(self.turn_time(now_ns));
        self.run_escape(now_ns, effects);
        if self.admission.is_reviewing() {
            self.review(now_ns);
        }
        if self.admission.has_work() {
            self.grant(now_ns, effects);
        }
        self.admission.check_load(now_ns);
        self.send_headers(effects);
        self.top_up(effects);
    }

    /// Reviews the suspended sessions. Sessions without a reason to be suspended are resumed.
    fn review(&mut self, now_ns: u64) {
        let view = mechanisms_of!(self);
        let is_open = |session: u32| self.registry.is_open(session);
        if self.admission.review(now_ns, is_open, (&mut self.messages, &self.pool), &view) {
            self.credit.retry_refused();
        }
    }

    /// Posts SRQ entries until there are as many as the senders' credit and the reserve need.
    fn top_up(&mut self, effects: &mut impl Effects) {
        let depth = self.srq_depth().min(self.config.srq_slabs);
        let records = self.records_unreserved();
        self.srq.top_up(depth, records, &mut self.pool, effects);
    }

    /// Returns how many SRQ entries are needed, as if their number had no limit.
    fn srq_depth(&self) -> u32 {
        u32::try_from(self.credit.total()).unwrap_or(NONE).saturating_add(self.config.srq_reserve_entries)
    }

    /// Returns the slabs that the SRQ share is about to need: for posted entries, held messages, and credit
    /// that senders have.
    fn srq_needed(&self) -> u32 {
        self.srq_depth().saturating_add(self.small_held_slabs())
    }

    /// Whether any message has a record: it is on its way to an application, an application has it, or a
    /// part of it.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.messages.in_use() > 0
    }

    /// Returns when [`Self::handle_tick`] is due; `None` while nothing changes with time.
    pub fn next_tick_ns(&self) -> Option<u64> {
        let is_measured =
            |session: u32| self.registry.is_open(session) && self.releases.bytes_per_ms(session) > 0;
        let restless = self.credit.total() > 0
            // Ticks let senders ask again whose sessions withheld credit.
            || !self.credit.refused().is_empty()
            || self.messages.in_use() > 0
            // Slabs that a living process may still read come back when it lets go: no tick ends that.
            || self.quarantine.passes()
            || self.registry.is_spreading()
            || self.registry.numbers().any(is_measured);
        let tick_ns = restless.then(|| self.last_tick_ns + self.config.tick_ns);
        [tick_ns, self.next_idle_evaluation_ns()].into_iter().flatten().min()
    }

    /// Returns when Algorithm 1 is to be evaluated if nothing else happens.
    #[inline]
    fn next_idle_evaluation_ns(&self) -> Option<u64> {
        self.escape.next_idle_evaluation_ns(self.outbox.flushed_ns(), self.admission.waits_for_room())
    }

    /// Handles a stall: the driver, or the whole machine, stood still for `span_ns` and calls late. What
    /// applications hold does not count as older by that time, for nobody checked whether they gave anything
    /// back, or could have. To be called before anything else in a turn, with at most the time since the
    /// previous turn.
    pub fn handle_stall(&mut self, span_ns: u64) {
        self.stalled_ns = self.stalled_ns.saturating_add(span_ns);
    }

    /// Returns the time by the clock that measures how long applications hold runs. It stands still while the
    /// receiver is not called.
    #[inline]
    fn stall_free_ns(&self, now_ns: u64) -> u64 {
        stall_free_ns(now_ns, self.stalled_ns)
    }

    /// Returns the time of the turn, by both clocks.
    #[inline]
    fn turn_time(&self, now_ns: u64) -> TurnTime {
        TurnTime { now_ns, stall_free_ns: self.stall_free_ns(now_ns) }
    }

    /// Returns whether a tick is due. It is cheap enough to call at every turn.
    #[inline]
    pub fn next_tick_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_tick_ns) >= self.config.tick_ns
            || self.next_idle_evaluation_ns().is_some_and(|next_ns| now_ns >= next_ns)
    }

    /// Handles the passing of time: rates, ages, unused credit, and quarantines that end. Call
    /// [`Self::flush`] afterwards.
    pub fn handle_tick(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let span_ns = now_ns.saturating_sub(self.last_tick_ns);
        if span_ns < self.config.tick_ns {
            return;
        }
        self.last_tick_ns = now_ns;
        let most_held_slabs = self.most_held_slabs();
        self.note_refused_sessions();
        for session in self.registry.numbers() {
            if self.registry.is_open(session) {
                self.releases.tick(session, span_ns);
                self.check_standstill(now_ns, session, most_held_slabs, effects);
            } else {
                self.check_quarantine(now_ns, session);
            }
        }
        self.spread_senders(now_ns);
        self.decay_credit(effects);
        self.pool.restore_line();
        self.escape.tick(now_ns, stall_free_ns(now_ns, self.stalled_ns), &self.pool);
        self.admission.set_straggler_slabs(|| self.escape.all_straggler_slabs());
        self.disconnect_unresponsive(now_ns, effects);
        // Who was refused credit since the last tick counts as one who waits.
        self.disconnect_stalled(now_ns, effects);
        self.credit.retry_refused();
        self.send_heartbeats(now_ns, effects);
    }

    /// Begins to drain: every new message ends as `Draining`, and every new peer is refused. Messages that
    /// are known already are finished.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Returns whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Returns whether every message has its end and every end was sent.
    pub fn is_drained(&self) -> bool {
        let is_acknowledged = |message: u32| {
            matches!(
                self.messages[message].state,
                MessageState::Free | MessageState::Failed | MessageState::Acknowledged
            )
        };
        self.reads.in_use() == 0
            && self.messages.indices().all(is_acknowledged)
            && self.outbox.all_acknowledged()
    }
}

#[cfg(test)]
mod tests;
