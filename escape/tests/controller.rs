//! Tests of Algorithm 1 (Jet §4.3) line by line, of turns between sessions, and of the bounds on an
//! evaluation's work.

use jet_escape::{ACTIONS_MAX, Action, COUNTED_MAX, Escape, EscapeConfig, PoolView, Pressure};
use std::collections::{HashMap, HashSet};

const SAFE: PoolView = PoolView { available_slabs: 500, total_slabs: 1000, replaced_slabs: 0 };
const UNSAFE: PoolView = PoolView { available_slabs: 100, total_slabs: 1000, replaced_slabs: 0 };
const DANGER: PoolView = PoolView { available_slabs: 10, total_slabs: 1000, replaced_slabs: 0 };
const LATE_NS: u64 = 10_000_000;

fn config() -> EscapeConfig {
    EscapeConfig::default()
}

fn without_replacing() -> EscapeConfig {
    EscapeConfig { replace_slabs_max: 0, ..config() }
}

/// Creates a controller in which each session holds so many runs of one slab since time 0.
fn holding(config: EscapeConfig, runs: &[u16]) -> Escape {
    let mut escape = Escape::new(config, u32::try_from(runs.len()).unwrap(), 1024);
    for (session, runs) in (0..).zip(runs) {
        (0..*runs).for_each(|slot| escape.hold(session, slot, 1, 0));
    }
    escape
}

/// Counts all stragglers, in as many steps as needed.
fn count_all(escape: &mut Escape) {
    while escape.next_straggler_ns().is_some_and(|next_ns| next_ns <= LATE_NS) {
        escape.count_stragglers(LATE_NS);
    }
}

/// Returns all actions of an evaluation in which the pool stays as it is. Copies begin or not, as
/// `copies_begin` says.
fn evaluate(escape: &mut Escape, view: PoolView, copies_begin: bool) -> Vec<Action> {
    escape.begin(LATE_NS, view);
    let mut actions = Vec::new();
    while let Some(action) = escape.next(LATE_NS, view) {
        match action {
            Action::Replace { session, slot, .. } => escape.remove(session, slot),
            Action::Copy { session, slot, .. } if copies_begin => escape.copying(session, slot),
            Action::Copy { .. } | Action::Mark => {}
        }
        actions.push(action);
    }
    actions
}

fn copies_of(actions: &[Action]) -> Vec<(u32, u16)> {
    let copy = |action: &Action| match action {
        Action::Copy { session, slot, .. } => Some((*session, *slot)),
        _ => None,
    };
    actions.iter().filter_map(copy).collect()
}

#[test]
fn nothing_is_done_while_the_pool_is_safe_or_escape_is_off() {
    let mut escape = holding(config(), &[100]);
    assert!(!escape.begin(LATE_NS, SAFE));
    assert_eq!((escape.pressure(), escape.next(LATE_NS, SAFE)), (Pressure::Ok, None));
    let mut off = holding(EscapeConfig { enabled: false, ..config() }, &[100]);
    assert!(!off.begin(LATE_NS, DANGER));
    assert_eq!((off.pressure(), off.next(LATE_NS, DANGER)), (Pressure::Danger, None));
    off.count_stragglers(LATE_NS);
    assert!(off.is_slow(0), "what is shown is counted all the same");
}

#[test]
fn stragglers_are_replaced_oldest_first_until_the_pool_is_safe_again() {
    let mut escape = Escape::new(config(), 1, 1024);
    for (slot, since_ns) in [(7, 0), (3, 1), (5, LATE_NS)] {
        escape.hold(0, slot, 60, since_ns);
    }
    assert!(escape.begin(LATE_NS, UNSAFE));
    assert_eq!(escape.next(LATE_NS, UNSAFE), Some(Action::Replace { session: 0, slot: 7, slabs: 60 }));
    escape.remove(0, 7);
    let view = PoolView { available_slabs: 160, replaced_slabs: 60, ..UNSAFE };
    assert_eq!(escape.next(LATE_NS, view), Some(Action::Replace { session: 0, slot: 3, slabs: 60 }));
    escape.remove(0, 3);
    // 210 of 1000 are above the line (200), but not by the hysteresis (20): slot 5 would be replaced, were it
    // a straggler.
    let view = PoolView { available_slabs: 210, replaced_slabs: 120, ..UNSAFE };
    assert_eq!(escape.next(LATE_NS, view), None);
    assert!(escape.begin(LATE_NS, view));
    assert!(!escape.begin(LATE_NS, PoolView { available_slabs: 220, ..view }));
    assert_eq!((escape.held_slabs(0), escape.straggler_slabs(0), escape.since_ns(0, 3)), (60, 0, 1));
}

#[test]
fn replacing_ends_in_the_middle_of_an_evaluation_when_the_pool_is_safe() {
    let mut escape = holding(config(), &[2]);
    assert!(escape.begin(LATE_NS, UNSAFE));
    assert!(matches!(escape.next(LATE_NS, UNSAFE), Some(Action::Replace { slot: 0, .. })));
    escape.remove(0, 0);
    assert_eq!(escape.next(LATE_NS, SAFE), None);
    assert_eq!(escape.next(LATE_NS, UNSAFE), None, "it is over, whatever comes now");
    assert!(escape.begin(LATE_NS, UNSAFE));
    assert!(!escape.begin(LATE_NS, SAFE));
    assert_eq!(escape.next(LATE_NS, UNSAFE), None, "the next one that did not begin ends this one");
}

/// Checks line 5: below MEM_ESC replacing is all that is tried, in danger as well.
#[test]
fn without_stragglers_and_below_mem_esc_nothing_is_copied_or_marked() {
    let mut escape = holding(config(), &[100]);
    assert!(escape.begin(0, DANGER));
    assert_eq!(escape.next(0, DANGER), None);
}

#[test]
fn what_does_not_fit_into_mem_esc_counts_as_mem_esc_reached() {
    let mut escape = Escape::new(config(), 2, 8);
    escape.hold(0, 0, 64, 0);
    escape.hold(1, 0, 5, 0);
    let view = PoolView { replaced_slabs: 256 - 63, ..UNSAFE };
    assert!(escape.begin(LATE_NS, view));
    assert_eq!(escape.next(LATE_NS, view), Some(Action::Copy { session: 0, slot: 0, slabs: 64 }));
    assert_eq!(escape.next(LATE_NS, view), Some(Action::Copy { session: 1, slot: 0, slabs: 5 }));
    assert_eq!(escape.next(LATE_NS, view), None);
    // It is the other session's turn, and its run fits.
    assert!(escape.begin(LATE_NS, view));
    assert_eq!(escape.next(LATE_NS, view), Some(Action::Replace { session: 1, slot: 0, slabs: 5 }));
}

#[test]
fn where_escape_memory_cannot_be_had_the_next_stage_comes_at_once() {
    let mut escape = holding(config(), &[2]);
    assert!(escape.begin(LATE_NS, DANGER));
    assert!(matches!(escape.next(LATE_NS, DANGER), Some(Action::Replace { .. })));
    // The run was not removed: it could not be replaced.
    assert_eq!(escape.next(LATE_NS, DANGER), Some(Action::Copy { session: 0, slot: 0, slabs: 1 }));
    assert_eq!(escape.next(LATE_NS, DANGER), Some(Action::Copy { session: 0, slot: 1, slabs: 1 }));
    assert_eq!(escape.next(LATE_NS, DANGER), Some(Action::Mark));
    assert_eq!(escape.next(LATE_NS, DANGER), None, "marked once");
}

/// Checks line 14, `straggler / held > CREDIT`, and line 17: all that the application holds is copied.
#[test]
fn a_session_over_credit_is_copied_whole_and_one_at_credit_not_at_all() {
    let mut escape = Escape::new(without_replacing(), 2, 8);
    for (session, straggler_slabs) in [(0, 11), (1, 10)] {
        escape.hold(session, 0, straggler_slabs, 0);
        escape.hold(session, 1, 10, LATE_NS);
    }
    let actions = evaluate(&mut escape, UNSAFE, true);
    let expected =
        [(0, 0, 11), (0, 1, 10)].map(|(session, slot, slabs)| Action::Copy { session, slot, slabs });
    assert_eq!(actions, expected, "the young run too, and no mark: there is no danger");
    assert!(escape.is_slow(0) && !escape.is_slow(1));
    // One held slab less raises the share of stragglers, so the other session crosses the line.
    escape.release(1, 1, 1);
    assert_eq!(evaluate(&mut escape, UNSAFE, true).len(), 2);
}

#[test]
fn a_run_that_is_being_copied_is_offered_again_only_when_the_copy_was_given_up() {
    let mut escape = holding(EscapeConfig { credit_permille: 400, ..without_replacing() }, &[3]);
    assert_eq!(copies_of(&evaluate(&mut escape, UNSAFE, true)), [(0, 0), (0, 1), (0, 2)]);
    assert_eq!(evaluate(&mut escape, UNSAFE, true), []);
    escape.not_copied(0, 1);
    escape.remove(0, 2);
    assert_eq!((escape.held_slabs(0), escape.straggler_slabs(0)), (2, 2));
    assert_eq!(copies_of(&evaluate(&mut escape, UNSAFE, true)), [(0, 1)]);
    // The slot's next run is another one.
    escape.remove(0, 0);
    escape.hold(0, 0, 1, LATE_NS);
    assert_eq!(copies_of(&evaluate(&mut escape, UNSAFE, true)), [(0, 0)]);
    // A run that is being copied is not replaced either.
    let mut replacing = holding(config(), &[2]);
    replacing.copying(0, 0);
    assert_eq!(evaluate(&mut replacing, UNSAFE, true), [Action::Replace { session: 0, slot: 1, slabs: 1 }]);
}

#[test]
fn an_application_that_pins_everything_leads_to_the_mark_and_keeps_its_turns_short() {
    let mut escape = holding(without_replacing(), &[200]);
    count_all(&mut escape);
    let mut offered = HashMap::new();
    for _ in 0..5 {
        // All 200, and then again from the first: the last action is kept for the mark.
        for copies in [63, 63, 63, 11] {
            let actions = evaluate(&mut escape, DANGER, false);
            assert_eq!(actions.len(), copies + 1);
            assert_eq!(actions.last(), Some(&Action::Mark), "copying gets it nowhere");
            copies_of(&actions).into_iter().for_each(|run| *offered.entry(run).or_insert(0) += 1);
        }
    }
    assert_eq!(offered.len(), 200);
    assert!(offered.values().all(|times| *times == 5), "all alike");
}

#[test]
fn offering_goes_on_where_it_stopped_though_that_run_was_released() {
    let mut escape = holding(without_replacing(), &[100]);
    count_all(&mut escape);
    assert_eq!(copies_of(&evaluate(&mut escape, UNSAFE, false)).last(), Some(&(0, 62)));
    escape.release(0, 63, 1);
    assert_eq!(copies_of(&evaluate(&mut escape, UNSAFE, false)).first(), Some(&(0, 64)));
    assert_eq!(copies_of(&evaluate(&mut escape, UNSAFE, false)).first(), Some(&(0, 0)), "and round");
}

#[test]
fn two_sessions_that_cross_credit_at_once_are_copied_in_turns() {
    let mut escape = holding(without_replacing(), &[200, 0, 200]);
    count_all(&mut escape);
    let mut offered: Vec<(u32, u16)> = Vec::new();
    while offered.len() < 400 {
        let copies = copies_of(&evaluate(&mut escape, UNSAFE, true));
        assert!(!copies.is_empty());
        let of_first = copies.iter().filter(|(session, _)| *session == 0).count();
        assert!(of_first.abs_diff(copies.len() - of_first) <= 1, "{of_first} of {}", copies.len());
        offered.extend(copies);
    }
    for session in [0, 2] {
        let slots: Vec<u16> = offered.iter().filter(|run| run.0 == session).map(|run| run.1).collect();
        assert_eq!(slots, (0..200).collect::<Vec<u16>>(), "oldest first, each once");
    }
}

#[test]
fn two_sessions_with_stragglers_share_mem_esc() {
    let mut escape = holding(EscapeConfig { replace_slabs_max: 50, ..config() }, &[200, 200]);
    let mut view = UNSAFE;
    let mut replaced = [0; 2];
    escape.begin(LATE_NS, view);
    count_all(&mut escape);
    while let Some(Action::Replace { session, slot, slabs }) = escape.next(LATE_NS, view) {
        escape.remove(session, slot);
        view.replaced_slabs += slabs;
        replaced[session as usize] += slabs;
    }
    assert_eq!(replaced, [25, 25]);
}

#[test]
fn an_evaluation_of_a_thousand_sessions_is_bounded_and_all_have_their_turn() {
    let mut escape = holding(without_replacing(), &[20; 1000]);
    let stragglers = |escape: &Escape| (0..1000).map(|session| escape.straggler_slabs(session)).sum::<u32>();
    let mut copied = HashSet::new();
    let mut evaluations = 0;
    while copied.len() < 20_000 {
        let before = stragglers(&escape);
        let actions = evaluate(&mut escape, DANGER, true);
        assert!(actions.len() <= ACTIONS_MAX as usize, "{}", actions.len());
        assert!(stragglers(&escape) - before <= COUNTED_MAX);
        for (session, slot) in copies_of(&actions) {
            assert!(copied.insert((session, slot)), "copied twice");
            escape.remove(session, slot);
        }
        evaluations += 1;
        let enough = 20_000 / COUNTED_MAX + 20_000 / (ACTIONS_MAX - 1) + 2;
        assert!(evaluations <= enough, "{} are left out", 20_000 - copied.len());
    }
    assert_eq!((stragglers(&escape), escape.next_straggler_ns()), (0, None));
}

/// Checks that all sessions are counted, though one has more stragglers than are counted at once, again and
/// again.
#[test]
fn counting_goes_round() {
    for noisy in [0, 70, 199] {
        let mut escape = Escape::new(config(), 200, 1024);
        let hold_many = |escape: &mut Escape, since_ns| {
            (0..2 * COUNTED_MAX)
                .for_each(|slot| escape.hold(noisy, u16::try_from(slot).unwrap(), 1, since_ns));
        };
        (0..200).filter(|session| *session != noisy).for_each(|session| escape.hold(session, 0, 1, 0));
        hold_many(&mut escape, 0);
        let mut now_ns = 0;
        for _ in 0..8 {
            now_ns += config().straggler_ns;
            escape.count_stragglers(now_ns);
            escape.close(noisy);
            hold_many(&mut escape, now_ns);
        }
        let counted =
            (0..200).filter(|session| *session != noisy && escape.straggler_slabs(*session) == 1).count();
        assert_eq!(counted, 199, "beside session {noisy}");
    }
}

#[test]
fn counting_that_stopped_in_the_middle_leaves_out_nobody_before_it() {
    let mut escape = Escape::new(config(), 64, 1024);
    (0..COUNTED_MAX).for_each(|slot| escape.hold(3, u16::try_from(slot).unwrap(), 1, 0));
    escape.hold(10, 0, 1, 0);
    escape.hold(2, 0, 1, 1);
    escape.count_stragglers(config().straggler_ns);
    let counted = |escape: &Escape| [2, 3, 10].map(|session| escape.straggler_slabs(session));
    assert_eq!(counted(&escape), [0, COUNTED_MAX, 0]);
    escape.count_stragglers(config().straggler_ns + 1);
    assert_eq!(counted(&escape), [1, COUNTED_MAX, 1]);
}

#[test]
fn without_sessions_there_is_pressure_and_nothing_to_do() {
    let mut escape = Escape::new(without_replacing(), 0, 8);
    assert_eq!(evaluate(&mut escape, DANGER, true), [Action::Mark]);
    assert_eq!(escape.next_straggler_ns(), None);
}

#[test]
fn a_long_row_of_runs_being_copied_is_passed_over_in_bounded_steps() {
    let mut escape = holding(without_replacing(), &[1000]);
    count_all(&mut escape);
    (0..999).for_each(|slot| escape.copying(0, slot));
    let empty_handed = (0..100).take_while(|_| evaluate(&mut escape, UNSAFE, true).is_empty()).count();
    // 999 runs, 128 looked at in each evaluation.
    assert_eq!(empty_handed, 7);
}

#[test]
fn a_closed_session_is_forgotten_and_its_slots_can_be_held_again() {
    let mut escape = holding(without_replacing(), &[10, 10]);
    escape.begin(LATE_NS, UNSAFE);
    assert!(matches!(escape.next(LATE_NS, UNSAFE), Some(Action::Copy { session: 0, .. })));
    escape.close(0);
    let left = copies_of(&evaluate(&mut escape, UNSAFE, true));
    assert_eq!(left, (0..10).map(|slot| (1, slot)).collect::<Vec<_>>());
    assert_eq!((escape.held_slabs(0), escape.straggler_slabs(0), escape.is_slow(0)), (0, 0, false));
    escape.not_copied(0, 0);
    escape.hold(0, 3, 2, LATE_NS);
    assert_eq!(escape.next_straggler_ns(), Some(LATE_NS + config().straggler_ns));
    assert_eq!(escape.held_slabs(0), 2);
}

#[test]
fn a_straggler_is_one_from_its_time_on_and_the_next_time_is_told() {
    let mut escape = Escape::new(config(), 3, 8);
    assert_eq!(escape.next_straggler_ns(), None);
    escape.hold(1, 4, 1, 500);
    escape.hold(2, 4, 1, 600);
    assert_eq!(escape.next_straggler_ns(), Some(2_000_500));
    escape.count_stragglers(2_000_499);
    assert_eq!(escape.straggler_slabs(1), 0);
    escape.count_stragglers(2_000_500);
    assert_eq!((escape.straggler_slabs(1), escape.straggler_slabs(2)), (1, 0));
    assert_eq!(escape.next_straggler_ns(), Some(2_000_600));
    escape.release(2, 4, 1);
    assert_eq!((escape.next_straggler_ns(), escape.since_ns(2, 4)), (None, 600));
}

#[test]
#[should_panic(expected = "slot 1 of session 0 is held already")]
fn a_slot_holds_one_run_at_a_time() {
    let mut escape = Escape::new(config(), 1, 8);
    escape.hold(0, 1, 1, 0);
    escape.hold(0, 1, 1, 0);
}

#[test]
#[should_panic(expected = "no more slabs are released than are held")]
fn what_is_not_held_is_not_released() {
    let mut escape = Escape::new(config(), 1, 8);
    escape.hold(0, 1, 2, 0);
    escape.release(0, 1, 3);
}
