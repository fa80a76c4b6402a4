//! Sender, driver and application on one thread, with a made-up time, as a simulator runs them. There is no
//! clock, no socket of the daemon and no second thread, so every run has the same result.

use jet_client::send::{
    Driver as SenderDriver, Ended, NicSource, RetryPolicy, SendConnectError, SenderOptions,
};
use jet_core::{Config, Receiver, Registration, ReleaseError, SessionEnd, Standstill};
use jet_fabric::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, Nic};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_reactor::workers::Workers;
use jet_reactor::{Application, Driver, NewSession, Parts, PoolMemory, SessionTicket};
use jet_wire::SLAB_BYTES;
use jet_wire::message::hello::AppName;
use jet_wire::message::{AckStatus, ByeReason, HEADER_BYTES};
use jet_wire::segment::{
    AppEnd, Delivery, Release, SegmentLayout, SegmentShape, app_end, daemon_end, delivery_flags, release_kind,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

const SLOTS: u32 = 128;
const MESSAGES: u32 = 64;
const LARGE_BYTES: usize = 3 << 20;
const STEP_NS: u64 = 1000;
/// Limit of steps for one wait: a thousand times what a wait takes.
const STEPS_MAX: u64 = 1_000_000;

/// An event of the run, recorded in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Delivered { tag: u64, offset: u64, bytes: u32 },
    Ended { tag: u64, status: AckStatus },
    SessionOver(SessionEnd),
}

/// The made-up time, and the events with their times.
#[derive(Default)]
struct Journal {
    now_ns: Cell<u64>,
    seen: RefCell<Vec<(u64, Seen)>>,
}

impl Journal {
    fn see(&self, seen: Seen) {
        self.seen.borrow_mut().push((self.now_ns.get(), seen));
    }

    /// Takes the events since the last call, without their times.
    fn take(&self) -> Vec<Seen> {
        self.seen.take().into_iter().map(|(_, seen)| seen).collect()
    }
}

type Log = Rc<Journal>;

/// An application that polls, so that it needs no wake-up.
struct Polling(Log);

impl Application for Polling {
    fn wake(&mut self) {}

    fn stands_still(&mut self, standstill: Option<Standstill>) {
        assert_eq!(standstill, None);
    }

    fn ended(self, end: SessionEnd) {
        self.0.see(Seen::SessionOver(end));
    }
}

/// A source of NICs without any: the first NIC is the only one.
struct NoOther;

impl NicSource for NoOther {
    fn open(&mut self) -> Result<Box<dyn Nic>, SendConnectError> {
        Err(SendConnectError::System(io::ErrorKind::NotFound.into()))
    }

    fn stand_in(&mut self) -> io::Result<Box<dyn Nic>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Behaviour of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Reads what is delivered, and gives it back.
    Honest,
    /// Gives back what is delivered, and never frees the cells of its delivery ring.
    FillsItsRing,
    /// Keeps what is delivered.
    KeepsAll,
}

struct World {
    manner: Manner,
    /// Whether the sender has no turns.
    sender_sleeps: bool,
    driver: Driver<SoftNic, Polling>,
    ticket: SessionTicket,
    sender: SenderDriver,
    app: AppEnd,
    pool: Arc<SharedMemory>,
    log: Log,
    address: Address,
    /// Payload of the large message, as it was delivered.
    whole: Vec<u8>,
    _segment: Arc<SharedMemory>,
    _folder: tempfile::TempDir,
}

fn mapped(name: &str, bytes: usize) -> Arc<SharedMemory> {
    Arc::new(SharedMemory::new(name, bytes, false).unwrap())
}

/// Makes a new session of this name, its application's end, and the memory that both are in.
fn session(name: &str, log: &Log) -> (NewSession<Polling>, AppEnd, Arc<SharedMemory>) {
    let shape = SegmentShape::new(SLOTS, MESSAGES);
    let memory = mapped("test-session", SegmentLayout::new(shape).total_bytes());
    // SAFETY: the mapping is zeroed and page-aligned, and outlives both ends, of which there is one each.
    let (segment, app) = unsafe {
        let ours = daemon_end(memory.base(), memory.bytes(), shape).unwrap();
        (ours, app_end(memory.base(), memory.bytes()).unwrap())
    };
    let new = NewSession {
        registration: Registration::new(AppName::new(name).unwrap()),
        segment,
        memory: Arc::clone(&memory),
        application: Polling(Rc::clone(log)),
    };
    (new, app, memory)
}

/// Returns the byte at `at` of the message `tag`. The bytes differ, so mixed-up pieces are noticed.
fn byte(tag: u64, at: usize) -> u8 {
    u8::try_from((at as u64 * 31 + tag * 7 + (at as u64 >> 12)) % 251).unwrap()
}

impl World {
    fn new(manner: Manner) -> Self {
        Self::with(manner, 1, SoftOptions::default())
    }

    /// Makes a world whose driver has a NIC of these sizes, and may have so many sessions.
    fn with(manner: Manner, sessions_max: u32, options: SoftOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address: Address = format!("shm:{}", folder.path().join("nic.sock").display()).parse().unwrap();
        let config = Config {
            peers_max: 5,
            sessions_max,
            session_slots: SLOTS,
            session_messages: MESSAGES,
            ..Config::default()
        };
        let mut nic = SoftNic::new(options).unwrap();
        let pool = mapped("test-pool", config.pool_slabs as usize * SLAB_BYTES);
        let headers = mapped("test-headers", config.srq_slabs as usize * HEADER_BYTES);
        let pool_key = nic.register(&pool, Access::LocalWrite).unwrap();
        let headers_key = nic.register(&headers, Access::LocalWrite).unwrap();
        nic.listen(&address).unwrap();
        let parts = Parts {
            nic,
            pool: PoolMemory { pool: Arc::clone(&pool), headers, pool_key, headers_key },
            escape: None,
            replies: None,
            workers: Workers::start(0, 1, || ()).unwrap(),
            congestion: Box::new(|_| ()),
        };
        let mut driver = Driver::new(Receiver::new(config, 1).unwrap(), parts);
        driver.start(0);
        let log = Log::default();
        let (new, app, segment) = session("disk", &log);
        let ticket = driver.open(0, new).unwrap();
        let options = sender_options(&address, "disk");
        let nic = Box::new(SoftNic::new(SoftOptions::default()).unwrap());
        let sender = SenderDriver::new(&options, 7, nic, Box::new(NoOther)).unwrap();
        let whole = vec![0; LARGE_BYTES];
        Self {
            manner,
            sender_sleeps: false,
            driver,
            ticket,
            sender,
            app,
            pool,
            log,
            address,
            whole,
            _segment: segment,
            _folder: folder,
        }
    }

    /// Returns the made-up time, which never goes back.
    fn now_ns(&self) -> u64 {
        self.log.now_ns.get()
    }

    /// Gives the driver, the application and the sender turns until `wished` returns true.
    fn until(&mut self, mut wished: impl FnMut(&mut Self) -> bool) {
        for _ in 0..STEPS_MAX {
            let now_ns = self.now_ns() + STEP_NS;
            self.log.now_ns.set(now_ns);
            self.driver.turn(now_ns, |_| false);
            while let Some(delivery) = self.app.deliveries.pop().unwrap() {
                self.take(&delivery);
            }
            if self.manner != Manner::FillsItsRing {
                self.app.deliveries.advance();
            }
            self.app.releases.publish();
            if !self.sender_sleeps {
                self.sender.drive(now_ns);
            }
            if wished(self) {
                return;
            }
        }
        let seen = self.log.seen.borrow();
        panic!("not in {STEPS_MAX} steps; last: {:?}", &seen[seen.len().saturating_sub(5)..]);
    }

    /// Reads one delivery as the application, and treats it according to `manner`.
    fn take(&mut self, delivery: &Delivery) {
        let &Delivery { tag, offset, bytes, slab, slot, .. } = delivery;
        self.log.see(Seen::Delivered { tag, offset, bytes });
        let (at, length) = (slab as usize * SLAB_BYTES, bytes as usize);
        assert!(at + length <= self.pool.bytes());
        // SAFETY: within the pool's mapping, and held until it is released below.
        let data = unsafe { std::slice::from_raw_parts(self.pool.base().add(at), length) };
        let start = usize::try_from(offset).unwrap();
        assert!(data.iter().zip(start..).all(|(&found, at)| found == byte(tag, at)), "{delivery:?}");
        if length > SLAB_BYTES {
            self.whole[start..start + length].copy_from_slice(data);
        }
        let is_last = delivery.flags & delivery_flags::LAST != 0;
        let release = Release {
            index: slot,
            generation: delivery.slot_generation(),
            first: 0,
            count: u16::try_from(length.div_ceil(SLAB_BYTES)).unwrap(),
            kind: if is_last { release_kind::SLICES_AND_FINISH } else { release_kind::SLICES },
            reserved: 0,
            code: 0,
        };
        if self.manner != Manner::KeepsAll {
            self.app.releases.push(release).unwrap();
        }
    }
}

/// Sends small messages and a large one, which is larger than the READs bring at once, and drains. Returns
/// all events with their times.
fn run() -> Vec<(u64, Seen)> {
    let mut world = World::new(Manner::Honest);
    world.until(|world| world.sender.is_connected());
    let now_ns = world.now_ns();
    for tag in 0..5 {
        let payload: Vec<u8> = (0..1000).map(|at| byte(tag, at)).collect();
        world.sender.send_small(now_ns, tag, &payload).unwrap();
    }
    let mut buffer = world.sender.buffer(LARGE_BYTES).unwrap();
    buffer.iter_mut().enumerate().for_each(|(at, to)| *to = byte(9, at));
    world.sender.send(now_ns, 9, buffer).unwrap();
    let mut left = 6;
    world.until(|world| {
        while let Some(Ended { ticket, status, .. }) = world.sender.poll_end() {
            world.log.see(Seen::Ended { tag: ticket.0, status });
            left -= 1;
        }
        left == 0
    });
    assert!(world.whole.iter().enumerate().all(|(at, &found)| found == byte(9, at)), "all of it came");
    let stats = world.driver.receiver().stats();
    assert_eq!((stats.read_slabs, stats.small_held_slabs), (0, 0));
    world.driver.drain(world.now_ns() + 1_000_000_000);
    world.until(|world| world.driver.continue_drain(world.now_ns()));
    world.log.seen.take()
}

#[test]
fn messages_come_and_end_and_a_drain_is_over_and_all_of_it_is_the_same_again() {
    let first = run();
    let count = |of: fn(&Seen) -> bool| first.iter().filter(|(_, seen)| of(seen)).count();
    assert_eq!(count(|seen| matches!(seen, Seen::Delivered { bytes: 1000, .. })), 5);
    assert_eq!(count(|seen| matches!(seen, Seen::Ended { status: AckStatus::Consumed, .. })), 6);
    for _ in 0..3 {
        assert_eq!(run(), first);
    }
}

#[test]
fn a_ticket_ends_its_own_session_once_and_no_other_that_has_its_number() {
    let mut world = World::new(Manner::Honest);
    let first = world.ticket;
    world.driver.end_session(0, first);
    assert_eq!(world.log.take(), [Seen::SessionOver(SessionEnd::Ended { held_slabs: 0 })]);
    world.driver.application_gone(0, first);
    assert_eq!(world.log.take(), [], "it is over already");
    // The only session number becomes free after a time.
    let log = Rc::clone(&world.log);
    let mut kept = None;
    let second = (0..1000).find_map(|_| {
        log.now_ns.set(log.now_ns.get() + 10_000_000);
        world.driver.turn(log.now_ns.get(), |_| false);
        let (new, app, memory) = session("disk", &log);
        kept = Some((app, memory));
        world.driver.open(log.now_ns.get(), new).ok()
    });
    let second = second.expect("within ten seconds");
    assert!(second.session == first.session && second.ticket != first.ticket);
    let now_ns = world.now_ns();
    world.driver.application_gone(now_ns, first);
    world.driver.end_session(now_ns, first);
    assert_eq!(world.log.take(), [], "an old ticket is nobody's");
    assert!(world.driver.application(second.session).is_some());
    world.driver.application_gone(now_ns, second);
    assert_eq!(world.log.take(), [Seen::SessionOver(SessionEnd::Gone)]);
    assert!(world.driver.application(second.session).is_none());
}

#[test]
fn sessions_that_are_broken_at_once_end_one_a_turn_and_an_honest_one_stays() {
    const BROKEN: usize = 3;
    let mut world = World::with(Manner::Honest, 8, SoftOptions::default());
    let log = Rc::clone(&world.log);
    let names = ["first", "second", "third"];
    let mut kept: Vec<_> = names
        .map(|name| {
            let (new, app, memory) = session(name, &log);
            world.driver.open(0, new).unwrap();
            (app, memory)
        })
        .into();
    for (app, _) in &mut kept {
        let no_kind = release_kind::FINISH + 1;
        let release =
            Release { index: 0, generation: 0, first: 0, count: 1, kind: no_kind, reserved: 0, code: 0 };
        app.releases.push(release).unwrap();
        app.releases.publish();
    }
    for turn in 1..=BROKEN {
        assert!(world.driver.turn(turn as u64, |_| false), "there was something to do");
        assert_eq!(log.take().len(), 1, "in turn {turn}");
    }
    assert_eq!(world.driver.receiver().stats().session_faults, BROKEN as u64);
    world.until(|world| world.sender.is_connected());
    world.sender.send_small(world.now_ns(), 1, &[byte(1, 0)]).unwrap();
    world.until(|world| world.sender.poll_end().is_some());
    assert!(matches!(log.take()[..], [Seen::Delivered { tag: 1, .. }]));
}

/// An application that fills its ring, and the sender that sends to it.
struct Filler {
    app: AppEnd,
    sender: SenderDriver,
    delivered: u64,
    _memory: Arc<SharedMemory>,
}

/// Returns the options of a sender that hears at once that its application is gone.
fn sender_options(address: &Address, app: &str) -> SenderOptions {
    let retry = RetryPolicy::default().on_no_app(false).on_app_gone(false).on_draining(false);
    SenderOptions::new(address.clone(), app).retry(retry)
}

impl Filler {
    /// Registers an application of this name, and connects a sender to it.
    fn new(world: &mut World, name: &str) -> Self {
        let (new, app, memory) = session(name, &world.log);
        world.driver.open(0, new).unwrap();
        let options = sender_options(&world.address, name);
        let nic = Box::new(SoftNic::new(SoftOptions::default()).unwrap());
        let mut sender = SenderDriver::new(&options, 7, nic, Box::new(NoOther)).unwrap();
        world.until(|world| {
            sender.drive(world.now_ns());
            sender.is_connected()
        });
        Self { app, sender, delivered: 0, _memory: memory }
    }

    fn send(&mut self, now_ns: u64) -> bool {
        self.sender.send_small(now_ns, 0, &[0]).is_ok()
    }

    /// Gives back what was delivered, without freeing its cell of the ring. Returns how much it was.
    fn give_back(&mut self) -> u64 {
        let before = self.delivered;
        while let Some(delivery) = self.app.deliveries.pop().unwrap() {
            let (index, generation) = (delivery.slot, delivery.slot_generation());
            let kind = release_kind::SLICES_AND_FINISH;
            let release = Release { index, generation, first: 0, count: 1, kind, reserved: 0, code: 0 };
            self.app.releases.push(release).unwrap();
            self.delivered += 1;
        }
        self.app.releases.publish();
        self.delivered - before
    }

    /// Takes the ends of its messages. Returns how many there were.
    fn hear(&mut self, now_ns: u64) -> usize {
        self.sender.drive(now_ns);
        std::iter::from_fn(|| self.sender.poll_end()).count()
    }
}

#[test]
fn rings_that_break_at_once_end_their_sessions_one_a_turn_and_nobody_sleeps_over_them() {
    let mut world = World::with(Manner::Honest, 8, SoftOptions::default());
    world.until(|world| world.sender.is_connected());
    let mut fillers = ["first", "second", "third", "fourth"].map(|name| Filler::new(&mut world, name));
    let cells = u64::from(SegmentShape::new(SLOTS, MESSAGES).delivery_cells);
    for filler in &mut fillers {
        let (mut sent, mut ended) = (0, 0);
        world.until(|world| {
            if sent < cells {
                sent += u64::from(filler.send(world.now_ns()));
            }
            ended += filler.hear(world.now_ns()) as u64;
            filler.give_back();
            ended == cells
        });
        assert_eq!(filler.delivered, cells, "its ring is full");
    }
    world.until(|world| world.driver.prepare_sleep(world.now_ns()));
    world.driver.wake_up();
    let is_over = |world: &World| {
        let seen = world.log.take();
        assert!(seen.iter().all(|seen| matches!(seen, Seen::SessionOver(_))), "{seen:?}");
        seen.len()
    };
    assert_eq!(is_over(&world), 0);
    // One more for each, in one turn.
    let now_ns = world.now_ns();
    for filler in &mut fillers {
        assert!(filler.send(now_ns));
        filler.hear(now_ns);
    }
    for turn in 1..=fillers.len() as u64 {
        assert!(world.driver.turn(now_ns + turn, |_| false), "some wait in turn {turn}");
        assert_eq!(is_over(&world), 1, "in turn {turn}");
        assert_eq!(world.driver.receiver().stats().session_faults, turn);
        let some_wait = turn < fillers.len() as u64;
        assert!(!(some_wait && world.driver.prepare_sleep(now_ns + turn)), "in turn {turn}");
        // A ring that is broken has room again, and yet nothing comes after what is missing.
        for filler in &mut fillers {
            filler.app.deliveries.advance();
            // Not in the later turns, which have nothing else to do.
            if turn == 1 {
                filler.send(now_ns + turn);
                filler.hear(now_ns + turn);
            }
            assert_eq!(filler.give_back(), 0, "in turn {turn}");
        }
    }
    world.until(|world| {
        let now_ns = world.now_ns();
        fillers.iter_mut().all(|filler| {
            filler.hear(now_ns);
            filler.sender.in_flight() == 0
        })
    });
    assert!(fillers.iter_mut().all(|filler| filler.give_back() == 0));
    world.sender.send_small(world.now_ns(), 1, &[byte(1, 0)]).unwrap();
    world.until(|world| world.sender.poll_end().is_some());
    assert!(matches!(world.log.take()[..], [Seen::Delivered { tag: 1, .. }]), "others go on");
}

#[test]
fn nobody_sleeps_over_what_was_given_back() {
    let mut world = World::new(Manner::Honest);
    world.until(|world| world.sender.is_connected());
    world.until(|world| world.driver.prepare_sleep(world.now_ns()));
    world.driver.wake_up();
    world.sender.send_small(world.now_ns(), 1, &[byte(1, 0)]).unwrap();
    world.until(|world| !world.log.seen.borrow().is_empty());
    // The application gave its slab back after the driver's last turn.
    assert!(!world.driver.prepare_sleep(world.now_ns()), "a release waits");
    world.until(|world| world.sender.poll_end().is_some());
}

#[test]
fn whoever_lets_its_ring_fill_up_loses_its_session_and_every_message_has_one_end() {
    let mut world = World::new(Manner::FillsItsRing);
    world.until(|world| world.sender.is_connected());
    let (mut sent, mut over, mut ends) = (0, None, BTreeMap::new());
    let hear = |world: &mut World, ends: &mut BTreeMap<u64, AckStatus>| {
        while let Some(Ended { ticket, status, .. }) = world.sender.poll_end() {
            assert_eq!(ends.insert(ticket.0, status), None, "{ticket:?} ended twice");
        }
    };
    world.until(|world| {
        sent += u64::from(world.sender.send_small(world.now_ns(), sent, &[byte(sent, 0)]).is_ok());
        hear(world, &mut ends);
        let last = world.log.seen.borrow().last().cloned();
        over = last.map(|(_, seen)| seen).filter(|seen| matches!(seen, Seen::SessionOver(_)));
        over.is_some()
    });
    // A delivery that did not fit the ring counts as held: the application may have seen it.
    let end = SessionEnd::Release { error: ReleaseError::Ring, held_slabs: 1 };
    assert_eq!(over, Some(Seen::SessionOver(end)));
    let cells = u64::from(SegmentShape::new(SLOTS, MESSAGES).delivery_cells);
    assert_eq!(world.log.take().len() as u64, cells + 1, "all that its ring takes came before");
    // The driver continues: messages for the application that is gone get their ends.
    world.until(|world| {
        hear(world, &mut ends);
        world.sender.in_flight() == 0
    });
    assert!(ends.keys().copied().eq(1..=sent), "of {sent} messages {} have an end", ends.len());
    for (&ticket, &status) in &ends {
        let gone = matches!(status, AckStatus::AppGone | AckStatus::NoApp);
        assert!(if ticket <= cells { status == AckStatus::Consumed } else { gone }, "{ticket}: {status:?}");
    }
    assert_eq!(world.driver.receiver().stats().session_faults, 1);
}

#[test]
fn a_drain_waits_for_what_an_application_keeps_until_its_deadline_and_no_longer() {
    let mut world = World::new(Manner::KeepsAll);
    world.until(|world| world.sender.is_connected());
    world.sender.send_small(world.now_ns(), 1, &[byte(1, 0)]).unwrap();
    world.until(|world| !world.log.seen.borrow().is_empty());
    let deadline_ns = world.now_ns() + 1000 * STEP_NS;
    world.driver.drain(deadline_ns);
    world.until(|world| {
        let now_ns = world.now_ns();
        if now_ns < deadline_ns {
            assert!(!world.driver.deadline_is_over(now_ns) && world.sender.farewell().is_none());
        } else if world.driver.deadline_is_over(now_ns) {
            assert_eq!(now_ns, deadline_ns, "it is over once; what is left is the farewell");
        }
        world.driver.continue_drain(now_ns)
    });
    let after = deadline_ns + 1..deadline_ns + 100 * STEP_NS;
    assert!(after.contains(&world.now_ns()), "{} is not shortly after {deadline_ns}", world.now_ns());
    assert_eq!(world.sender.farewell(), Some(ByeReason::Draining));
    assert_eq!(world.sender.in_flight(), 1, "it has no end: it is sent again, to whoever comes next");
}

#[test]
fn a_drain_waits_for_headers_that_the_nic_has_no_room_for() {
    let mut world =
        World::with(Manner::Honest, 1, SoftOptions { sends_per_qp_max: 1, ..SoftOptions::default() });
    world.until(|world| world.sender.is_connected());
    for tag in 0..3 {
        // Each message ends in a turn of its own, so each end goes with a header of its own.
        world.sender_sleeps = false;
        world.sender.send_small(world.now_ns(), tag, &[byte(tag, 0)]).unwrap();
        world.sender.drive(world.now_ns());
        world.sender_sleeps = true;
        let is_it = |(_, seen): &(u64, Seen)| matches!(seen, Seen::Delivered { tag: of, .. } if *of == tag);
        world.until(|world| world.log.seen.borrow().iter().any(is_it));
    }
    world.driver.drain(world.now_ns() + 1_000_000_000);
    let mut steps = 0;
    world.until(|world| {
        assert!(!world.driver.continue_drain(world.now_ns()));
        steps += 1;
        steps == 100
    });
    world.sender_sleeps = false;
    world.until(|world| world.driver.continue_drain(world.now_ns()));
    let ends: Vec<_> = std::iter::from_fn(|| world.sender.poll_end()).map(|end| end.status).collect();
    assert_eq!(ends, [AckStatus::Consumed; 3]);
}
