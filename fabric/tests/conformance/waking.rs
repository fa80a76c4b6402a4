//! Cases about sleeping on `wait_fd`: what must wake, and that no wake-up is lost.

use crate::harness::*;
use jet_fabric::nic::{Event, Payload, PrivateData, Qp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

fn is_ringing(end: &mut End) -> bool {
    let fd = end.nic().wait_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Polls an end until it may sleep.
fn fall_asleep(end: &mut End) {
    let give_up = Instant::now() + deadline();
    loop {
        end.step();
        if end.arm() {
            return;
        }
        assert!(Instant::now() < give_up, "{} never falls asleep", end.name);
    }
}

/// Drives only the other ends until the sleeper is woken.
fn wakes(ends: &mut [End], sleeper: usize, why: &str) {
    let give_up = Instant::now() + deadline();
    while !is_ringing(&mut ends[sleeper]) {
        for (at, end) in ends.iter_mut().enumerate() {
            if at != sleeper {
                end.step();
            }
        }
        assert!(Instant::now() < give_up, "{} slept through {why}", ends[sleeper].name);
        std::thread::yield_now();
    }
}

pub fn a_sleeper_wakes_for_everything(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (address, nothing) = (world.address.clone(), PrivateData::new(&[]).unwrap());
    let ends = &mut world.ends[..];
    // A connection request, and its answer.
    fall_asleep(&mut ends[SERVER]);
    let ours = ends[CLIENT].nic().connect(&address, &nothing).unwrap();
    wakes(ends, SERVER, "a connection request");
    until(ends, "the request", |ends| !ends[SERVER].events.is_empty());
    let Some(Event::ConnectRequest { qp: theirs, .. }) = ends[SERVER].events.pop_front() else {
        panic!("no request")
    };
    fall_asleep(&mut ends[CLIENT]);
    ends[SERVER].nic().accept(theirs, &nothing).unwrap();
    wakes(ends, CLIENT, "the answer");
    until(ends, "the connection", |ends| ends.iter().all(|end| !end.events.is_empty()));
    ends.iter_mut().for_each(|end| end.events.clear());
    for round in 0..20 {
        // A SEND; and its completion, where the sender sleeps, too.
        fall_asleep(&mut ends[SERVER]);
        ends[CLIENT].send(ours, round, Payload::Inline(b"wake up"));
        ends[CLIENT].nic().flush();
        wakes(ends, SERVER, "a SEND");
        let arrived = usize::try_from(round).unwrap() + 1;
        until(ends, "the SEND", |ends| ends[SERVER].received.len() == arrived && ends[CLIENT].idle());
        // A READ's completion.
        let (address, key) = ends[CLIENT].source_address(0);
        let area = ends[SERVER].read_area(0, 50_000);
        ends[SERVER].try_read(theirs, address, key, &[area]).unwrap();
        ends[SERVER].nic().flush();
        if ends[SERVER].arm() {
            wakes(ends, SERVER, "the end of a READ");
        }
        until(ends, "the READ", |ends| ends[SERVER].idle());
        // Posting an SRQ entry for a waiting peer need not wake this end, but the peer's SEND must.
        fall_asleep(&mut ends[CLIENT]);
        ends[SERVER].send(theirs, round, Payload::None);
        ends[SERVER].nic().flush();
        wakes(ends, CLIENT, "a SEND back");
        until(ends, "the SEND back", |ends| ends[CLIENT].received.len() == arrived && ends[SERVER].idle());
    }
    fall_asleep(&mut ends[SERVER]);
    ends[CLIENT].nic().disconnect(ours);
    wakes(ends, SERVER, "a hang-up");
    until(ends, "the end", |ends| {
        ends[SERVER].ended.contains_key(&theirs) && ends[CLIENT].ended.contains_key(&ours)
    });
    // A lost peer.
    world.ends.iter_mut().for_each(|end| end.events.clear());
    let (_, theirs) = world.connect();
    fall_asleep(world.server());
    world.ends[CLIENT].drop_nic();
    wakes(&mut world.ends, SERVER, "a peer that went");
    world.until("the end", |ends| ends[SERVER].ended.contains_key(&theirs));
}

/// Waits on the descriptor, as an application does.
fn sleep(end: &mut End) {
    if end.arm() {
        let fd = end.nic().wait_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let limit = Timespec::try_from(deadline()).unwrap();
        let woken = poll(&mut fds, Some(&limit)).unwrap();
        let (received, in_flight) = (end.received.len(), end.sends.len());
        assert!(woken > 0, "{} slept: {received} came, {in_flight} in flight", end.name);
    }
}

/// Answers each SEND with one of its own, sleeping whenever there is no work.
///
/// An end that is done polls on until the other is done, too: a NIC works only when it is polled or armed.
fn answer(mut end: End, qp: Qp, first: bool, done: &AtomicUsize) -> End {
    let mut sent = 0;
    while sent < ROUNDS || end.received.len() < ROUNDS || !end.idle() {
        if sent < ROUNDS && sent < end.received.len() + usize::from(first) {
            end.send(qp, sent as u64, Payload::Inline(b"ball"));
            sent += 1;
        }
        if !end.step() {
            sleep(&mut end);
        }
    }
    done.fetch_add(1, Ordering::AcqRel);
    // A little longer than the other end may sleep before it reports that nobody woke it.
    let give_up = Instant::now() + 2 * deadline();
    while done.load(Ordering::Acquire) < 2 && Instant::now() < give_up {
        end.step();
        std::thread::yield_now();
    }
    end
}

const ROUNDS: usize = 1000;

pub fn two_sleepers_never_miss_each_other(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, theirs) = world.connect();
    let (client, server) = (world.ends.pop().unwrap(), world.ends.pop().unwrap());
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| answer(server, theirs, false, &done));
        let client = answer(client, ours, true, &done);
        let server = other.join().unwrap();
        assert!(client.received.iter().map(number_of).eq(0..ROUNDS as u64));
        assert!(server.received.iter().map(number_of).eq(0..ROUNDS as u64));
    });
}
