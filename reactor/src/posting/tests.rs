//! Tests of requests that the NIC takes later, and of requests that it never takes.

use crate::pair::{PEER, Pair, Seen};
use jet_core::pool::Run;
use jet_core::{Commands, PeerId, ReadId};
use jet_fabric::nic::{Nic, Status};
use jet_wire::message::CreditHeader;

#[test]
fn a_read_that_the_nic_has_no_room_for_waits_and_is_posted_in_its_turn() {
    let mut pair = Pair::new();
    (0..3).for_each(|id| pair.read(id, id));
    for id in 0..3 {
        assert_eq!(pair.next(), Seen::Read(id, Status::Success));
        pair.handler.post_waiting_reads();
    }
    assert_eq!(pair.handler.posting.take_unposted(), None);
}

#[test]
fn a_read_that_the_nic_refuses_for_good_ends_its_connection() {
    let mut pair = Pair::new();
    // The last slab of the pool and the one behind it, which is in no registered memory.
    let run = Run { first: pair.config.pool_slabs - 1, count: 2 };
    pair.handler.post_read(PEER, ReadId(7), pair.remote, 8192, &[run]);
    assert_eq!(pair.handler.posting.take_unposted(), Some(ReadId(7)));
    assert_eq!(pair.next(), Seen::Disconnected);
}

#[test]
fn reads_that_wait_for_a_connection_that_ended_are_given_back() {
    let mut pair = Pair::new();
    (0..3).for_each(|id| pair.read(id, id));
    pair.handler.nic.disconnect(pair.qp);
    while pair.next() != Seen::Disconnected {}
    pair.handler.peers.unbind(pair.qp);
    pair.handler.posting.give_up(PEER);
    let mut given: Vec<_> = std::iter::from_fn(|| pair.handler.posting.take_unposted()).collect();
    given.sort_by_key(|read| read.0);
    assert_eq!(given, [ReadId(1), ReadId(2)]);
}

#[test]
fn headers_that_the_nic_has_no_room_for_wait_and_are_sent_in_their_turn() {
    let mut pair = Pair::new();
    (0..3).for_each(|credit| pair.send(credit));
    // The connection takes one SEND at a time. When the first completes, that wakes the driver.
    assert!(!pair.handler.post_waiting_headers());
    for entry in 0..4 {
        pair.take(entry);
        assert_eq!(pair.next(), Seen::Sent(Status::Success));
        if entry == 0 {
            // The NIC has room now, but headers that wait already go first.
            pair.send(3);
        }
        assert_eq!(pair.handler.post_waiting_headers(), entry < 3, "whether another was posted");
    }
    for entry in 0..4 {
        assert_eq!(pair.took(entry).0, CreditHeader::encode(entry as u64, false).0, "in their order");
    }
}

#[test]
fn headers_that_wait_for_a_connection_that_ended_are_given_back() {
    let mut pair = Pair::new();
    (0..3).for_each(|credit| pair.send(credit));
    assert!(!pair.handler.post_waiting_headers());
    pair.handler.nic.disconnect(pair.qp);
    while pair.next() != Seen::Disconnected {}
    pair.handler.peers.unbind(pair.qp);
    pair.handler.posting.give_up(PEER);
    // The next sender at this place gets none of them.
    let mut sender = pair.join(PEER);
    assert!(!pair.handler.post_waiting_headers(), "nothing waits");
    assert_eq!(pair.handler.peers.sends(PEER), 0);
    sender.poll(0, &mut []);
}

/// A second peer.
const OTHER: PeerId = PeerId(1);

#[test]
fn a_peer_whose_queue_is_full_holds_up_no_other() {
    let mut pair = Pair::new();
    // The first peer takes nothing: one of its headers is under way, and two wait.
    (0..3).for_each(|credit| pair.send(credit));
    let other = pair.join(OTHER);
    pair.handler.send(OTHER, &CreditHeader::encode(9, false));
    assert_eq!(pair.handler.peers.sends(OTHER), 1, "posted at once");
    // READs, too: the first peer's connection takes one at a time.
    (0..2).for_each(|id| pair.read(id, id));
    pair.read_of(OTHER, 2, 2);
    pair.handler.post_waiting_reads();
    let mut ended: Vec<_> = (0..2).map(|_| pair.next()).collect();
    ended.sort_by_key(|seen| matches!(seen, Seen::Read(2, _)));
    assert_eq!(ended[0], Seen::Read(0, Status::Success));
    assert!(matches!(ended[1], Seen::Read(2, _)), "{ended:?}");
    drop(other);
}

#[test]
fn a_nic_that_is_behind_keeps_the_driver_awake() {
    let mut pair = Pair::new();
    (0..2).for_each(|credit| pair.send(credit));
    assert!(!pair.handler.must_try_again(), "the SEND under way wakes the driver");
    // As where the NIC's thread has taken none of the requests before: no SEND of the peer is under way.
    pair.handler.peers.send_completed(PEER);
    assert!(pair.handler.must_try_again());
    let mut pair = Pair::new();
    (0..2).for_each(|id| pair.read(id, id));
    assert!(!pair.handler.must_try_again(), "the READ under way wakes the driver");
    pair.handler.posting.read_completed();
    assert!(pair.handler.must_try_again());
}
