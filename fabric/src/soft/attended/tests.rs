use super::*;
use crate::nic::{Payload, Sge, Status, Work};
use crate::soft::SoftOptions;
use jet_wire::message::{HEADER_BYTES, HeaderBytes};

/// Time after which a test fails; long enough for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
const HEADER: HeaderBytes = HeaderBytes([7; HEADER_BYTES]);
const BYTES: u32 = 256 << 10;

fn soft() -> SoftNic {
    let options = SoftOptions { qps_max: 4, srq_entries_max: 8, completions: 512, ..SoftOptions::default() };
    SoftNic::new(options).unwrap()
}

fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(found) = done() {
            return found;
        }
        assert!(Instant::now() < deadline, "still not after {WAIT_LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}

fn ns_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap()
}

/// Polls a NIC once, and returns its completion and its event, if there are any.
fn poll_once(nic: &mut dyn Nic, now_ns: u64) -> (Option<Completion>, Option<Event>) {
    let mut completions = [Completion::UNUSED];
    let polled = nic.poll(now_ns, &mut completions);
    (completions.first().filter(|_| polled > 0).copied(), nic.poll_event(now_ns))
}

/// A NIC with a helper that is connected to a bare one.
struct Pair {
    near: Attended,
    near_qp: Qp,
    far: SoftNic,
    far_qp: Qp,
    /// Memory of the bare one, with its key.
    far_memory: Arc<SharedMemory>,
    far_key: MemoryKey,
    began: Instant,
}

impl Pair {
    fn connect() -> Self {
        let (mut near, mut far) = (Attended::new(soft()).unwrap(), soft());
        let nothing = PrivateData::new(&[]).unwrap();
        let address = far.listen(&Address::Tcp("127.0.0.1:0".to_owned())).unwrap();
        let near_qp = near.connect(&address, &nothing).unwrap();
        let mut far_qp = None;
        until("the connection", || {
            if let (_, Some(Event::ConnectRequest { qp, .. })) = poll_once(&mut far, 0) {
                far.accept(qp, &nothing).unwrap();
                far_qp = Some(qp);
            }
            matches!(poll_once(&mut near, 0), (_, Some(Event::Connected { .. }))).then_some(())
        });
        let far_qp = far_qp.unwrap();
        until("it at the other end", || {
            matches!(poll_once(&mut far, 0), (_, Some(Event::Connected { .. }))).then_some(())
        });
        let far_memory = Arc::new(SharedMemory::new("jet-test", BYTES as usize, false).unwrap());
        let far_key = far.register(&far_memory, Access::LocalWrite).unwrap();
        Self { near, near_qp, far, far_qp, far_memory, far_key, began: Instant::now() }
    }

    /// Registers memory of the near end, all of whose bytes are `byte`.
    fn readable(&mut self, byte: u8) -> MemoryKey {
        let memory = Arc::new(SharedMemory::new("jet-test", BYTES as usize, false).unwrap());
        // SAFETY: the mapping has so many bytes, and nobody else has it yet.
        unsafe { memory.base().write_bytes(byte, BYTES as usize) };
        self.near.register(&memory, Access::RemoteRead).unwrap()
    }

    /// READs memory of the near end while its user does nothing.
    fn read(&mut self, key: MemoryKey, byte: u8) {
        let scatter = [Sge { key: self.far_key, offset: 0, bytes: BYTES }];
        let request = ReadRequest { id: 9, address: 0, key: key.0, scatter: &scatter };
        self.far.post_read(self.far_qp, request).unwrap();
        let began = self.began;
        let done = until("the READ", || poll_once(&mut self.far, ns_since(began)).0);
        assert_eq!((done.work, done.status), (Work::Read { id: 9 }, Status::Success));
        // SAFETY: the READ has ended, so nobody writes these bytes.
        let found = unsafe { std::slice::from_raw_parts(self.far_memory.base(), BYTES as usize) };
        assert!(found.iter().all(|found| *found == byte));
    }

    /// Posts an entry at the near end, whose user then sleeps.
    fn post_and_sleep(&mut self) {
        let memory = Arc::new(SharedMemory::new("jet-test", HEADER_BYTES, false).unwrap());
        let key = self.near.register(&memory, Access::LocalWrite).unwrap();
        let header = Sge { key, offset: 0, bytes: u32::try_from(HEADER_BYTES).unwrap() };
        self.near.post_srq(SrqEntry { id: 3, header, payload: None }).unwrap();
        self.sleep();
    }

    /// Has the far end send into that entry.
    fn far_sends(&mut self) {
        let request = SendRequest { id: 4, header: &HEADER, payload: Payload::None };
        self.far.post_send(self.far_qp, request).unwrap();
        let began = self.began;
        let done = until("the SEND", || poll_once(&mut self.far, ns_since(began)).0);
        assert_eq!((done.work, done.status), (Work::Send { id: 4 }, Status::Success));
    }

    /// Has the near end's user sleep, for which nothing has come.
    fn sleep(&mut self) {
        until("nothing to do", || {
            let now_ns = ns_since(self.began);
            assert!(matches!(poll_once(&mut self.near, now_ns), (None, None)));
            self.near.arm(now_ns).then_some(())
        });
    }

    fn is_readable(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.near.wait_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
    }

    fn received(&mut self) {
        let began = self.began;
        let done = until("what was sent", || poll_once(&mut self.near, ns_since(began)).0);
        assert_eq!((done.work, done.qp), (Work::Receive { entry: 3, payload_bytes: 0 }, self.near_qp));
    }
}

#[test]
fn reads_are_answered_while_the_user_is_away() {
    let mut pair = Pair::connect();
    for byte in 1..20 {
        let key = pair.readable(byte);
        // The user registered just now, so the helper has to notice that it left. The second READ finds the
        // helper at work, or waiting.
        pair.read(key, byte);
        pair.read(key, byte);
        pair.near.deregister(key);
    }
}

#[test]
fn what_the_helper_finds_for_a_sleeper_keeps_its_descriptor_readable() {
    let mut pair = Pair::connect();
    // The SEND completes only when the near end has taken it, which is what the helper does.
    pair.post_and_sleep();
    pair.far_sends();
    until("the ring", || pair.near.shared.lock().rang.then_some(()));
    assert!(pair.near.shared.lock().nic.has_news());
    for _ in 0..3 {
        assert!(pair.is_readable(), "until the user comes");
    }
    pair.received();
    // The ring is over with the news.
    pair.sleep();
    assert!(!pair.is_readable());
    assert!(!pair.near.shared.lock().rang);
}

#[test]
fn who_sleeps_on_the_descriptor_loses_no_wakeup() {
    let mut pair = Pair::connect();
    for _ in 0..200 {
        let memory = Arc::new(SharedMemory::new("jet-test", HEADER_BYTES, false).unwrap());
        let key = pair.near.register(&memory, Access::LocalWrite).unwrap();
        let header = Sge { key, offset: 0, bytes: u32::try_from(HEADER_BYTES).unwrap() };
        pair.near.post_srq(SrqEntry { id: 3, header, payload: None }).unwrap();
        let request = SendRequest { id: 4, header: &HEADER, payload: Payload::None };
        pair.far.post_send(pair.far_qp, request).unwrap();
        // The far end works on a thread of its own while the near end sleeps.
        let (far, began) = (&mut pair.far, pair.began);
        let now_ns = || ns_since(began);
        std::thread::scope(|scope| {
            let sends = scope.spawn(move || until("the SEND", || poll_once(far, now_ns()).0));
            loop {
                if let (Some(done), _) = poll_once(&mut pair.near, now_ns()) {
                    assert_eq!(done.work, Work::Receive { entry: 3, payload_bytes: 0 });
                    break;
                }
                if pair.near.arm(now_ns()) {
                    let mut fds = [PollFd::from_borrowed_fd(pair.near.wait_fd(), PollFlags::IN)];
                    let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
                    assert!(poll(&mut fds, Some(&limit)).unwrap() > 0, "it is woken");
                }
            }
            // Its acknowledgement goes with the near end's next turns.
            while !sends.is_finished() {
                poll_once(&mut pair.near, now_ns());
                std::thread::yield_now();
            }
            sends.join().unwrap();
        });
        pair.near.deregister(key);
    }
}

#[test]
fn while_the_user_is_here_the_helper_does_nothing() {
    let mut pair = Pair::connect();
    let shared = Arc::clone(&pair.near.shared);
    let seen = shared.visits();
    poll_once(&mut pair.near, 0);
    assert_eq!(shared.serve(seen, &mut Absence::begin()), Served::UserIsBack);
}

#[test]
fn who_posts_and_polls_nothing_has_its_reads_answered() {
    let mut pair = Pair::connect();
    let key = pair.readable(3);
    let stop = AtomicBool::new(false);
    let Pair { near, far, far_qp, far_key, began, .. } = &mut pair;
    let (far_qp, far_key, began) = (*far_qp, *far_key, *began);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                near.flush();
                std::thread::yield_now();
            }
        });
        let scatter = [Sge { key: far_key, offset: 0, bytes: BYTES }];
        let request = ReadRequest { id: 9, address: 0, key: key.0, scatter: &scatter };
        far.post_read(far_qp, request).unwrap();
        let done = until("the READ", || poll_once(far, ns_since(began)).0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!((done.work, done.status), (Work::Read { id: 9 }, Status::Success));
    });
}

#[test]
fn a_call_that_polls_nothing_leaves_a_sleeper_asleep() {
    let mut pair = Pair::connect();
    let other = pair.readable(1);
    pair.post_and_sleep();
    // As another thread of the program may do, while one sleeps.
    pair.near.deregister(other);
    assert!(pair.near.shared.lock().asleep);
    pair.far_sends();
    until("the ring", || pair.near.shared.lock().rang.then_some(()));
    pair.near.flush();
    assert!(pair.is_readable(), "a call that polls nothing takes no ring away");
    pair.received();
}

#[test]
fn time_goes_on_while_the_user_is_away() {
    const PAUSE: Duration = Duration::from_millis(50);
    let mut pair = Pair::connect();
    let key = pair.readable(1);
    // The helper is at work after this.
    pair.read(key, 1);
    let before = pair.near.shared.lock().now_ns;
    std::thread::sleep(PAUSE);
    pair.read(key, 1);
    let passed = Duration::from_nanos(pair.near.shared.lock().now_ns - before);
    assert!(passed >= PAUSE, "{passed:?}: deadlines fall due by this time");
}

#[test]
fn dropping_the_nic_ends_the_helper_wherever_it_is() {
    // While the helper naps, and most likely while it waits.
    for pause in [Duration::ZERO, NAP_MIN / 2, 4 * NAP_MIN] {
        let pair = Pair::connect();
        let helped = Arc::downgrade(&pair.near.shared);
        std::thread::sleep(pause);
        drop(pair);
        assert_eq!(helped.strong_count(), 0, "the helper had its share until its end");
    }
}
