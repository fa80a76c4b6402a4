//! The escape controller against a slow and obvious model of Algorithm 1 (Jet §4.3). The model is one list of
//! all runs in order of time, and computes each answer anew.
//!
//! Fewer runs are held here than an evaluation is bounded to, so each evaluation is a whole run of the
//! algorithm.

use jet_escape::{Action, Escape, EscapeConfig, PoolView, Pressure, Thresholds};
use proptest::prelude::*;
use std::collections::HashMap;

const SESSIONS: u32 = 3;
const SLOTS: u16 = 8;
const STRAGGLER_NS: u64 = 1000;
const TOTAL_SLABS: u32 = 40;

#[derive(Clone, Debug)]
enum Op {
    Hold {
        session: u32,
        slot: u16,
        slabs: u32,
    },
    Release {
        pick: usize,
        slabs: u32,
    },
    ReleaseAll {
        session: u32,
    },
    ReleaseWhatLeft {
        session: u32,
        slot: u16,
    },
    Pass {
        ns: u64,
    },
    OthersHold {
        slabs: u32,
    },
    MemoryIsReady {
        ready: bool,
    },
    /// Evaluates; bit n of `pinned` is set if the n-th copy that is offered cannot begin.
    Evaluate {
        pinned: u32,
    },
    CopyEnds {
        pick: usize,
        ok: bool,
    },
    StragglersComeHome {
        slabs: u32,
    },
    Close {
        session: u32,
    },
    Count,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0..SESSIONS, 0..SLOTS, 1..9u32)
            .prop_map(|(session, slot, slabs)| Op::Hold { session, slot, slabs }),
        4 => (any::<usize>(), 1..9u32).prop_map(|(pick, slabs)| Op::Release { pick, slabs }),
        4 => (0..SESSIONS).prop_map(|session| Op::ReleaseAll { session }),
        1 => (0..SESSIONS, 0..SLOTS).prop_map(|(session, slot)| Op::ReleaseWhatLeft { session, slot }),
        5 => (0..STRAGGLER_NS / 2).prop_map(|ns| Op::Pass { ns }),
        2 => (0..2 * STRAGGLER_NS).prop_map(|ns| Op::Pass { ns }),
        1 => (0..100 * STRAGGLER_NS).prop_map(|ns| Op::Pass { ns }),
        2 => (0..TOTAL_SLABS).prop_map(|slabs| Op::OthersHold { slabs }),
        1 => prop::bool::weighted(0.8).prop_map(|ready| Op::MemoryIsReady { ready }),
        10 => any::<u32>().prop_map(|pinned| Op::Evaluate { pinned }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(pick, ok)| Op::CopyEnds { pick, ok }),
        1 => (1..20u32).prop_map(|slabs| Op::StragglersComeHome { slabs }),
        1 => (0..SESSIONS).prop_map(|session| Op::Close { session }),
        1 => Just(Op::Count),
    ]
}

fn config() -> impl Strategy<Value = EscapeConfig> {
    (prop::bool::weighted(0.9), 0..40u32, 0..=1000u32, 1..500u32, 0..=1000u32).prop_map(
        |(enabled, replace_slabs_max, credit_permille, hysteresis_permille, spread)| {
            let safe_permille = 1 + (999 - hysteresis_permille) * spread / 1000;
            let danger_permille = safe_permille * spread / 1500;
            let thresholds = Thresholds { safe_permille, danger_permille, hysteresis_permille };
            EscapeConfig {
                enabled,
                thresholds,
                replace_slabs_max,
                credit_permille,
                straggler_ns: STRAGGLER_NS,
            }
        },
    )
}

/// A run of the cache budget.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    session: u32,
    slot: u16,
    since_ns: u64,
    slabs: u32,
    copying: bool,
    /// Whether it counts as a straggler so far.
    straggler: bool,
}

/// The turn of the pool as the model measures it.
#[derive(Default)]
struct Turn {
    since_ns: u64,
    released_slabs: u32,
    scarce: bool,
}

/// The pool, and what the controller must know of it.
struct Model {
    config: EscapeConfig,
    now_ns: u64,
    straggler_ns: u64,
    turn: Turn,
    pressure: Pressure,
    /// Held runs in order of time.
    runs: Vec<Run>,
    since_ns: HashMap<(u32, u16), u64>,
    others_slabs: u32,
    replaced_slabs: u32,
    memory_is_ready: bool,
    replace_turn: u32,
}

impl Model {
    fn new(config: EscapeConfig) -> Self {
        Self {
            config,
            now_ns: 0,
            straggler_ns: config.straggler_ns,
            turn: Turn::default(),
            pressure: Pressure::Ok,
            runs: Vec::new(),
            since_ns: HashMap::new(),
            others_slabs: 0,
            replaced_slabs: 0,
            memory_is_ready: true,
            replace_turn: 0,
        }
    }

    fn position(&self, session: u32, slot: u16) -> Option<usize> {
        self.runs.iter().position(|run| (run.session, run.slot) == (session, slot))
    }

    fn count(&mut self) {
        for run in &mut self.runs {
            run.straggler |= run.since_ns + self.straggler_ns <= self.now_ns;
        }
    }

    /// Ends a turn of the pool, if it is over, and adjusts the straggler's time.
    fn note_turn(&mut self) {
        let most_ns = 4 * self.config.straggler_ns;
        let Turn { since_ns, released_slabs, scarce } = self.turn;
        let span_ns = self.now_ns - since_ns;
        let scarce_now = self.pressure != Pressure::Ok;
        let is_over = released_slabs >= TOTAL_SLABS || span_ns >= most_ns;
        let begins = scarce_now && !scarce;
        if !is_over && !begins {
            return;
        }
        self.turn = Turn { since_ns: self.now_ns, released_slabs: 0, scarce: scarce_now };
        if span_ns >= 16 * most_ns {
            self.straggler_ns = self.config.straggler_ns;
            return;
        }
        if begins {
            return;
        }
        let two_pools = span_ns * 2 * u64::from(TOTAL_SLABS);
        let twice_ns = if scarce { two_pools.checked_div(u64::from(released_slabs)).unwrap_or(0) } else { 0 };
        let fallen_ns = self.straggler_ns - self.straggler_ns / 8;
        self.straggler_ns = twice_ns.max(fallen_ns).max(self.config.straggler_ns).min(most_ns);
    }

    fn held_slabs(&self, session: u32) -> u32 {
        self.runs.iter().filter(|run| run.session == session).map(|run| run.slabs).sum()
    }

    fn straggler_slabs(&self, session: u32) -> u32 {
        let stragglers = self.runs.iter().filter(|run| run.session == session && run.straggler);
        stragglers.map(|run| run.slabs).sum()
    }

    fn is_slow(&self, session: u32) -> bool {
        self.straggler_slabs(session) * 1000 > self.held_slabs(session) * self.config.credit_permille
    }

    fn view(&self) -> PoolView {
        let held_slabs: u32 = self.runs.iter().map(|run| run.slabs).sum();
        PoolView {
            available_slabs: TOTAL_SLABS.saturating_sub(held_slabs + self.others_slabs),
            total_slabs: TOTAL_SLABS,
            replaced_slabs: self.replaced_slabs,
        }
    }

    /// Returns the pressure now, given the pressure before.
    fn read(&self) -> Pressure {
        let Thresholds { safe_permille, danger_permille, hysteresis_permille } = self.config.thresholds;
        let view = self.view();
        let permille = f64::from(view.available_slabs) * 1000.0 / f64::from(view.total_slabs);
        let (mut safe, mut danger) = (f64::from(safe_permille), f64::from(danger_permille));
        if self.pressure != Pressure::Ok {
            safe += f64::from(hysteresis_permille);
        }
        if self.pressure == Pressure::Danger {
            danger += f64::from(hysteresis_permille);
        }
        match permille {
            permille if permille.floor() < danger => Pressure::Danger,
            permille if permille.floor() < safe => Pressure::Unsafe,
            _ => Pressure::Ok,
        }
    }

    /// Returns the oldest straggler of the session whose turn it is.
    fn straggler(&self) -> Option<Run> {
        let turns = (self.replace_turn..SESSIONS).chain(0..self.replace_turn.min(SESSIONS));
        let of = |session| move |run: &&Run| run.session == session && !run.copying;
        turns
            .filter_map(|session| self.runs.iter().filter(of(session)).find(|run| run.straggler))
            .copied()
            .next()
    }

    fn next_straggler_ns(&self) -> Option<u64> {
        self.runs.iter().filter(|run| !run.straggler).map(|run| run.since_ns + self.straggler_ns).min()
    }
}

struct Harness {
    escape: Escape,
    model: Model,
}

impl Harness {
    fn new(config: EscapeConfig) -> Self {
        Self { escape: Escape::new(config, SESSIONS, u32::from(SLOTS)), model: Model::new(config) }
    }

    fn carry_out(&mut self, op: Op) {
        let Self { escape, model } = self;
        match op {
            Op::Hold { session, slot, slabs } => {
                if model.position(session, slot).is_none() {
                    escape.hold(session, slot, slabs, model.now_ns);
                    let since_ns = model.now_ns;
                    let run = Run { session, slot, since_ns, slabs, copying: false, straggler: false };
                    model.runs.push(run);
                    model.since_ns.insert((session, slot), model.now_ns);
                }
            }
            Op::Release { pick, slabs } => {
                if !model.runs.is_empty() {
                    let at = pick % model.runs.len();
                    let run = &mut model.runs[at];
                    let slabs = slabs.min(run.slabs);
                    escape.release(run.session, run.slot, slabs);
                    run.slabs -= slabs;
                    model.turn.released_slabs += slabs;
                    model.runs.retain(|run| run.slabs > 0);
                }
            }
            Op::ReleaseAll { session } => {
                for run in model.runs.iter().filter(|run| run.session == session) {
                    escape.release(session, run.slot, run.slabs);
                    model.turn.released_slabs += run.slabs;
                }
                model.runs.retain(|run| run.session != session);
            }
            Op::ReleaseWhatLeft { session, slot } => {
                if model.position(session, slot).is_none() {
                    escape.release(session, slot, 1);
                    escape.remove(session, slot);
                    escape.not_copied(session, slot);
                }
            }
            Op::Pass { ns } => model.now_ns += ns,
            Op::OthersHold { slabs } => model.others_slabs = slabs,
            Op::MemoryIsReady { ready } => model.memory_is_ready = ready,
            Op::Evaluate { pinned } => {
                self.evaluate(pinned);
            }
            Op::CopyEnds { pick, ok } => {
                let copying: Vec<usize> =
                    (0..model.runs.len()).filter(|at| model.runs[*at].copying).collect();
                if !copying.is_empty() {
                    let at = copying[pick % copying.len()];
                    let run = &mut model.runs[at];
                    if ok {
                        escape.remove(run.session, run.slot);
                        model.runs.remove(at);
                    } else {
                        escape.not_copied(run.session, run.slot);
                        run.copying = false;
                    }
                }
            }
            Op::StragglersComeHome { slabs } => {
                model.replaced_slabs = model.replaced_slabs.saturating_sub(slabs);
            }
            Op::Close { session } => {
                escape.close(session);
                model.runs.retain(|run| run.session != session);
            }
            Op::Count => {
                escape.count_stragglers(model.now_ns);
                model.count();
            }
        }
    }

    /// Runs one evaluation and checks each answer. Returns the runs that were offered for copying.
    fn evaluate(&mut self, pinned: u32) -> Vec<Run> {
        let mut offered: Vec<Run> = Vec::new();
        let before = self.model.pressure;
        let pressure = self.model.read();
        let begun = self.escape.begin(self.model.now_ns, self.model.view());
        assert_eq!(self.escape.pressure(), pressure, "before: {before:?}, {:?}", self.model.view());
        assert_eq!(begun, pressure != Pressure::Ok && self.model.config.enabled);
        self.model.pressure = pressure;
        self.model.note_turn();
        assert_eq!(self.escape.straggler_ns(), self.model.straggler_ns);
        if begun {
            self.model.count();
        }
        let mut replacing = true;
        let mut refused = false;
        loop {
            let action = self.escape.next(self.model.now_ns, self.model.view());
            let pressure = self.model.read();
            if !begun || pressure == Pressure::Ok {
                assert_eq!(action, None, "nothing is to be done");
                break;
            }
            if replacing && !refused && self.model.replaced_slabs < self.model.config.replace_slabs_max {
                let Some(run) = self.model.straggler() else {
                    assert_eq!(action, None, "no straggler is there to be replaced");
                    break;
                };
                self.model.replace_turn = run.session + 1;
                if self.model.replaced_slabs + run.slabs <= self.model.config.replace_slabs_max {
                    let Run { session, slot, slabs, .. } = run;
                    assert_eq!(action, Some(Action::Replace { session, slot, slabs }));
                    refused = !self.replace(run);
                    continue;
                }
            }
            replacing = false;
            match action {
                Some(Action::Copy { session, slot, slabs }) => {
                    let run = self.check_copy(session, slot, slabs, &offered);
                    if pinned >> (offered.len() % 32) & 1 == 0 {
                        self.escape.copying(session, slot);
                        let at = self.model.position(session, slot).unwrap();
                        self.model.runs[at].copying = true;
                    }
                    offered.push(run);
                }
                Some(Action::Mark) | None => {
                    assert_eq!(
                        action.is_some(),
                        pressure == Pressure::Danger,
                        "marked in danger, and only there"
                    );
                    self.check_nothing_left_out(&offered);
                    break;
                }
                Some(Action::Replace { .. }) => panic!("{action:?}, but MEM_ESC is reached"),
            }
        }
        for _ in 0..2 {
            assert_eq!(
                self.escape.next(self.model.now_ns, self.model.view()),
                None,
                "the evaluation is over"
            );
        }
        offered
    }

    /// Replaces a run; returns `false` if there is no memory.
    fn replace(&mut self, run: Run) -> bool {
        if self.model.memory_is_ready {
            self.escape.remove(run.session, run.slot);
            self.model.runs.retain(|other| *other != run);
            self.model.replaced_slabs += run.slabs;
        }
        self.model.memory_is_ready
    }

    /// Checks that an offered copy is of a slow session's run as it is now. The run must not be under copy,
    /// not offered before, and newer than the session's run offered before.
    fn check_copy(&self, session: u32, slot: u16, slabs: u32, offered: &[Run]) -> Run {
        let model = &self.model;
        assert!(model.is_slow(session), "session {session} is not slow");
        let at = model.position(session, slot).expect("only what is held is copied");
        let run = model.runs[at];
        assert_eq!(run.slabs, slabs);
        assert!(!run.copying, "{run:?} is being copied");
        if let Some(before) = offered.iter().rfind(|before| before.session == session) {
            assert!(model.position(session, before.slot).unwrap() < at, "oldest first");
        }
        run
    }

    /// Checks that no run was left out, from the first run of a slow session that was offered to its newest.
    fn check_nothing_left_out(&self, offered: &[Run]) {
        for session in 0..SESSIONS {
            let of_session = || offered.iter().filter(|run| run.session == session);
            let Some(first) = of_session().next() else { continue };
            let from = self.model.position(session, first.slot).unwrap();
            for run in self.model.runs[from..].iter().filter(|run| run.session == session && !run.copying) {
                assert!(of_session().any(|other| other.slot == run.slot), "{run:?} was left out");
            }
        }
    }

    fn check_counts(&self) {
        let Self { escape, model } = self;
        for session in 0..SESSIONS {
            assert_eq!(escape.held_slabs(session), model.held_slabs(session), "held by session {session}");
            assert_eq!(
                escape.straggler_slabs(session),
                model.straggler_slabs(session),
                "stragglers of session {session}"
            );
            assert_eq!(escape.is_slow(session), model.is_slow(session), "session {session}");
        }
        for ((session, slot), since_ns) in &model.since_ns {
            assert_eq!(escape.since_ns(*session, *slot), *since_ns);
        }
        assert_eq!(escape.next_straggler_ns(), model.next_straggler_ns());
    }

    /// Checks that two evaluations offer every run that is to be copied, while the state does not change. The
    /// first one may begin in the middle, where an earlier evaluation stopped because the pool was safe.
    fn check_liveness(&mut self) {
        self.model.memory_is_ready = false;
        self.model.others_slabs = TOTAL_SLABS;
        let mut offered = self.evaluate(u32::MAX);
        offered.extend(self.evaluate(u32::MAX));
        let model = &self.model;
        if !model.config.enabled {
            return assert!(offered.is_empty());
        }
        // With room below MEM_ESC and no straggler that could leave, the algorithm does nothing.
        if model.replaced_slabs < model.config.replace_slabs_max && model.straggler().is_none() {
            return;
        }
        for run in model.runs.iter().filter(|run| !run.copying && model.is_slow(run.session)) {
            assert!(
                offered.iter().any(|other| (other.session, other.slot) == (run.session, run.slot)),
                "{run:?} was never offered"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_controller_does_what_the_model_does(
        config in config(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        config.check().unwrap();
        let mut harness = Harness::new(config);
        for op in ops {
            harness.carry_out(op);
            harness.check_counts();
        }
        harness.check_liveness();
        harness.check_counts();
    }
}
