//! Tests of acknowledgements: they go with what else is written, and alone only where nothing is for a while.

use super::*;
use crate::soft::tcp::LOOK_INTERVAL_MAX;
use crate::soft::tcp::socket::{self, IoOutcome};
use rustix::net::sockopt;

/// Nanoseconds for which an acknowledgement waits for something to go with.
const DELAY_NS: u64 = 30_000;

/// Writes so many SENDs without a payload, and has the server take them. Their acknowledgement is owed since
/// the server's time now.
fn taken(server: &mut Host, stream: &mut TcpStream, sends: u32) {
    server.completions.clear();
    for entry in 0..sends {
        server.post_srq(entry);
        stream.write_all(&Frame::Send { payload_bytes: 0 }.to_bytes()).unwrap();
        stream.write_all(&[3; HEADER_BYTES]).unwrap();
    }
    until(&mut [server], "taken", |ends| ends[0].completions.len() == sends as usize);
}

/// Polls the server a few times, and returns whether it has written anything.
fn has_written(server: &mut Host, stream: &TcpStream) -> bool {
    (0..4).for_each(|_| server.turn());
    stream.set_nonblocking(true).unwrap();
    let found = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    found.is_ok()
}

/// Sends a SEND without a payload.
fn send(server: &mut Host, qp: Qp, id: u64) {
    let request = SendRequest { id, header: &HeaderBytes::ZERO, payload: Payload::None };
    server.nic.post_send(qp, request).unwrap();
    server.nic.flush();
}

/// Reads a SEND without a payload, and returns the frame behind it.
fn sent(server: &mut Host, stream: &mut TcpStream) -> Frame {
    assert_eq!(next_frame(server, stream), Frame::Send { payload_bytes: 0 });
    stream.read_exact(&mut [0; HEADER_BYTES]).unwrap();
    next_frame(server, stream)
}

fn connected() -> (Host, TcpStream, Qp) {
    let (mut server, address) = listening(SoftOptions::default());
    let (stream, qp) = raw_connected(&mut server, &address);
    (server, stream, qp)
}

#[test]
fn an_acknowledgement_alone_comes_after_a_while() {
    let (mut server, mut stream, _) = connected();
    for round in 1..=3u64 {
        taken(&mut server, &mut stream, 2);
        server.now_ns += DELAY_NS - 1;
        assert!(!has_written(&mut server, &stream));
        server.now_ns += 1;
        assert_eq!(next_frame(&mut server, &mut stream), Frame::SendAck { taken: 2 * round });
        server.now_ns += DELAY_NS;
        assert!(!has_written(&mut server, &stream), "once");
    }
}

#[test]
fn an_acknowledgement_goes_with_what_is_written_first() {
    let (mut server, mut stream, qp) = connected();
    for id in 0..3 {
        taken(&mut server, &mut stream, 1);
        server.now_ns += DELAY_NS - 1;
        send(&mut server, qp, id);
        assert_eq!(sent(&mut server, &mut stream), Frame::SendAck { taken: id + 1 });
    }
}

#[test]
fn many_sends_are_acknowledged_at_once() {
    let (mut server, mut stream, _) = connected();
    taken(&mut server, &mut stream, 8);
    assert_eq!(next_frame(&mut server, &mut stream), Frame::SendAck { taken: 8 });
}

#[test]
fn who_goes_to_sleep_acknowledges_first() {
    let (mut server, mut stream, _) = connected();
    taken(&mut server, &mut stream, 1);
    until(&mut [&mut server], "asleep", |ends| ends[0].nic.arm(0));
    let mut bytes = [0; FRAME_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(Frame::parse(&bytes), Ok(Frame::SendAck { taken: 1 }));
}

#[test]
fn who_disconnects_acknowledges_what_was_taken_before() {
    let (mut server, mut stream, qp) = connected();
    taken(&mut server, &mut stream, 1);
    server.nic.disconnect(qp);
    assert_eq!(next_frame(&mut server, &mut stream), Frame::SendAck { taken: 1 });
    assert_eq!(next_frame(&mut server, &mut stream), Frame::Bye);
}

#[test]
fn acknowledgements_of_many_connections_are_each_due_in_their_time() {
    let (mut server, address) = listening(SoftOptions::default());
    let mut streams: Vec<_> = (0..3).map(|_| raw_connected(&mut server, &address)).collect();
    for (stream, _) in &mut streams {
        taken(&mut server, stream, 1);
        server.now_ns += DELAY_NS / 4;
    }
    // The first one's goes with a SEND, and one more is taken of it before the first would have been due.
    let (first, qp) = &mut streams[0];
    send(&mut server, *qp, 1);
    assert_eq!(sent(&mut server, first), Frame::SendAck { taken: 1 });
    taken(&mut server, first, 1);
    for quarter in 3..=8 {
        for (position, (stream, _)) in streams.iter_mut().enumerate() {
            let mut due = [(5, 1, 1), (6, 2, 1), (7, 0, 2)].into_iter();
            match due.find(|&(at, of, _)| (at, of) == (quarter, position)) {
                Some((_, _, taken)) => {
                    assert_eq!(next_frame(&mut server, stream), Frame::SendAck { taken });
                }
                None => assert!(!has_written(&mut server, stream), "{position} in quarter {quarter}"),
            }
        }
        server.now_ns += DELAY_NS / 4;
    }
}

#[test]
fn an_acknowledgement_that_finds_no_room_takes_no_turns_and_goes_with_what_waits() {
    let tcp = TcpOptions { send_buffer_bytes: Some(4 << 10), ..TcpOptions::default() };
    let (mut server, address) = listening(SoftOptions { tcp, ..SoftOptions::default() });
    let (mut stream, qp) = raw_connected(&mut server, &address);
    // However large a buffer the system would give it.
    sockopt::set_socket_recv_buffer_size(&stream, 4 << 10).unwrap();
    let is_blocked = |server: &Host| server.nic.tcp.slots[0].connection.as_ref().unwrap().blocked;
    let mut all = 0;
    // What the peer writes may make room for a while, until its own buffer is full.
    while !is_blocked(&server) {
        while !is_blocked(&server) {
            let payload = Payload::Inline(&[9; 4096]);
            server.nic.post_send(qp, SendRequest { id: 0, header: &HeaderBytes::ZERO, payload }).unwrap();
            (0..64).for_each(|_| server.turn());
        }
        taken(&mut server, &mut stream, 1);
        all += 1;
        (0..64).for_each(|_| server.turn());
    }
    server.now_ns += DELAY_NS;
    server.turn();
    assert_eq!(server.nic.tcp.owing.len(), 0);
    // The peer reads at last.
    loop {
        match next_frame(&mut server, &mut stream) {
            Frame::SendAck { taken } if taken == all => break,
            Frame::SendAck { .. } => continue,
            frame => assert_eq!(frame, Frame::Send { payload_bytes: 4096 }),
        }
        let mut left = HEADER_BYTES + 4096;
        stream.set_nonblocking(true).unwrap();
        until(&mut [&mut server], "the rest", |_| {
            left -= stream.read(&mut [0; HEADER_BYTES + 4096][..left]).unwrap_or(0);
            left == 0
        });
        stream.set_nonblocking(false).unwrap();
    }
}

#[test]
fn the_only_connection_is_read_without_asking_the_epoll_and_newcomers_are_seen() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, _) = raw_connected(&mut server, &address);
    // After many polls in vain one in eight looks. The epoll is asked less often.
    (0..64).for_each(|_| server.turn());
    for entry in 0..3 {
        server.post_srq(entry);
        stream.write_all(&Frame::Send { payload_bytes: 0 }.to_bytes()).unwrap();
        stream.write_all(&[3; HEADER_BYTES]).unwrap();
        let whole = IoOutcome::Bytes(FRAME_BYTES + HEADER_BYTES);
        let socket = server.nic.tcp.slots[0].connection.as_ref().unwrap().socket();
        until(&mut [], "in the socket", |_| socket::peek(socket, &mut [0; 512]) == whole);
        (0..2 * LOOK_INTERVAL_MAX).for_each(|_| server.turn());
        assert_eq!(server.completions.len(), entry as usize + 1);
    }
    let (mut second, _) = raw_connected(&mut server, &address);
    for stream in [&mut stream, &mut second] {
        taken(&mut server, stream, 1);
    }
    drop(second);
    until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
    taken(&mut server, &mut stream, 1);
    server.events.clear();
    drop(stream);
    until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
}

#[test]
fn who_has_read_all_sleeps_at_once() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, _) = raw_connected(&mut server, &address);
    (0..64).for_each(|_| server.turn());
    taken(&mut server, &mut stream, 1);
    server.turn();
    assert!(server.nic.arm(0), "the epoll has yet to tell of what was read");
}
