//! Tests of applications that keep what they get until nothing more can arrive. They get an error, and the
//! operator a log line.

use crate::rig::{Rig, random_for};
use crate::traffic::{Traffic, fits};
use jet_client::receive::{HeldLimit, Message, ReceiveError, RegisterOptions, Session, Slice, SliceError};
use jet_client::send::{AckStatus, Sender, WaitError};
use jet_fabric::Address;
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::sync::atomic::{AtomicBool, Ordering};

/// Length of a message that is larger than the pool and escape memory together, so that nobody can hold all
/// of it.
const MESSAGE_BYTES: usize = 48 << 20;

fn register(rig: &Rig, app: &str) -> Session {
    let options = RegisterOptions::new(app).control_socket(rig.control());
    Session::register(&options).expect("a session")
}

/// Sends messages of these sizes until `stop`, and returns their ends. Runs on a thread of its own, which is
/// the NIC of `shm:`.
fn sending(address: &Address, stop: &AtomicBool, random: Random, sizes: &[usize]) -> Vec<AckStatus> {
    let options = Rig::sender_options(address, "collect").region_bytes(1 << 20);
    let mut traffic = Traffic::over(Sender::connect(&options).expect("let in"), random);
    for &bytes in sizes {
        until("room for another message", || {
            let taken = traffic.send(bytes);
            traffic.sender.poll();
            taken.ok()
        });
    }
    let mut ends = Vec::new();
    while !stop.load(Ordering::Relaxed) && ends.len() < sizes.len() {
        match traffic.sender.wait_timeout(std::time::Duration::from_millis(20)) {
            Err(WaitError::NotYet) => {}
            ended => ends.extend(ended.expect("waiting works").map(|end| end.status)),
        }
    }
    ends
}

/// Keeps slices until the error that nothing more arrives, and returns the limit that it names.
fn collect<'s>(message: &mut Message<'s>, kept: &mut Vec<Slice<'s>>) -> HeldLimit {
    loop {
        match message.next() {
            Ok(slice) => kept.push(slice.expect("it is larger than what may be held")),
            Err(SliceError::HoldsAll(held)) => {
                let bytes: usize = kept.iter().map(|slice| slice.slabs() * SLAB_BYTES).sum();
                assert_eq!(held.held_bytes, bytes as u64, "{held}");
                return held.limit;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Keeps the slices of one large message until nothing more can arrive, `times` times, and then takes the
/// rest. Takes nothing before `copied` slabs were copied to memory for the application, because a slice that
/// it has taken stays where it lies.
fn keep_all_then_give_back(
    rig: &Rig,
    random: &mut Random,
    copied: u32,
    told: (HeldLimit, &str),
    times: usize,
) {
    let (limit, key) = told;
    let session = register(rig, "collect");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, address) = (&stop, rig.addresses().remove(0));
        let stop_at_the_end = StopOnDrop(stop);
        let seed = random.fork();
        let sender = scope.spawn(move || sending(&address, stop, seed, &[MESSAGE_BYTES]));
        let mut message = session.receive().unwrap();
        rig.wait_status("what it has to escape", |status| status.rows.sessions[0].copied_slabs >= copied);
        let mut kept = Vec::new();
        for _ in 0..times {
            assert_eq!(collect(&mut message, &mut kept), limit);
            // The status names the standstill while nothing was given back.
            let status = rig.status();
            let standstill = status.rows.sessions[0].standstill.as_ref().expect("it stands still");
            assert_eq!(standstill.limit, key, "{status:#?}");
            assert!(standstill.ms >= 1000, "{status:#?}");
        }
        let held: usize = kept.iter().map(|slice| slice.len()).sum();
        assert!((8 << 20..MESSAGE_BYTES).contains(&held), "{held}");
        // The application gives back what it used, and copies the rest out.
        let mut whole = vec![0; MESSAGE_BYTES];
        for slice in kept.drain(..) {
            let start = usize::try_from(slice.offset()).expect("an offset");
            whole[start..start + slice.len()].copy_from_slice(&slice);
        }
        let copied = message.copy_to(&mut whole).unwrap();
        assert_eq!(copied, (MESSAGE_BYTES - held) as u64);
        assert!(fits(message.tag(), 0, &whole));
        drop(message);
        session.flush();
        assert_eq!(sender.join().expect("no panic"), [AckStatus::Consumed]);
        drop(stop_at_the_end);
    });
    let status = rig.wait_whole();
    assert!(status.rows.sessions[0].standstill.is_none(), "{status:#?}");
}

#[test]
fn who_keeps_all_of_a_message_larger_than_the_pool_hears_that_nothing_more_comes() {
    let mut random = random_for("standstill", 90);
    // With escape memory it would be chance which limit is reached first.
    let mut rig = Rig::start(&["escape.memory_bytes=0"]);
    // After the second error the log names the application, too.
    keep_all_then_give_back(&rig, &mut random, 0, (HeldLimit::Pool, "pool.bytes"), 2);
    until("the log to name it", || {
        let said = rig.daemon().stderr_text();
        let named = ["application collect, process", "gave nothing back for 10 s", "pool.bytes"];
        named.iter().all(|part| said.contains(part)).then_some(())
    });
}

#[test]
fn who_keeps_all_that_escaped_for_it_hears_that_it_is_that_limit() {
    let mut random = random_for("escaped standstill", 92);
    let rig = Rig::start(&["escape.session_memory_bytes=1048576", "escape.safe_permille=900"]);
    let told = (HeldLimit::Memory, "escape.session_memory_bytes");
    keep_all_then_give_back(&rig, &mut random, (1 << 20) / SLAB_BYTES_U32, told, 1);
}

#[test]
fn who_keeps_more_small_messages_than_it_may_hears_which_limit_that_is() {
    let mut random = random_for("many", 91);
    let rig = Rig::start(&["session.messages=32"]);
    let session = register(&rig, "collect");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, address) = (&stop, rig.addresses().remove(0));
        let stop_at_the_end = StopOnDrop(stop);
        let seed = random.fork();
        let sender = scope.spawn(move || sending(&address, stop, seed, &[100; 40]));
        let mut kept = Vec::new();
        let held = loop {
            match session.receive() {
                Ok(message) => kept.push(message),
                Err(ReceiveError::HoldsAll(held)) => break held,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((kept.len(), held.limit), (32, HeldLimit::Messages), "{held}");
        assert_eq!(rig.status().rows.sessions[0].delivered_messages, 32);
        // The session still works.
        for message in kept.drain(..) {
            message.consume();
        }
        for _ in 0..8 {
            session.receive().unwrap().consume();
        }
        session.flush();
        assert_eq!(sender.join().expect("no panic"), [AckStatus::Consumed; 40]);
        drop(stop_at_the_end);
    });
    rig.wait_whole();
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
