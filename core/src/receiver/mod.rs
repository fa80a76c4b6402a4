//! The receiver: it wires the mechanisms, none of which knows another, and gives them the time. Each input
//! has a file of its own; the ways of a small and of a large message read downwards in `small` and `large`.

#[macro_use]
mod view;

mod arrival;
mod escape_run;
mod large;
mod peers;
mod poison;
mod records;
mod release;
mod sessions;
mod settle;
mod small;
mod speech;
mod standing;
mod stats;

pub use arrival::Arrival;
pub use peers::Joined;
pub use sessions::OpenError;

use crate::admission::{Admission, GrantPolicy, StrictWithAging};
use crate::checks::Checks;
use crate::config::{Config, ConfigError};
use crate::credit::Credit;
use crate::delivery::Delivery;
use crate::effects::Effects;
use crate::ends::{Ends, Moment};
use crate::escape::Escape;
use crate::index::NONE;
use crate::messages::{Life, Messages};
use crate::pool::Pool;
use crate::quarantine::Quarantine;
use crate::reads::Reads;
use crate::recycling::Recycling;
use crate::registry::Registry;
use crate::slots::Slots;
use crate::srq::Srq;
use crate::standstill::Standstills;
use crate::stats::Stats;

/// The receiver on a host, as a state machine. See the crate's text for the order of calls.
#[derive(Debug)]
pub struct Receiver<P: GrantPolicy = StrictWithAging> {
    config: Config,
    incarnation: u64,
    draining: bool,
    last_tick_ns: u64,
    /// For how long altogether nobody called.
    stalled_ns: u64,
    /// Where among the active senders the last congestion signal went.
    signal_cursor: usize,
    stats: Stats,
    // Tables.
    pool: Pool,
    messages: Messages,
    slots: Slots,
    reads: Reads,
    // Mechanisms.
    srq: Srq,
    credit: Credit,
    ends: Ends,
    registry: Registry,
    delivery: Delivery,
    escape: Escape,
    recycling: Recycling,
    admission: Admission<P>,
    checks: Checks,
    quarantine: Quarantine,
    standstills: Standstills,
}

/// The time less that in which nobody called: see [`Receiver::handle_stall`].
#[inline]
fn attended_ns(now_ns: u64, stalled_ns: u64) -> u64 {
    now_ns.saturating_sub(stalled_ns)
}

impl Receiver<StrictWithAging> {
    /// A receiver with strict priority between classes and an aging bound. `incarnation` tells this start
    /// from others.
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
        let (peers, sessions) = (config.peers_max, config.sessions_max);
        let read_floor =
            if config.escape.enabled { config.fragment_bytes / jet_wire::SLAB_BYTES_U32 } else { 0 };
        Ok(Self {
            config,
            incarnation,
            draining: false,
            last_tick_ns: 0,
            stalled_ns: 0,
            signal_cursor: 0,
            stats: Stats::default(),
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
            ends: Ends::new(peers, config.heartbeat_ns),
            registry: Registry::new(peers, sessions),
            delivery: Delivery::new(sessions, config.session_messages),
            escape: Escape::new(&config),
            recycling: Recycling::new(sessions),
            admission: Admission::new(&config, policy),
            checks: Checks::new(config.checksums),
            quarantine: Quarantine::new(sessions, config.quarantine_ns),
            standstills: Standstills::new(sessions),
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
        self.run_escape(now_ns, effects);
        if self.admission.is_reviewing() {
            self.review(now_ns);
        }
        if self.admission.has_work() {
            self.grant(now_ns, effects);
        }
        self.admission.look(now_ns);
        self.speak(effects);
        self.top_up(effects);
    }

    /// Looks again at the sessions that are granted nothing new.
    fn review(&mut self, now_ns: u64) {
        let view = look_at!(self);
        let is_open = |session: u32| self.registry.is_open(session);
        if self.admission.review(now_ns, is_open, (&mut self.messages, &self.pool), &view) {
            self.credit.feed_suspended();
        }
    }

    /// Posts SRQ entries until there are as many as there is credit, and the reserve.
    fn top_up(&mut self, effects: &mut impl Effects) {
        let depth = self.srq_depth().min(self.config.srq_slabs);
        let records = self.records_unreserved();
        self.srq.top_up(depth, records, &mut self.pool, effects);
    }

    /// SRQ entries that are to be posted, if there could be any number.
    fn srq_depth(&self) -> u32 {
        u32::try_from(self.credit.total()).unwrap_or(NONE).saturating_add(self.config.srq_reserve_entries)
    }

    /// Slabs that the SRQ share is about to need.
    fn srq_needed(&self) -> u32 {
        self.srq_depth().saturating_add(self.small_held_slabs())
    }

    /// When [`Self::handle_tick`] is due: `None` while nothing changes with time.
    pub fn next_tick_ns(&self) -> Option<u64> {
        let is_measured =
            |session: u32| self.registry.is_open(session) && self.recycling.bytes_per_ms(session) > 0;
        let restless = self.credit.total() > 0
            || self.messages.in_use() > 0
            // What a process may still read comes back when it lets go: no tick sees that.
            || self.quarantine.passes()
            || self.registry.numbers().any(is_measured);
        let tick_ns = restless.then(|| self.last_tick_ns + self.config.tick_ns);
        [tick_ns, self.next_idle_evaluation_ns()].into_iter().flatten().min()
    }

    /// When Algorithm 1 is to be evaluated though nothing happens.
    #[inline]
    fn next_idle_evaluation_ns(&self) -> Option<u64> {
        self.escape.next_idle_evaluation_ns(self.ends.spoke_ns(), self.admission.waits_for_room())
    }

    /// The driver calls later than it was to: it, or all of the machine, stood still for so long. What
    /// applications hold did not grow older meanwhile, for whether they gave something back, or could have,
    /// was not looked at. To be called before anything else of a turn, with no more than the time since the
    /// turn before.
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

    /// Time passed: rates, ages, credit that is not used, quarantines that end. Call [`Self::flush`]
    /// afterwards.
    pub fn handle_tick(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let span_ns = now_ns.saturating_sub(self.last_tick_ns);
        if span_ns < self.config.tick_ns {
            return;
        }
        self.last_tick_ns = now_ns;
        let most_held_slabs = self.most_held_slabs();
        for session in self.registry.numbers() {
            if self.registry.is_open(session) {
                self.recycling.tick(session, span_ns);
                self.look_for_standstill(now_ns, session, most_held_slabs, effects);
            } else {
                self.look_at_quarantine(now_ns, session);
            }
        }
        self.decay_credit(effects);
        self.pool.restore_line();
        self.escape.tick(now_ns, attended_ns(now_ns, self.stalled_ns), &self.pool);
        self.admission.set_straggler_slabs(|| self.escape.all_straggler_slabs());
        self.credit.feed_suspended();
        self.part_with_the_unresponsive(now_ns, effects);
        self.reassure(now_ns, effects);
    }

    /// From now on every new message is answered `Draining` and every new peer refused; what is known goes
    /// on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether every message has its end and every end is on its way.
    pub fn is_drained(&self) -> bool {
        let is_told =
            |message: u32| matches!(self.messages[message].life, Life::Free | Life::Failed | Life::Told);
        self.reads.in_use() == 0 && self.messages.indices().all(is_told) && self.ends.are_told()
    }
}

#[cfg(test)]
mod tests;
