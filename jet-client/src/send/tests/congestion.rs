//! Tests of the protocol under congestion signals.

use super::protocol::{
    MESSAGE_MAX, MS, ack, connected, options, sent_and_completed, submit_small_ones, welcome,
};
use crate::send::options::ProtocolOptions;
use crate::send::protocol::Action;
use crate::send::window::WindowStats;
use jet_wire::message::{AckStatus, CongestionHeader};

#[test]
fn a_congestion_signal_cuts_the_window_and_time_gives_it_back() {
    let mut protocol = connected(options(), 100, 4);
    submit_small_ones(&mut protocol, 8);
    protocol.handle_header(&CongestionHeader::encode(250), 0, 0);
    assert_eq!(sent_and_completed(&mut protocol), [1, 2]);
    assert_eq!(protocol.poll_timeout(), Some(MS));
    protocol.handle_timeout(3 * MS);
    assert_eq!(protocol.window_permille(), 400);
    assert_eq!(sent_and_completed(&mut protocol), [3]);
    protocol.handle_timeout(100 * MS);
    assert_eq!((protocol.window_permille(), protocol.poll_timeout()), (1000, None));
    assert_eq!(sent_and_completed(&mut protocol), [4, 5, 6, 7, 8]);
}

#[test]
fn signals_multiply_and_are_counted_over_all_connections() {
    let mut protocol = connected(options(), 100, 4);
    assert_eq!(protocol.stats().window, WindowStats::default());
    for at in [0, 10, 20] {
        protocol.handle_header(&CongestionHeader::encode(500), 0, at);
    }
    assert_eq!(protocol.window_permille(), 125);
    protocol.handle_timeout(20 + 2 * MS);
    assert_eq!(protocol.window_permille(), 225);
    protocol.handle_header(&CongestionHeader::encode(1000), 0, 3 * MS);
    assert_eq!((protocol.window_permille(), protocol.poll_timeout()), (1000, None));
    protocol.handle_header(&CongestionHeader::encode(500), 0, 4 * MS);
    // The next connection begins with the full window, and the counts continue.
    protocol.handle_disconnected(5 * MS);
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_connected(&welcome(100, 4), 6 * MS);
    assert_eq!((protocol.window_permille(), protocol.poll_timeout()), (1000, None));
    protocol.handle_header(&CongestionHeader::encode(999), 0, 7 * MS);
    let counted = protocol.stats().window;
    let expected = WindowStats { signals: 6, cuts: 5, steps: 2, least_permille: 125, below_full_ns: 5 * MS };
    assert_eq!(counted, expected);
}

#[test]
fn a_cut_bounds_every_window_and_one_message_always_goes() {
    // A tenth of 100 messages, 40 large messages and 1 MiB at once.
    let wide = ProtocolOptions { in_flight_max: 100, sends_max: 100, window_bytes: 1 << 20, ..options() };
    let fill = |bytes: u64, requests_max: u32, permille: u32| {
        let mut protocol = connected(wide, 1000, requests_max);
        protocol.handle_header(&CongestionHeader::encode(permille), 0, 0);
        for _ in 0..50 {
            protocol.submit_large(bytes, 0).unwrap();
        }
        let large = sent_and_completed(&mut protocol).len();
        submit_small_ones(&mut protocol, 50);
        (large, sent_and_completed(&mut protocol).len())
    };
    assert_eq!(fill(5000, 40, 1000), (40, 50));
    assert_eq!(fill(5000, 40, 100), (4, 6), "the receiver's limit, and in_flight_max");
    assert_eq!(fill(50 << 10, 40, 100), (2, 8), "window_bytes");
    assert_eq!(fill(MESSAGE_MAX, 40, 100), (1, 9), "one that is longer than the window goes alone");
    assert_eq!(fill(5000, 2, 100), (1, 9));
    assert_eq!(fill(5000, 40, 1), (1, 0));
    // With the smallest window messages still go one by one, and the window grows again without another
    // signal.
    let mut protocol = connected(wide, 1000, 40);
    submit_small_ones(&mut protocol, 100);
    for _ in 0..20 {
        protocol.handle_header(&CongestionHeader::encode(500), 0, 0);
    }
    assert_eq!(protocol.window_permille(), 1);
    for sequence in 1..=3 {
        assert_eq!(sent_and_completed(&mut protocol), [sequence]);
        protocol.handle_header(&ack(1000, sequence, 1, AckStatus::Consumed), 0, 0);
    }
    protocol.handle_timeout(20 * MS);
    assert_eq!((protocol.window_permille(), protocol.poll_timeout()), (1000, None));
    assert_eq!(sent_and_completed(&mut protocol).len(), 97);
}
