//! Tests of requests that the NIC takes later, and of requests that it never takes.

use crate::pair::{PEER, Pair, Seen};
use jet_core::pool::Run;
use jet_core::{Commands, ReadId};
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
    pair.handler.posting.give_up_reads(PEER);
    let mut given: Vec<_> = std::iter::from_fn(|| pair.handler.posting.take_unposted()).collect();
    given.sort_by_key(|read| read.0);
    assert_eq!(given, [ReadId(1), ReadId(2)]);
}

#[test]
fn headers_that_the_nic_has_no_room_for_wait_and_are_sent_in_their_turn() {
    let mut pair = Pair::new();
    (0..3).for_each(|credit| pair.send(credit));
    assert!(pair.handler.post_waiting_headers(), "the first is under way, and the connection takes one");
    for entry in 0..4 {
        pair.take(entry);
        assert_eq!(pair.next(), Seen::Sent(Status::Success));
        if entry == 0 {
            // The NIC has room now, but headers that wait already go first.
            pair.send(3);
        }
        assert_eq!(pair.handler.post_waiting_headers(), entry < 2, "whether any still waits");
    }
    for entry in 0..4 {
        assert_eq!(pair.took(entry).0, CreditHeader::encode(entry as u64, false).0, "in their order");
    }
}

#[test]
fn headers_that_wait_for_a_connection_that_ended_are_given_back() {
    let mut pair = Pair::new();
    (0..3).for_each(|credit| pair.send(credit));
    assert!(pair.handler.post_waiting_headers());
    pair.handler.nic.disconnect(pair.qp);
    while pair.next() != Seen::Disconnected {}
    pair.handler.peers.unbind(pair.qp);
    // These headers would keep the headers of all other connections waiting.
    assert!(!pair.handler.post_waiting_headers());
    pair.send(3);
    assert!(!pair.handler.post_waiting_headers(), "there is nobody to send to");
}
