//! Tests of the window against loads whose rate depends on it in known ways.

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Runs a load whose rate depends on the window for `span_ns`; returns the time at its end.
fn run(
    footprint: &mut FootprintWindow,
    from_ns: u64,
    span_ns: u64,
    has_more_to_read: bool,
    rate: impl Fn(u64) -> u64,
) -> u64 {
    const TURN_NS: u64 = 50_000;
    let mut now_ns = from_ns;
    while now_ns < from_ns + span_ns {
        now_ns += TURN_NS;
        let window = footprint.window_bytes().unwrap_or(12 * MIB);
        footprint.released(rate(window) * TURN_NS / 1000);
        footprint.check(now_ns, has_more_to_read);
    }
    now_ns
}

/// Returns the rate of a load that is fastest with a window of 1 MiB. Windows from 8 MiB on do better than
/// those between, and smaller ones than 1 MiB do worst.
fn only_pays_far_below(window: u64) -> u64 {
    match window / KIB {
        0..1024 => 700,
        1024 => 1500,
        1025..8192 => 900,
        _ => 1000,
    }
}

fn new() -> FootprintWindow {
    FootprintWindow::new(MIB / 2, 12 * MIB)
}

#[test]
fn windows_double_up_to_no_limit() {
    let footprint = new();
    let sizes = [512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288];
    assert!((0..).zip(sizes).all(|(step, kib)| footprint.bytes_of(step) == kib * KIB));
    assert!(footprint.is_last(9) && !footprint.is_last(8));
}

#[test]
fn every_window_is_tried_once_and_then_it_ends() {
    for last in 0..12 {
        for step in 0..=last {
            for (far, upward) in [(true, false), (false, false), (false, true)] {
                let most_bytes = FootprintWindow::new(MIB, 1 << 40).bytes_of(last);
                let mut footprint = FootprintWindow::new(MIB, most_bytes);
                (footprint.current, footprint.far, footprint.upward) = (step, far, upward);
                let mut tried = alloc::vec::Vec::new();
                let mut tried_last = step;
                while let Some(next) = footprint.next(tried_last) {
                    assert!(
                        next <= last && next != step && !tried.contains(&next),
                        "{last} {step}: {tried:?} {next}"
                    );
                    tried.push(next);
                    tried_last = next;
                }
                if !far {
                    let beside = u32::from(step > 0) + u32::from(step < last);
                    assert_eq!(tried.len(), beside as usize, "{last} {step}");
                } else if step != last {
                    assert!(tried.contains(&last), "{last} {step}: {tried:?}");
                }
            }
        }
    }
}

#[test]
fn turns_that_nobody_looked_at_decide_nothing() {
    // A larger window is no better, and the machine stands still for 4 ms in every 8.
    let mut footprint = new();
    let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, |window| window.min(MIB) / KIB);
    assert_eq!(footprint.current_bytes(), MIB);
    for turn in 0..2000 {
        now_ns =
            run(&mut footprint, now_ns, 4_000_000 + turn % 7 * 500_000, true, |window| window.min(MIB) / KIB);
        assert!(footprint.current_bytes() <= 1536 * KIB, "after {turn}");
        now_ns += 4_000_000;
    }
    assert_eq!(footprint.current_bytes(), MIB);
}

#[test]
fn a_window_that_lets_everything_in_is_not_tried_for_ever() {
    let mut footprint = new();
    let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, |window| window.min(MIB) / KIB);
    // No more than 1.2 MiB is ever left to read: all of it fits the candidate.
    let mut tried = 0;
    for _ in 0..20_000 {
        let fits = footprint.window_bytes().unwrap_or(12 * MIB) > MIB;
        tried += u32::from(fits);
        now_ns = run(&mut footprint, now_ns, 1_000_000, !fits, |window| window.min(MIB) / KIB);
    }
    assert_eq!(footprint.current_bytes(), MIB);
    assert!(tried < 1000, "{tried} of 20,000 ms");
}

#[test]
fn a_gentle_slope_is_not_walked_up_and_down() {
    let mut footprint = new();
    let rate = |window: u64| 100_000 - u64::from((12 * MIB / window).ilog2()) * 1000;
    let now_ns = run(&mut footprint, 0, 20_000_000_000, true, rate);
    let (mut changes, mut before) = (0, footprint.current_bytes());
    for turn in 0..10_000 {
        run(&mut footprint, now_ns + turn * 1_000_000, 1_000_000, true, rate);
        changes += u32::from(core::mem::replace(&mut before, footprint.current_bytes()) != before);
    }
    assert!(changes <= 4, "{changes} changes in 10 s");
}

#[test]
fn a_load_that_plainly_needs_more_has_it_without_a_rest_between() {
    let mut footprint = new();
    let now_ns = run(&mut footprint, 0, 60_000_000_000, true, |window| window.min(MIB) / KIB);
    assert_eq!(footprint.current_bytes(), MIB);
    // Nothing is released below 6 MiB: the window grows after at most one rest, and then step by step.
    run(&mut footprint, now_ns, 10_000_000_000, true, |window| if window < 6 * MIB { 0 } else { 5 });
    assert!(footprint.current_bytes() >= 6 * MIB);
}

#[test]
fn what_only_pays_far_below_is_found_again_after_bursts() {
    let rate = only_pays_far_below;
    let mut footprint = new();
    let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
    for _ in 0..2000 {
        now_ns = run(&mut footprint, now_ns, 500_000, true, rate);
        now_ns = run(&mut footprint, now_ns, 500_000, false, rate);
    }
    assert_eq!(footprint.window_bytes(), None);
    run(&mut footprint, now_ns, 4_000_000_000, true, rate);
    assert_eq!(footprint.current_bytes(), MIB);
}

#[test]
fn what_is_too_much_is_taken_away_and_no_more() {
    // Any window below 4 MiB is too little; above 4 MiB nothing is gained.
    let mut footprint = new();
    assert_eq!(footprint.window_bytes(), None);
    run(&mut footprint, 0, 4_000_000_000, true, |window| window.min(4 * MIB) / KIB);
    assert_eq!(footprint.current_bytes(), 4 * MIB);
}

#[test]
fn what_falls_out_of_the_cache_beyond_two_is_kept_at_two() {
    let rate = |window: u64| if window <= 2 * MIB { window.min(MIB) / KIB } else { 800 };
    let mut footprint = new();
    let now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
    assert!((MIB..=2 * MIB).contains(&footprint.current_bytes()));
    // The load changes: all of the pool is needed now, and found.
    let now_ns = run(&mut footprint, now_ns, 6_000_000_000, true, |window| window / KIB);
    assert_eq!(footprint.current_bytes(), 12 * MIB);
    // The first load comes back.
    run(&mut footprint, now_ns, 8_000_000_000, true, rate);
    assert!((MIB..=2 * MIB).contains(&footprint.current_bytes()));
}

#[test]
fn a_window_that_only_pays_far_below_is_found() {
    let rate = only_pays_far_below;
    let mut footprint = new();
    run(&mut footprint, 0, 4_000_000_000, true, rate);
    assert_eq!(footprint.current_bytes(), MIB);
}

#[test]
fn what_is_tried_in_vain_is_tried_ever_less() {
    let mut footprint = new();
    // Only all of the pool is enough.
    let rate = |window: u64| if window < 12 * MIB { 500 } else { 1000 };
    let now_ns = run(&mut footprint, 0, 60_000_000_000, true, rate);
    let mut tried = 0;
    for turn in 0..20_000 {
        run(&mut footprint, now_ns + turn * 1_000_000, 1_000_000, true, rate);
        tried += u32::from(footprint.window_bytes().is_some());
    }
    assert_eq!(footprint.current_bytes(), 12 * MIB);
    assert!(tried < 400, "{tried} of 20,000 ms");
}

#[test]
fn what_stands_is_exceeded_by_half_at_most_and_all_sizes_are_tried_again_at_last() {
    // Less than 1 MiB is worse and more is no better; later all of the pool is.
    let best = |all: u64| move |window: u64| if window == 12 * MIB { all } else { window.min(MIB) / KIB };
    let mut footprint = new();
    let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, best(1024));
    assert_eq!(footprint.current_bytes(), MIB);
    let mut largest = 0;
    for _ in 0..60_000 {
        now_ns = run(&mut footprint, now_ns, 1_000_000, true, best(3000));
        largest = largest.max(footprint.window_bytes().unwrap_or(12 * MIB));
    }
    assert_eq!(largest, 1536 * KIB);
    run(&mut footprint, now_ns, 120_000_000_000, true, best(3000));
    assert_eq!(footprint.current_bytes(), 12 * MIB);
}

#[test]
fn a_load_that_ends_now_and_then_keeps_its_window() {
    let rate = |window: u64| if window <= MIB { window / KIB } else { 500 };
    let mut footprint = new();
    let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
    assert_eq!(footprint.current_bytes(), MIB);
    for _ in 0..10 {
        now_ns = run(&mut footprint, now_ns, 1_501_000_000, true, rate);
        now_ns = run(&mut footprint, now_ns, 501_000_000, false, |_| 0);
        assert_eq!(footprint.current_bytes(), MIB);
    }
}

#[test]
fn a_pause_that_nobody_looked_at_says_nothing() {
    let rate = |window: u64| if window <= MIB { window / KIB } else { 500 };
    let mut footprint = new();
    let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, rate);
    assert_eq!(footprint.current_bytes(), MIB);
    for turn in 0..2000 {
        // Each pause begins a little later in an epoch.
        now_ns = run(&mut footprint, now_ns, 20_000_000 + turn * 50_000, true, rate);
        assert_eq!(footprint.current_bytes(), MIB, "after {turn} pauses");
        now_ns += 5_000_000_000;
    }
}

#[test]
fn bursts_have_the_whole_pool_and_an_idle_window_stays() {
    let mut footprint = new();
    let mut now_ns = run(&mut footprint, 0, 4_000_000_000, true, |_| 3);
    let before = footprint.current_bytes();
    assert_eq!(before, MIB / 2);
    now_ns = run(&mut footprint, now_ns, 1_000_000_000, false, |_| 1);
    assert_eq!(footprint.current_bytes(), before);
    for _ in 0..2000 {
        now_ns = run(&mut footprint, now_ns, 500_000, true, |_| 3);
        now_ns = run(&mut footprint, now_ns, 500_000, false, |_| 1);
    }
    assert_eq!(footprint.window_bytes(), None);
}

#[test]
fn a_window_that_releases_nothing_is_left() {
    // The message is longer than the window, and its application gives nothing back before it has all of it.
    let mut footprint = new();
    run(&mut footprint, 0, 2_000_000_000, true, |window| if window < 6 * MIB { 0 } else { 5 });
    assert!(footprint.current_bytes() >= 6 * MIB);
}

#[test]
fn a_measured_footprint_is_littles_law() {
    // 10 GB/s for 200 us are 2 MB.
    assert_eq!(measured_footprint_bytes(10_000_000, 200_000), Some(2_000_000));
    assert_eq!(measured_footprint_bytes(0, 200_000), None);
    assert_eq!(measured_footprint_bytes(10_000_000, 0), None);
    assert_eq!(measured_footprint_bytes(u64::MAX, u64::MAX), Some(u64::MAX));
}
