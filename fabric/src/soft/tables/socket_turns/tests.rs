//! Tests of turns, in which the time is a number and the messages are none: the tests spend what messages
//! cost.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn source(number: u32) -> Source {
    Source::of_process(number, 0)
}

fn per_ms(rate: Rate) -> u64 {
    MS / rate.unit_ns
}

/// Gives turns as the NIC does. Each connection has messages of this cost without end, and stands in line
/// again. Adds to what each spent.
fn give_turns(turns: &mut SocketTurns, of: &[SourceNumber], message: u32, now_ns: u64, spent: &mut [u64]) {
    while let Some(connection) = turns.next(now_ns) {
        let number = of[connection as usize];
        let mut cost = 0;
        while turns.may_go_on(number, now_ns) {
            turns.spend(number, message, now_ns);
            cost += message;
        }
        assert!(cost < TURN_COST + message, "a turn cost {cost}");
        spent[connection as usize] += u64::from(cost);
        turns.stand_in_line(number, connection);
    }
}

#[test]
fn a_source_spends_its_share_whatever_connections_it_has_and_all_spend_theirs() {
    let every_ns = u64::try_from(TURNS_EVERY.as_nanos()).unwrap();
    for (sources, connections) in [(1, 1), (1, 64), (4, 16), (50, 1), (50, 4)] {
        for message in [1, REGION_COST] {
            let mut turns = SocketTurns::default();
            let of: Vec<_> = (0..sources * connections).map(|at| turns.join(source(at % sources))).collect();
            (0..).zip(&of).for_each(|(connection, number)| turns.stand_in_line(*number, connection));
            let mut spent = vec![0; of.len()];
            let spans = 2_000;
            for at in 0..spans {
                give_turns(&mut turns, &of, message, 7 + at * every_ns, &mut spent);
            }
            let span_ms = spans * every_ns / MS;
            let (all, sources) = (spent.iter().sum::<u64>(), sources as usize);
            let case = format!("{sources} sources with {connections} connections, messages of {message}");
            let bound = |rate| per_ms(rate) * span_ms + u64::from(rate.saved);
            assert!(all <= bound(OF_ALL) + u64::from(TURN_COST), "{case}: {all}");
            let of_source = |number: usize| spent.iter().skip(number).step_by(sources).sum::<u64>();
            let (least, most) = (0..sources).fold((u64::MAX, 0), |(least, most), number| {
                (least.min(of_source(number)), most.max(of_source(number)))
            });
            assert!(most <= bound(OF_SOURCE) + u64::from(TURN_COST), "{case}: {most}");
            // Nothing is left unspent, and sources have the same.
            let expected = (per_ms(OF_SOURCE) * span_ms).min(per_ms(OF_ALL) * span_ms / sources as u64);
            assert!(least * 10 >= expected * 9, "{case}: {least} of {expected}");
            assert!(most - least <= 2 * u64::from(TURN_COST), "{case}: {least} to {most}");
            // So have the connections of a source, within the half of a turn that ends for want of more.
            let of_first = || spent.iter().step_by(sources);
            let (least, most) = (of_first().min().unwrap(), of_first().max().unwrap());
            assert!(*most <= 2 * least + 2 * u64::from(TURN_COST), "{case}: {least} to {most}");
        }
    }
}

#[test]
fn a_sender_that_begins_registers_64_regions_within_3_ms() {
    let mut turns = SocketTurns::default();
    let number = turns.join(source(1));
    let begin_ns = 5_000 * MS;
    let (mut now_ns, mut regions, mut stands) = (begin_ns, 0, false);
    while regions < 64 {
        if !stands {
            while regions < 64 && turns.may_take(number, now_ns) {
                turns.spend(number, REGION_COST, now_ns);
                regions += 1;
            }
            assert!(regions >= 32, "{regions} at once");
            turns.stand_in_line(number, 0);
            stands = true;
        }
        now_ns += u64::try_from(TURNS_EVERY.as_nanos()).unwrap();
        while turns.next(now_ns).is_some() {
            let mut cost = 0;
            while turns.may_go_on(number, now_ns) {
                turns.spend(number, REGION_COST, now_ns);
                (cost, regions) = (cost + REGION_COST, regions + 1);
            }
            turns.stand_in_line(number, 0);
        }
    }
    assert!(now_ns - begin_ns <= 3 * MS, "{} ns", now_ns - begin_ns);
}

#[test]
fn nobody_goes_past_those_in_line() {
    let now_ns = 9 * MS;
    let mut turns = SocketTurns::default();
    let (first, second) = (turns.join(source(1)), turns.join(source(2)));
    assert!(turns.may_take(first, now_ns) && turns.may_take(second, now_ns));
    // Of the same source.
    turns.stand_in_line(first, 0);
    assert!(!turns.may_take(first, now_ns) && turns.may_take(second, now_ns));
    // Of another source, where those in line wait for what all spend.
    turns.spend(second, OF_ALL.saved, now_ns);
    assert_eq!(turns.next(now_ns), None);
    assert!(!turns.may_take(second, now_ns + MS), "there is enough again, and the line is first");
    assert_eq!(turns.next(now_ns + MS), Some(0));
    assert!(turns.may_take(second, now_ns + MS));
    // Who stands there because of its own source is gone past.
    turns.spend(first, OF_SOURCE.saved + 400, now_ns + MS);
    turns.stand_in_line(first, 0);
    let later_ns = now_ns + 19 * MS;
    assert_eq!(turns.next(later_ns), None);
    assert!(turns.may_take(second, later_ns));
    assert_eq!(turns.next(now_ns + 60 * MS), Some(0));
}

#[test]
fn who_comes_back_has_spent_what_it_had_spent_and_a_source_that_is_gone_takes_no_place() {
    let mut turns = SocketTurns::default();
    let (mut number, mut spent) = (turns.join(source(1)), 0);
    // It never stands in line, and comes back instead.
    for at in 0..10_000 {
        let now_ns = 7 + at * MS / 10;
        while turns.may_take(number, now_ns) {
            turns.spend(number, 1, now_ns);
            spent += 1;
        }
        turns.leave(number, 0);
        number = turns.join(source(1));
    }
    let share = 1_000 * per_ms(OF_SOURCE);
    assert!((share..=share + u64::from(OF_SOURCE.saved) + 1).contains(&spent), "{spent} of {share}");
    turns.leave(number, 0);
    for other in 2..1_000 {
        let now_ns = u64::from(1_000 + other) * MS;
        let number = turns.join(source(other));
        turns.spend(number, 1, now_ns);
        turns.leave(number, 0);
    }
    assert!(turns.entries.len() <= 4, "{}", turns.entries.len());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Stand { nth: usize },
    Leave { nth: usize },
    Spend { nth: usize, cost: u32 },
    Turns { later_ns: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let nth = || 0..12usize;
    prop_oneof![
        4 => nth().prop_map(|nth| Step::Stand { nth }),
        1 => nth().prop_map(|nth| Step::Leave { nth }),
        3 => (nth(), 0..300u32).prop_map(|(nth, cost)| Step::Spend { nth, cost }),
        2 => (0..2 * MS).prop_map(|later_ns| Step::Turns { later_ns }),
    ]
}

proptest! {
    /// Whoever stands in line has its turn once, in the order of its source, and within the time in which
    /// everything that was spent is earned. Who has ended has none.
    #[test]
    fn everybody_in_line_has_a_turn(steps in prop::collection::vec(step(), 0..120)) {
        let mut turns = SocketTurns::default();
        // Twelve connections of three sources, and those in line in their order.
        let of: Vec<_> = (0..12u32).map(|at| turns.join(source(at % 3))).collect();
        let (mut lives, mut line) = ([true; 12], Vec::<u32>::new());
        let (mut now_ns, mut spent_ns) = (MS, 0u64);
        let take = |turns: &mut SocketTurns, line: &mut Vec<u32>, now_ns| {
            while let Some(connection) = turns.next(now_ns) {
                let first = line.iter().position(|other| other % 3 == connection % 3);
                prop_assert_eq!(first.map(|at| line.remove(at)), Some(connection));
            }
            Ok(())
        };
        for step in steps {
            match step {
                Step::Stand { nth } => {
                    let connection = u32::try_from(nth).unwrap();
                    if lives[nth] && !line.contains(&connection) {
                        turns.stand_in_line(of[nth], connection);
                        line.push(connection);
                    }
                }
                Step::Leave { nth } => {
                    if std::mem::take(&mut lives[nth]) {
                        turns.leave(of[nth], u32::try_from(nth).unwrap());
                        line.retain(|other| *other as usize != nth);
                    }
                }
                Step::Spend { nth, cost } => {
                    if lives[nth] {
                        turns.spend(of[nth], cost, now_ns);
                        spent_ns += u64::from(cost) * OF_SOURCE.unit_ns;
                    }
                }
                Step::Turns { later_ns } => {
                    now_ns += later_ns;
                    take(&mut turns, &mut line, now_ns)?;
                }
            }
            prop_assert_eq!(turns.has_line(), !line.is_empty());
        }
        take(&mut turns, &mut line, now_ns + spent_ns)?;
        prop_assert!(line.is_empty(), "{:?} had no turn", line);
        prop_assert!(!turns.has_line());
    }
}
