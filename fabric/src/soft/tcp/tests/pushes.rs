//! Tests of bytes that are pushed before they are asked for: what a peer that the test plays itself sees and
//! says, and two NICs with each other.

use super::*;

const KIB: u32 = 1024;
/// Longest time for which pushed bytes wait for their READ.
const READ_WAIT_NS: u64 = 100_000;

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.to_bytes()).collect()
}

/// Connects as a peer that pushes and that has room.
fn raw_with_room(server: &mut Host, address: &Address) -> (TcpStream, Qp, u64) {
    let (mut stream, qp) = raw_connected(server, address);
    stream.write_all(&Frame::AskRoom.to_bytes()).unwrap();
    let Frame::Room { limit } = next_frame(server, &mut stream) else { panic!("room") };
    (stream, qp, limit)
}

/// What a sender writes for one message: a SEND of nothing but the header, an offer, and the bytes.
fn message(address: u64, bytes: u32) -> Vec<u8> {
    let mut all = Frame::Send { payload_bytes: 0 }.to_bytes().to_vec();
    all.extend([1; HEADER_BYTES]);
    all.extend(Frame::Offer { address, key: 1, bytes }.to_bytes());
    all.extend(push(address, bytes));
    all
}

fn push(address: u64, bytes: u32) -> Vec<u8> {
    let mut all = Frame::Push { bytes }.to_bytes().to_vec();
    all.extend((0..bytes).map(|at| pattern(address, at)));
    all.extend(Frame::PushEnd { fault: None }.to_bytes());
    all
}

fn pattern(address: u64, at: u32) -> u8 {
    u8::try_from((address + u64::from(at)) % 241).unwrap()
}

/// Reads into the beginning of a slab.
fn read_into(server: &mut Host, qp: Qp, id: u64, address: u64, (slab, bytes): (u32, u32)) {
    let place = Sge { bytes, ..server.slab(slab) };
    read(server, qp, id, address, place);
}

fn read(server: &mut Host, qp: Qp, id: u64, address: u64, place: Sge) {
    let request = ReadRequest { id, address, key: 1, scatter: &[place] };
    server.nic.post_read(qp, request).unwrap();
}

fn reads(server: &Host) -> Vec<(u64, Status)> {
    let of = |completion: &Completion| match completion.work {
        Work::Read { id } => Some((id, completion.status)),
        _ => None,
    };
    server.completions.iter().filter_map(of).collect()
}

fn received(server: &Host) -> usize {
    server.completions.iter().filter(|one| matches!(one.work, Work::Receive { .. })).count()
}

/// Eight slabs in one stretch.
fn area(server: &Host, slab: u32) -> Sge {
    Sge { bytes: 8 * SLAB, ..server.slab(slab) }
}

/// Returns all frames that the NIC has written and the test has not read, without acknowledgements.
fn frames_written(server: &mut Host, stream: &mut TcpStream) -> Vec<Frame> {
    // A SEND is acknowledged after this time.
    server.now_ns += SECOND_NS;
    let mut frames = Vec::new();
    stream.set_nonblocking(true).unwrap();
    for _ in 0..20 {
        server.turn();
        let mut bytes = [0; FRAME_BYTES];
        while stream.peek(&mut bytes).is_ok_and(|got| got == FRAME_BYTES) {
            stream.read_exact(&mut bytes).unwrap();
            frames.push(Frame::parse(&bytes).unwrap());
        }
    }
    stream.set_nonblocking(false).unwrap();
    frames.retain(|frame| !matches!(frame, Frame::SendAck { .. }));
    frames
}

#[test]
fn bytes_that_were_pushed_are_read_without_asking_for_them() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp, _) = raw_with_room(&mut server, &address);
    for (round, cut) in (0..).zip([None, Some(1), Some(FRAME_BYTES), Some(300), Some(20_000)]) {
        server.completions.clear();
        server.post_srq(0);
        let (at, place) = (round * 8, area(&server, 8));
        let bytes = message(at, place.bytes);
        // All at once, or in two parts.
        let (first, rest) = bytes.split_at(cut.unwrap_or(bytes.len()));
        stream.write_all(first).unwrap();
        server.turn();
        stream.write_all(rest).unwrap();
        until(&mut [&mut server], "the SEND", |ends| received(ends[0]) == 1);
        read(&mut server, qp, round, at, place);
        until(&mut [&mut server], "the READ", |ends| reads(ends[0]).len() == 1);
        assert_eq!(reads(&server), [(round, Status::Success)]);
        let expected: Vec<u8> = (0..place.bytes).map(|byte| pattern(at, byte)).collect();
        assert!(server.bytes(place) == expected, "round {round}");
        assert_eq!(frames_written(&mut server, &mut stream), [], "round {round}: nothing was asked for");
    }
}

#[test]
fn a_read_that_was_posted_before_the_bytes_came_waits_for_them() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp, _) = raw_with_room(&mut server, &address);
    let place = area(&server, 8);
    stream.write_all(&Frame::Offer { address: 5, key: 1, bytes: place.bytes }.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut server, &mut stream), []);
    read(&mut server, qp, 1, 5, place);
    // Other bytes, another length and another key are asked for.
    read(&mut server, qp, 2, 6, place);
    read(&mut server, qp, 3, 5, Sge { bytes: 9, ..place });
    let of_another = ReadRequest { id: 4, address: 5, key: 2, scatter: &[place] };
    server.nic.post_read(qp, of_another).unwrap();
    let asked = |id, address, key, bytes| Frame::ReadRequest { id, address, key, bytes };
    let expected = [asked(0, 6, 1, place.bytes), asked(1, 5, 1, 9), asked(2, 5, 2, place.bytes)];
    assert_eq!(frames_written(&mut server, &mut stream), expected);
    stream.write_all(&push(5, place.bytes)).unwrap();
    until(&mut [&mut server], "the READ", |ends| !reads(ends[0]).is_empty());
    assert_eq!(reads(&server), [(1, Status::Success)]);
    let expected: Vec<u8> = (0..place.bytes).map(|byte| pattern(5, byte)).collect();
    assert!(server.bytes(place) == expected);
}

#[test]
fn bytes_without_a_read_are_discarded_after_a_while_and_hold_up_nothing_behind_them() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp, _) = raw_with_room(&mut server, &address);
    (0..2).for_each(|entry| server.post_srq(entry));
    let place = area(&server, 8);
    let mut bytes = message(40, place.bytes);
    bytes.extend(Frame::Send { payload_bytes: 0 }.to_bytes());
    bytes.extend([2; HEADER_BYTES]);
    stream.write_all(&bytes).unwrap();
    until(&mut [&mut server], "the SEND before them", |ends| received(ends[0]) == 1);
    // The time stands still, so they wait.
    (0..100).for_each(|_| server.turn());
    assert_eq!(received(&server), 1);
    assert!(!server.nic.arm(server.now_ns), "they end their wait without a wake-up");
    server.now_ns += READ_WAIT_NS;
    until(&mut [&mut server], "the SEND behind them", |ends| received(ends[0]) == 2);
    read(&mut server, qp, 9, 40, place);
    let asked = Frame::ReadRequest { id: 0, address: 40, key: 1, bytes: place.bytes };
    assert_eq!(frames_written(&mut server, &mut stream), [asked]);
    stream.write_all(&Frame::ReadResponse { id: 0, bytes: place.bytes }.to_bytes()).unwrap();
    stream.write_all(&vec![3; place.bytes as usize]).unwrap();
    stream.write_all(&Frame::ReadEnd { id: 0 }.to_bytes()).unwrap();
    until(&mut [&mut server], "the READ", |ends| !reads(ends[0]).is_empty());
    assert_eq!(reads(&server), [(9, Status::Success)]);
    assert!(server.bytes(place).iter().all(|&byte| byte == 3), "not what was discarded");
}

#[test]
fn reads_complete_in_their_order_whether_their_bytes_were_pushed_or_not() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp, _) = raw_with_room(&mut server, &address);
    read_into(&mut server, qp, 1, 0, (0, 10));
    let asked = Frame::ReadRequest { id: 0, address: 0, key: 1, bytes: 10 };
    assert_eq!(frames_written(&mut server, &mut stream), [asked]);
    stream.write_all(&Frame::Offer { address: 5, key: 1, bytes: 100 }.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut server, &mut stream), []);
    read_into(&mut server, qp, 2, 5, (1, 100));
    read_into(&mut server, qp, 3, 8, (2, 20));
    stream.write_all(&push(5, 100)).unwrap();
    let asked = Frame::ReadRequest { id: 1, address: 8, key: 1, bytes: 20 };
    assert_eq!(frames_written(&mut server, &mut stream), [asked]);
    until(&mut [&mut server], "what was pushed", |ends| ends[0].nic.counters().bytes_in == 100);
    (0..10).for_each(|_| server.turn());
    assert_eq!(reads(&server), []);
    for (id, bytes, done) in [(0, 10, 2), (1, 20, 3)] {
        stream.write_all(&Frame::ReadResponse { id, bytes }.to_bytes()).unwrap();
        stream.write_all(&vec![4; bytes as usize]).unwrap();
        stream.write_all(&Frame::ReadEnd { id }.to_bytes()).unwrap();
        until(&mut [&mut server], "an answer", |ends| reads(ends[0]).len() == done);
    }
    assert_eq!(reads(&server), [1, 2, 3].map(|id| (id, Status::Success)));
}

#[test]
fn a_promise_that_is_not_kept_is_asked_for() {
    let fault = Some(Fault::RemoteAccess);
    let half = |bytes: u32| {
        let mut all = Frame::Push { bytes }.to_bytes().to_vec();
        all.extend(vec![9; bytes as usize]);
        all
    };
    for has_begun in [false, true] {
        let (mut server, address) = listening(SoftOptions::default());
        let (mut stream, qp, _) = raw_with_room(&mut server, &address);
        let scatter = [Sge { bytes: 10, ..server.slab(0) }, Sge { bytes: 20, ..server.slab(1) }];
        stream.write_all(&Frame::Offer { address: 5, key: 1, bytes: 30 }.to_bytes()).unwrap();
        assert_eq!(frames_written(&mut server, &mut stream), []);
        let request = ReadRequest { id: 1, address: 5, key: 1, scatter: &scatter };
        server.nic.post_read(qp, request).unwrap();
        if has_begun {
            stream.write_all(&half(30)).unwrap();
            until(&mut [&mut server], "its bytes", |ends| ends[0].nic.counters().bytes_in == 30);
        }
        stream.write_all(&Frame::PushEnd { fault }.to_bytes()).unwrap();
        let asked = Frame::ReadRequest { id: 0, address: 5, key: 1, bytes: 30 };
        assert_eq!(next_frame(&mut server, &mut stream), asked);
        stream.write_all(&Frame::ReadResponse { id: 0, bytes: 30 }.to_bytes()).unwrap();
        stream.write_all(&(0..30).collect::<Vec<u8>>()).unwrap();
        stream.write_all(&Frame::ReadEnd { id: 0 }.to_bytes()).unwrap();
        until(&mut [&mut server], "the READ", |ends| !reads(ends[0]).is_empty());
        assert_eq!(reads(&server), [(1, Status::Success)]);
        let read: Vec<u8> = scatter.iter().flat_map(|&place| server.bytes(place)).collect();
        assert_eq!(read, (0..30).collect::<Vec<u8>>());
    }
}

#[test]
fn the_read_that_failed_is_named_among_those_whose_bytes_are_pushed() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp, _) = raw_with_room(&mut server, &address);
    stream.write_all(&Frame::Offer { address: 5, key: 1, bytes: 100 }.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut server, &mut stream), []);
    read_into(&mut server, qp, 1, 5, (1, 100));
    read_into(&mut server, qp, 2, 8, (2, 20));
    assert_eq!(frames_written(&mut server, &mut stream).len(), 1);
    stream.write_all(&Frame::ReadError { id: 0, fault: Fault::RemoteAccess }.to_bytes()).unwrap();
    until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
    assert_eq!(reads(&server), [(1, Status::Flushed), (2, Status::RemoteAccess)]);
}

#[test]
fn who_pushes_what_cannot_be_loses_its_connection() {
    let offer = |bytes| Frame::Offer { address: 0, key: 1, bytes };
    let end = |fault| Frame::PushEnd { fault };
    let whole = |bytes: u32| {
        let mut all = bytes_of(&[offer(bytes), Frame::Push { bytes }]);
        all.resize(all.len() + bytes as usize, 0);
        all
    };
    let (mut server, address) = listening(SoftOptions::default());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a second question for room", bytes_of(&[Frame::AskRoom])),
        ("room that nobody asked for", bytes_of(&[Frame::Room { limit: 1 }])),
        ("a push of nothing offered", bytes_of(&[Frame::Push { bytes: 8 }])),
        ("the end of nothing offered", bytes_of(&[end(Some(Fault::RemoteAccess))])),
        ("a push of another length", bytes_of(&[offer(8), Frame::Push { bytes: 9 }])),
        ("the end of a push that never came", bytes_of(&[offer(8), end(None)])),
        ("more than there is room for", bytes_of(&[offer(READ_PIECE_MAX); 5])),
        ("more offers than are kept", bytes_of(&[offer(1); 65])),
        ("a push in a push", [whole(8), bytes_of(&[Frame::Push { bytes: 8 }])].concat()),
        ("a SEND where a push ends", [whole(8), bytes_of(&[Frame::Send { payload_bytes: 0 }])].concat()),
    ];
    for (count, (what, bytes)) in (1..).zip(cases) {
        let (mut stream, _, _) = raw_with_room(&mut server, &address);
        stream.write_all(&bytes).unwrap();
        until(&mut [&mut server], what, |ends| {
            ends[0].now_ns += READ_WAIT_NS;
            ends[0].ended().is_some()
        });
        assert_eq!(server.ended(), Some(DisconnectReason::Protocol), "{what}");
        assert_eq!(server.nic.counters().protocol_errors, count, "{what}");
        server.events.clear();
    }
    let (mut stream, _) = raw_connected(&mut server, &address);
    stream.write_all(&bytes_of(&[offer(1)])).unwrap();
    until(&mut [&mut server], "an offer without room", |ends| ends[0].ended().is_some());
    still_serves(&mut server, &address);
}

#[test]
fn what_was_asked_for_before_it_was_offered_is_not_waited_for() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp, _) = raw_with_room(&mut server, &address);
    let place = area(&server, 8);
    read(&mut server, qp, 1, 5, place);
    assert_eq!(frames_written(&mut server, &mut stream).len(), 1);
    let mut bytes = Frame::Offer { address: 5, key: 1, bytes: place.bytes }.to_bytes().to_vec();
    bytes.extend(push(5, place.bytes));
    bytes.extend(Frame::ReadResponse { id: 0, bytes: place.bytes }.to_bytes());
    bytes.extend(vec![3; place.bytes as usize]);
    bytes.extend(Frame::ReadEnd { id: 0 }.to_bytes());
    stream.write_all(&bytes).unwrap();
    // The time stands still meanwhile.
    until(&mut [&mut server], "the answer", |ends| !reads(ends[0]).is_empty());
    assert!(server.bytes(place).iter().all(|&byte| byte == 3), "the answer's bytes");
}

#[test]
fn memory_that_a_push_lands_in_and_that_is_gone_fails_that_read() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp, _) = raw_with_room(&mut server, &address);
    let target = Arc::new(SharedMemory::new("jet-test", 65_536, false).unwrap());
    let key = server.nic.register(&target, Access::LocalWrite).unwrap();
    read_into(&mut server, qp, 1, 0, (0, 10));
    stream.write_all(&Frame::Offer { address: 5, key: 1, bytes: 65_536 }.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut server, &mut stream).len(), 1);
    read(&mut server, qp, 2, 5, Sge { key, offset: 0, bytes: 65_536 });
    let bytes = push(5, 65_536);
    stream.write_all(&bytes[..20_000]).unwrap();
    until(&mut [&mut server], "a part", |ends| ends[0].nic.counters().bytes_in > 10_000);
    server.nic.deregister(key);
    stream.write_all(&bytes[20_000..]).unwrap();
    until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
    assert_eq!(reads(&server), [(1, Status::Flushed), (2, Status::LocalProtection)]);
}

#[test]
fn room_comes_back_with_what_arrives_and_a_later_connection_begins_anew() {
    let options = SoftOptions { qps_max: 1, ..SoftOptions::default() };
    let (mut server, address) = listening(options);
    for connection in 0..3 {
        let (mut stream, qp, limit) = raw_with_room(&mut server, &address);
        let place = area(&server, 8);
        let mut told = limit;
        for number in 1..=64u64 {
            server.completions.clear();
            stream.write_all(&Frame::Offer { address: 5, key: 1, bytes: place.bytes }.to_bytes()).unwrap();
            let mut frames = frames_written(&mut server, &mut stream);
            read(&mut server, qp, number, 5, place);
            stream.write_all(&push(5, place.bytes)).unwrap();
            until(&mut [&mut server], "the READ", |ends| !reads(ends[0]).is_empty());
            frames.extend(frames_written(&mut server, &mut stream));
            for frame in frames {
                let Frame::Room { limit } = frame else { panic!("{frame:?}") };
                assert!(limit > told && limit <= (1 << 20) + number * u64::from(place.bytes));
                told = limit;
            }
        }
        assert!(told >= limit + 64 * u64::from(place.bytes) - (1 << 19), "{connection}: {told}");
        // Its promises are forgotten with it.
        stream.write_all(&Frame::Offer { address: 9, key: 1, bytes: 10 }.to_bytes()).unwrap();
        assert_eq!(frames_written(&mut server, &mut stream), []);
        read_into(&mut server, qp, 99, 9, (0, 10));
        drop(stream);
        until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
        server.events.clear();
    }
}

#[test]
fn who_disconnects_pushes_nothing_more_and_takes_no_turns() {
    let (mut client, mut stream, qp, key) = pushing(READ_PIECE_MAX);
    client.nic.offer(qp, 0, key.0, 1);
    assert_eq!(next_frame(&mut client, &mut stream), Frame::AskRoom);
    stream.write_all(&Frame::Room { limit: 1 << 20 }.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut client, &mut stream), []);
    let request = SendRequest { id: 1, header: &HeaderBytes::ZERO, payload: Payload::None };
    client.nic.post_send(qp, request).unwrap();
    (0..3).for_each(|_| client.nic.offer(qp, 0, key.0, READ_PIECE_MAX));
    client.nic.disconnect(qp);
    // Nothing is pushed after the farewell, and until the SEND is acknowledged there is nothing to do.
    let mut written = Vec::new();
    stream.set_nonblocking(true).unwrap();
    until(&mut [&mut client], "the farewell", |_| {
        let mut some = [0; 65_536];
        let count = stream.read(&mut some).unwrap_or(0);
        written.extend_from_slice(&some[..count]);
        written.ends_with(&Frame::Bye.to_bytes())
    });
    until(&mut [&mut client], "a sleep", |ends| ends[0].nic.arm(0));
    stream.set_nonblocking(false).unwrap();
    stream.write_all(&Frame::SendAck { taken: 1 }.to_bytes()).unwrap();
    until(&mut [&mut client], "ended", |ends| ends[0].ended().is_some());
    assert_eq!(client.ended(), Some(DisconnectReason::Local));
}

#[test]
fn an_end_that_disconnects_while_a_push_waits_or_lands_ends_in_peace() {
    let (mut server, address) = listening(SoftOptions::default());
    for has_read in [false, true] {
        server.completions.clear();
        let (mut stream, qp, _) = raw_with_room(&mut server, &address);
        server.post_srq(0);
        let place = area(&server, 8);
        let bytes = message(0, place.bytes);
        stream.write_all(&bytes[..10_000]).unwrap();
        until(&mut [&mut server], "the SEND", |ends| received(ends[0]) == 1);
        if has_read {
            read(&mut server, qp, 1, 0, place);
            until(&mut [&mut server], "a part", |ends| ends[0].nic.counters().bytes_in > 5000);
        }
        server.nic.disconnect(qp);
        // It may be gone already.
        let _ = stream.write_all(&bytes[10_000..]);
        until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
        assert_eq!(server.ended(), Some(DisconnectReason::Local));
        assert_eq!(server.nic.counters().protocol_errors, 0);
        let expected: &[_] = if has_read { &[(1, Status::Flushed)] } else { &[] };
        assert_eq!(reads(&server), expected);
        server.events.clear();
    }
    still_serves(&mut server, &address);
}

/// Two NICs: whether a READ is asked for or not, its bytes are the same.
#[test]
fn two_nics_push_what_one_offers_and_the_other_reads() {
    let (mut server, mut client, at_server, at_client) = pair(SoftOptions::default());
    let bytes = 60_000;
    let file = Arc::new(SharedMemory::new("jet-test", 128 << 10, false).unwrap());
    let key = client.nic.register(&file, Access::RemoteRead).unwrap();
    let place = Sge { bytes, ..server.slab(1) };
    for round in 0..40u64 {
        server.completions.clear();
        server.post_srq(0);
        for at in 0..bytes {
            // SAFETY: within the region.
            unsafe { file.base().add(at as usize).write(pattern(round, at)) };
        }
        let request = SendRequest { id: 1, header: &HeaderBytes::ZERO, payload: Payload::None };
        client.nic.post_send(at_client, request).unwrap();
        client.nic.offer(at_client, 0, key.0, bytes);
        until(&mut [&mut server, &mut client], "the SEND", |ends| received(ends[0]) == 1);
        let scatter = [place];
        let request = ReadRequest { id: round, address: 0, key: key.0, scatter: &scatter };
        server.nic.post_read(at_server, request).unwrap();
        until(&mut [&mut server, &mut client], "the READ", |ends| !reads(ends[0]).is_empty());
        assert_eq!(reads(&server), [(round, Status::Success)]);
        // The first offer asks for room. All others are promises that are kept: nothing is asked for.
        let connection = client.nic.tcp.slots[at_client.index as usize].connection.as_ref();
        assert_eq!(connection.unwrap().served_next, 1, "round {round}");
        let expected: Vec<u8> = (0..bytes).map(|at| pattern(round, at)).collect();
        assert!(server.bytes(place) == expected, "round {round}");
    }
}

#[test]
fn an_end_that_reads_nothing_gives_no_room() {
    let (mut server, address) = listening(SoftOptions { reads_per_qp_max: 0, ..SoftOptions::default() });
    let (mut stream, _) = raw_connected(&mut server, &address);
    stream.write_all(&Frame::AskRoom.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut server, &mut stream), []);
    assert_eq!(server.ended(), None);
}

#[test]
fn who_hangs_up_in_a_push_ends_its_connection() {
    let (mut server, address) = listening(SoftOptions::default());
    for (has_read, cut) in [(false, 500), (true, 500), (true, 20_000)] {
        server.completions.clear();
        let (mut stream, qp, _) = raw_with_room(&mut server, &address);
        server.post_srq(0);
        let place = area(&server, 8);
        stream.write_all(&message(0, place.bytes)[..cut]).unwrap();
        until(&mut [&mut server], "the SEND", |ends| received(ends[0]) == 1);
        if has_read {
            read(&mut server, qp, 1, 0, place);
        }
        drop(stream);
        until(&mut [&mut server], "ended", |ends| {
            ends[0].now_ns += READ_WAIT_NS;
            ends[0].ended().is_some()
        });
        let expected: &[_] = if has_read { &[(1, Status::Flushed)] } else { &[] };
        assert_eq!(reads(&server), expected);
        server.events.clear();
    }
    still_serves(&mut server, &address);
}

#[test]
fn a_sender_offers_no_more_than_it_has_room_for() {
    let (mut client, mut stream, qp, key) = pushing(64 * KIB);
    client.nic.offer(qp, 0, key.0, 64 * KIB);
    assert_eq!(next_frame(&mut client, &mut stream), Frame::AskRoom);
    // Without room nothing is offered.
    client.nic.offer(qp, 0, key.0, 64 * KIB);
    assert_eq!(frames_written(&mut client, &mut stream), []);
    stream.write_all(&Frame::Room { limit: u64::from(96 * KIB) }.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut client, &mut stream), []);
    for bytes in [60 * KIB, 60 * KIB, 20 * KIB, 5, 1] {
        client.nic.offer(qp, 16, key.0, bytes);
    }
    client.nic.flush();
    for bytes in [60 * KIB, 20 * KIB, 5] {
        assert_eq!(
            next_frame(&mut client, &mut stream),
            Frame::Offer { address: 16, key: key.0, bytes },
            "as far as there is room"
        );
    }
    for bytes in [60 * KIB, 20 * KIB, 5] {
        assert_eq!(next_frame(&mut client, &mut stream), Frame::Push { bytes });
        let mut pushed = vec![0; bytes as usize];
        stream.read_exact(&mut pushed).unwrap();
        assert_eq!(pushed, (0..bytes).map(|at| pattern(16, at)).collect::<Vec<u8>>());
        assert_eq!(next_frame(&mut client, &mut stream), Frame::PushEnd { fault: None });
    }
    assert_eq!(frames_written(&mut client, &mut stream), []);
    stream.write_all(&Frame::Room { limit: u64::from(96 * KIB) }.to_bytes()).unwrap();
    until(&mut [&mut client], "room that is no more", |ends| ends[0].ended().is_some());
    assert_eq!(client.ended(), Some(DisconnectReason::Protocol));
}

#[test]
fn a_sender_pushes_before_it_answers_what_was_asked_for_later() {
    let (mut client, mut stream, qp, key) = pushing(READ_PIECE_MAX);
    client.nic.offer(qp, 0, key.0, 1);
    assert_eq!(next_frame(&mut client, &mut stream), Frame::AskRoom);
    stream.write_all(&Frame::Room { limit: 1 << 20 }.to_bytes()).unwrap();
    let ask = |id| Frame::ReadRequest { id, address: 0, key: key.0, bytes: READ_PIECE_MAX }.to_bytes();
    // More than the sockets hold, so that the last of them wait.
    (0..6).for_each(|id| stream.write_all(&ask(id)).unwrap());
    stream.set_nonblocking(true).unwrap();
    until(&mut [&mut client], "the answers begin", |_| stream.peek(&mut [0; 1]).is_ok());
    stream.set_nonblocking(false).unwrap();
    (0..20).for_each(|_| client.turn());
    client.nic.offer(qp, 0, key.0, 5);
    (6..12).for_each(|id| stream.write_all(&ask(id)).unwrap());
    (0..20).for_each(|_| client.turn());
    let mut order = Vec::new();
    while order.len() < 13 {
        let (kind, bytes) = match next_frame(&mut client, &mut stream) {
            Frame::ReadResponse { id, bytes } => (Some(id), bytes),
            Frame::Push { bytes } => (None, bytes),
            Frame::Offer { .. } | Frame::ReadEnd { .. } | Frame::PushEnd { fault: None } => continue,
            other => panic!("{other:?}"),
        };
        order.push(kind);
        skip_body(&mut client, &mut stream, bytes);
    }
    let place = order.iter().position(Option::is_none).unwrap();
    assert_eq!(place, 6, "{order:?}");
}

#[test]
fn memory_that_is_gone_is_not_pushed_and_ends_no_connection() {
    let (mut client, mut stream, qp, key) = pushing(READ_PIECE_MAX);
    client.nic.offer(qp, 0, key.0, 1);
    assert_eq!(next_frame(&mut client, &mut stream), Frame::AskRoom);
    stream.write_all(&Frame::Room { limit: 2 << 20 }.to_bytes()).unwrap();
    assert_eq!(frames_written(&mut client, &mut stream), []);
    // The first is written in part: neither end has room for all of it. The others have not begun.
    for _ in 0..4 {
        client.nic.offer(qp, 0, key.0, READ_PIECE_MAX);
    }
    client.nic.offer(qp, 0, key.0 + 1, 5);
    (0..20).for_each(|_| client.turn());
    client.nic.deregister(key);
    let (mut begun, mut ends) = (0, Vec::new());
    while ends.len() < 5 {
        match next_frame(&mut client, &mut stream) {
            Frame::Offer { .. } => {}
            Frame::Push { bytes } => {
                begun += 1;
                skip_body(&mut client, &mut stream, bytes);
            }
            Frame::PushEnd { fault } => ends.push(fault),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ends.pop(), Some(Some(Fault::RemoteAccess)), "what was never registered");
    assert_eq!(ends.last(), Some(&Some(Fault::RemoteAccess)), "{ends:?}");
    let valid = ends.iter().take_while(|fault| fault.is_none()).count();
    assert!(ends[valid..].iter().all(Option::is_some), "once gone, always gone: {ends:?}");
    assert!(begun > valid, "{begun} had begun, {valid} were valid: none was given up half way");
    assert_eq!(client.ended(), None);
}

/// Reads so many bytes behind a frame, which the NIC writes meanwhile.
fn skip_body(client: &mut Host, stream: &mut TcpStream, bytes: u32) {
    let mut body = vec![0; bytes as usize];
    stream.set_nonblocking(true).unwrap();
    let mut read = 0;
    until(&mut [client], "a body", |_| {
        read += stream.read(&mut body[read..]).unwrap_or(0);
        read == body.len()
    });
    stream.set_nonblocking(false).unwrap();
}

/// Makes a NIC that is connected to the test's listener, over narrow sockets, and registers so much memory.
fn pushing(bytes: u32) -> (Host, TcpStream, Qp, MemoryKey) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Host::new(narrow(), 1);
    let address = format!("tcp:{}", listener.local_addr().unwrap()).parse().unwrap();
    client.nic.connect(&address, &nothing()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    assert!(matches!(next_frame(&mut client, &mut stream), Frame::Connect { .. }));
    stream.write_all(&accept_frame().to_bytes()).unwrap();
    until(&mut [&mut client], "connected", |ends| ends[0].connected().is_some());
    let file = Arc::new(SharedMemory::new("jet-test", bytes as usize, false).unwrap());
    for at in 0..bytes {
        // SAFETY: within the region.
        unsafe { file.base().add(at as usize).write(pattern(0, at)) };
    }
    let key = client.nic.register(&file, Access::RemoteRead).unwrap();
    let qp = client.connected().unwrap();
    (client, stream, qp, key)
}
