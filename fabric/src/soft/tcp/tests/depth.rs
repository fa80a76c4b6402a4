//! Tests of the number of READs on one connection: as many as both ends agreed on, whatever the peer sends.

use super::*;
use crate::nic::PostError;

/// Connects as a peer that answers so many READs. Returns the stream and the NIC's QP.
fn asked_by(server: &mut Host, address: &Address, reads_answered: u64) -> (TcpStream, Qp) {
    server.events.clear();
    let mut stream = raw(address);
    stream.write_all(&Frame::Connect { private_bytes: 0, reads_answered }.to_bytes()).unwrap();
    until(&mut [server], "a request", |ends| ends[0].requested().is_some());
    let qp = server.requested().unwrap();
    (stream, qp)
}

#[test]
fn a_connection_has_as_many_reads_as_the_peer_answers_and_no_more_than_this_end_makes() {
    let (mut server, address) = listening(SoftOptions::default());
    for (answered, agreed) in
        [(1, 1), (3, 3), (32, 32), (33, 32), (u64::from(u32::MAX) + 1, 32), (u64::MAX, 32)]
    {
        let (_stream, qp) = asked_by(&mut server, &address, answered);
        server.nic.accept(qp, &nothing()).unwrap();
        until(&mut [&mut server], "connected", |ends| ends[0].connected().is_some());
        let told = server.events.iter().find_map(|event| match event {
            Event::Connected { reads_max, .. } => Some(*reads_max),
            _ => None,
        });
        assert_eq!(told, Some(agreed), "the peer answers {answered}");
        let scatter = [Sge { bytes: 8, ..server.slab(0) }];
        let request = |id| ReadRequest { id, address: 0, key: 1, scatter: &scatter };
        for id in 0..u64::from(agreed) {
            server.nic.post_read(qp, request(id)).unwrap();
        }
        assert_eq!(server.nic.post_read(qp, request(99)), Err(PostError::QueueFull));
        server.nic.disconnect(qp);
        until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
    }
}

#[test]
fn a_peer_that_answers_no_read_is_refused() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp) = asked_by(&mut server, &address, 0);
    assert_eq!(server.nic.accept(qp, &nothing()), Err(PostError::Stale));
    until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
    assert_eq!((server.ended(), server.connected()), (Some(DisconnectReason::Protocol), None));
    assert_eq!(server.nic.counters().protocol_errors, 1);
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert!(
        heard.is_empty() || heard == Frame::Asked.to_bytes(),
        "it was not told that it stands: {heard:?}"
    );
    still_serves(&mut server, &address);
}

#[test]
fn an_end_that_makes_no_reads_takes_a_peer_that_answers_none() {
    let (mut server, address) = listening(SoftOptions { reads_per_qp_max: 0, ..SoftOptions::default() });
    let (_stream, qp) = asked_by(&mut server, &address, 0);
    server.nic.accept(qp, &nothing()).unwrap();
    let scatter = [server.slab(0)];
    let posted = server.nic.post_read(qp, ReadRequest { id: 1, address: 0, key: 1, scatter: &scatter });
    assert_eq!(posted, Err(PostError::Limit), "there is nothing to wait for");
}

#[test]
fn a_peer_that_asks_for_more_at_once_than_is_answered_is_cut_off() {
    const ANSWERED: u64 = 2;
    let options = SoftOptions { reads_answered_per_qp_max: 2, ..SoftOptions::default() };
    let (mut server, address) = listening(options);
    let memory = Arc::new(SharedMemory::new("jet-test", 8192, false).unwrap());
    let key = server.nic.register(&memory, Access::RemoteRead).unwrap();
    let (mut stream, qp) = asked_by(&mut server, &address, READS_ANSWERED);
    server.nic.accept(qp, &nothing()).unwrap();
    let accepted = Frame::Accept { private_bytes: 0, reads_answered: ANSWERED };
    for expected in [Frame::Asked, accepted] {
        assert_eq!(next_frame(&mut server, &mut stream), expected);
    }
    server.events.clear();
    let asks = |from: u64, count: u64| -> Vec<u8> {
        let request = |id| Frame::ReadRequest { id, address: 0, key: key.0, bytes: 8 }.to_bytes();
        (from..from + count).flat_map(request).collect()
    };
    // As many READs as are answered at once, again and again.
    for round in 0..5 {
        stream.write_all(&asks(round * ANSWERED, ANSWERED)).unwrap();
        for id in round * ANSWERED..(round + 1) * ANSWERED {
            assert_eq!(next_frame(&mut server, &mut stream), Frame::ReadResponse { id, bytes: 8 });
            stream.read_exact(&mut [0; 8]).unwrap();
            assert_eq!(next_frame(&mut server, &mut stream), Frame::ReadEnd { id });
        }
    }
    stream.write_all(&asks(5 * ANSWERED, ANSWERED + 1)).unwrap();
    until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
    assert_eq!(server.ended(), Some(DisconnectReason::Protocol));
}
