//! Tests of quarantine: slabs of ended sessions are not used again while they may be read, and one process
//! cannot get the whole pool that way.

use super::*;
use crate::stats::QuarantineStats;
use alloc::string::ToString;

/// Breaks a session with a release of an unknown kind.
fn fault(bench: &mut Bench, session: SessionId) {
    let release = Release { index: 0, generation: 0, first: 0, count: 1, kind: 9, reserved: 0, code: 0 };
    bench.receiver.handle_release(bench.now_ns, session, release, &mut bench.world).unwrap_err();
}

fn open_as(bench: &mut Bench, app: &str, process: Option<u32>) -> Result<SessionId, OpenError> {
    let process = process.map(ProcessId);
    bench
        .receiver
        .handle_session_opened(bench.now_ns, Registration { process, ..Registration::new(name(app)) })
}

/// Sends a small message, which the session holds, and breaks the session.
fn hold_and_fault(bench: &mut Bench, session: SessionId, peer: PeerId, sequence: u64) {
    bench.small(peer, sequence, b"held");
    bench.flush();
    fault(bench, session);
}

#[test]
fn a_process_that_may_still_read_what_a_faulty_session_held_gets_no_other_session() {
    let mut bench = Bench::new(config());
    let peer = bench.join("disk");
    let session = open_as(&mut bench, "disk", Some(7)).unwrap();
    hold_and_fault(&mut bench, session, peer, 1);
    bench.wait(100_000_000_000);
    let refused = OpenError::Quarantined { slabs: 1 };
    assert_eq!(open_as(&mut bench, "disk", Some(7)), Err(refused));
    assert_eq!(open_as(&mut bench, "tape", Some(7)), Err(refused));
    let said = refused.to_string();
    assert!(said.contains("4096 bytes") && said.contains("end the process"), "{said}");
    let stats = bench.receiver.quarantine_stats(session).unwrap();
    let holds = QuarantineStats {
        app: name("disk"),
        process: Some(ProcessId(7)),
        faulted: true,
        held_slabs: 1,
        holder_lives: true,
    };
    assert_eq!(stats, holds);
    // Other processes are not concerned.
    let other = open_as(&mut bench, "disk", Some(8)).unwrap();
    assert!(bench.receiver.quarantine_stats(other).is_none());
    // The process lets go, and what it held is back after the quarantine.
    bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
    assert!(!bench.receiver.quarantine_stats(session).unwrap().holder_lives);
    bench.wait(10_000_000);
    assert!(bench.receiver.quarantine_stats(session).is_none());
    open_as(&mut bench, "tape", Some(7)).unwrap();
}

#[test]
fn a_process_that_let_go_of_its_session_may_come_again_at_once() {
    let mut bench = Bench::new(config());
    let session = open_as(&mut bench, "disk", Some(7)).unwrap();
    let peer = bench.join("disk");
    bench.small(peer, 1, b"held");
    bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
    assert_eq!(bench.receiver.quarantine_stats(session).unwrap().held_slabs, 1);
    open_as(&mut bench, "disk", Some(7)).unwrap();
}

#[test]
fn where_processes_cannot_be_told_apart_a_faulty_application_is_known_by_its_name() {
    let mut bench = Bench::new(config());
    let peer = bench.join("disk");
    let session = open_as(&mut bench, "disk", None).unwrap();
    hold_and_fault(&mut bench, session, peer, 1);
    assert_eq!(open_as(&mut bench, "disk", None), Err(OpenError::Quarantined { slabs: 1 }));
    open_as(&mut bench, "tape", None).unwrap();
}

#[test]
fn what_held_nothing_when_it_broke_takes_no_place() {
    let mut bench = Bench::new(config());
    for _ in 0..10 {
        // More sessions than there are places, all of one process that lives on.
        let session = open_as(&mut bench, "disk", Some(7)).unwrap();
        fault(&mut bench, session);
        bench.wait(2_000_000_000);
    }
}

#[test]
fn nobody_ticks_for_what_no_tick_ends() {
    let mut bench = Bench::new(config());
    let peer = bench.join("disk");
    let session = bench.open("disk");
    hold_and_fault(&mut bench, session, peer, 1);
    // The sender hears the message's end and leaves.
    bench.receiver.handle_peer_lost(peer);
    bench.wait(2_000_000_000);
    assert_eq!(bench.receiver.next_tick_ns(), None);
    bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
    assert!(bench.receiver.next_tick_ns().is_some());
    bench.wait(10_000_000);
    assert_eq!((bench.receiver.next_tick_ns(), bench.receiver.stats().quarantined_slabs), (None, 0));
}

#[test]
fn a_dead_application_is_quarantined_and_its_messages_end() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.small(peer, 1, b"held");
    bench.request(peer, 2, 300_000, None);
    bench.flush();
    bench.read_done();
    bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
    bench.flush();
    assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::AppGone)], "2 is still being read");
    while !bench.world.reads.is_empty() {
        bench.read_done();
    }
    bench.flush();
    assert_eq!(bench.world.ends[1..], [(peer.0, 2, AckStatus::AppGone)]);
    assert_eq!(bench.receiver.stats().quarantined_slabs, 17, "one small slab and one fragment");
    let again = bench.open("disk");
    assert_ne!(again, session);
    bench.now_ns += 2_000_000_000;
    bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    bench.flush();
    assert_eq!(bench.receiver.stats().quarantined_slabs, 0);
    assert!(bench.whole());
}

#[test]
fn what_a_living_application_may_still_read_stays_in_quarantine_until_it_is_gone() {
    for ended in [false, true] {
        let mut bench = Bench::new(config());
        let session = bench.open("disk");
        let peer = bench.join("disk");
        bench.small(peer, 1, b"held");
        bench.flush();
        if ended {
            bench.receiver.handle_session_ended(bench.now_ns, session, &mut bench.world);
        } else {
            fault(&mut bench, session);
        }
        assert_eq!(bench.world.closed.len(), 1);
        // The name is free for another process, the slabs are not, however long the process lives.
        bench.open("disk");
        for _ in 0..100 {
            bench.wait(1_000_000_000);
        }
        assert_eq!(bench.receiver.stats().quarantined_slabs, 1);
        bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
        bench.wait(10_000_000);
        assert_eq!(bench.receiver.stats().quarantined_slabs, 0);
        assert_eq!(bench.world.closed.len(), 1, "closed once");
        assert!(bench.whole());
    }
}

#[test]
fn a_quarantine_lasts_its_time_though_the_application_is_gone() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.small(peer, 1, b"held");
    bench.flush();
    bench.receiver.handle_session_ended(bench.now_ns, session, &mut bench.world);
    bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
    bench.wait(900_000_000);
    assert_eq!(bench.receiver.stats().quarantined_slabs, 1);
    bench.wait(200_000_000);
    assert_eq!(bench.receiver.stats().quarantined_slabs, 0);
}

#[test]
fn one_process_leaves_session_numbers_to_the_others() {
    let mut bench = Bench::new(Config { sessions_max: 16, ..config() });
    let mut all_of = |process: u32| {
        let mut count = 0;
        loop {
            let app = alloc::format!("app-{process}-{count}");
            match open_as(&mut bench, &app, Some(process)) {
                Ok(_) => count += 1,
                Err(refused) => {
                    assert!(matches!(refused, OpenError::ProcessShare { has, max: 16 } if has == count));
                    let said = refused.to_string();
                    assert!(said.contains(&alloc::format!("has {count} of the 16")), "{said}");
                    return count;
                }
            }
        }
    };
    assert_eq!([all_of(1), all_of(2)], [12, 3]);
    // The last number is for somebody who has none.
    open_as(&mut bench, "late", Some(3)).unwrap();
    assert_eq!(open_as(&mut bench, "later", Some(4)), Err(OpenError::TooMany { max: 16 }));
}

#[test]
fn a_session_that_held_nothing_leaves_its_number_at_once() {
    let mut bench = Bench::new(config());
    for life in 0..100 {
        let session = open_as(&mut bench, "disk", Some(7)).unwrap_or_else(|error| panic!("{life}: {error}"));
        bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
        bench.wait(10_000_000);
    }
}
