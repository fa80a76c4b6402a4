//! Tests of peers that break the protocol on the stream: the NIC loses only their connections.

use super::*;

fn with_length(frame: Frame, length: u32) -> Vec<u8> {
    let mut bytes = frame.to_bytes();
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes.to_vec()
}

#[test]
fn who_speaks_garbage_before_the_handshake_is_dropped_and_counted() {
    let (mut server, address) = listening(SoftOptions::default());
    let garbage: [Vec<u8>; 4] = [
        b"GET / HTTP/1.1\r\nHost: jet.example\r\n\r\n".to_vec(),
        vec![0xff; 1000],
        Frame::Send { payload_bytes: 0 }.to_bytes().to_vec(),
        with_length(connect_frame(0), 57),
    ];
    for (count, bytes) in (1..).zip(garbage) {
        let mut stream = raw(&address);
        stream.write_all(&bytes).unwrap();
        until(&mut [&mut server], "counted", |ends| ends[0].nic.counters().protocol_errors == count);
        // The stream ends or is reset, and never has bytes.
        assert!(!matches!(stream.read(&mut [0; 8]), Ok(1..)));
    }
    assert!(server.events.is_empty(), "{:?}", server.events);
    still_serves(&mut server, &address);
}

#[test]
fn every_frame_that_cannot_be_ends_that_connection_only() {
    let piece = |id, bytes| Frame::ReadResponse { id, bytes }.to_bytes().to_vec();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("garbage", vec![0xee; 64]),
        ("a second Connect", connect_frame(0).to_bytes().to_vec()),
        ("an Accept from the connecting end", accept_frame().to_bytes().to_vec()),
        ("a SEND shorter than a header", with_length(Frame::Send { payload_bytes: 0 }, 127)),
        ("a SEND longer than a slab", with_length(Frame::Send { payload_bytes: 0 }, SEND_BYTES_MAX + 1)),
        ("a SEND of 4 GiB", with_length(Frame::Send { payload_bytes: 0 }, u32::MAX)),
        ("an answer to no READ", piece(0, 4096)),
        ("an empty answer to no READ", piece(0, 0)),
        ("an answer from nowhere", piece(u64::MAX, READ_PIECE_MAX)),
        ("the end of no READ", Frame::ReadEnd { id: 0 }.to_bytes().to_vec()),
        (
            "the failure of no READ",
            Frame::ReadError { id: 0, fault: Fault::RemoteAccess }.to_bytes().to_vec(),
        ),
        ("an acknowledgement of no SEND", Frame::SendAck { taken: 1 }.to_bytes().to_vec()),
        ("an acknowledgement of nothing new", Frame::SendAck { taken: 0 }.to_bytes().to_vec()),
        ("an acknowledgement of everything", Frame::SendAck { taken: u64::MAX }.to_bytes().to_vec()),
        ("the failure of no SEND", Frame::SendError { taken: 0, fault: Fault::Length }.to_bytes().to_vec()),
        (
            "a READ out of order",
            Frame::ReadRequest { id: 1, address: 0, key: 0, bytes: 1 }.to_bytes().to_vec(),
        ),
    ];
    let (mut server, address) = listening(SoftOptions::default());
    for (count, (what, bytes)) in (1..).zip(cases) {
        let (mut stream, _) = raw_connected(&mut server, &address);
        stream.write_all(&bytes).unwrap();
        until(&mut [&mut server], what, |ends| ends[0].ended().is_some());
        assert_eq!(server.ended(), Some(DisconnectReason::Protocol), "{what}");
        assert_eq!(server.nic.counters().protocol_errors, count, "{what}");
        assert!(server.completions.is_empty(), "{what}: {:?}", server.completions);
        server.events.clear();
    }
    still_serves(&mut server, &address);
}

#[test]
fn half_a_send_and_a_hang_up_takes_no_entry() {
    let (mut server, address) = listening(SoftOptions::default());
    for cut in [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 50, FRAME_BYTES + HEADER_BYTES + 100] {
        server.completions.clear();
        let (mut stream, _) = raw_connected(&mut server, &address);
        server.post_srq(0);
        stream.write_all(&whole_send(1000)[..cut]).unwrap();
        server.turn();
        stream.shutdown(Shutdown::Both).unwrap();
        until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
        assert_eq!(server.ended(), Some(DisconnectReason::Peer));
        assert!(server.completions.is_empty(), "{:?}", server.completions);
        // Takes the SRQ entry out again.
        still_serves_once(&mut server, &address);
        server.events.clear();
    }
}

/// Makes a SEND with so many bytes of payload.
fn whole_send(payload_bytes: u32) -> Vec<u8> {
    let mut bytes = Frame::Send { payload_bytes }.to_bytes().to_vec();
    bytes.resize(FRAME_BYTES + HEADER_BYTES + payload_bytes as usize, 7);
    bytes
}

#[test]
fn sends_that_were_begun_and_not_ended_take_no_entry_from_others() {
    let (mut server, address) = listening(SoftOptions::default());
    server.post_srq(0);
    let send = whole_send(4096);
    let begun: Vec<_> = (0..20)
        .map(|cut| {
            let (mut stream, _) = raw_connected(&mut server, &address);
            stream.write_all(&send[..(FRAME_BYTES + cut * 200).min(send.len() - 1)]).unwrap();
            server.turn();
            stream
        })
        .collect();
    let (mut other, _) = raw_connected(&mut server, &address);
    other.write_all(&whole_send(3)).unwrap();
    until(&mut [&mut server], "the whole SEND", |ends| !ends[0].completions.is_empty());
    assert_eq!(server.completions[0].work, Work::Receive { entry: 0, payload_bytes: 3 });
    assert_eq!((server.completions[0].status, server.nic.counters().rnr), (Status::Success, 0));
    drop(begun);
}

fn still_serves_once(server: &mut Host, address: &Address) {
    server.events.clear();
    let (mut stream, _) = raw_connected(server, address);
    stream.write_all(&Frame::Send { payload_bytes: 0 }.to_bytes()).unwrap();
    stream.write_all(&[1; HEADER_BYTES]).unwrap();
    until(&mut [server], "a SEND", |ends| !ends[0].completions.is_empty());
    drop(stream);
    until(&mut [server], "ended", |ends| ends[0].ended().is_some());
}

#[test]
fn an_answer_that_lies_about_its_length_ends_the_connection() {
    for (asked, bytes) in [(100, 101), (100, 0), (100, READ_PIECE_MAX), (0, 1)] {
        let (mut server, address) = listening(SoftOptions::default());
        let (mut stream, qp) = raw_connected(&mut server, &address);
        let scatter = [Sge { bytes: asked, ..server.slab(0) }];
        let request = ReadRequest { id: 7, address: 0x1000, key: 99, scatter: &scatter };
        server.nic.post_read(qp, request).unwrap();
        let request = Frame::ReadRequest { id: 0, address: 0x1000, key: 99, bytes: asked };
        assert_eq!(next_frame(&mut server, &mut stream), request);
        stream.write_all(&Frame::ReadResponse { id: 0, bytes }.to_bytes()).unwrap();
        until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
        assert_eq!(server.ended(), Some(DisconnectReason::Protocol));
        assert_eq!(server.completions.len(), 1);
        assert_eq!(server.completions[0].status, Status::Flushed);
        assert!(server.bytes(server.slab(0)).iter().all(|&byte| byte == 0));
    }
}
