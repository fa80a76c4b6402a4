//! Tests of connections over `shm:` that say nothing. The time is a number that the tests set. All of them
//! are this process's, so they are of one source; several sources are in [`crate::soft::strangers`].

use super::*;
use crate::soft::accepting::Accepting;
use crate::soft::strangers::{NEWCOMERS_PER_PAUSE, PAUSE};
use crate::soft::token::{NUMBER_MASK, Place as TokenPlace};
use crate::soft::transport::Transport;
use rustix::event::epoll::EventFlags;

/// Time that passes with each turn, in nanoseconds.
const STEP_NS: u64 = 100_000;

fn turn_and_step(host: &mut Host) {
    host.turn();
    host.now_ns += STEP_NS;
}

fn until_waiting(place: &mut Place, count: usize) {
    until("so many wait", || {
        turn_and_step(&mut place.host);
        place.host.nic.shm.strangers.count() == count
    });
}

fn is_closed(socket: &OwnedFd) -> bool {
    matches!(receive(socket), Received::Closed)
}

#[test]
fn who_says_nothing_has_no_qp_and_holds_up_nobody() {
    let mut place = Place::new(SoftOptions { qps_max: 1, ..SoftOptions::default() });
    let silent: Vec<_> = (0..384).map(|_| connect_to(&place.path).unwrap()).collect();
    let mut client = Host::new(SoftOptions::default());
    client.nic.connect(&Address::Shm(place.path.clone()), &nothing()).unwrap();
    until("a request", || {
        turn_and_step(&mut place.host);
        matches!(place.host.events[..], [Event::ConnectRequest { .. }])
    });
    assert!(place.host.now_ns <= 100_000_000, "{} ns passed", place.host.now_ns);
    until_waiting(&mut place, silent.len());
    assert!(silent.iter().all(|socket| !is_closed(socket)));
}

#[test]
fn a_process_that_has_its_share_makes_room_for_itself() {
    let mut place = Place::new(SoftOptions { strangers_max: 8, ..SoftOptions::default() });
    let mut silent: Vec<_> = Vec::new();
    for count in 1..=4 {
        silent.push(connect_to(&place.path).unwrap());
        until_waiting(&mut place, count);
    }
    for gone in 0..100 {
        silent.push(connect_to(&place.path).unwrap());
        until("closed", || {
            turn_and_step(&mut place.host);
            is_closed(&silent[gone])
        });
        assert!(silent[gone + 1..].iter().all(|socket| !is_closed(socket)));
    }
    // Those that have waited longest go, and whoever has its request ready comes in.
    let mut client = Host::new(SoftOptions::default());
    place.connect(&mut client);
    assert_eq!(place.host.nic.shm.strangers.count(), 4);
    assert_eq!(place.host.nic.counters().protocol_errors, 0);
}

#[test]
fn who_has_said_all_is_let_in_when_its_place_is_wanted() {
    let mut place = Place::new(SoftOptions::default());
    let sockets = [connect_to(&place.path).unwrap(), connect_to(&place.path).unwrap()];
    until_waiting(&mut place, 2);
    let link = Link::make().unwrap();
    assert!(send_control(&sockets[0], connect_control(32), Some(link.file().unwrap().as_fd())).unwrap());
    // The NIC has not been told that the request arrived.
    let nic = &mut place.host.nic;
    nic.tables.deadlines.begin_poll(place.host.now_ns);
    for _ in 0..2 {
        let first = nic.shm.strangers.first().unwrap();
        nic.shm.look_at_stranger(&mut nic.tables, first, true);
    }
    nic.tables.deadlines.end_poll();
    place.host.turn();
    assert!(matches!(place.host.events[..], [Event::ConnectRequest { .. }]));
    assert!(is_closed(&sockets[1]) && !is_closed(&sockets[0]));
}

#[test]
fn who_hangs_up_gives_its_place_back_at_once() {
    let mut place = Place::new(SoftOptions::default());
    let silent: Vec<_> = (0..3).map(|_| connect_to(&place.path).unwrap()).collect();
    until_waiting(&mut place, 3);
    drop(silent);
    until_waiting(&mut place, 0);
    assert!(place.host.events.is_empty());
}

#[test]
fn a_crowd_at_one_address_holds_up_nobody_at_another() {
    let mut place = Place::new(SoftOptions::default());
    let quiet = place.path.with_file_name("quiet.sock");
    place.host.nic.listen(&Address::Shm(quiet.clone())).unwrap();
    // More than the NIC accepts in 20 pauses.
    let _crowd: Vec<_> = (0..400).map(|_| connect_to(&place.path).unwrap()).collect();
    for _ in 0..3 {
        let mut client = Host::new(SoftOptions::default());
        client.nic.connect(&Address::Shm(quiet.clone()), &nothing()).unwrap();
        let begin_ns = place.host.now_ns;
        until("a request", || {
            // The epoll is asked at each turn, as by a NIC that has slept.
            place.host.nic.arm(place.host.now_ns);
            turn_and_step(&mut place.host);
            matches!(place.host.events.pop(), Some(Event::ConnectRequest { .. }))
        });
        let waited = Duration::from_nanos(place.host.now_ns - begin_ns);
        assert!(waited <= 2 * PAUSE, "{waited:?}");
    }
    assert!(place.host.nic.shm.strangers.count() < 200, "the crowd waits yet");
}

#[test]
fn requests_without_a_link_count_against_the_pause() {
    let mut place = Place::new(SoftOptions::default());
    let memory = SharedMemory::new("no-link", 4096, false).unwrap();
    let bad: Vec<_> = (0..100)
        .map(|_| {
            let socket = connect_to(&place.path).unwrap();
            assert!(send_control(&socket, connect_control(32), Some(memory.as_fd())).unwrap());
            socket
        })
        .collect();
    // The time stands still, so a pause does not end.
    for _ in 0..1000 {
        place.host.turn();
    }
    let closed = |sockets: &[OwnedFd]| sockets.iter().filter(|socket| is_closed(socket)).count();
    assert_eq!(closed(&bad), NEWCOMERS_PER_PAUSE as usize);
    until("all closed", || {
        turn_and_step(&mut place.host);
        closed(&bad) == bad.len()
    });
    assert_eq!(place.host.nic.counters().protocol_errors, bad.len() as u64);
}

#[test]
fn an_event_of_a_stranger_that_has_gone_closes_no_newcomer_at_its_place() {
    let mut place = Place::new(SoftOptions { strangers_max: 1, ..SoftOptions::default() });
    let first = connect_to(&place.path).unwrap();
    until_waiting(&mut place, 1);
    let second = connect_to(&place.path).unwrap();
    until("the first to make room", || {
        turn_and_step(&mut place.host);
        is_closed(&first)
    });
    let nic = &mut place.host.nic;
    let hung_up = |number| TokenPlace::Stranger { place: 0, number };
    for stale in [0, 2, NUMBER_MASK] {
        nic.shm.ready(&mut nic.tables, hung_up(stale), EventFlags::HUP);
        assert!(!is_closed(&second), "{stale}");
    }
    nic.tables.deadlines.begin_poll(place.host.now_ns);
    nic.shm.ready(&mut nic.tables, hung_up(1), EventFlags::HUP);
    nic.tables.deadlines.end_poll();
    assert!(is_closed(&second));
}

#[test]
fn who_has_said_its_request_gives_no_descriptor_to_others() {
    let mut place = Place::new(SoftOptions::default());
    let sockets = [connect_to(&place.path).unwrap(), connect_to(&place.path).unwrap()];
    until_waiting(&mut place, 2);
    let link = Link::make().unwrap();
    assert!(send_control(&sockets[0], connect_control(32), Some(link.file().unwrap().as_fd())).unwrap());
    let strangers = &place.host.nic.shm.strangers;
    assert_eq!(
        (strangers.first(), strangers.first_without_request(super::super::control::said)),
        (Some(0), Some(1))
    );
}
