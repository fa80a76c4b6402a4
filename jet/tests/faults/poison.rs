//! Memory that the hardware lost, as the kernel has it: `MADV_HWPOISON`, by an application that maps the pool. The machine has
//! less memory afterwards until it starts again, so this is for a guest (`deploy/vm/check poison`).

use crate::children::Role;
use crate::hand_session::{HandSession, release, wait_delivery};
use crate::rig::{Random, Rig, number, until};
use crate::traffic::Traffic;
use jet_client::send::AckStatus;
use jet_fabric::memory::{Mapping, Protection};
use jet_wire::segment::{Release, release_kind};
use std::os::fd::AsFd;

const PAGE_BYTES: usize = 4096;
const MADV_HWPOISON: i32 = 100;

/// Has the kernel take a slab's page for lost.
fn lose(pool: &Mapping, slab: u32) {
    assert!((slab as usize + 1) * PAGE_BYTES <= pool.bytes(), "slab {slab} is of the pool");
    // SAFETY: within the mapping; nobody here touches the page any more.
    let lost = unsafe {
        libc::madvise(pool.base().add(slab as usize * PAGE_BYTES).cast(), PAGE_BYTES, MADV_HWPOISON)
    };
    assert_eq!(lost, 0, "{}", std::io::Error::last_os_error());
}

#[test]
#[ignore = "takes root, and memory from the machine"]
fn lost_memory_ends_its_message_and_not_the_daemon() {
    let mut random = Random::for_test("poison", 70);
    // Under pressure early, and nothing stands in for stragglers: what is held is copied.
    let mut rig = Rig::start_on_software(&["escape.safe_permille=900", "escape.replace_bytes=0"]);
    let good = rig.application(Role::Consumer, "store");
    let mut traffic: Vec<_> =
        rig.addresses().iter().map(|address| Traffic::new(address, "store", random.fork())).collect();
    traffic.iter_mut().for_each(Traffic::round);
    let session = HandSession::register(&rig.control(), "held");
    let pool = Mapping::of_stranger(session.pool.as_fd(), Protection::Read, 1 << 30).expect("a sealed pool");
    let mut end = session.end();
    let mut waiting = Traffic::new(&rig.addresses()[0], "held", random.fork());
    waiting.send(100_000).unwrap();
    let held = wait_delivery(&mut end, &mut waiting);
    lose(&pool, held.slab);
    // As much more as brings the pool under pressure; the first is the first that is copied.
    for _ in 0..30 {
        waiting.send(100_000).unwrap();
    }
    let status = until("the copy to fail", || {
        waiting.sender.flush();
        let status = rig.status();
        (number(&status, "ends.corrupt") == 1).then_some(status)
    });
    assert!(
        number(&status, "escape.copied.failed") >= 1 && number(&status, "escape.marks") >= 1,
        "{status:#}"
    );
    assert_eq!(waiting.ends(1), [AckStatus::Corrupt]);
    assert!(rig.daemon().said().contains("the hardware lost memory"), "{}", rig.daemon().said());
    // The application goes, its slabs come back, and one is missing for good.
    drop((end, session));
    let ends = waiting.ends(30);
    assert!(ends.iter().all(|end| matches!(end, AckStatus::AppGone | AckStatus::NoApp)), "{ends:?}");
    let status = rig.wait_whole();
    assert_eq!(number(&status, "pool.retired"), 1, "{status:#}");
    // One that is free: the software NIC comes to it first, since what was used last is used next.
    let session = HandSession::register(&rig.control(), "again");
    let mut end = session.end();
    let mut waiting = Traffic::new(&rig.addresses()[0], "again", random.fork());
    let mut lost = false;
    until("the other to be missed", || {
        waiting.send(3 * PAGE_BYTES).unwrap();
        let delivery = wait_delivery(&mut end, &mut waiting);
        let all = Release {
            index: delivery.slot,
            generation: delivery.slot_generation(),
            first: 0,
            count: 3,
            kind: release_kind::SLICES_AND_FINISH,
            reserved: 0,
            code: 0,
        };
        release(&session, &mut end, &[all]);
        assert_eq!(waiting.ends(1), [AckStatus::Consumed]);
        if !std::mem::replace(&mut lost, true) {
            lose(&pool, delivery.slab);
        }
        (number(&rig.status(), "pool.retired") == 2).then_some(())
    });
    (0..20).for_each(|_| traffic.iter_mut().for_each(Traffic::round));
    rig.wait_whole();
    assert_eq!((good.reported("wrong"), good.reported("gone")), (0, 0));
}
