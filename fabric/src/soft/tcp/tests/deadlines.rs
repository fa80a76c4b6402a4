//! Tests of deadlines over `tcp:`. The time is a number that the tests set, so no test waits. Deadlines of
//! READs are in [`super::read_timeout.

use super::*;
use crate::soft::deadlines::Wait;
use crate::soft::nic::DEADLINES_PER_POLL;
use crate::soft::token::Kind;
use std::net::TcpListener;

/// Polls an end at this time.
fn turn_at(end: &mut Host, now_ns: u64) {
    end.now_ns = now_ns;
    end.turn();
}

#[test]
fn who_says_nothing_is_dropped_when_the_time_of_the_handshake_is_over() {
    let options = SoftOptions { handshake: Duration::from_secs(5), ..SoftOptions::default() };
    let (mut server, address) = listening(options);
    let waiting = |server: &Host| server.nic.tcp.strangers.count();
    let mut silent = vec![raw(&address)];
    until(&mut [&mut server], "one", |ends| waiting(ends[0]) == 1);
    turn_at(&mut server, SECOND_NS);
    silent.push(raw(&address));
    silent[1].write_all(&connect_frame(9).to_bytes()[..20]).unwrap();
    until(&mut [&mut server], "two", |ends| waiting(ends[0]) == 2);
    silent.iter_mut().for_each(|stream| stream.set_nonblocking(true).unwrap());
    for (second, left) in [(5, 1), (6, 0)] {
        turn_at(&mut server, second * SECOND_NS - 1);
        assert_eq!(waiting(&server), left + 1);
        turn_at(&mut server, second * SECOND_NS);
        assert_eq!(waiting(&server), left);
    }
    let place = server.nic.tables.place_of_strangers(Kind::Tcp);
    assert_eq!(server.nic.tables.deadlines.wait_at(place), None, "no deadline is left");
    for stream in &mut silent {
        until(&mut [&mut server], "dropped", |_| matches!(stream.read(&mut [0; 8]), Ok(0)));
    }
    still_serves(&mut server, &address);
}

#[test]
fn who_is_not_answered_gives_up_when_the_time_of_the_handshake_is_over() {
    // The kernel takes the connection and all bytes, and nobody reads them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let mut client =
        Host::new(SoftOptions { handshake: Duration::from_secs(5), ..SoftOptions::default() }, 1);
    turn_at(&mut client, 7);
    client.nic.connect(&address, &nothing()).unwrap();
    // The span begins with the next poll, however long ago the last one was.
    turn_at(&mut client, 100 * SECOND_NS);
    for _ in 0..200 {
        turn_at(&mut client, 105 * SECOND_NS - 1);
    }
    assert_eq!(client.ended(), None);
    turn_at(&mut client, 105 * SECOND_NS);
    assert_eq!(client.ended(), Some(DisconnectReason::Transport(libc::ETIMEDOUT)));
}

#[test]
fn who_was_answered_has_no_time_of_the_handshake_any_more() {
    let (mut server, mut client, _, _) = pair(SoftOptions::default());
    turn_at(&mut server, u64::MAX / 2);
    turn_at(&mut client, u64::MAX / 2);
    assert_eq!((server.ended(), client.ended()), (None, None));
}

#[test]
fn a_send_that_finds_no_entry_in_time_ends_both_qps() {
    let options = SoftOptions { rnr_timeout: Some(Duration::from_secs(3)), ..SoftOptions::default() };
    let (mut server, mut client, _, at_client) = pair(options);
    let send = |client: &mut Host, id| {
        let request = SendRequest { id, header: &HeaderBytes::ZERO, payload: Payload::None };
        client.nic.post_send(at_client, request).unwrap();
    };
    let no_entry = |server: &mut Host, client: &mut Host, times| {
        until(&mut [server, client], "no entry", |ends| ends[0].nic.counters().rnr == times);
    };
    send(&mut client, 0);
    no_entry(&mut server, &mut client, 1);
    // The first SEND was taken in time; the next one has a deadline of its own.
    server.post_srq(0);
    turn_at(&mut server, 3 * SECOND_NS);
    assert_eq!(server.completions.len(), 1);
    send(&mut client, 1);
    send(&mut client, 2);
    no_entry(&mut server, &mut client, 2);
    turn_at(&mut server, 6 * SECOND_NS - 1);
    assert_eq!((server.ended(), server.nic.tables.deadlines.wait_at(0)), (None, Some(Wait::Rnr)));
    turn_at(&mut server, 6 * SECOND_NS);
    until(&mut [&mut server, &mut client], "ended", |ends| ends.iter().all(|end| end.ended().is_some()));
    let exhausted = Some(DisconnectReason::WorkRequest(Status::RnrExhausted));
    assert_eq!((server.ended(), client.ended()), (exhausted, exhausted));
    let statuses: Vec<_> = client.completions.iter().map(|c| c.status).collect();
    assert_eq!(statuses, [Status::Success, Status::RnrExhausted, Status::Flushed]);
    assert_eq!(server.nic.counters().rnr, 2);
}

#[test]
fn deadlines_of_a_crowd_are_carried_out_a_few_in_each_turn() {
    const CROWD: usize = 100;
    let (mut server, address) = listening(SoftOptions::default());
    let crowd: Vec<_> = (0..CROWD).map(|_| raw_connected(&mut server, &address)).collect();
    for (stream, _) in &crowd {
        let mut stream: &TcpStream = stream;
        stream.write_all(&Frame::Send { payload_bytes: 100 }.to_bytes()).unwrap();
    }
    let waits = |server: &Host, qp: Qp| server.nic.tables.deadlines.wait_at(qp.index) == Some(Wait::SendRest);
    until(&mut [&mut server], "all begun", |ends| crowd.iter().all(|&(_, qp)| waits(ends[0], qp)));
    server.now_ns = 1000 * SECOND_NS;
    let (mut ended, mut most) = (0, 0);
    until(&mut [&mut server], "all ended", |ends| {
        let now = crowd.iter().filter(|&&(_, qp)| !waits(ends[0], qp)).count();
        most = most.max(now - ended);
        ended = now;
        ended == CROWD
    });
    assert!(most <= DEADLINES_PER_POLL, "{most} in one turn");
}

#[test]
fn the_rest_of_a_send_must_arrive_in_time_and_single_bytes_do_not_move_that_time() {
    let tcp = TcpOptions { send_timeout: Duration::from_secs(4), ..TcpOptions::default() };
    let (mut server, address) = listening(SoftOptions { tcp, ..SoftOptions::default() });
    let (mut stream, qp) = raw_connected(&mut server, &address);
    server.post_srq(0);
    let mut send = Frame::Send { payload_bytes: 100 }.to_bytes().to_vec();
    send.resize(FRAME_BYTES + HEADER_BYTES + 100, 7);
    let (begin, rest) = send.split_at(FRAME_BYTES + 8);
    let waits = |server: &Host| server.nic.tables.deadlines.wait_at(qp.index) == Some(Wait::SendRest);
    // The rest arrives when the time is over, but before the NIC looks: it counts.
    stream.write_all(begin).unwrap();
    until(&mut [&mut server], "begun", |ends| waits(ends[0]));
    stream.write_all(rest).unwrap();
    stream.write_all(begin).unwrap();
    server.now_ns = 4 * SECOND_NS;
    until(&mut [&mut server], "the first", |ends| ends[0].completions.len() == 1);
    // The second SEND has a deadline of its own, and its single bytes do not move it.
    until(&mut [&mut server], "begun again", |ends| waits(ends[0]));
    let (single, last) = rest.split_at(2);
    for (byte, second) in single.iter().zip(5..) {
        stream.write_all(&[*byte]).unwrap();
        for _ in 0..200 {
            turn_at(&mut server, second * SECOND_NS);
        }
    }
    turn_at(&mut server, 8 * SECOND_NS - 1);
    assert!(waits(&server) && server.ended().is_none());
    turn_at(&mut server, 8 * SECOND_NS);
    assert_eq!(server.ended(), Some(DisconnectReason::Transport(libc::ETIMEDOUT)));
    assert_eq!(server.completions.len(), 1);
    // The peer is gone or not: what it still writes reaches nobody.
    let _ = stream.write_all(last);
    still_serves(&mut server, &address);
}

#[test]
fn a_send_that_is_whole_has_no_deadline_for_its_rest() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, _) = raw_connected(&mut server, &address);
    server.post_srq(0);
    let mut send = Frame::Send { payload_bytes: 0 }.to_bytes().to_vec();
    send.resize(FRAME_BYTES + HEADER_BYTES, 7);
    for part in send.chunks(50) {
        stream.write_all(part).unwrap();
        server.turn();
    }
    until(&mut [&mut server], "a SEND", |ends| ends[0].completions.len() == 1);
    turn_at(&mut server, u64::MAX / 2);
    assert_eq!((server.ended(), server.nic.tables.deadlines.wait_at(0)), (None, None));
}

#[test]
fn a_farewell_that_nobody_takes_ends_in_time_with_everything_flushed() {
    let options = SoftOptions { farewell: Duration::from_secs(1), ..narrow() };
    let (mut server, mut client, at_server, at_client) = pair(options);
    let header = HeaderBytes::ZERO;
    for id in 0..20 {
        let request = SendRequest { id, header: &header, payload: Payload::Inline(&[1; 4096]) };
        client.nic.post_send(at_client, request).unwrap();
    }
    let scatter = [client.slab(0)];
    client.nic.post_read(at_client, ReadRequest { id: 50, address: 0, key: 0, scatter: &scatter }).unwrap();
    client.nic.disconnect(at_client);
    turn_at(&mut client, 50 * SECOND_NS);
    turn_at(&mut client, 51 * SECOND_NS - 1);
    assert_eq!(client.ended(), None);
    turn_at(&mut client, 51 * SECOND_NS);
    assert_eq!(client.ended(), Some(DisconnectReason::Local));
    assert_eq!(client.completions.len(), 21);
    assert!(client.completions.iter().all(|completion| completion.status == Status::Flushed));
    until(&mut [&mut server], "noticed", |ends| ends[0].ended().is_some());
    assert_eq!(server.ended(), Some(DisconnectReason::Peer));
    let stale = server.nic.post_read(at_server, ReadRequest { id: 1, address: 0, key: 0, scatter: &[] });
    assert_eq!(stale, Err(crate::nic::PostError::Stale));
}

#[test]
fn connections_that_found_no_descriptor_are_accepted_later() {
    let (mut server, address) = listening(SoftOptions::default());
    // The state after an accept for which the system had no descriptor.
    let nic = &mut server.nic;
    nic.tcp.accepts_nobody = true;
    nic.tables.deadlines.set(nic.tables.place_of_listeners(Kind::Tcp), Wait::Accept, Duration::from_secs(1));
    let mut stream = raw(&address);
    stream.write_all(&connect_frame(0).to_bytes()).unwrap();
    turn_at(&mut server, 0);
    for _ in 0..200 {
        turn_at(&mut server, SECOND_NS - 1);
    }
    assert_eq!(server.requested(), None);
    server.now_ns = SECOND_NS;
    until(&mut [&mut server], "a request", |ends| ends[0].requested().is_some());
}
