//! Algorithm 1 of Jet §4.3, one action at a time.
//!
//! An evaluation is one run of the algorithm: [`Escape::begin`], then [`Escape::next`] until it returns
//! `None`. The caller carries out each action before it calls `next` again. So each action is decided on the
//! state at that time, as in the paper's loop.
//!
//! The paper leaves some points open. This module decides them as follows:
//!
//! * An evaluation takes at most [`ACTIONS_MAX`] actions and visits at most [`NODES_MAX`] runs. The next
//!   evaluation continues where it stopped.
//! * Sessions take turns, one run each, so none uses up MEM_ESC before another had a turn.
//! * MEM_ESC counts as reached where the next straggler does not fit into the rest of it, or no memory was
//!   available for that straggler.
//! * A run that is being copied is not replaced.
//! * A pressure line that was crossed downwards is crossed upwards only by the hysteresis above it.

use crate::config::EscapeConfig;
use crate::held::{Held, Search};
use crate::pressure::Pressure;
use crate::session_set::SessionSet;
use crate::turn::Turn;

/// The most actions of one evaluation.
///
/// An evaluation runs between two completions of the NIC. Carrying out an action costs a few hundred
/// nanoseconds at most, for a replace changes counts, and a copy is only begun. So 64 actions take some 10
/// us, a tenth of what the safe line leaves (see [`crate::Thresholds`]). Even if the runs have one slab each,
/// 64 of them are more than 200 Gbps bring in that time.
pub const ACTIONS_MAX: u32 = 64;

/// The most runs that one evaluation visits to find its actions. That is one for each action, and as many
/// that are being copied and skipped.
pub const NODES_MAX: u32 = 2 * ACTIONS_MAX;

/// The most runs that one evaluation, or one [`Escape::count_stragglers`], counts as stragglers anew. It is
/// as many as an evaluation can act on. If that evaluation acts on fewer runs, the next one finds the others
/// counted already.
pub const COUNTED_MAX: u32 = ACTIONS_MAX;

/// The state of the pool at an evaluation, in slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// Slabs of the cache budget that are free.
    pub available_slabs: u32,
    /// All slabs of the cache budget.
    pub total_slabs: u32,
    /// Slabs that are out of the budget because their stragglers were replaced.
    pub replaced_slabs: u32,
}

/// An action to carry out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the straggler out of the cache budget; as many slabs of escape memory join the pool.
    Replace {
        /// Session that holds the run.
        session: u32,
        /// Slot of the run.
        slot: u16,
        /// All slabs of the run that the application still holds.
        slabs: u32,
    },
    /// Copy this run of a slow session to memory, unless the application is reading it.
    Copy {
        /// Session that holds the run.
        session: u32,
        /// Slot of the run.
        slot: u16,
        /// All slabs of the run that the application still holds.
        slabs: u32,
    },
    /// Signal congestion, for copying does not help. At most once in an evaluation.
    Mark,
}

/// The stage that an evaluation has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Replacing,
    /// Copying runs of slow sessions, after MEM_ESC was reached.
    Copying,
    Over,
}

#[derive(Debug)]
struct Evaluation {
    stage: Stage,
    actions_left: u32,
    nodes_left: u32,
    counts_left: u32,
    /// Sessions that have no run left for the present stage of the evaluation.
    done: SessionSet,
    /// The run of the last [`Action::Replace`].
    replacing: Option<(u32, u16)>,
}

/// The escape controller.
///
/// It is told of every run that is delivered and released ([`Self::hold`], [`Self::release`]). So it knows
/// what each session holds of the cache budget, and since when. An evaluation returns the actions to carry
/// out. Sessions and slots are indices below the numbers given to [`Self::new`]; slots are below 65,535. Time
/// is in nanoseconds and never decreases.
#[derive(Debug)]
pub struct Escape {
    config: EscapeConfig,
    pressure: Pressure,
    held: Held,
    turn: Turn,
    evaluation: Evaluation,
    /// Session at which the next search for a run to replace begins.
    replace_from: u32,
    /// Session at which the next search for a run to copy begins.
    copy_from: u32,
}

impl Escape {
    /// Creates a controller for `sessions` sessions with `slots` slots each. All memory that it ever needs is
    /// allocated here.
    ///
    /// # Panics
    /// Panics if `slots` is above 65,535.
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

    /// Notes that a run of the cache budget was delivered to a session.
    ///
    /// # Panics
    /// Panics in debug builds if the slot's former run is still held, or `slabs` is 0.
    #[inline]
    pub fn hold(&mut self, session: u32, slot: u16, slabs: u32, now_ns: u64) {
        self.held.hold(session, slot, slabs, now_ns);
    }

    /// Notes that `slabs` slabs of the run were released, and returns the time since when the run is held.
    /// With its last slab the run leaves its session's queue. Nothing happens if it left already, because it
    /// was replaced or copied.
    ///
    /// # Panics
    /// Panics in debug builds if that is more than is held of the run.
    #[inline]
    pub fn release(&mut self, session: u32, slot: u16, slabs: u32) -> u64 {
        self.held.release(session, slot, slabs)
    }

    /// Returns the time since when the slot's run is held. For a slot that holds none now, that is the time
    /// of its last run.
    #[inline]
    pub fn since_ns(&self, session: u32, slot: u16) -> u64 {
        self.held.since_ns(session, slot)
    }

    /// Notes that the run left the cache budget, replaced or copied: it leaves its session's queue. Nothing
    /// happens if it left already.
    pub fn remove(&mut self, session: u32, slot: u16) {
        self.held.remove(session, slot);
    }

    /// Forgets all that a session holds. The time grows with the number of its slots.
    pub fn close(&mut self, session: u32) {
        self.held.close(session);
    }

    /// Returns the pressure at the last [`Self::begin`].
    #[inline]
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// Returns the straggler's time now, in nanoseconds. It is the configured time, or twice the turn of the
    /// pool where that is longer, but at most four times the configured time.
    #[inline]
    pub fn straggler_ns(&self) -> u64 {
        self.turn.straggler_ns()
    }

    /// Begins an evaluation. It reads the pressure, and counts the runs that have become stragglers, at most
    /// [`COUNTED_MAX`] of them. Returns `false` if there is nothing to do, by far the usual answer.
    ///
    /// To be called after every batch of releases, for these calls measure the turn of the pool.
    #[inline]
    pub fn begin(&mut self, now_ns: u64, view: PoolView) -> bool {
        self.pressure = self.read(view);
        let scarce = self.pressure != Pressure::Ok;
        if self.turn.note(now_ns, self.held.released_slabs(), view.total_slabs, scarce) {
            self.held.set_straggler_ns(self.turn.straggler_ns());
        }
        if !scarce || !self.config.enabled {
            // Anything that an earlier evaluation left undone is out of date.
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

    /// Returns the next action of this evaluation. The action before must be carried out, and `view` must
    /// show the pool after it. `None`: nothing more in this evaluation.
    ///
    /// - After [`Action::Replace`] call [`Self::remove`]. A run that is still held at the next call could not
    ///   be replaced, because there is no escape memory. That counts as MEM_ESC reached.
    /// - After [`Action::Copy`] call [`Self::copying`] if the copy began. If it did not, because the
    ///   application is reading the run, no call is needed. The run is offered again after the session's
    ///   other runs.
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

    /// Decides the next action, by lines 5 to 20 of Algorithm 1.
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

    /// Returns the oldest straggler of the session whose turn it is.
    fn straggler(&mut self) -> Option<(u32, u16, u32)> {
        if self.evaluation.actions_left == 0 {
            return None;
        }
        loop {
            let session = self.held.next_straggling(self.replace_from, &self.evaluation.done)?;
            let search = self.held.oldest_straggler(session, &mut self.evaluation.nodes_left);
            if search == Search::None {
                self.evaluation.done.set(session, true);
                continue;
            }
            self.replace_from = session + 1;
            let Search::Found { slot, slabs } = search else { return None };
            return Some((session, slot, slabs));
        }
    }

    /// Returns the next run of the slow session whose turn it is.
    fn slow_run(&mut self) -> Option<Action> {
        // The last action is kept for the mark.
        if self.evaluation.actions_left <= 1 {
            return None;
        }
        loop {
            let session = self.held.next_slow(self.copy_from, &self.evaluation.done)?;
            let (search, came_round) = self.held.next_to_copy(session, &mut self.evaluation.nodes_left);
            self.evaluation.done.set(session, came_round);
            if search == Search::None {
                continue;
            }
            self.copy_from = session + 1;
            let Search::Found { slot, slabs } = search else { return None };
            return Some(Action::Copy { session, slot, slabs });
        }
    }

    /// Notes that a copy of the run began. The run is neither offered for copying again nor replaced before
    /// [`Self::remove`] or [`Self::not_copied`].
    ///
    /// # Panics
    /// Panics if the run is not held.
    pub fn copying(&mut self, session: u32, slot: u16) {
        self.held.begin_copy(session, slot);
    }

    /// Notes that the copy was given up and the run is where it was. Nothing happens if the run has left its
    /// queue meanwhile.
    pub fn not_copied(&mut self, session: u32, slot: u16) {
        self.held.end_copy(session, slot);
    }

    /// Returns whether more than CREDIT of what the session holds are stragglers, as far as stragglers are
    /// counted.
    #[inline]
    pub fn is_slow(&self, session: u32) -> bool {
        self.held.is_slow(session)
    }

    /// Returns the slabs of the cache budget that the session holds.
    #[inline]
    pub fn held_slabs(&self, session: u32) -> u32 {
        self.held.held_slabs(session)
    }

    /// Returns the slabs that the session's stragglers hold, as far as they are counted.
    #[inline]
    pub fn straggler_slabs(&self, session: u32) -> u32 {
        self.held.straggler_slabs(session)
    }

    /// Counts the runs that have become stragglers, at most [`COUNTED_MAX`], without an evaluation. It serves
    /// statistics.
    pub fn count_stragglers(&mut self, now_ns: u64) {
        self.held.count(now_ns, COUNTED_MAX);
    }

    /// Returns when the next run becomes a straggler, for a timer; `None` if no run is held that is not one
    /// already. The time is in the past if a run became a straggler and was not counted yet. The cost grows
    /// with the number of sessions.
    pub fn next_straggler_ns(&self) -> Option<u64> {
        self.held.next_due_ns()
    }
}
