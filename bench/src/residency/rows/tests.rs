//! Which rows turns make, which of them have bounds, and that exact rows fail when their condition is broken.

use super::of_setting;
use crate::report::Row;
use crate::residency::arrivals::Poisson;
use crate::residency::bare::Size;
use crate::residency::conventional::Most;
use crate::residency::receivers::Receiver;
use crate::residency::traffic::{Shape, TurnFigures};
use crate::residency::turns::{Bare, Measured, Offered, Turn, slowest};
use std::time::Duration;

const LOADS: [u32; 2] = [50, 90];

/// A turn in which the receivers' rates are 1, 2, 3, 4 and 5, in the order of their letters.
fn turn(shape: Shape, round: usize, place: usize, load: Option<u32>) -> Turn {
    let receiver = Receiver::ALL[place];
    let rate = f64::from(u32::try_from(place).unwrap() + 1);
    let is_jet = matches!(receiver, Receiver::Jet | Receiver::Following);
    Turn {
        round,
        place,
        receiver,
        shape,
        antagonist: Some(3.0),
        offered: load.map(|percent| Offered { percent, gigabytes_per_s: 0.9 }),
        figures: TurnFigures {
            messages: 1000,
            elapsed: Duration::from_secs(1),
            gigabytes_per_s: rate,
            p50_us: 1.0,
            p99_us: 2.0,
            p999_us: 10.0 * rate,
            late_p999_us: 0.0,
        },
        delivered: load.map(|_| 1.0),
        resident: Some(0.5),
        touched_mib: 8.0,
        misses: None,
        most: (!is_jet).then_some(Most { reads: 32, buffer_bytes: 8 << 20 }),
        others_us: 0.0,
    }
}

fn measured(shape: Shape) -> Measured {
    let mut measured = Measured::default();
    for round in 0..2 {
        for load in [None].into_iter().chain(LOADS.map(Some)) {
            measured.turns.extend((0..5).map(|place| turn(shape, round, place, load)));
        }
        measured.bare.extend(Size::ALL.map(|ring| {
            let antagonist = Some(3.0);
            Bare { round, shape, antagonist, ring, gigabytes_per_s: 9.0 }
        }));
    }
    measured
}

fn rows_of(measured: &Measured, shape: Shape) -> Vec<Row> {
    of_setting(shape, Some(3.0), &LOADS, measured)
}

fn one<'a>(rows: &'a [Row], end: &str) -> &'a Row {
    let found: Vec<&Row> = rows.iter().filter(|row| row.metric.ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{end}");
    found[0]
}

fn shape(message_bytes: usize) -> Shape {
    Shape { connections: 32, depth: 16, message_bytes }
}

#[test]
fn bounds_are_of_256_kib_and_the_tails_of_the_highest_load() {
    let whole = rows_of(&measured(shape(256 << 10)), shape(256 << 10));
    let bounded: Vec<(&str, &str)> = whole
        .iter()
        .filter_map(|row| {
            Some((row.metric.strip_prefix("256 KiB, 32 x 16, 3 GB/s hammered")?, row.bound.as_deref()?))
        })
        .collect();
    assert_eq!(
        bounded,
        [
            (": (a) Jet's pool, memory touched in a turn", "<= 12"),
            (": (a) / (b), throughput", ">= 1.9"),
            (": (c) / (a), throughput", ">= 1.1"),
            (", offered 90 %: (a) / (b), p99.9", "<= 0.5"),
            (": (e) buffers of each connection, 32 READs at once, most READs at once", "<= 32"),
            (": (d) shared pool of 32 MiB, last in first out, memory touched / most in use at once", "<= 1"),
            (": processor time of receivers out of their turn", "<= 0"),
        ]
    );
    // Another size has only the bounds that hold anywhere, and small messages need no READs.
    let of = |bytes: usize| {
        rows_of(&measured(shape(bytes)), shape(bytes)).into_iter().filter(|row| row.bound.is_some()).count()
    };
    assert_eq!((of(64 << 10), of(4 << 10)), (3, 2));
}

#[test]
fn ratios_are_of_those_that_they_name() {
    let shape = shape(256 << 10);
    let rows = rows_of(&measured(shape), shape);
    for (end, ratio) in [
        (": (a) / (b), throughput", 1.0 / 2.0),
        (": (a) / (d), throughput", 1.0 / 4.0),
        (": (a) / (e), throughput, what the cache gives", 1.0 / 5.0),
        (": (e) / (b), throughput, what the cap gives", 5.0 / 2.0),
        (", offered 50 %: (c) / (a), p99.9", 3.0),
        (", offered 90 %: (a) / (b), p99.9", 1.0 / 2.0),
        (": bare loop, 12 MiB / all connections' buffers", 1.0),
    ] {
        let row = one(&rows, end);
        assert!((row.value - ratio).abs() < 1e-9 && row.samples.len() == 2, "{row:?}");
    }
}

#[test]
fn one_turn_that_breaks_what_always_holds_is_seen() {
    let shape = shape(64 << 10);
    let broken = |end: &str, fault: &dyn Fn(&mut Turn)| {
        let mut measured = measured(shape);
        assert_eq!(one(&rows_of(&measured, shape), end).holds, Some(true), "{end}");
        measured.turns.iter_mut().rev().take(5).for_each(fault);
        assert_eq!(one(&rows_of(&measured, shape), end).holds, Some(false), "{end}");
    };
    let reads = "(e) buffers of each connection, 32 READs at once, most READs at once";
    broken(reads, &|turn| turn.most = turn.most.map(|most| Most { reads: 33, ..most }));
    broken(reads, &|turn| turn.most = None);
    let touched = "memory touched / most in use at once";
    broken(touched, &|turn| turn.touched_mib = 8.1);
    broken(touched, &|turn| turn.most = None);
    broken("processor time of receivers out of their turn", &|turn| turn.others_us = 0.1);
}

#[test]
fn the_slowest_is_who_has_the_least_median() {
    let shape = shape(4096);
    let mut turns: Vec<Turn> =
        (0..3).flat_map(|round| (0..5).map(move |place| turn(shape, round, place, None))).collect();
    // One slow turn does not make its receiver the slowest.
    turns[4].figures.gigabytes_per_s = 0.1;
    assert!((slowest(&turns) - 1.0).abs() < 1e-9);
    let offered = Poisson::new(1, slowest(&turns) * 1e9 / 4096.0, Duration::from_millis(10), 32).count();
    assert!((2300..2600).contains(&offered), "{offered} of 2441");
}
