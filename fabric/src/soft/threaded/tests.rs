use super::*;
use crate::nic::{DisconnectReason, Sge, Status};
use crate::soft::{SoftNic, SoftOptions};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::time::{Duration, Instant};

/// Time after which a test fails; long enough for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
const HEADER: HeaderBytes = HeaderBytes([7; HEADER_BYTES]);

fn options() -> SoftOptions {
    SoftOptions { qps_max: 4, srq_entries_max: 64, completions: 512, ..SoftOptions::default() }
}

fn threaded(soft: SoftOptions, options: &ThreadedOptions) -> Threaded {
    Threaded::new(SoftNic::new(soft).unwrap(), options).unwrap()
}

/// Events and completions that were polled from a NIC.
#[derive(Default)]
struct Seen {
    events: Vec<Event>,
    completions: Vec<Completion>,
}

impl Seen {
    fn poll(&mut self, nic: &mut dyn Nic) {
        let mut completions =
            [Completion { qp: nic_thread::NO_QP, work: Work::Send { id: 0 }, status: Status::Success }; 8];
        let polled = nic.poll(0, &mut completions);
        self.completions.extend(&completions[..polled]);
        self.events.extend(std::iter::from_fn(|| nic.poll_event(0)));
    }

    fn ended(&self, qp: Qp) -> Option<DisconnectReason> {
        self.events.iter().find_map(|event| match event {
            Event::Disconnected { qp: of, reason } if *of == qp => Some(*reason),
            _ => None,
        })
    }

    fn connected(&self, qp: Qp) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Connected { qp: of, .. } if *of == qp))
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "still not after {WAIT_LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}

struct Pair {
    front: Threaded,
    peer: SoftNic,
    front_seen: Seen,
    peer_seen: Seen,
    address: Address,
    _place: tempfile::TempDir,
}

fn nothing() -> PrivateData {
    PrivateData::new(&[]).unwrap()
}

impl Pair {
    fn new(front: Threaded) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut peer = SoftNic::new(options()).unwrap();
        let address = peer.listen(&Address::Shm(place.path().join("nic.sock"))).unwrap();
        let (front_seen, peer_seen) = (Seen::default(), Seen::default());
        Self { front, peer, front_seen, peer_seen, address, _place: place }
    }

    /// Polls the peer, and accepts each connection request.
    fn poll_peer(&mut self) {
        let known = self.peer_seen.events.len();
        self.peer_seen.poll(&mut self.peer);
        for event in &self.peer_seen.events[known..] {
            if let Event::ConnectRequest { qp, .. } = event {
                self.peer.accept(*qp, &nothing()).unwrap();
            }
        }
    }

    fn poll(&mut self) {
        self.poll_peer();
        self.front_seen.poll(&mut self.front);
    }

    fn connect(&mut self) -> Qp {
        let qp = self.front.connect(&self.address, &nothing()).unwrap();
        until("the connection", || {
            self.poll();
            self.front_seen.connected(qp)
        });
        qp
    }

    fn peers_qp(&self) -> Qp {
        let request = self.peer_seen.events.iter().rev().find_map(|event| match event {
            Event::ConnectRequest { qp, .. } => Some(*qp),
            _ => None,
        });
        request.expect("somebody connected")
    }

    /// Gives the peer SRQ entries without payload.
    fn post_entries(&mut self, count: u32) {
        let memory = Arc::new(SharedMemory::new("jet-test", 4096, false).unwrap());
        let key = self.peer.register(&memory, Access::LocalWrite).unwrap();
        for id in 0..count {
            let header = Sge { key, offset: 0, bytes: 128 };
            self.peer.post_srq(SrqEntry { id, header, payload: None }).unwrap();
        }
    }
}

#[test]
fn dropping_the_front_ends_the_thread_and_its_connections() {
    let mut pair = Pair::new(threaded(options(), &ThreadedOptions::default()));
    pair.connect();
    let peers_qp = pair.peers_qp();
    let Pair { front, mut peer, mut peer_seen, .. } = pair;
    let shared = Arc::downgrade(&front.shared);
    drop(front);
    assert_eq!(shared.strong_count(), 0, "the thread is gone when the drop returns");
    until("the end at the peer", || {
        peer_seen.poll(&mut peer);
        peer_seen.ended(peers_qp).is_some()
    });
}

#[test]
fn a_core_that_does_not_exist_is_refused() {
    for cpu in [usize::MAX, rustix::thread::CpuSet::MAX_CPU - 1] {
        let options = ThreadedOptions { cpu: Some(cpu), ..ThreadedOptions::default() };
        let refused = Threaded::new(SoftNic::new(self::options()).unwrap(), &options);
        let error = refused.err().expect("no machine of ours has that many cores").to_string();
        assert!(error.contains(&cpu.to_string()), "{error}");
    }
    let pinned = ThreadedOptions { cpu: Some(0), ..ThreadedOptions::default() };
    Pair::new(threaded(options(), &pinned)).connect();
}

/// The inner NIC takes four SENDs at once, the front many more: these wait on the thread, in order.
#[test]
fn sends_that_the_inner_queue_has_no_room_for_wait_their_turn() {
    let narrow = SoftOptions { srq_entries_max: 8, reads_max: 8, completions: 20, ..options() };
    let mut pair = Pair::new(threaded(narrow, &ThreadedOptions::default()));
    let qp = pair.connect();
    for id in 0..60 {
        pair.front.post_send(qp, SendRequest { id, header: &HEADER, payload: Payload::None }).unwrap();
    }
    pair.post_entries(60);
    until("all SENDs", || {
        pair.poll();
        pair.front_seen.completions.len() == 60
    });
    let ids = pair.front_seen.completions.iter().map(|done| (done.work, done.status));
    assert!(ids.eq((0..60).map(|id| (Work::Send { id }, Status::Success))));
}

#[test]
fn a_disconnect_overtakes_sends_that_wait_their_turn() {
    let narrow = SoftOptions {
        srq_entries_max: 8,
        reads_max: 8,
        completions: 20,
        farewell: Duration::from_millis(10),
        ..options()
    };
    let mut pair = Pair::new(threaded(narrow, &ThreadedOptions::default()));
    let qp = pair.connect();
    for id in 0..60 {
        pair.front.post_send(qp, SendRequest { id, header: &HEADER, payload: Payload::None }).unwrap();
    }
    pair.front.disconnect(qp);
    until("the end", || {
        pair.poll();
        pair.front_seen.ended(qp).is_some()
    });
    let mut ids: Vec<_> = pair
        .front_seen
        .completions
        .iter()
        .map(|done| match (done.work, done.status) {
            (Work::Send { id }, Status::Flushed) => id,
            other => panic!("{other:?}"),
        })
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..60));
    assert_eq!(pair.front.counters().flushed, 60);
}

/// The thread polled the end of a QP, so its place is free. The user did not, so that event still has to be
/// shown.
#[test]
fn a_place_may_be_given_out_again_before_its_last_end_was_polled() {
    let mut pair = Pair::new(threaded(SoftOptions { qps_max: 1, ..options() }, &ThreadedOptions::default()));
    let first = pair.connect();
    let peers_qp = pair.peers_qp();
    pair.peer.disconnect(peers_qp);
    let mut second = None;
    until("a free place", || {
        pair.poll_peer();
        second = pair.front.connect(&pair.address, &nothing()).ok();
        second.is_some()
    });
    let second = second.unwrap();
    assert_eq!(first.index, second.index);
    let late = pair.front.post_send(first, SendRequest { id: 1, header: &HEADER, payload: Payload::None });
    assert_eq!(late, Err(PostError::Stale));
    until("the second connection", || {
        pair.poll();
        pair.front_seen.connected(second)
    });
    assert_eq!(pair.front_seen.ended(first), Some(DisconnectReason::Peer));
    pair.post_entries(1);
    pair.front.post_send(second, SendRequest { id: 2, header: &HEADER, payload: Payload::None }).unwrap();
    until("its SEND", || {
        pair.poll();
        !pair.front_seen.completions.is_empty()
    });
    assert_eq!(pair.front_seen.completions[0].qp, second);
    assert!(pair.front.replaced.is_empty());
}

/// Without a budget to spin, the thread sleeps whenever it can: every post must wake it.
#[test]
fn a_thread_that_always_sleeps_misses_nothing() {
    let sleepy =
        ThreadedOptions { spin_max: Duration::ZERO, events_max: 1, send_buffers: 2, ..Default::default() };
    let mut pair = Pair::new(threaded(options(), &sleepy));
    let qp = pair.connect();
    pair.post_entries(64);
    for id in 0..64 {
        until("a buffer for the SEND", || {
            let request = SendRequest { id, header: &HEADER, payload: Payload::None };
            let posted = pair.front.post_send(qp, request);
            pair.front.flush();
            assert!(matches!(posted, Ok(()) | Err(PostError::QueueFull)));
            pair.peer_seen.poll(&mut pair.peer);
            posted.is_ok()
        });
    }
    until("all SENDs", || {
        pair.poll();
        pair.front_seen.completions.len() == 64
    });
}

/// A round also takes in what was posted, so a crowd must not be ended in one.
#[test]
fn a_crowd_that_leaves_at_once_is_ended_a_few_in_each_round() {
    const CROWD: usize = 100;
    let wide = || SoftNic::new(SoftOptions { qps_max: 128, ..options() }).unwrap();
    let place = tempfile::tempdir().unwrap();
    // The rounds are the test's own, since nobody can count those of a thread.
    let (_front, mut inner) = Threaded::halves(wide(), &ThreadedOptions::default()).unwrap();
    let address = inner.nic.listen(&Address::Shm(place.path().join("nic.sock"))).unwrap();
    let (mut crowd, mut seen) = (wide(), Seen::default());
    for _ in 0..CROWD {
        crowd.connect(&address, &nothing()).unwrap();
    }
    until("all to be connected", || {
        inner.round();
        while let Some((_, event)) = inner.shared.events.pop() {
            if let Event::ConnectRequest { qp, .. } = event {
                inner.nic.accept(qp, &nothing()).unwrap();
            }
        }
        seen.poll(&mut crowd);
        seen.events.len() == CROWD
    });
    drop(crowd);
    let (mut ended, mut most) = (0, 0);
    until("all to be ended", || {
        inner.round();
        let of_round: Vec<_> = std::iter::from_fn(|| inner.shared.events.pop()).collect();
        ended += of_round.iter().filter(|(_, event)| matches!(event, Event::Disconnected { .. })).count();
        most = most.max(of_round.len());
        ended == CROWD
    });
    assert!(most <= nic_thread::EVENTS, "{most} in one round");
}

#[test]
fn what_crosses_comes_out_as_it_went_in() {
    let qp = Qp { index: 3, generation: 9 };
    let works = [
        Work::Receive { entry: u32::MAX, payload_bytes: 4096 },
        Work::Send { id: u64::MAX },
        Work::Read { id: 1 << 40 },
        Work::SrqFlush { entry: 7 },
    ];
    let statuses = [
        Status::Success,
        Status::Flushed,
        Status::RemoteAccess,
        Status::LocalProtection,
        Status::Length,
        Status::RnrExhausted,
        Status::Other(77),
    ];
    for work in works {
        for status in statuses {
            let completion = Completion { qp, work, status };
            assert_eq!(RawCompletion::new(&completion).get(), completion);
        }
    }
    assert_eq!([0, 1, 2, 3, 6, 7, 64].map(Post::read_cells), [1, 1, 1, 2, 2, 3, 17]);
}
