//! Tests of deadlines over `shm:`. The time is a number that the tests set, so no test waits.

use super::*;
use crate::soft::accepting::Accepting;
use crate::soft::transport::Transport;

const SECOND_NS: u64 = 1_000_000_000;

/// Polls a host at this time.
fn turn_at(host: &mut Host, now_ns: u64) {
    host.now_ns = now_ns;
    host.turn();
}

#[test]
fn who_says_nothing_is_closed_when_the_time_of_the_handshake_is_over() {
    let handshake = Duration::from_secs(5);
    let mut place = Place::new(SoftOptions { handshake, ..SoftOptions::default() });
    let socket = connect_to(&place.path).unwrap();
    until("taken", || {
        turn_at(&mut place.host, 7);
        place.host.nic.shm.strangers.count() == 1
    });
    turn_at(&mut place.host, 7 + 5 * SECOND_NS - 1);
    assert!(matches!(receive(&socket), Received::Nothing));
    turn_at(&mut place.host, 7 + 5 * SECOND_NS);
    assert!(matches!(receive(&socket), Received::Closed));
    assert!(place.host.events.is_empty());
    nic_has_no_work(&mut place.host);
}

#[test]
fn who_is_not_answered_gives_up_when_the_time_of_the_handshake_is_over() {
    let handshake = Duration::from_secs(5);
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions { handshake, ..SoftOptions::default() });
    turn_at(&mut client, 7);
    let qp = client.nic.connect(&Address::Shm(place.path.clone()), &nothing()).unwrap();
    // The span begins with the next poll, however long ago the last one was.
    turn_at(&mut client, 100 * SECOND_NS);
    turn_at(&mut client, 105 * SECOND_NS - 1);
    assert_eq!(client.ended(qp), None);
    turn_at(&mut client, 105 * SECOND_NS);
    assert_eq!(client.ended(qp), Some(DisconnectReason::Transport(libc::ETIMEDOUT)));
    until("seen there too", || {
        place.host.turn();
        matches!(place.host.events[..], [Event::ConnectRequest { .. }, Event::Disconnected { .. }])
    });
}

#[test]
fn who_was_answered_has_no_time_of_the_handshake_any_more() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    turn_at(&mut client, u64::MAX / 2);
    turn_at(&mut place.host, u64::MAX / 2);
    assert_eq!((client.ended(ours), place.host.ended(theirs)), (None, None));
}

#[test]
fn a_send_that_finds_no_entry_in_time_ends_both_qps() {
    let rnr_timeout = Some(Duration::from_secs(3));
    let mut place = Place::new(SoftOptions { rnr_timeout, ..SoftOptions::default() });
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    let wait_for_the_next = |place: &mut Place, client: &mut Host, times| {
        until("no entry", || {
            client.turn();
            place.host.turn();
            place.host.nic.counters().rnr == times
        });
    };
    client.send(ours, 0, Payload::None).unwrap();
    wait_for_the_next(&mut place, &mut client, 1);
    // The first SEND was taken in time; the next one has a deadline of its own.
    place.host.post_entries(0..1);
    turn_at(&mut place.host, 3 * SECOND_NS);
    assert_eq!(place.host.completions.len(), 1);
    for id in 1..3 {
        client.send(ours, id, Payload::None).unwrap();
    }
    wait_for_the_next(&mut place, &mut client, 2);
    turn_at(&mut place.host, 6 * SECOND_NS - 1);
    assert_eq!(place.host.ended(theirs), None);
    turn_at(&mut place.host, 6 * SECOND_NS);
    let exhausted = DisconnectReason::WorkRequest(Status::RnrExhausted);
    assert_eq!(place.host.ended(theirs), Some(exhausted));
    until("ended there too", || {
        client.turn();
        client.ended(ours) == Some(exhausted)
    });
    let statuses: Vec<_> = client.completions.iter().map(|completion| completion.status).collect();
    assert_eq!(statuses, [Status::Success, Status::RnrExhausted, Status::Flushed]);
}

#[test]
fn a_farewell_arrives_and_waits_no_longer_than_it_may() {
    let mut place = Place::new(SoftOptions::default());
    for (entries, status) in [(1, Status::Success), (0, Status::Flushed)] {
        let farewell = Duration::from_secs(1);
        let mut client = Host::new(SoftOptions { farewell, ..SoftOptions::default() });
        let (ours, theirs) = place.connect(&mut client);
        place.host.post_entries(0..entries);
        client.completions.clear();
        client.send(ours, 1, Payload::None).unwrap();
        client.nic.disconnect(ours);
        client.nic.disconnect(ours);
        assert_eq!(client.send(ours, 2, Payload::None), Err(PostError::Stale));
        turn_at(&mut client, 50 * SECOND_NS);
        turn_at(&mut client, 51 * SECOND_NS - 1);
        assert_eq!(client.ended(ours), None);
        if entries == 0 {
            turn_at(&mut client, 51 * SECOND_NS);
            assert_eq!(client.ended(ours), Some(DisconnectReason::Local));
        }
        until("both ends ended", || {
            client.turn();
            place.host.turn();
            client.ended(ours) == Some(DisconnectReason::Local)
                && place.host.ended(theirs) == Some(DisconnectReason::Peer)
        });
        assert_eq!(client.statuses(), [(Work::Send { id: 1 }, status)]);
        place.host.events.clear();
    }
}

#[test]
fn connections_that_found_no_descriptor_are_accepted_later() {
    let mut place = Place::new(SoftOptions::default());
    // The state after an accept for which the system had no descriptor.
    let nic = &mut place.host.nic;
    nic.shm.pause(&mut nic.tables, Duration::from_secs(1));
    let mut client = Host::new(SoftOptions::default());
    client.nic.connect(&Address::Shm(place.path.clone()), &nothing()).unwrap();
    turn_at(&mut place.host, 0);
    for _ in 0..200 {
        turn_at(&mut place.host, SECOND_NS - 1);
    }
    assert!(place.host.events.is_empty());
    until("a request", || {
        turn_at(&mut place.host, SECOND_NS);
        matches!(place.host.events[..], [Event::ConnectRequest { .. }])
    });
    nic_has_no_work(&mut place.host);
}

/// Checks that a NIC without work may sleep, and that no deadline would wake it.
fn nic_has_no_work(host: &mut Host) {
    until("asleep", || {
        host.turn();
        host.nic.arm(host.now_ns)
    });
    assert_eq!(host.nic.tables.deadlines.next_ns(), None);
    assert!(host.nic.shm.arm(&mut host.nic.tables));
}
