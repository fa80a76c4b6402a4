//! Algorithm 1 of Jet §4.3, one action at a time.
//!
//! An evaluation is one run of the algorithm: [`Escape::begin`], then [`Escape::next`] until it says `None`.
//! Between two calls of `next` the action is carried out, so that each is decided on how things stand then,
//! as in the paper's loop.
//!
//! What the paper leaves open: an evaluation takes [`ACTIONS_MAX`] actions at most and looks at [`NODES_MAX`]
//! runs at most, and goes on next time where it stopped; sessions take turns, one run each, so that none uses
//! up MEM_ESC before another had a turn; MEM_ESC counts as reached where the next straggler does not fit into
//! what is left of it, or no memory could be had for it; a run that is being copied is not replaced; and a
//! line once crossed is left only with the hysteresis.

use crate::config::EscapeConfig;
use crate::held::{Held, Look};
use crate::pressure::Pressure;
use crate::session_set::SessionSet;
use crate::turn::Turn;

/// The most actions of one evaluation.
///
/// An evaluation stands between two completions of the NIC. Carrying out an action costs a few hundred
/// nanoseconds at most (a replace moves counts, a copy is only begun): 64 of them are some 10 us, a tenth of
/// what the safe line leaves (see [`crate::Thresholds`]). And 64 runs of one slab each are more than 200 Gbps
/// bring in the same time.
pub const ACTIONS_MAX: u32 = 64;

/// The most runs that one evaluation looks at to find its actions: each action's own and as many that are
/// being copied and passed over.
pub const NODES_MAX: u32 = 2 * ACTIONS_MAX;

/// The most runs that one evaluation, or one [`Escape::count_stragglers`], counts as stragglers anew. As many
/// as it can act on: one that acts on fewer finds them counted next time.
pub const COUNTED_MAX: u32 = ACTIONS_MAX;

/// The pool as an evaluation finds it, in slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// Of the cache budget, free.
    pub available_slabs: u32,
    /// The cache budget.
    pub total_slabs: u32,
    /// Out of the budget because their stragglers were replaced.
    pub replaced_slabs: u32,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The straggler leaves the cache budget; so many slabs of escape memory join the pool.
    Replace {
        /// Whose run.
        session: u32,
        /// Its slot.
        slot: u16,
        /// All slabs that are held of it.
        slabs: u32,
    },
    /// Copy this run of a slow session to memory, unless the application is reading it.
    Copy {
        /// Whose run.
        session: u32,
        /// Its slot.
        slot: u16,
        /// All slabs that are held of it.
        slabs: u32,
    },
    /// Copying does not help: signal congestion. At most once an evaluation.
    Mark,
}

/// How far an evaluation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Replacing,
    /// MEM_ESC is reached.
    Copying,
    Over,
}

#[derive(Debug)]
struct Evaluation {
    stage: Stage,
    actions_left: u32,
    nodes_left: u32,
    counts_left: u32,
    /// Sessions that have no run left for this stage.
    done: SessionSet,
    /// The run that was to be replaced last.
    replacing: Option<(u32, u16)>,
}

/// The escape controller.
///
/// Told of every run that is delivered and released ([`Self::hold`], [`Self::release`]), it knows what each
/// session holds of the cache budget and since when, and says in an evaluation what is to be done. Sessions
/// and slots are indices below what it was made for; slots are below 65,535. Time is in nanoseconds and never
/// goes back.
#[derive(Debug)]
pub struct Escape {
    config: EscapeConfig,
    pressure: Pressure,
    held: Held,
    turn: Turn,
    evaluation: Evaluation,
    /// Whose turn it is.
    replace_from: u32,
    copy_from: u32,
}

impl Escape {
    /// For so many sessions with so many slots each. Everything it ever needs is allocated here.
    ///
    /// # Panics
    /// Where `slots` is above 65,535.
    pub fn new(config: EscapeConfig, sessions: u32, slots: u32) -> Self {
        Self {
            pressure: Pressure::Ok,
            held: Held::new(sessions, slots, config.straggler_ns, config.credit_permille),
            turn: Turn::new(config.straggler_ns),
            evaluation: Evaluation {
                stage: Stage::Over,
                actions_left: 0,
                nodes_left: 0,
                counts_left: 0,
                done: SessionSet::new(sessions),
                replacing: None,
            },
            replace_from: 0,
            copy_from: 0,
            config,
        }
    }

    /// A run of the cache budget was delivered to a session.
    ///
    /// # Panics
    /// Where the slot's former run is still held, or `slabs` is 0.
    #[inline]
    pub fn hold(&mut self, session: u32, slot: u16, slabs: u32, now_ns: u64) {
        self.held.hold(session, slot, slabs, now_ns);
    }

    /// So many slabs of the run were released; with its last one it leaves its session's list. Nothing
    /// happens where it left already (it was replaced or copied).
    ///
    /// # Panics
    /// Where that is more than is held of it.
    #[inline]
    pub fn release(&mut self, session: u32, slot: u16, slabs: u32) {
        self.held.release(session, slot, slabs);
    }

    /// When the slot's run was held, or its last one where it holds none now.
    #[inline]
    pub fn since_ns(&self, session: u32, slot: u16) -> u64 {
        self.held.since_ns(session, slot)
    }

    /// The run left the cache, replaced or copied: it leaves its session's list. Nothing happens where it
    /// left already.
    pub fn remove(&mut self, session: u32, slot: u16) {
        self.held.remove(session, slot);
    }

    /// Forgets all that a session holds. Takes time for each run.
    pub fn close(&mut self, session: u32) {
        self.held.close(session);
    }

    /// The pressure as of the last [`Self::begin`].
    #[inline]
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// A run held for as long is a straggler now: as long as is configured, or twice what the pool takes to
    /// be used once where that is longer, but four times the configured at most.
    #[inline]
    pub fn straggler_ns(&self) -> u64 {
        self.turn.straggler_ns()
    }

    /// Begins an evaluation: reads the pressure, and counts the runs that became stragglers since,
    /// [`COUNTED_MAX`] of them at most. `false`: there is nothing to do, by far the usual answer.
    ///
    /// To be called after every batch of releases: what the pool takes to be used once is measured by it.
    #[inline]
    pub fn begin(&mut self, now_ns: u64, view: PoolView) -> bool {
        self.pressure = self.read(view);
        let scarce = self.pressure != Pressure::Ok;
        if self.turn.note(now_ns, self.held.released_slabs(), view.total_slabs, scarce) {
            self.held.set_straggler_ns(self.turn.straggler_ns());
        }
        if !scarce || !self.config.enabled {
            // What an evaluation before this one left undone is out of date.
            self.evaluation.stage = Stage::Over;
            return false;
        }
        self.begin_evaluation(now_ns);
        true
    }

    #[inline]
    fn read(&self, view: PoolView) -> Pressure {
        self.config.thresholds.read(self.pressure, view.available_slabs, view.total_slabs)
    }

    fn begin_evaluation(&mut self, now_ns: u64) {
        let evaluation = &mut self.evaluation;
        evaluation.stage = Stage::Replacing;
        evaluation.actions_left = ACTIONS_MAX;
        evaluation.nodes_left = NODES_MAX;
        evaluation.counts_left = COUNTED_MAX;
        evaluation.done.clear();
        evaluation.replacing = None;
        self.count(now_ns);
    }

    fn count(&mut self, now_ns: u64) {
        if self.evaluation.counts_left == 0 {
            return;
        }
        self.evaluation.counts_left -= self.held.count(now_ns, self.evaluation.counts_left);
    }

    /// The next action of this evaluation, as things stand now: the one before is carried out, and `view` is
    /// of after it. `None`: nothing more in this evaluation.
    ///
    /// - After [`Action::Replace`] call [`Self::remove`]. A run that is still held at the next call could not
    ///   be replaced (there is no escape memory); that counts as MEM_ESC reached.
    /// - After [`Action::Copy`] call [`Self::copying`] where the copy began. Otherwise (the application is
    ///   reading the run) nothing needs to be told: it is offered again after the session's other runs.
    pub fn next(&mut self, now_ns: u64, view: PoolView) -> Option<Action> {
        if self.evaluation.stage == Stage::Over {
            return None;
        }
        let pressure = self.read(view);
        let action = if pressure == Pressure::Ok { None } else { self.decide(now_ns, view, pressure) };
        match action {
            Some(Action::Replace { .. } | Action::Copy { .. }) => self.evaluation.actions_left -= 1,
            Some(Action::Mark) | None => self.evaluation.stage = Stage::Over,
        }
        action
    }

    /// Lines 5 to 20 of Algorithm 1.
    fn decide(&mut self, now_ns: u64, view: PoolView, pressure: Pressure) -> Option<Action> {
        self.count(now_ns);
        if self.evaluation.stage == Stage::Replacing {
            let refused = self
                .evaluation
                .replacing
                .take()
                .is_some_and(|(session, slot)| self.held.is_held(session, slot));
            let room_slabs = self.config.replace_slabs_max.saturating_sub(view.replaced_slabs);
            if room_slabs > 0 && !refused {
                match self.straggler() {
                    None => return None,
                    Some((session, slot, slabs)) if slabs <= room_slabs => {
                        self.evaluation.replacing = Some((session, slot));
                        return Some(Action::Replace { session, slot, slabs });
                    }
                    Some(_) => {}
                }
            }
            self.evaluation.stage = Stage::Copying;
            self.evaluation.done.clear();
        }
        let copy = self.slow_run();
        copy.or_else(|| (pressure == Pressure::Danger).then_some(Action::Mark))
    }

    /// The oldest straggler of the session whose turn it is.
    fn straggler(&mut self) -> Option<(u32, u16, u32)> {
        if self.evaluation.actions_left == 0 {
            return None;
        }
        loop {
            let session = self.held.next_straggling(self.replace_from, &self.evaluation.done)?;
            let look = self.held.oldest_straggler(session, &mut self.evaluation.nodes_left);
            if look == Look::None {
                self.evaluation.done.set(session, true);
                continue;
            }
            self.replace_from = session + 1;
            let Look::Found { slot, slabs } = look else { return None };
            return Some((session, slot, slabs));
        }
    }

    /// The next run of the slow session whose turn it is.
    fn slow_run(&mut self) -> Option<Action> {
        // The last action is kept for the mark.
        if self.evaluation.actions_left <= 1 {
            return None;
        }
        loop {
            let session = self.held.next_slow(self.copy_from, &self.evaluation.done)?;
            let (look, came_round) = self.held.next_to_copy(session, &mut self.evaluation.nodes_left);
            self.evaluation.done.set(session, came_round);
            if look == Look::None {
                continue;
            }
            self.copy_from = session + 1;
            let Look::Found { slot, slabs } = look else { return None };
            return Some(Action::Copy { session, slot, slabs });
        }
    }

    /// A copy of the run began: it is neither offered for copying again nor replaced before [`Self::remove`]
    /// or [`Self::not_copied`].
    ///
    /// # Panics
    /// Where the run is not held.
    pub fn copying(&mut self, session: u32, slot: u16) {
        self.held.begin_copy(session, slot);
    }

    /// The copy was given up and the run is where it was. Nothing happens where it left its list meanwhile.
    pub fn not_copied(&mut self, session: u32, slot: u16) {
        self.held.end_copy(session, slot);
    }

    /// Whether more than CREDIT of what the session holds are stragglers (those counted so far).
    #[inline]
    pub fn is_slow(&self, session: u32) -> bool {
        self.held.is_slow(session)
    }

    /// Slabs of the cache budget that the session holds.
    #[inline]
    pub fn held_slabs(&self, session: u32) -> u32 {
        self.held.held_slabs(session)
    }

    /// Those of them that are stragglers, as far as they are counted.
    #[inline]
    pub fn straggler_slabs(&self, session: u32) -> u32 {
        self.held.straggler_slabs(session)
    }

    /// Counts the runs that became stragglers, [`COUNTED_MAX`] at most, without an evaluation: for what is
    /// shown.
    pub fn count_stragglers(&mut self, now_ns: u64) {
        self.held.count(now_ns, COUNTED_MAX);
    }

    /// When the next run becomes a straggler, if any is held that is none: for the timer. In the past where
    /// one did and was not counted yet. Looks at a time for each session.
    pub fn next_straggler_ns(&self) -> Option<u64> {
        self.held.next_due_ns()
    }
}
