//! Tests of memory that the hardware lost. An application that maps the pool makes the kernel treat a page
//! so, by `MADV_HWPOISON`. The machine has less memory afterwards until it starts again, so these tests are
//! for a guest (`deploy/vm/check poison`).
//!
//! A worker that copies, a NIC that fills the page, or the warmer may meet the page first, and it matters
//! little which. Without the warmer it is known which one does, so the tests ask for more.

use crate::children::Role;
use crate::hand_session::{HandSession, release, wait_delivery};
use crate::rig::{Actor, Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::AckStatus;
use jet_fabric::Address;
use jet_fabric::memory::{Mapping, Protection};
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use jet_wire::segment::{AppEnd, Release, delivery_flags, delivery_kind, release_kind};
use std::os::fd::AsFd;

const PAGE_BYTES: usize = 4096;
const MADV_HWPOISON: i32 = 100;

const WARM: &str = "cache.warm=true";
const NOT_WARM: &str = "cache.warm=false";

/// Makes the kernel treat a slab's page as lost.
fn lose(pool: &Mapping, slab: u32) {
    assert!((slab as usize + 1) * PAGE_BYTES <= pool.bytes(), "slab {slab} is of the pool");
    // SAFETY: the page lies within the mapping, and nothing in this process touches it any more.
    let lost = unsafe {
        libc::madvise(pool.base().add(slab as usize * PAGE_BYTES).cast(), PAGE_BYTES, MADV_HWPOISON)
    };
    assert_eq!(lost, 0, "{}", std::io::Error::last_os_error());
}

fn map(session: &HandSession) -> Mapping {
    Mapping::map_received(session.pool.as_fd(), Protection::Read, 1 << 30).expect("a sealed pool")
}

/// Starts a daemon, an application that takes everything, and a sender on each fabric.
fn start(settings: &[&str], random: &mut Random) -> (Rig, Actor, Vec<Traffic>) {
    let rig = Rig::start_on_software(settings);
    let good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::to_each(&rig.addresses(), "store", random);
    traffic.iter_mut().for_each(Traffic::round);
    (rig, good, traffic)
}

/// Checks that all other senders are still served, and that no connection ended.
#[track_caller]
fn assert_the_others_go_on(rig: &Rig, good: &Actor, mut traffic: Vec<Traffic>) {
    (0..20).for_each(|_| traffic.iter_mut().for_each(Traffic::round));
    rig.wait_whole();
    assert_eq!((good.reported("wrong"), good.reported("gone")), (0, 0));
    for traffic in &traffic {
        assert_eq!(traffic.sender.stats().protocol.connections, 1);
    }
}

#[test]
#[ignore = "takes root, and memory from the machine"]
fn lost_memory_ends_its_message_and_not_the_daemon() {
    let mut random = random_for("poison", 70);
    for warm in [NOT_WARM, WARM] {
        // The pool is under pressure early, and nothing is replaced, so everything that is held is copied.
        let settings = ["escape.safe_permille=900", "escape.replace_bytes=0", warm];
        let (mut rig, good, traffic) = start(&settings, &mut random);
        let session = HandSession::register(&rig.control(), "held");
        let pool = map(&session);
        let mut end = session.end();
        let mut waiting = Traffic::new(&rig.addresses()[0], "held", random.fork());
        waiting.send(100_000).unwrap();
        let held = wait_delivery(&mut end, &mut waiting);
        lose(&pool, held.slab);
        // Further messages bring the pool under pressure. The first message is the first that is copied.
        for _ in 0..30 {
            waiting.send(100_000).unwrap();
        }
        until("the page to be missed", || {
            waiting.sender.flush();
            let status = rig.status();
            // The warmer may meet the page before a worker, or after.
            let copied = status.escape.copied.failed >= 1 && status.escape.marks >= 1;
            (status.ends.corrupt == 1 && (copied || warm == WARM)).then_some(())
        });
        assert_eq!(waiting.ends(1), [AckStatus::Corrupt]);
        // The status is updated within the driver's turn, and the log line is written after it.
        until("the log to tell of it", || {
            rig.daemon().stderr_text().contains("the hardware lost memory").then_some(())
        });
        // The application ends, its slabs come back, and one is retired for good.
        drop((end, session));
        let ends = waiting.ends(30);
        assert!(ends.iter().all(|end| matches!(end, AckStatus::AppGone | AckStatus::NoApp)), "{ends:?}");
        let status = rig.wait_whole();
        assert_eq!(status.pool.retired, 1, "{status:#?}");
        assert_the_others_go_on(&rig, &good, traffic);
    }
}

/// Application that takes one message after the other, and its sender.
struct OneByOne {
    session: HandSession,
    end: AppEnd,
    from: Traffic,
}

impl OneByOne {
    fn new(rig: &Rig, address: &Address, random: Random) -> Self {
        let session = HandSession::register(&rig.control(), "one-by-one");
        let (end, from) = (session.end(), Traffic::new(address, "one-by-one", random));
        Self { session, end, from }
    }

    /// Sends messages, holds them until all are there, gives them back, and waits for their ends. Returns the
    /// ends, and the slab of the first bytes of each message that arrived.
    #[track_caller]
    fn pass(&mut self, bytes: usize, count: usize) -> (Vec<AckStatus>, Vec<u32>) {
        for _ in 0..count {
            self.from.send(bytes).unwrap();
        }
        let (mut ends, mut slabs, mut held, mut whole) = (Vec::new(), Vec::new(), Vec::new(), 0);
        until("all messages' ends", || {
            while let Some(delivery) = self.end.deliveries.pop().expect("a sound ring") {
                assert_eq!(delivery.kind, delivery_kind::SLICES, "nothing that lies there is ever shown");
                if delivery.flags & delivery_flags::FIRST != 0 {
                    slabs.push(delivery.slab);
                }
                let is_last = delivery.flags & delivery_flags::LAST != 0;
                whole += usize::from(is_last);
                held.push(Release {
                    index: delivery.slot,
                    generation: delivery.slot_generation(),
                    first: 0,
                    count: u16::try_from((delivery.bytes as usize).div_ceil(PAGE_BYTES)).expect("a run"),
                    kind: if is_last { release_kind::SLICES_AND_FINISH } else { release_kind::SLICES },
                    reserved: 0,
                    code: 0,
                });
            }
            self.end.deliveries.advance();
            self.from.sender.flush();
            ends.extend(std::iter::from_fn(|| self.from.sender.poll()).map(|end| end.status));
            if whole + ends.len() >= count {
                release(&self.session, &mut self.end, &std::mem::take(&mut held));
            }
            (ends.len() == count).then_some(())
        });
        (ends, slabs)
    }

    /// Passes a message, and returns the slab that it lay in. A slab that was used last is used next, but not
    /// for certain by the next message or the one after: slabs wait in the SRQ, and others are given back,
    /// too.
    #[track_caller]
    fn slab_in_use(&mut self, bytes: usize) -> u32 {
        let (ends, slabs) = self.pass(bytes, 1);
        assert_eq!(ends, [AckStatus::Consumed]);
        slabs[0]
    }
}

/// Most messages that are held at once.
const AT_ONCE: usize = 64;

#[test]
#[ignore = "takes root, and memory from the machine"]
fn what_arrives_in_lost_memory_is_corrupt_whichever_nic_fills_it() {
    let mut random = random_for("poison", 71);
    for warm in [NOT_WARM, WARM] {
        let (rig, good, traffic) = start(&[warm], &mut random);
        let (mut retired, mut corrupt) = (0, 0);
        for address in &rig.addresses() {
            let mut one = OneByOne::new(&rig, address, random.fork());
            let pool = map(&one.session);
            // The first size is filled by a SEND, the second by a READ.
            for bytes in [100, 3 * PAGE_BYTES] {
                let slab = one.slab_in_use(bytes);
                lose(&pool, slab);
                retired += 1;
                // The page is taken out of use by what meets it first: a message, or the warmer where there
                // is one. The more messages are held at once, the more of the free slabs are used.
                let mut at_once = (0..).map(|turn| AT_ONCE.min(1 << (turn % 7)));
                let seen = until("the page to be missed", || {
                    let (ends, slabs) = one.pass(bytes, at_once.next().expect("there is no end"));
                    assert!(!slabs.contains(&slab), "what lies there is not delivered");
                    let ended = ends.iter().filter(|&&end| end == AckStatus::Corrupt).count() as u64;
                    let consumed = ends.iter().filter(|&&end| end == AckStatus::Consumed).count() as u64;
                    assert!(ended <= 1 && ended + consumed == ends.len() as u64, "{ends:?}");
                    corrupt += ended;
                    let status = rig.status();
                    assert_eq!(status.ends.corrupt, corrupt, "{status:#?}");
                    (status.pool.retired == retired).then_some(ended)
                });
                assert!(seen == 1 || warm == WARM, "{address}, {bytes} bytes: no message met it");
            }
            // The page is never used again.
            for bytes in [100, 3 * PAGE_BYTES].repeat(100) {
                assert_eq!(one.pass(bytes, 1).0, [AckStatus::Consumed]);
            }
            assert_eq!(
                one.from.sender.stats().protocol.connections,
                1,
                "{address}: no connection ended by it"
            );
        }
        assert_the_others_go_on(&rig, &good, traffic);
    }
}
