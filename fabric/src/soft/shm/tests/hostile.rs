//! Tests of peers that break the protocol over `shm:`: each loses its own connection, and other connections
//! are served.

use super::super::connection::Sought;
use super::super::control::{Control, Received, receive, send_control};
use super::super::link::{LINK_BYTES, Link, SendItem, SendPlace, source};
use super::super::listener::connect_to;
use super::*;
use crate::nic::RegionError;

fn item(from: u32, payload_bytes: u32, offset: u64) -> SendItem {
    let place = SendPlace { source: from, payload_bytes, offset, ..SendPlace::default() };
    SendItem { place, header: [3; 128], beside: [4; 104] }
}

#[test]
fn what_is_said_out_of_turn_costs_that_peer_its_connection_only() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, _) = place.connect(&mut client);
    let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
    let link = Link::make().unwrap();
    let unsealed = rustix::fs::memfd_create("jet-loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, LINK_BYTES as u64).unwrap();
    // The size of a link, but it could grow.
    let growing = rustix::fs::memfd_create("jet-growing", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&growing, LINK_BYTES as u64).unwrap();
    rustix::fs::fcntl_add_seals(&growing, rustix::fs::SealFlags::SHRINK).unwrap();
    let connect = connect_control(1);
    let firsts: [(Control, Option<std::os::fd::BorrowedFd<'_>>); 6] = [
        (connect, Some(growing.as_fd())),
        (connect, Some(memory.as_fd())),
        (connect, Some(unsealed.as_fd())),
        (Control::Accept { private_data: nothing(), reads_answered: 1 }, None),
        (Control::Register(1), Some(memory.as_fd())),
        (Control::Deregister(1), None),
    ];
    let closes = |place: &mut Place, socket: &OwnedFd| {
        until("closed", || {
            place.host.turn();
            matches!(receive(socket), Received::Closed)
        });
    };
    for (control, file) in firsts {
        let socket = connect_to(&place.path).unwrap();
        assert!(send_control(&socket, control, file).unwrap());
        closes(&mut place, &socket);
    }
    let socket = connect_to(&place.path).unwrap();
    rustix::net::send(&socket, b"GET / HTTP/1.1\r\n\r\n", rustix::net::SendFlags::empty()).unwrap();
    closes(&mut place, &socket);
    // A second connect.
    let socket = connect_to(&place.path).unwrap();
    for _ in 0..2 {
        assert!(send_control(&socket, connect, Some(link.file().unwrap().as_fd())).unwrap());
    }
    closes(&mut place, &socket);
    assert_eq!(place.host.nic.counters().protocol_errors, 8);
    place.host.post_entries(0..1);
    client.send(ours, 1, Payload::None).unwrap();
    until("the others are served", || {
        client.turn();
        place.host.turn();
        client.statuses() == [(Work::Send { id: 1 }, Status::Success)]
    });
}

#[test]
fn a_peer_that_answers_no_read_is_refused_and_one_that_answers_all_gets_what_this_end_makes() {
    let mut place = Place::new(SoftOptions::default());
    let mut kept = Vec::new();
    for (answered, agreed) in [(0, None), (1, Some(1)), (31, Some(31)), (33, Some(32)), (u32::MAX, Some(32))]
    {
        place.host.events.clear();
        let socket = connect_to(&place.path).unwrap();
        let link = Link::make().unwrap();
        assert!(
            send_control(&socket, connect_control(answered), Some(link.file().unwrap().as_fd())).unwrap()
        );
        until("a request", || {
            place.host.turn();
            !place.host.events.is_empty()
        });
        let Some(Event::ConnectRequest { qp, .. }) = place.host.events.pop() else { panic!("no request") };
        let accepted = place.host.nic.accept(qp, &nothing());
        assert_eq!(accepted, agreed.map(drop).ok_or(PostError::Stale), "it answers {answered}");
        until("told", || {
            place.host.turn();
            !place.host.events.is_empty()
        });
        match (place.host.events.pop(), agreed) {
            (Some(Event::Connected { reads_max, .. }), Some(agreed)) => assert_eq!(reads_max, agreed),
            (Some(Event::Disconnected { reason, .. }), None) => {
                assert_eq!(reason, DisconnectReason::Protocol)
            }
            other => panic!("it answers {answered}: {other:?}"),
        }
        // Dropping the peer here would add an event to the next round.
        kept.push((socket, link));
    }
    assert_eq!(place.host.nic.counters().protocol_errors, 1);
}

#[test]
fn impossible_items_end_the_connection_and_change_no_entry() {
    let mut place = Place::new(SoftOptions::default());
    place.host.post_entries(0..1);
    let broken = [
        item(99, 0, 0),
        item(source::BESIDE, 105, 0),
        item(source::BESIDE, u32::MAX, 0),
        item(source::STAGED, 4097, 0),
        item(source::STAGED, 1, 32),
        item(source::STAGED, 1, u64::MAX),
    ];
    for (count, item) in broken.into_iter().enumerate() {
        let (_socket, mut link, qp) = place.raw_peer();
        link.outgoing.push(item).unwrap();
        link.outgoing.publish();
        until("ended", || {
            place.host.turn();
            place.host.ended(qp) == Some(DisconnectReason::Protocol)
        });
        assert_eq!(place.host.nic.counters().protocol_errors, count as u64 + 1);
    }
    // A region that nobody registered is the fault of the peer that posted the SEND, and the peer is told so.
    let (_socket, mut link, qp) = place.raw_peer();
    link.outgoing.push(item(source::REGISTERED, 1, 0)).unwrap();
    link.outgoing.publish();
    until("ended", || {
        place.host.turn();
        place.host.ended(qp) == Some(DisconnectReason::WorkRequest(Status::LocalProtection))
    });
    assert!(place.host.completions.is_empty(), "the SRQ entry is still posted");
}

#[test]
fn a_peer_learns_nothing_of_regions_that_are_not_for_it() {
    let mut place = Place::new(SoftOptions::default());
    write_memory(&place.host.pool, 100, &[7; 105]);
    let (_socket, mut link, qp) = place.raw_peer();
    for bytes in [1, 104, 105] {
        let payload = Sge { offset: 100, bytes, ..place.host.slab(0) };
        place.host.send(qp, u64::from(bytes), Payload::Registered(payload)).unwrap();
        place.host.turn();
        let item = link.incoming.pop().unwrap().expect("shown");
        link.incoming.advance();
        let SendPlace { source, payload_bytes, key, offset, .. } = item.place;
        let staged = bytes as usize > item.beside.len();
        assert_eq!(
            (payload_bytes, key, offset),
            (bytes, 0, 0),
            "no key, and a number of a staged place or 0"
        );
        assert_eq!(source, if staged { source::STAGED } else { source::BESIDE });
        assert!(staged || item.beside[..bytes as usize] == vec![7; bytes as usize]);
    }
}

#[test]
fn impossible_ring_indices_end_the_connection() {
    let mut place = Place::new(SoftOptions::default());
    place.host.post_entries(0..1);
    // Behind the words of the two ends are six lines of 128 bytes: tail, head and sleeping word of the ring
    // up, then those of the ring down. The test overwrites the tail up and the head down.
    for line in [2, 6] {
        let (_socket, link, qp) = place.raw_peer();
        place.host.send(qp, 1, Payload::None).unwrap();
        write_memory(link.file().unwrap(), line * 128, &0x7000_0000u32.to_le_bytes());
        until("ended", || {
            place.host.turn();
            place.host.ended(qp) == Some(DisconnectReason::Protocol)
        });
    }
    assert!(place.host.completions.iter().all(|completion| completion.status == Status::Flushed));
}

#[test]
fn a_link_scribbled_over_at_random_ends_one_connection_at_most() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, _) = place.connect(&mut client);
    // A fixed seed, so that a failure can be repeated.
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..40u64 {
        let (socket, link, qp) = place.raw_peer();
        let file = link.file().unwrap();
        for _ in 0..200 {
            // Mostly the words and indices, sometimes the items.
            let span = if random.u8(..8) == 0 { file.bytes() / 8 } else { 128 };
            let at = random.usize(..span) * 8;
            let value = if random.bool() { random.u64(..=0xff) } else { random.u64(..) };
            write_memory(file, at, &value.to_le_bytes());
            let _ = place.host.send(qp, 1, Payload::None);
            place.host.turn();
        }
        drop(socket);
        until("ended", || {
            place.host.turn();
            place.host.ended(qp).is_some()
        });
        place.host.events.clear();
        place.host.completions.clear();
        until("the SRQ is full again", || {
            place.host.post_entries(0..1);
            place.host.nic.tables.srq.len() > 2
        });
        client.completions.clear();
        client.send(ours, round, Payload::None).unwrap();
        until("the others are served", || {
            client.turn();
            place.host.turn();
            client.statuses() == [(Work::Send { id: round }, Status::Success)]
        });
        place.host.completions.clear();
    }
}

#[test]
fn regions_beyond_the_limit_end_the_connection() {
    let mut place = Place::new(SoftOptions { peer_regions_max: 2, ..SoftOptions::default() });
    let (socket, _link, qp) = place.raw_peer();
    let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
    for key in 0..3 {
        assert!(send_control(&socket, Control::Register(key), Some(memory.as_fd())).unwrap());
    }
    until("ended", || {
        place.host.turn();
        place.host.ended(qp) == Some(DisconnectReason::Protocol)
    });
}

#[test]
fn a_peer_that_does_not_listen_is_let_go_and_never_waited_for() {
    let mut place = Place::new(SoftOptions { regions_max: 4, ..SoftOptions::default() });
    let (_socket, _link, qp) = place.raw_peer();
    let memory = Arc::new(SharedMemory::new("jet-test", 4096, false).unwrap());
    // The peer takes nothing off its socket, which fills up.
    until("let go", || {
        let key = place.host.nic.register(&memory, Access::RemoteRead).unwrap();
        place.host.nic.deregister(key);
        place.host.turn();
        place.host.ended(qp).is_some()
    });
    assert_eq!(place.host.ended(qp), Some(DisconnectReason::Protocol));
}

#[test]
fn a_connection_is_small() {
    assert!(size_of::<Connection>() <= 1024, "{}", size_of::<Connection>());
}

#[test]
fn announcements_are_taken_up_to_the_count_seen_and_no_more_than_a_nic_could_make() {
    let mut place = Place::new(SoftOptions { regions_max: 4, ..SoftOptions::default() });
    let mut client = Host::new(SoftOptions::default());
    let (ours, _) = place.connect(&mut client);
    let (socket, link, qp) = place.raw_peer();
    let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
    let is_known = |place: &mut Place, key| {
        let nic = &mut place.host.nic;
        nic.tables.deadlines.begin_poll(place.host.now_ns);
        let found = nic.shm.get(qp).unwrap().translate_peer(&mut nic.tables, key, 0, 1);
        nic.tables.deadlines.end_poll();
        found.map(|found| matches!(found, Sought::At(_))).map_err(|end| end.reason)
    };
    for key in 1..=3 {
        assert!(send_control(&socket, Control::Register(key), Some(memory.as_fd())).unwrap());
    }
    link.set_announced(2);
    assert_eq!(is_known(&mut place, 2), Ok(true));
    assert_eq!(is_known(&mut place, 3), Ok(false), "not counted yet");
    link.set_announced(3);
    assert_eq!(is_known(&mut place, 3), Ok(true));
    let stream = |count| {
        for _ in 0..count {
            assert!(send_control(&socket, Control::Deregister(9), None).unwrap());
        }
    };
    // Eight messages for each of four regions are taken.
    stream(32);
    link.set_announced(35);
    assert_eq!(is_known(&mut place, 1), Ok(true));
    // The count is false: the messages never reach it.
    stream(33);
    link.set_announced(35 + 1_000_000);
    assert_eq!(is_known(&mut place, 1), Err(DisconnectReason::Protocol));
    place.host.post_entries(0..1);
    client.send(ours, 1, Payload::None).unwrap();
    until("the others are served", || {
        client.turn();
        place.host.turn();
        client.statuses() == [(Work::Send { id: 1 }, Status::Success)]
    });
}

#[test]
fn regions_of_a_process_and_of_all_peers_together_are_bounded() {
    // All peers here are of one process, which may have three.
    let mut place = Place::new(SoftOptions { mapped_regions_max: 4, ..SoftOptions::default() });
    let (first, _first_link, at_first) = place.raw_peer();
    let (second, _second_link, at_second) = place.raw_peer();
    let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
    let register = |socket: &OwnedFd, key| {
        assert!(send_control(socket, Control::Register(key), Some(memory.as_fd())).unwrap());
    };
    let mapped = |place: &mut Place, count| {
        until("mapped", || {
            place.host.turn();
            place.host.nic.tables.region_places.taken().0 == count
        });
    };
    register(&first, 1);
    register(&first, 2);
    mapped(&mut place, 2);
    // A region that is taken back makes room for another peer's; an unknown key does not.
    assert!(send_control(&first, Control::Deregister(2), None).unwrap());
    assert!(send_control(&first, Control::Deregister(2), None).unwrap());
    mapped(&mut place, 1);
    register(&second, 1);
    register(&second, 2);
    mapped(&mut place, 3);
    register(&second, 3);
    until("ended", || {
        place.host.turn();
        place.host.ended(at_second) == Some(DisconnectReason::Transport(libc::EDQUOT))
    });
    // The regions of the ended peer are free again, and the other peer keeps its own.
    mapped(&mut place, 1);
    assert_eq!(place.host.ended(at_first), None);
    register(&first, 3);
    mapped(&mut place, 2);
    drop(first);
    mapped(&mut place, 0);
    assert_eq!(place.host.nic.counters().protocol_errors, 0);
}

/// Stops the thread that drops it until it is let go on.
struct Standstill(std::sync::mpsc::Receiver<()>);

impl Drop for Standstill {
    fn drop(&mut self) {
        // A test that failed lets go, too.
        let _ = self.0.recv_timeout(WAIT_LIMIT / 2);
    }
}

#[test]
fn what_peers_leave_is_freed_by_another_thread() {
    let mut place = Place::new(SoftOptions::default());
    let (socket, _link, qp) = place.raw_peer();
    let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
    for key in [1, 2] {
        assert!(send_control(&socket, Control::Register(key), Some(memory.as_fd())).unwrap());
    }
    until("taken", || {
        place.host.turn();
        place.host.nic.tables.region_places.taken().0 == 2
    });
    let (lets, may) = std::sync::mpsc::channel();
    place.host.nic.tables.disposal.free(Standstill(may));
    until("the thread stands", || place.host.nic.tables.disposal.waiting() == 0);
    // A newcomer's link takes no descriptor once it is mapped, whatever that thread does.
    let newcomer = place.raw_peer();
    assert_eq!(place.host.nic.tables.disposal.waiting(), 0);
    assert!(send_control(&socket, Control::Deregister(2), None).unwrap());
    // A key twice: the file is not taken, and the connection ends.
    assert!(send_control(&socket, Control::Register(1), Some(memory.as_fd())).unwrap());
    until("ended", || {
        place.host.turn();
        place.host.ended(qp) == Some(DisconnectReason::Protocol)
    });
    assert_eq!(place.host.nic.tables.region_places.taken().0, 2, "nothing is freed here");
    until("the peer hears of the end", || matches!(receive(&socket), Received::Closed));
    let sent = std::thread::spawn(move || lets.send(()));
    until("freed", || place.host.nic.tables.region_places.taken() == (0, 0));
    sent.join().unwrap().unwrap();
    drop(newcomer);
}

#[test]
fn who_has_too_many_regions_hears_whose_fault_that_is() {
    for (max, kept, reason, told) in [
        (3, 3, libc::ENOMEM, RegionError::ReceiverFull),
        (4, 3, libc::EDQUOT, RegionError::Share),
        (1, 1, libc::ENOMEM, RegionError::ReceiverFull),
    ] {
        let mut place = Place::new(SoftOptions { mapped_regions_max: max, ..SoftOptions::default() });
        let mut client = Host::new(SoftOptions::default());
        let (ours, theirs) = place.connect(&mut client);
        let memory = Arc::new(SharedMemory::new("jet-test", 4096, false).unwrap());
        for _ in 0..=kept {
            client.nic.register(&memory, Access::RemoteRead).unwrap();
        }
        until("both ended", || {
            client.turn();
            place.host.turn();
            client.ended(ours) == Some(DisconnectReason::Region(told))
                && place.host.ended(theirs) == Some(DisconnectReason::Transport(reason))
        });
    }
}
