//! Tests of the shares, the line between them, and slabs of escape memory that join and leave.

use super::*;

/// Takes up to `wanted` slabs for the SRQ; returns how many.
fn post(pool: &mut Pool, wanted: u32) -> u32 {
    let room = pool.srq_room(wanted, 0);
    let mut left = room;
    while left > 0 {
        left -= pool.take_srq(left).expect("the pool named the room").count;
    }
    room
}

#[test]
fn the_line_moves_to_who_needs_it_and_keeps_the_floor() {
    let mut pool = Pool::new(100, 40, 8, EscapeShape::default());
    assert_eq!(pool.read_room(60, 0), 60);
    pool.take_read(60).unwrap();
    assert_eq!(pool.read_room(40, 0), 32, "the SRQ floor stays");
    pool.take_read(32).unwrap();
    assert_eq!(pool.read_room(1, 0), 0);
    assert_eq!(post(&mut pool, 20), 8);
    pool.give(Run { first: 0, count: 60 }, Share::Read);
    pool.restore_line();
    assert_eq!(pool.srq_limit(), 40);
    assert_eq!(pool.high_water(), 100);
}

#[test]
fn the_srq_borrows_what_reads_leave() {
    let mut pool = Pool::new(100, 40, 8, EscapeShape::default());
    assert_eq!(post(&mut pool, 200), 100);
    assert_eq!(pool.read_room(10, 0), 0);
    pool.give(Run { first: 0, count: 70 }, Share::Srq);
    assert_eq!(pool.read_room(64, 0), 64, "a loan comes back as soon as it is let go");
}

#[test]
fn the_srq_leaves_reads_their_floor_once_it_has_its_own() {
    let mut pool = Pool::new(100, 40, 8, EscapeShape::default()).with_read_floor(16);
    assert_eq!(post(&mut pool, 90), 84);
    assert_eq!(post(&mut pool, 1), 0);
    assert_eq!(pool.read_room(16, 84), 16);
    let mut pool = Pool::new(100, 40, 8, EscapeShape::default()).with_read_floor(16);
    assert_eq!(pool.read_room(90, 0), 90);
    pool.take_read(90).unwrap();
    assert_eq!(post(&mut pool, 20), 8, "its floor comes first");
}

#[test]
fn quarantined_slabs_are_in_no_share_and_come_back() {
    let mut pool = Pool::new(10, 4, 2, EscapeShape::default());
    let run = pool.take_read(5).unwrap();
    pool.quarantine(run, Share::Read);
    assert_eq!((pool.read_used(), pool.quarantined(), pool.free()), (0, 5, 5));
    assert_eq!(pool.read_room(6, 0), 3);
    pool.release_quarantined(run, Share::Read);
    assert_eq!((pool.quarantined(), pool.free()), (0, 10));
}

fn escaping(replace_slabs: u32, memory_slabs: u32) -> Pool {
    let mut pool = Pool::new(100, 40, 8, EscapeShape { replace_slabs, memory_slabs });
    pool.make_ready(replace_slabs + memory_slabs);
    pool
}

#[test]
fn a_replaced_straggler_leaves_the_budget_and_comes_home() {
    let mut pool = escaping(16, 0);
    assert_eq!(pool.read_room(60, 0), 60);
    let held = pool.take_read(16).unwrap();
    assert!(pool.replace(held, Share::Read));
    assert_eq!((pool.budget(), pool.free(), pool.read_used(), pool.replaced()), (100, 100, 0, 16));
    assert_eq!((pool.escape_used(), pool.escape_used_max()), (16, 16));
    let other = pool.take_read(8).unwrap();
    assert!(!pool.replace(other, Share::Read), "escape memory is used up");
    pool.give(held, Share::Replaced);
    assert_eq!((pool.budget(), pool.free(), pool.replaced(), pool.escape_used()), (108, 100, 0, 8));
    pool.give(other, Share::Read);
    assert_eq!((pool.budget(), pool.free(), pool.escape_used()), (100, 100, 0));
}

#[test]
fn a_stand_in_leaves_as_soon_as_it_is_free() {
    let mut pool = escaping(10, 0);
    let held = pool.take_read(10).unwrap();
    assert!(pool.replace(held, Share::Read));
    let stand_in = pool.take_read(90).unwrap();
    let cached = pool.take_read(90).unwrap();
    assert_eq!((cached.count, stand_in), (90, Run { first: 100, count: 10 }));
    pool.give(held, Share::Replaced);
    assert_eq!((pool.budget(), pool.free(), pool.escape_used()), (110, 10, 10));
    pool.give(stand_in, Share::Read);
    assert_eq!((pool.budget(), pool.free(), pool.escape_used()), (100, 10, 0));
}

#[test]
fn a_stand_in_can_be_a_straggler_too() {
    let mut pool = escaping(20, 0);
    let held = pool.take_read(10).unwrap();
    assert!(pool.replace(held, Share::Read));
    let stand_in = pool.take_read(10).unwrap();
    let cached = pool.take_read(90).unwrap();
    assert!(pool.replace(stand_in, Share::Read));
    assert_eq!((pool.budget(), pool.free(), pool.replaced(), pool.escape_used()), (100, 10, 20, 20));
    pool.give(stand_in, Share::Replaced);
    assert_eq!((pool.budget(), pool.replaced(), pool.escape_used()), (100, 10, 10));
    pool.give(held, Share::Replaced);
    pool.give(cached, Share::Read);
    assert_eq!((pool.budget(), pool.free(), pool.escape_used()), (100, 100, 0));
}

#[test]
fn the_srq_takes_a_stand_in_only_for_what_has_to_be_posted() {
    let mut pool = escaping(20, 0);
    assert_eq!(pool.read_room(92, 0), 92);
    let held = pool.take_read(92).unwrap();
    assert!(pool.replace(Run { count: 20, ..held }, Share::Read));
    assert_eq!((pool.free(), post(&mut pool, 30)), (28, 8), "its floor is of the cache");
    assert_eq!(pool.srq_room(30, 2), 2);
    assert_eq!(pool.take_srq(2).map(|run| (run.first >= 100, run.count)), Some((true, 2)));
    assert_eq!(pool.take_read(18).map(|run| run.first >= 100), Some(true));
}

#[test]
fn the_srq_has_its_floor_though_its_own_slabs_were_replaced() {
    let mut pool = escaping(20, 0);
    assert_eq!(post(&mut pool, 8), 8);
    let small = Run { first: pool.take_read(92).unwrap().count, count: 8 };
    assert!(pool.replace(small, Share::Srq));
    assert_eq!((pool.free(), pool.srq_limit_max()), (8, 8));
    assert_eq!(post(&mut pool, 30), 8);
}

#[test]
fn what_the_srq_may_not_take_is_not_counted_on_and_left_to_reads() {
    let mut pool = escaping(20, 0);
    assert_eq!(post(&mut pool, 30), 30);
    let held = pool.take_read(60).unwrap();
    assert_eq!((pool.read_room(10, 30), pool.take_read(10).map(|run| run.count)), (10, Some(10)));
    assert!(pool.replace(Run { count: 20, ..held }, Share::Read));
    pool.restore_line();
    assert_eq!((pool.srq_limit(), pool.srq_limit_max()), (40, 30), "no credit for stand-ins");
    assert_eq!((pool.srq_room(40, 0), pool.read_room(20, 30)), (0, 20));
}

#[test]
fn memory_is_bounded_and_outside_the_budget() {
    let mut pool = escaping(4, 8);
    let copy = pool.take_memory(6, Share::Copied).unwrap();
    assert_eq!((pool.free(), pool.memory(), pool.memory_room(), pool.escape_used()), (100, 6, 2, 6));
    assert_eq!(pool.take_memory(6, Share::Copied).map(|run| run.count), Some(2));
    assert_eq!(pool.take_memory(1, Share::Copied), None, "the rest is for replacing");
    pool.quarantine(copy, Share::Copied);
    assert_eq!((pool.quarantined(), pool.memory()), (0, 8));
    pool.release_quarantined(copy, Share::Copied);
    assert_eq!((pool.free(), pool.memory()), (100, 2));
}

#[test]
fn what_is_retired_may_reach_beyond_the_pool_and_beyond_escape_memory() {
    let mut pool = escaping(4, 8);
    // Two slabs of the pool and three of escape memory.
    pool.retire(Run { first: 98, count: 5 });
    assert_eq!(pool.retired_unused(), (2, 3));
    // The last slab of escape memory, and numbers beyond it.
    pool.retire(Run { first: 111, count: 512 });
    pool.retire(Run { first: 112, count: 1 });
    pool.retire(Run { first: u32::MAX, count: u32::MAX });
    assert_eq!((pool.retired_unused(), pool.free()), ((2, 4), 98));
    let retired = |first, count| pool.is_retired(Run { first, count });
    assert!(retired(90, 9) && retired(99, 1) && retired(100, 1) && retired(102, 100) && retired(99, 10));
    assert!(!retired(90, 8) && !retired(103, 8) && !retired(112, 100) && !retired(u32::MAX, 1));
}
