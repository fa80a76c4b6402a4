//! Tests of peers whose kernel acknowledges everything while their process answers no READ.

use super::*;
use crate::soft::deadlines::Wait;
use crate::soft::token::Place;
use crate::soft::transport::Transport;

/// Returns the time in seconds by which bytes of a READ must arrive.
fn due_s(end: &Host, qp: Qp) -> Option<u64> {
    let (wait, due_ns) = end.nic.tables.deadlines.due_at(qp.index)?;
    assert_eq!(wait, Wait::ReadAnswer);
    Some(due_ns / SECOND_NS)
}

/// Posts a READ of 30 bytes, and takes its request off the stream.
fn ask(server: &mut Host, stream: &mut TcpStream, qp: Qp, id: u64) {
    let scatter = [Sge { bytes: 30, ..server.slab(0) }];
    server.nic.post_read(qp, ReadRequest { id: id + 100, address: 0, key: 1, scatter: &scatter }).unwrap();
    let request = Frame::ReadRequest { id, address: 0, key: 1, bytes: 30 };
    assert_eq!(next_frame(server, stream), request);
}

fn answer(id: u64, bytes: u8) -> Vec<u8> {
    let mut answer = Frame::ReadResponse { id, bytes: u32::from(bytes) }.to_bytes().to_vec();
    answer.extend(std::iter::repeat_n(bytes, usize::from(bytes)));
    answer.extend(Frame::ReadEnd { id }.to_bytes());
    answer
}

fn send(payload: &[u8]) -> Vec<u8> {
    let payload_bytes = u32::try_from(payload.len()).unwrap();
    let mut send = Frame::Send { payload_bytes }.to_bytes().to_vec();
    send.extend([1; HEADER_BYTES]);
    send.extend(payload);
    send
}

#[test]
fn a_peer_that_answers_no_read_is_let_go_while_the_nic_sleeps() {
    let tcp = TcpOptions { read_timeout: Duration::from_millis(20), ..TcpOptions::default() };
    let (mut server, address) = listening(SoftOptions { tcp, ..SoftOptions::default() });
    let (mut stream, qp) = raw_connected(&mut server, &address);
    ask(&mut server, &mut stream, qp, 0);
    // Only this deadline is set: the descriptor must become readable without a packet.
    until(&mut [&mut server], "asleep", |ends| ends[0].nic.arm(0));
    let fd = server.nic.wait_fd();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "woken");
    server.now_ns = 20_000_000;
    server.turn();
    assert_eq!(server.ended(), Some(DisconnectReason::Transport(libc::ETIMEDOUT)));
    let ends: Vec<_> = server.completions.iter().map(|c| (c.work, c.status)).collect();
    assert_eq!(ends, [(Work::Read { id: 100 }, Status::Flushed)]);
    assert_eq!(server.nic.tables.deadlines.next_ns(), None);
    still_serves(&mut server, &address);
}

#[test]
fn a_peer_that_answers_no_read_is_let_go_when_the_time_is_over_and_not_before() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp) = raw_connected(&mut server, &address);
    server.now_ns = 5 * SECOND_NS;
    ask(&mut server, &mut stream, qp, 0);
    server.now_ns = 15 * SECOND_NS - 1;
    server.turn();
    assert_eq!(server.ended(), None);
    server.now_ns = 15 * SECOND_NS;
    server.turn();
    assert_eq!(server.ended(), Some(DisconnectReason::Transport(libc::ETIMEDOUT)));
}

#[test]
fn the_time_begins_anew_with_bytes_of_a_read_and_stands_still_without_an_entry() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp) = raw_connected(&mut server, &address);
    assert_eq!(due_s(&server, qp), None);
    for id in 0..2 {
        ask(&mut server, &mut stream, qp, id);
    }
    assert_eq!(due_s(&server, qp), Some(10));
    server.now_ns = SECOND_NS;
    server.post_srq(1);
    stream.write_all(&send(b"abc")).unwrap();
    until(&mut [&mut server], "a SEND", |ends| ends[0].completions.len() == 1);
    assert_eq!(due_s(&server, qp), Some(10), "a SEND is no answer");
    server.now_ns = 2 * SECOND_NS;
    stream.write_all(&answer(0, 12)).unwrap();
    until(&mut [&mut server], "bytes", |ends| ends[0].nic.counters().bytes_in == 15);
    assert_eq!(due_s(&server, qp), Some(12));
    // A SEND finds no entry. This end reads nothing more, so the time does not count against the peer.
    stream.write_all(&send(b"def")).unwrap();
    stream.write_all(&answer(0, 18)).unwrap();
    until(&mut [&mut server], "no entry", |ends| ends[0].nic.counters().rnr == 1);
    assert_eq!(due_s(&server, qp), None);
    server.now_ns = 40 * SECOND_NS;
    server.turn();
    server.post_srq(2);
    until(&mut [&mut server], "a READ", |ends| ends[0].completions.len() == 3);
    assert_eq!(due_s(&server, qp), Some(50), "the other READ is outstanding");
    stream.write_all(&answer(1, 30)).unwrap();
    until(&mut [&mut server], "all READs", |ends| ends[0].completions.len() == 4);
    assert_eq!((due_s(&server, qp), server.ended()), (None, None));
}

#[test]
fn an_answer_that_waits_in_the_socket_when_the_time_is_up_counts() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp) = raw_connected(&mut server, &address);
    ask(&mut server, &mut stream, qp, 0);
    server.post_srq(1);
    stream.write_all(&[send(b"first"), answer(0, 30)].concat()).unwrap();
    // As if this end had neither been polled for all that time, nor looked at its sockets.
    let nic = &mut server.nic;
    nic.tables.deadlines.begin_poll(10 * SECOND_NS);
    nic.tcp.expire(&mut nic.tables, Place::Connection(qp.index), Wait::ReadAnswer);
    nic.tables.deadlines.end_poll();
    server.now_ns = 10 * SECOND_NS;
    until(&mut [&mut server], "both", |ends| ends[0].completions.len() == 2);
    assert!(server.completions.iter().all(|completion| completion.status == Status::Success));
    assert_eq!(server.ended(), None);
}
