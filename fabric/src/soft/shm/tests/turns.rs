//! Tests of peers that send messages on their sockets without end. The time is a number that the tests set,
//! and what is taken is counted. All peers are of this process unless a test says otherwise.

use super::super::VAIN_POLLS;
use super::super::connection::Sought;
use super::super::link::{SendItem, SendPlace, source};
use super::*;
use crate::readiness::{TIMER, none_ready};
use crate::soft::tables::socket_turns::{OF_ALL, OF_SOURCE, REGION_COST, TURN_COST, TURNS_EVERY};
use crate::source::Source;

fn step_ns() -> u64 {
    u64::try_from(TURNS_EVERY.as_nanos()).unwrap()
}

/// Peer that the test plays itself, and that announces a region as often as its socket takes that.
struct Peer {
    socket: OwnedFd,
    link: Link,
    qp: Qp,
    memory: SharedMemory,
    announced: u32,
}

impl Peer {
    fn new(place: &mut Place) -> Self {
        // Connecting costs, too.
        place.host.now_ns += step_ns();
        let (socket, link, qp) = place.raw_peer();
        let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
        Self { socket, link, qp, memory, announced: 0 }
    }

    /// Makes a peer that is taken for another process.
    fn of(place: &mut Place, process: u32) -> Self {
        let peer = Self::new(place);
        let nic = &mut place.host.nic;
        let connection = nic.shm.get(peer.qp).unwrap();
        connection.set_source(&mut nic.tables, Source::of_process(process, 1));
        peer
    }

    /// Registers and takes back in turns, until the socket is full or so many messages were sent. Returns how
    /// many were.
    fn announce(&mut self, max: u32) -> u32 {
        let before = self.announced;
        while self.announced - before < max {
            let (control, file) = match self.announced % 2 {
                0 => (Control::Register(1), Some(self.memory.as_fd())),
                _ => (Control::Deregister(1), None),
            };
            if !send_control(&self.socket, control, file).unwrap() {
                break;
            }
            self.announced += 1;
        }
        self.link.set_announced(self.announced);
        self.announced - before
    }

    fn register(&mut self, key: u32) {
        assert!(send_control(&self.socket, Control::Register(key), Some(self.memory.as_fd())).unwrap());
        self.announced += 1;
        self.link.set_announced(self.announced);
    }

    /// Registers and takes back until its process may spend nothing more, and stands in line.
    fn stands_in_line(&mut self, place: &mut Place) {
        until("in line", || {
            self.announce(u32::MAX);
            check(&mut place.host);
            place.host.nic.shm.get(self.qp).unwrap().is_in_line()
        });
    }

    /// Returns how many announcements were taken.
    fn taken(&self, host: &mut Host) -> u32 {
        host.nic.shm.get(self.qp).unwrap().announcements_seen()
    }

    /// Shows a SEND with a payload of so many bytes from the region with this key.
    fn send(&mut self, key: u32, payload_bytes: u32) {
        let place = SendPlace { source: source::REGISTERED, payload_bytes, key, ..SendPlace::default() };
        let item = SendItem { place, ..beside(0) };
        show(&mut self.link, item);
    }
}

/// Makes a SEND whose payload is this byte, and needs no region.
fn beside(byte: u8) -> SendItem {
    let place = SendPlace { source: source::BESIDE, payload_bytes: 1, ..SendPlace::default() };
    SendItem { place, header: [4; 128], beside: [byte; 104] }
}

fn show(link: &mut Link, item: SendItem) {
    link.outgoing.push(item).unwrap();
    link.outgoing.publish();
}

/// Polls a host that asks its sockets first, as one that has slept.
fn check(host: &mut Host) {
    host.nic.arm(host.now_ns);
    host.turn();
}

/// Lets so many turns pass, and calls something before each.
fn pass(place: &mut Place, turns: u64, mut before_each: impl FnMut()) {
    for _ in 0..turns {
        before_each();
        place.host.now_ns += step_ns();
        check(&mut place.host);
    }
}

/// What so many register and deregister messages cost, of which half are either.
fn cost(announcements: u32) -> u32 {
    announcements * (REGION_COST + 1) / 2
}

#[test]
fn a_process_that_registers_without_end_has_its_share_and_no_check_takes_more_than_is_saved() {
    let mut place = Place::new(SoftOptions::default());
    place.host.now_ns = 1_000_000_000;
    let mut peers: Vec<_> = (0..16).map(|_| Peer::new(&mut place)).collect();
    place.host.now_ns += 1_000_000_000;
    let taken = |place: &mut Place, peers: &[Peer]| -> u32 {
        peers.iter().map(|peer| peer.taken(&mut place.host)).sum()
    };
    let (turns, mut most) = (1_000, 0);
    for _ in 0..turns {
        peers.iter_mut().for_each(|peer| _ = peer.announce(u32::MAX));
        let before = taken(&mut place, &peers);
        check(&mut place.host);
        most = most.max(taken(&mut place, &peers) - before);
        place.host.now_ns += step_ns();
    }
    assert!(cost(most) <= OF_ALL.saved + TURN_COST, "{most} messages in one check");
    let all = taken(&mut place, &peers);
    let share = u32::try_from(turns * step_ns() / OF_SOURCE.unit_ns).unwrap();
    assert!(cost(all) <= share + OF_SOURCE.saved + TURN_COST, "{all} messages in {turns} turns");
    assert!(cost(all) >= share, "{all} messages in {turns} turns: less than its share");
    // Each of its connections has turns.
    for peer in &peers {
        let of_one = peer.taken(&mut place.host);
        assert!(of_one >= all / 32, "{of_one} of {all}");
    }
}

#[test]
fn another_process_registers_beside_hundreds_of_registrations_that_wait() {
    let mut place = Place::new(SoftOptions::default());
    place.host.now_ns = 1_000_000_000;
    let mut hostile: Vec<_> = (0..32).map(|_| Peer::new(&mut place)).collect();
    let mut honest = Peer::of(&mut place, 2);
    for peer in &mut hostile {
        peer.stands_in_line(&mut place);
    }
    for round in 0..10 {
        pass(&mut place, 100, || hostile.iter_mut().for_each(|peer| _ = peer.announce(u32::MAX)));
        (0..64).for_each(|key| honest.register(100 * round + key));
        let begin_ns = place.host.now_ns;
        until("all registered", || {
            pass(&mut place, 1, || hostile.iter_mut().for_each(|peer| _ = peer.announce(u32::MAX)));
            honest.taken(&mut place.host) == honest.announced
        });
        let waited = Duration::from_nanos(place.host.now_ns - begin_ns);
        assert!(waited <= Duration::from_millis(6), "{waited:?}");
        for key in 0..64 {
            let control = Control::Deregister(100 * round + key);
            assert!(send_control(&honest.socket, control, None).unwrap());
            honest.announced += 1;
        }
    }
}

#[test]
fn processes_that_register_without_end_leave_turns_to_one_that_does_not() {
    let mut place = Place::new(SoftOptions::default());
    place.host.now_ns = 1_000_000_000;
    let mut hostile: Vec<_> = (0..40).map(|number| Peer::of(&mut place, 10 + number)).collect();
    let mut honest = Peer::of(&mut place, 2);
    for peer in &mut hostile {
        peer.stands_in_line(&mut place);
    }
    let mut longest = Duration::ZERO;
    for key in 0..60 {
        honest.register(key);
        let begin_ns = place.host.now_ns;
        until("registered", || {
            pass(&mut place, 1, || hostile.iter_mut().for_each(|peer| _ = peer.announce(u32::MAX)));
            honest.taken(&mut place.host) == honest.announced
        });
        longest = longest.max(Duration::from_nanos(place.host.now_ns - begin_ns));
    }
    // A turn of each before it: 40 times 16, of which 1 ms has 50.
    assert!(longest <= Duration::from_millis(15), "{longest:?}");
}

#[test]
fn who_stands_in_line_wakes_a_sleeper_for_its_turn_only_and_nothing_of_it_is_lost() {
    let mut place = Place::new(SoftOptions::default());
    let mut peer = Peer::new(&mut place);
    peer.stands_in_line(&mut place);
    let sleep = |place: &mut Place| {
        until("asleep", || {
            place.host.turn();
            place.host.nic.arm(place.host.now_ns)
        });
    };
    for _ in 0..20 {
        sleep(&mut place);
        peer.announce(8);
        crate::unix::ring(peer.socket.as_fd());
        let mut found = none_ready();
        let count = place.host.nic.tables.epoll.poll(&mut found);
        assert!(found[..count].iter().all(|event| event.data.u64() == TIMER), "a message woke it");
        assert!(is_ready(&place, 60), "it slept over the turn");
        place.host.now_ns += step_ns();
    }
    until("all taken", || {
        sleep(&mut place);
        assert!(is_ready(&place, 60), "it slept over the turn");
        place.host.now_ns += step_ns();
        place.host.turn();
        peer.taken(&mut place.host) == peer.announced && !place.host.nic.tables.socket_turns.has_line()
    });
    // What comes later is heard as ever.
    place.host.now_ns += 1_000_000_000;
    sleep(&mut place);
    assert!(!is_ready(&place, 0), "it is woken for nothing");
    peer.announce(2);
    assert!(is_ready(&place, 60));
    until("taken", || {
        place.host.turn();
        peer.taken(&mut place.host) == peer.announced
    });
}

fn is_ready(place: &Place, seconds: i64) -> bool {
    let wait = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(place.host.nic.wait_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&wait)).unwrap() == 1
}

#[test]
fn a_send_whose_region_waits_for_a_turn_stays_in_the_ring_and_lets_the_receiver_sleep() {
    let mut place = Place::new(SoftOptions::default());
    let mut peer = Peer::new(&mut place);
    place.host.post_entries(0..4);
    write_memory(&peer.memory, 0, &[7; 100]);
    peer.stands_in_line(&mut place);
    drain(&mut place, &mut peer);
    peer.stands_in_line(&mut place);
    peer.register(5);
    peer.send(5, 100);
    // One more SEND, which waits for nothing but the first.
    show(&mut peer.link, beside(9));
    for _ in 0..10_000 {
        place.host.turn();
    }
    assert!(place.host.completions.is_empty() && place.host.ended(peer.qp).is_none());
    until("asleep", || {
        place.host.turn();
        place.host.nic.arm(place.host.now_ns)
    });
    until("both arrived", || {
        pass(&mut place, 1, || ());
        place.host.completions.len() == 2
    });
    assert_eq!(place.host.bytes_in_slab(0, 100), [7; 100]);
    assert_eq!(place.host.bytes_in_slab(1, 1), [9]);
}

#[test]
fn who_stands_in_line_goes_cold_and_turns_do_not_warm_it() {
    let mut place = Place::new(SoftOptions::default());
    let mut peer = Peer::new(&mut place);
    peer.stands_in_line(&mut place);
    for _ in 0..3 {
        until("cold", || {
            place.host.turn();
            place.host.nic.shm.hot.is_empty()
        });
        peer.announce(u32::MAX);
        let before = peer.taken(&mut place.host);
        // 1 ms has enough for a turn, of which the socket has more.
        place.host.now_ns += 1_000_000;
        place.host.turn();
        assert!(peer.taken(&mut place.host) > before && place.host.nic.tables.socket_turns.has_line());
        assert!(place.host.nic.shm.hot.is_empty(), "it announces, and rings no bell");
    }
}

/// Lets time pass until all was taken that a peer announced.
fn drain(place: &mut Place, peer: &mut Peer) {
    until("all taken", || {
        pass(place, 1, || ());
        peer.taken(&mut place.host) == peer.announced
    });
}

#[test]
fn a_read_whose_region_waits_for_a_turn_is_made_then_and_others_meanwhile() {
    let mut place = Place::new(SoftOptions::default());
    let mut peer = Peer::new(&mut place);
    let mut other = Peer::of(&mut place, 2);
    other.register(8);
    drain(&mut place, &mut other);
    write_memory(&peer.memory, 0, &[6; 4096]);
    peer.stands_in_line(&mut place);
    peer.register(5);
    let read = |place: &mut Place, qp, id, key| {
        let scatter = [place.host.slab(u32::try_from(id).unwrap())];
        place.host.nic.post_read(qp, ReadRequest { id, address: 0, key, scatter: &scatter }).unwrap();
    };
    read(&mut place, peer.qp, 1, 5);
    read(&mut place, peer.qp, 2, 5);
    for id in 3..6 {
        read(&mut place, other.qp, id, 8);
    }
    for _ in 0..10_000 {
        place.host.turn();
    }
    let others: Vec<_> = (3..6).map(|id| (Work::Read { id }, Status::Success)).collect();
    assert_eq!(place.host.statuses(), others, "the other's READs only");
    until("asleep", || {
        place.host.turn();
        place.host.nic.arm(place.host.now_ns)
    });
    until("read", || {
        pass(&mut place, 1, || ());
        place.host.completions.len() == 5
    });
    assert!(place.host.completions.iter().all(|completion| completion.status == Status::Success));
    assert_eq!(place.host.bytes_in_slab(2, 4096), [6; 4096]);
}

#[test]
fn sends_that_wait_for_no_region_are_taken_from_who_stands_in_line() {
    let mut place = Place::new(SoftOptions::default());
    let (mut first, mut second) = (Peer::new(&mut place), Peer::new(&mut place));
    place.host.post_entries(0..1);
    until("both cold", || {
        place.host.turn();
        place.host.nic.shm.hot.is_empty()
    });
    // From now on the time stands still, and the process has spent what it may.
    first.stands_in_line(&mut place);
    show(&mut second.link, beside(9));
    second.announce(2);
    assert!(second.link.outgoing.wake_needed());
    crate::unix::ring(second.socket.as_fd());
    until("arrived", || {
        check(&mut place.host);
        place.host.completions.len() == 1
    });
    let connection = place.host.nic.shm.get(second.qp).unwrap();
    assert!(connection.is_in_line() && connection.announcements_seen() == 0, "its bell was not taken");
    assert_eq!(place.host.bytes_in_slab(0, 1), [9]);
}

#[test]
fn who_hangs_up_in_line_gives_its_place_back_at_once() {
    let mut place = Place::new(SoftOptions::default());
    place.host.post_entries(0..2);
    let mut peer = Peer::new(&mut place);
    peer.stands_in_line(&mut place);
    let (qp, Peer { socket, mut link, .. }) = (peer.qp, peer);
    // What it has sent is taken yet, as far as it waits for no region.
    show(&mut link, beside(0));
    drop(socket);
    // The time stands still.
    until("ended", || {
        check(&mut place.host);
        place.host.ended(qp) == Some(DisconnectReason::Peer)
    });
    assert_eq!(place.host.statuses().len(), 1);
    assert!(!place.host.nic.tables.socket_turns.has_line());
}

#[test]
fn bells_that_nobody_asked_for_count_and_those_asked_for_do_not() {
    let mut place = Place::new(SoftOptions::default());
    let mut peer = Peer::new(&mut place);
    // Asked for: the connection is cold at each of them, and the time stands still.
    for _ in 0..2 * OF_ALL.saved {
        until("cold", || {
            place.host.turn();
            place.host.nic.arm(place.host.now_ns)
        });
        crate::unix::ring(peer.socket.as_fd());
        until("heard", || {
            check(&mut place.host);
            !place.host.nic.shm.hot.is_empty()
        });
    }
    assert!(!place.host.nic.shm.get(peer.qp).unwrap().is_in_line());
    // Not asked for: the connection is hot.
    let mut rung = 0;
    until("in line", || {
        crate::unix::ring(peer.socket.as_fd());
        rung += 1;
        place.host.turn();
        place.host.nic.shm.get(peer.qp).unwrap().is_in_line()
    });
    assert!(rung <= 2 * OF_ALL.saved, "{rung} bells");
    // Its SENDs arrive all the same.
    place.host.post_entries(0..1);
    peer.register(1);
    drain(&mut place, &mut peer);
    peer.send(1, 1);
    until("arrived", || {
        place.host.turn();
        place.host.completions.len() == 1
    });
}

#[test]
fn who_announces_what_never_comes_loses_its_connection_however_slowly_it_is_heard() {
    let mut place = Place::new(SoftOptions { regions_max: 8, ..SoftOptions::default() });
    let mut peer = Peer::new(&mut place);
    peer.stands_in_line(&mut place);
    drain(&mut place, &mut peer);
    peer.stands_in_line(&mut place);
    // Half of what is ahead is far ahead.
    peer.link.set_announced(peer.announced + 1_000_000);
    let nic = &mut place.host.nic;
    nic.tables.deadlines.begin_poll(place.host.now_ns);
    let found = nic.shm.get(peer.qp).unwrap().translate_peer(&mut nic.tables, 99, 0, 1);
    nic.tables.deadlines.end_poll();
    assert_eq!(found.map_err(|end| end.reason), Ok(Sought::Later));
    until("ended", || {
        pass(&mut place, 1, || (0..300).for_each(|_| crate::unix::ring(peer.socket.as_fd())));
        place.host.ended(peer.qp) == Some(DisconnectReason::Protocol)
    });
}

/// Thousands of connections that have work now and then would make each poll long, if it looked at all.
#[test]
fn many_hot_connections_without_work_have_their_turns_in_several_polls() {
    const MANY: usize = 300;
    let wide = || SoftOptions { qps_max: 400, ..SoftOptions::default() };
    let (mut place, mut client) = (Place::new(wide()), Host::new(wide()));
    let theirs: Vec<_> = (0..MANY).map(|_| place.connect(&mut client).1.index).collect();
    theirs.iter().for_each(|&index| place.host.nic.shm.make_hot(index));
    let looked_at = |place: &Place| -> u32 {
        place.host.nic.shm.connections.iter().flatten().map(|connection| connection.idle_polls).sum()
    };
    let before = looked_at(&place);
    let after = [(); 3].map(|()| {
        place.host.turn();
        looked_at(&place) - before
    });
    assert_eq!(after, [1, 2, 3].map(|polls| polls * VAIN_POLLS));
    until("all cold", || {
        place.host.turn();
        place.host.nic.shm.hot.is_empty()
    });
}

#[test]
fn who_sleeps_has_looked_at_every_hot_connection() {
    const MANY: usize = 300;
    let wide = || SoftOptions { qps_max: 400, ..SoftOptions::default() };
    let (mut place, mut client) = (Place::new(wide()), Host::new(wide()));
    let pairs: Vec<_> = (0..MANY).map(|_| place.connect(&mut client)).collect();
    // The last one sends, and there is no SRQ entry.
    let (ours, theirs) = pairs[MANY - 1];
    client.send(ours, 1, Payload::None).unwrap();
    until("it to wait", || {
        client.turn();
        place.host.turn();
        place.host.nic.counters().rnr > 0
    });
    let shm = &mut place.host.nic.shm;
    pairs.iter().for_each(|(_, theirs)| shm.make_hot(theirs.index));
    // A poll that does not look at all begins behind it.
    shm.first = shm.hot.iter().position(|&index| index == theirs.index).expect("it is hot") + 1;
    place.host.post_entries(0..1);
    assert!(!place.host.nic.arm(0), "a SEND is there, and an entry for it");
}
