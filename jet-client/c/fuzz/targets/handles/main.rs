//! Fuzzing of the library for C: any calls, with handles that live, were freed, are of the other kind or
//! never were, and with keys of slices, messages and buffers likewise. The other end is a real daemon over
//! `shm:`.
//!
//! A model says what each call may return. A handle that does not live, or a key that is not held, gets its
//! error, and the call changes nothing: neither the structures nor what is alive. What a call frees is gone
//! for good: no later handle has its number, no later key of its handle has its key. What an application
//! receives is what was sent, each byte once. Each message has one end, which is what became of it, and the
//! reply that its application gave, which stays as it is until the sender asks for the next end. Errors have
//! texts, and calls that succeed leave these alone. Structures are written as far as they go. The
//! library does not panic, and takes no more memory than it may. When all handles are freed, nothing is
//! left: no memory, descriptor or mapping here, and no session, sender, message or slab at the daemon.
//!
//! The calls come from one thread. `src/handles.rs` tests what several threads get (`JET_E_BUSY`), and how
//! many handles there may be.
//!
//! An input is a text: letters for calls, digits for their arguments (`input.rs`). Handles count on from
//! run to run, so a failure that takes thousands of them needs the runs before it.

#![no_main]

mod call;
mod daemon;
mod input;
mod lent;
mod senders;
mod sending;
mod sessions;
mod sized;
mod world;

use call::{Place, Pointer, meaning};
use jet_client_c::{Code, jet_code_text, jet_status_text};
use libfuzzer_sys::fuzz_target;
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};
use world::{Past, World};

/// Most calls of an input.
const CALLS_MAX: usize = 100;
/// Longest time within which every message has its end, once applications take all and finish it.
const ENDED_WITHIN: Duration = Duration::from_secs(4);
/// Runs between two looks at the daemon's status, which the daemon makes 40 times a second at most.
const RUNS_PER_LOOK: u64 = 128;
/// Most memory that is in use when no handle is alive: the text of the last error, and what is made once.
const BYTES_LEFT_MAX: isize = 4096;

static PAST: LazyLock<Mutex<Past>> = LazyLock::new(|| Mutex::new(Past::new()));

/// Makes the call that the letter stands for.
fn call(world: &mut World<'_>, letter: u8) {
    match letter {
        b'a' => world.session_stats(),
        b'b' => world.buffer_get(),
        b'c' => world.connect(),
        b'd' => world.drain(false),
        b'e' => world.poll(),
        b'f' => world.finish(),
        b'g' => world.buffer_get_row(),
        b'h' => world.sender_id(),
        b'i' => world.session_options_init(),
        // The end of a line in a seed.
        b'j' => {}
        b'k' => world.drain(true),
        b'l' => world.flush(),
        b'm' => world.receive(),
        b'n' => world.next(),
        b'o' => world.buffer_free(),
        b'p' => world.prepare_sleep(),
        b'q' => world.descriptor(),
        b'r' => world.register(),
        b's' => world.send_small(),
        b't' => world.sender_stats(),
        b'u' => world.sender_free(),
        b'v' => world.session_free(),
        b'w' => world.wait(),
        b'x' => world.send_buffer(),
        b'y' => world.release(),
        b'z' => world.session_flush(),
        b'{' => world.sender_options_init(),
        b'}' => world.envelope_init(),
        b'~' => world.reply(),
        b'|' => {
            let number = world.input.number() as c_int;
            meaning(jet_code_text, number);
            meaning(jet_status_text, number);
        }
        // Delete.
        0x7f if world.input.is_set() => world.holds_all(),
        0x7f => world.cancel(),
        _ => {}
    }
}

/// Lets applications take and finish all that comes, until every message has its end.
fn settle(world: &mut World<'_>) {
    let deadline = Instant::now() + ENDED_WITHIN;
    let (senders, sessions) = world.handles();
    loop {
        sessions.iter().for_each(|session| world.serve(*session));
        let waiting = senders.iter().find(|sender| !world.senders[sender].in_flight.is_empty());
        let Some(waiting) = waiting else { return };
        world.wait_at(*waiting, 100_000);
        let left = &world.senders[waiting].in_flight;
        assert!(Instant::now() < deadline, "messages without an end: {:?}", left.keys());
    }
}

fn play(past: &mut Past, bytes: &[u8]) {
    let looks = past.runs.is_multiple_of(RUNS_PER_LOOK);
    let mut world = World::new(past, bytes);
    let settles = !world.input.is_set();
    for _ in 0..CALLS_MAX {
        let Some(letter) = world.input.letter() else { break };
        call(&mut world, letter);
    }
    if settles {
        settle(&mut world);
    }
    let (senders, sessions) = world.handles();
    sessions.iter().for_each(|session| world.session_free_at(*session, &[]));
    senders.iter().for_each(|sender| world.sender_free_at(*sender, &[]));
    for handle in world.freed().to_vec() {
        world.session_free_at(handle, &[Code::Handle]);
        world.sender_free_at(handle, &[Code::Handle]);
        world.receive_at(handle, &[Code::Handle], 0, &mut Place::new(Pointer::Good));
    }
    drop(world);
    assert!(past.calls.bytes < BYTES_LEFT_MAX, "{} bytes are in use without a handle", past.calls.bytes);
    if looks {
        past.daemon.check_nothing_left();
    }
}

fuzz_target!(init: daemon::serve_if_asked(), |bytes: &[u8]| {
    play(&mut PAST.lock().expect("no panic before"), bytes);
});
