//! Tests of sessions that tasks wait for.

use super::{Daemon, LONG, Run, check_slice, pair, small};
use crate::receive::{Message, Session};
use jet_control::frame::encode_frame;
use jet_control::{ControlResponse, ErrorCode};
use jet_wire::segment::delivery_flags as flags;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::io::Write;
use std::time::Duration;

#[test]
fn a_session_is_awaited_and_woken() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::scope(|scope| {
        let daemon = &mut daemon;
        scope.spawn(move || {
            for (number, flags) in [(0, flags::FIRST), (1, flags::LAST)] {
                while !daemon.end.deliveries.wake_needed() {
                    std::thread::yield_now();
                }
                let offset = u64::from(number * SLAB_BYTES_U32);
                let message_bytes = u64::from(2 * SLAB_BYTES_U32);
                daemon.deliver(Run { flags, offset, message_bytes, ..small(number, 0, SLAB_BYTES_U32) });
                daemon.doorbell.ring();
            }
        });
        let bytes = runtime.block_on(async {
            let mut message = session.receive_async().await.unwrap();
            let mut bytes = 0;
            while let Some(slice) = message.next_async().await.unwrap() {
                check_slice(&slice, 0);
                bytes += slice.len();
            }
            bytes
        });
        assert_eq!(bytes, 2 * SLAB_BYTES);
    });
}

/// Makes a session that is never dropped, as tasks need it.
pub(super) fn lasting_pair() -> (Daemon, &'static Session) {
    let (daemon, session) = pair(Duration::ZERO);
    (daemon, Box::leak(Box::new(session)))
}

/// Runs two futures as tasks of one thread; the first one begins. Fails where they do not end.
pub(super) fn both<A: 'static, B: 'static>(
    first: impl Future<Output = A> + 'static,
    second: impl Future<Output = B> + 'static,
) -> (A, B) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    let (first, second) = (tasks.spawn_local(first), tasks.spawn_local(second));
    let ends = tasks.run_until(async {
        // The clock is polled first. If the tasks were polled once more when the time is over, they would
        // find what came without being woken.
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_secs(30)) => panic!("a task was never woken"),
            ends = async { tokio::try_join!(first, second) } => ends.expect("no task panics"),
        }
    });
    runtime.block_on(ends)
}

/// Waits, in a task, until the session slept `sleeps` times.
async fn slept(session: &Session, sleeps: u64) {
    while session.stats().sleeps < sleeps {
        tokio::task::yield_now().await;
    }
}

/// Number of turns after which a runtime has looked several times at its descriptors: it does so every 61
/// turns.
const POLLS: u32 = 4 * 61;

/// Makes a session with a message whose first half arrived and was given back.
fn halfway() -> (Daemon, &'static Session, Message<'static>) {
    let (mut daemon, session) = lasting_pair();
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap().unwrap();
    drop(message.next(LONG).unwrap());
    (daemon, session, message)
}

/// Waits for the other half of the message.
async fn take_half(mut message: Message<'static>) {
    check_slice(&message.next_async().await.unwrap().unwrap(), 0);
}

fn half(number: u32, flags: u8) -> Run {
    Run {
        flags,
        offset: u64::from(number * SLAB_BYTES_U32),
        message_bytes: u64::from(2 * SLAB_BYTES_U32),
        ..small(number, 0, SLAB_BYTES_U32)
    }
}

/// Delivers a run as the daemon does: rings the doorbell where the session's word says that it sleeps.
fn deliver(daemon: &mut Daemon, run: Run) {
    daemon.deliver(run);
    if daemon.end.deliveries.wake_needed() {
        daemon.doorbell.ring();
    }
}

#[test]
fn a_task_gets_what_another_task_read_for_it() {
    let (mut daemon, session, message) = halfway();
    let reads = async move {
        // The first task sleeps by now. Nobody rings, so only the reading itself can wake it.
        daemon.deliver(half(1, flags::LAST));
        assert!(session.try_receive().unwrap().is_none());
        daemon
    };
    both(take_half(message), reads);
}

#[test]
fn a_task_that_polls_in_vain_takes_nobodys_wake_up() {
    let (mut daemon, session, message) = halfway();
    let polls = async move {
        // The first task sleeps by now, and has asked to be woken. The poller polls so often that it looks at
        // everything.
        for _ in 0..10_000 {
            assert!(session.try_receive().unwrap().is_none());
        }
        // The runtime gets to look at the descriptor that the task sleeps on.
        for _ in 0..POLLS {
            tokio::task::yield_now().await;
        }
        deliver(&mut daemon, half(1, flags::LAST));
        daemon
    };
    both(take_half(message), polls);
}

#[test]
fn two_tasks_sleep_on_one_session_and_each_gets_its_own() {
    let (mut daemon, session, message) = halfway();
    let asleep = session.stats().sleeps;
    let receives = async move {
        let delivers = tokio::task::spawn_local(async move {
            // Both tasks look, find nothing and sleep.
            slept(session, asleep + 2).await;
            // The first delivery also wakes the task that does not wait for it, which then sleeps again.
            deliver(&mut daemon, Run { slab: 9, ..small(2, 1, 10) });
            slept(session, asleep + 3).await;
            deliver(&mut daemon, half(1, flags::LAST));
            daemon
        });
        assert_eq!(session.receive_async().await.unwrap().tag(), 1001);
        delivers.await.unwrap()
    };
    both(take_half(message), receives);
}

#[test]
fn a_task_that_is_cancelled_takes_nobodys_wake_up() {
    let (mut daemon, session, mut message) = halfway();
    let asleep = session.stats().sleeps;
    let receives = async move { session.receive_async().await.unwrap().tag() };
    let cancelled = async move {
        slept(session, asleep + 1).await;
        {
            let mut next = std::pin::pin!(message.next_async());
            let look = std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context)));
            assert!(look.await.is_pending());
            assert_eq!(session.stats().sleeps, asleep + 2);
        }
        deliver(&mut daemon, Run { slab: 9, ..small(2, 1, 10) });
        daemon
    };
    assert_eq!(both(receives, cancelled).0, 1001);
}

#[test]
fn every_task_hears_of_the_sessions_end_whoever_hears_it_first() {
    let (mut daemon, session, mut message) = halfway();
    let waits = async move { message.next_async().await.map(|_| ()).unwrap_err().to_string() };
    let hears = async move {
        let said = ControlResponse::Error { code: ErrorCode::BadRequest, message: "enough".into() };
        daemon.control.write_all(&encode_frame(&said).unwrap()).unwrap();
        // Takes the daemon's message from the connection, which stays open: nothing is left there that would
        // wake a task.
        let heard = (0..1 << 20).find_map(|_| session.try_receive().err()).expect("it looks now and then");
        assert!(heard.to_string().contains("enough"));
        daemon
    };
    assert!(both(waits, hears).0.contains("enough"));
}
