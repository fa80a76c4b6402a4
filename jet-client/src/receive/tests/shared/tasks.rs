//! Tasks that wait on one session.

use super::super::{LONG, small};
use super::{Daemon, check, deliver, half, halfway, other, shared_pair};
use crate::receive::{OwnedMessage, OwnedSlice, ReceiveError, SharedSession, SliceError};
use futures_core::Stream;
use jet_control::frame::encode_frame;
use jet_control::{ControlResponse, ErrorCode};
use jet_wire::SLAB_BYTES;
use jet_wire::segment::{delivery_flags as flags, release_kind};
use std::io::Write;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// A runtime of one thread, so that it is known which task runs.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs two futures as tasks; the first one begins. Fails where they do not end.
fn both<A: Send + 'static, B: Send + 'static>(
    first: impl Future<Output = A> + Send + 'static,
    second: impl Future<Output = B> + Send + 'static,
) -> (A, B) {
    runtime().block_on(async {
        let (first, second) = (tokio::spawn(first), tokio::spawn(second));
        // The clock is polled first. If the tasks were polled once more when the time is over, they would
        // find what came without being woken.
        tokio::select! {
            biased;
            () = tokio::time::sleep(LONG) => panic!("a task was never woken"),
            ends = async { tokio::try_join!(first, second) } => ends.expect("no task panics"),
        }
    })
}

/// Waits, in a task, until the session slept `sleeps` times.
async fn slept(session: &SharedSession, sleeps: u64) {
    while session.stats().sleeps < sleeps {
        tokio::task::yield_now().await;
    }
}

/// Number of turns after which a runtime has looked several times at its descriptors: it does so every 61
/// turns.
const POLLS: u32 = 4 * 61;

async fn some_turns() {
    for _ in 0..POLLS {
        tokio::task::yield_now().await;
    }
}

/// Waits for the other half of the message.
async fn take_half(mut message: OwnedMessage) {
    check(&message.next_async().await.unwrap().unwrap(), 0);
}

/// Polls a future once, which has to wait.
async fn pends<F: Future>(mut future: Pin<&mut F>) {
    let look = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()));
    assert!(look.await);
}

#[test]
fn a_session_is_awaited_and_woken() {
    let (mut daemon, session) = shared_pair();
    let asleep = session.clone();
    let delivers = async move {
        for (number, flags) in [(0, flags::FIRST), (1, flags::LAST)] {
            slept(&asleep, 1 + u64::from(number)).await;
            deliver(&mut daemon, half(number, flags));
        }
        daemon
    };
    let receives = async move {
        let mut message = session.receive_async().await.unwrap();
        let mut bytes = 0;
        while let Some(slice) = message.next_async().await.unwrap() {
            check(&slice, 0);
            bytes += slice.len();
        }
        assert_eq!(bytes, 2 * SLAB_BYTES);
    };
    both(receives, delivers);
}

#[test]
fn a_task_gets_what_another_task_read_for_it() {
    let (mut daemon, session, message) = halfway();
    let reads = async move {
        // The first task sleeps by now. Nobody rings, so only the reading itself can wake it.
        daemon.deliver(half(1, flags::LAST));
        assert!(matches!(session.try_receive(), Err(ReceiveError::NotYet)));
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
            assert!(matches!(session.try_receive(), Err(ReceiveError::NotYet)));
        }
        some_turns().await;
        deliver(&mut daemon, half(1, flags::LAST));
        daemon
    };
    both(take_half(message), polls);
}

#[test]
fn two_tasks_sleep_on_one_session_and_only_the_one_that_is_meant_is_woken() {
    let (mut daemon, session, message) = halfway();
    let asleep = session.stats().sleeps;
    let watched = session.clone();
    let receives = async move {
        let delivers = tokio::spawn(async move {
            slept(&watched, asleep + 2).await;
            deliver(&mut daemon, other(1));
            some_turns().await;
            assert_eq!(watched.stats().sleeps, asleep + 2, "the other task sleeps on");
            deliver(&mut daemon, half(1, flags::LAST));
            daemon
        });
        assert_eq!(session.receive_async().await.unwrap().tag(), 1001);
        delivers.await.unwrap()
    };
    both(take_half(message), receives);
}

/// What is cancelled first: the wait on whose behalf the runtime watches, or another one.
#[test]
fn a_task_that_is_cancelled_takes_nobodys_wake_up() {
    for is_first in [true, false] {
        let (mut daemon, session, mut message) = halfway();
        let (asleep, watched) = (session.stats().sleeps, session.clone());
        let receives = async move {
            slept(&session, asleep + u64::from(is_first)).await;
            session.receive_async().await.unwrap().tag()
        };
        let cancelled = async move {
            slept(&watched, asleep + u64::from(!is_first)).await;
            {
                let mut next = std::pin::pin!(message.next_async());
                pends(next.as_mut()).await;
                slept(&watched, asleep + 2).await;
            }
            some_turns().await;
            deliver(&mut daemon, other(1));
            daemon
        };
        assert_eq!(both(receives, cancelled).0, 1001);
    }
}

#[test]
fn a_task_that_was_woken_and_is_cancelled_hands_its_message_on() {
    let (mut daemon, session) = shared_pair();
    let watched = session.clone();
    let receives = async move { session.receive_async().await.unwrap().tag() };
    let cancelled = async move {
        slept(&watched, 1).await;
        {
            let mut receive = std::pin::pin!(watched.receive_async());
            pends(receive.as_mut()).await;
            // The one that fell asleep last is woken, and never polled again.
            deliver(&mut daemon, other(1));
            some_turns().await;
        }
        daemon
    };
    assert_eq!(both(receives, cancelled).0, 1001);
}

#[test]
fn a_wait_that_nobody_polls_holds_up_no_other() {
    let (mut daemon, session, mut message) = halfway();
    let asleep = session.stats().sleeps;
    let watched = session.clone();
    let unpolled = async move {
        let mut next = std::pin::pin!(message.next_async());
        pends(next.as_mut()).await;
        // The runtime watches on behalf of this wait, which is left alone from here on.
        slept(&watched, asleep + 2).await;
        deliver(&mut daemon, other(1));
        slept(&watched, asleep + 3).await;
        deliver(&mut daemon, half(1, flags::LAST));
        assert!(next.await.unwrap().is_some());
        (daemon, watched)
    };
    let receives = async move {
        slept(&session, asleep + 1).await;
        assert_eq!(session.receive_async().await.unwrap().tag(), 1001);
        let again = session.receive_async();
        pends(std::pin::pin!(again)).await;
    };
    both(unpolled, receives);
}

#[test]
fn a_runtime_that_does_not_run_any_more_holds_up_no_other() {
    let (mut daemon, session, mut message) = halfway();
    let idle = runtime();
    let mut next = Box::pin(async move { message.next_async().await.unwrap().map(|slice| slice.offset()) });
    idle.block_on(pends(next.as_mut()));
    // That wait is dropped, in a runtime that is there but never runs again.
    drop(next);
    let asleep = session.stats().sleeps;
    let watched = session.clone();
    let delivers = async move {
        slept(&watched, asleep + 1).await;
        deliver(&mut daemon, other(1));
        daemon
    };
    let receives = async move { session.receive_async().await.unwrap().tag() };
    assert_eq!(both(receives, delivers).0, 1001);
    drop(idle);
}

#[test]
fn a_runtime_that_ends_leaves_the_watch_to_another() {
    let (mut daemon, session, mut message) = halfway();
    let ends = runtime();
    let asleep = session.stats().sleeps;
    // The task is dropped with its runtime, while another one waits.
    ends.spawn(async move { message.next_async().await.map(|_| ()) });
    ends.block_on(slept(&session, asleep + 1));
    let watched = session.clone();
    let delivers = async move {
        slept(&watched, asleep + 2).await;
        drop(tokio::task::spawn_blocking(move || drop(ends)).await);
        some_turns().await;
        deliver(&mut daemon, other(1));
        daemon
    };
    let receives = async move { session.receive_async().await.unwrap().tag() };
    assert_eq!(both(receives, delivers).0, 1001);
}

#[test]
fn threads_and_tasks_wait_together() {
    let (mut daemon, session, mut message) = halfway();
    let asleep = session.stats().sleeps;
    let takes = std::thread::spawn(move || message.next_timeout(LONG).unwrap().unwrap().offset());
    let watched = session.clone();
    let delivers = async move {
        slept(&watched, asleep + 2).await;
        deliver(&mut daemon, other(1));
        some_turns().await;
        deliver(&mut daemon, half(1, flags::LAST));
        daemon
    };
    let receives = async move { session.receive_async().await.unwrap().tag() };
    let (tag, _daemon) = both(receives, delivers);
    assert_eq!(tag, 1001);
    assert_eq!(takes.join().unwrap(), 4096);
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
        let heard =
            (0..1 << 20).find_map(|_| session.try_receive().err().filter(|error| !error.is_not_yet()));
        assert!(heard.expect("it looks now and then").to_string().contains("enough"));
        daemon
    };
    assert!(both(waits, hears).0.contains("enough"));
}

#[test]
fn streams_end_after_the_last_slice_and_after_the_session() {
    let (mut daemon, session) = shared_pair();
    let mut messages = session.messages();
    let next = async move || {
        let item = std::future::poll_fn(|context| Pin::new(&mut messages).poll_next(context)).await;
        (item, messages)
    };
    let asleep = session.clone();
    let streams = async move {
        let (item, mut messages) = next().await;
        let mut message = item.unwrap().unwrap();
        let mut slices = message.slices();
        let mut offsets = Vec::new();
        while let Some(slice) = std::future::poll_fn(|context| Pin::new(&mut slices).poll_next(context)).await
        {
            offsets.push(slice.unwrap().offset());
        }
        assert_eq!(offsets, [0, 4096]);
        let mut ends = Vec::new();
        while let Some(item) =
            std::future::poll_fn(|context| Pin::new(&mut messages).poll_next(context)).await
        {
            ends.push(item.map(|_| ()).unwrap_err());
        }
        assert!(matches!(ends[..], [ReceiveError::DaemonGone]), "{ends:?}");
    };
    let delivers = async move {
        slept(&asleep, 1).await;
        deliver(&mut daemon, half(0, flags::FIRST));
        slept(&asleep, 2).await;
        deliver(&mut daemon, half(1, flags::LAST));
        slept(&asleep, 3).await;
        drop(daemon);
    };
    both(streams, delivers);
}

/// Makes a session whose application holds part of a message and waits for the rest.
fn holding() -> (Daemon, SharedSession, OwnedMessage, OwnedSlice) {
    let (mut daemon, session) = shared_pair();
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap();
    let held = message.next().unwrap().unwrap();
    (daemon, session, message, held)
}

#[test]
fn a_task_is_told_when_it_lasts_that_nothing_more_comes() {
    let (mut daemon, session, mut message, held) = holding();
    let asleep = session.stats().sleeps;
    let waits = async move { message.next_async().await.map(|_| ()).unwrap_err() };
    let tells = async move {
        daemon.tell(1, false);
        some_turns().await;
        assert!(session.stats().sleeps > asleep, "another task may give something back, so it sleeps");
        daemon.tell(2, true);
        (daemon, held)
    };
    let (error, _alive) = both(waits, tells);
    assert!(matches!(error, SliceError::HoldsAll(_)), "{error}");
}

#[test]
fn a_task_is_told_though_another_polls_in_vain() {
    let (mut daemon, session, mut message, held) = holding();
    let waits = async move { message.next_async().await.map(|_| ()).unwrap_err() };
    let polls = async move {
        // The first task sleeps by now. The poller clears the doorbell before the runtime sees it.
        daemon.tell(1, true);
        for _ in 0..10_000 {
            assert!(matches!(session.try_receive(), Err(ReceiveError::NotYet)));
        }
        (daemon, held)
    };
    let (error, _alive) = both(waits, polls);
    assert!(matches!(error, SliceError::HoldsAll(_)), "{error}");
}

#[test]
fn each_task_that_waits_is_told_once() {
    let (mut daemon, session, mut message, held) = holding();
    let (asleep, watched) = (session.stats().sleeps, session.clone());
    let waits = async move {
        let error = message.next_async().await.map(|_| ()).unwrap_err();
        // A further wait does not report the notice again.
        pends(std::pin::pin!(message.next_async())).await;
        error
    };
    let receives = async move {
        let tells = tokio::spawn(async move {
            slept(&watched, asleep + 2).await;
            daemon.tell(1, true);
            daemon
        });
        let received = session.receive_async().await.map(|_| ());
        (received.unwrap_err(), tells.await.unwrap(), held)
    };
    let (error, (other, ..)) = both(waits, receives);
    assert!(matches!(error, SliceError::HoldsAll(_)), "{error}");
    assert!(matches!(other, ReceiveError::HoldsAll(_)), "{other}");
}

#[test]
fn a_task_that_was_told_sleeps_on_though_another_polls() {
    const ROUNDS: u64 = 20;
    let (mut daemon, session, mut message, held) = holding();
    let asleep = session.stats().sleeps;
    let waits = async move {
        assert!(matches!(message.next_async().await, Err(SliceError::HoldsAll(_))));
        message.next_async().await.unwrap().unwrap()
    };
    let polls = async move {
        daemon.tell(1, true);
        while session.stats().sleeps < asleep + 2 {
            assert!(matches!(session.try_receive(), Err(ReceiveError::NotYet)));
            tokio::task::yield_now().await;
        }
        for _ in 0..ROUNDS {
            // Often enough for the poller to look at everything. Then the other tasks have their turn.
            for _ in 0..10_000 {
                assert!(matches!(session.try_receive(), Err(ReceiveError::NotYet)));
            }
            tokio::task::yield_now().await;
        }
        let woken = session.stats().sleeps - asleep - 2;
        assert!(woken < ROUNDS / 2, "woken {woken} times for one notice");
        daemon.deliver(half(1, flags::LAST));
        daemon.doorbell.ring();
        (daemon, held)
    };
    let (_slice, _alive) = both(waits, polls);
}

/// Many messages through tasks of a runtime with several threads.
#[test]
fn tasks_of_several_threads_share_all_messages() {
    const COUNT: u64 = 5_000;
    let (mut daemon, session) = shared_pair();
    let several = Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let session = session.clone();
            several.spawn(async move {
                let mut count = 0u64;
                while let Ok(mut message) = session.receive_async().await {
                    let slice = message.next_async().await.unwrap().unwrap();
                    count += 1;
                    tokio::task::spawn_blocking(move || drop((slice, message))).await.unwrap();
                }
                count
            })
        })
        .collect();
    let (mut generation, mut sent) = (7u16, 0);
    while sent < COUNT {
        generation = generation.wrapping_add(1);
        daemon.deliver_as(small(0, 0, 8), generation, b"");
        super::ring(&mut daemon);
        sent += 1;
        // The slot is free again.
        while !daemon.releases().iter().any(|release| release.kind != release_kind::SLICES) {
            std::thread::sleep(Duration::from_micros(10));
        }
    }
    drop(daemon);
    let count: u64 = tasks.into_iter().map(|task| several.block_on(task).unwrap()).sum();
    assert_eq!(count, COUNT);
}

#[test]
fn a_task_whose_budget_is_used_up_falls_asleep() {
    let (mut daemon, session) = shared_pair();
    let several = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let watched = session.clone();
    let delivers = std::thread::spawn(move || {
        while watched.stats().sleeps == 0 {
            std::thread::yield_now();
        }
        deliver(&mut daemon, other(1));
        daemon
    });
    // The main future of such a runtime has a budget, and no scheduler that would put off its wakers.
    let tag = several.block_on(async {
        let mut spent = 0;
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::consume_budget().await;
            spent += 1;
        }
        assert!(spent > 1);
        session.receive_async().await.unwrap().tag()
    });
    assert_eq!(tag, 1001);
    delivers.join().unwrap();
}

#[test]
fn what_comes_late_for_a_message_that_was_ended_is_given_back_though_everybody_sleeps() {
    let (mut daemon, session, message) = halfway();
    let asleep = session.stats().sleeps;
    message.consume();
    let watched = session.clone();
    let delivers = async move {
        slept(&watched, asleep + 1).await;
        daemon.releases();
        deliver(&mut daemon, half(1, flags::LAST));
        some_turns().await;
        let shown = daemon.releases();
        assert_eq!(
            shown.last().map(|release| release.kind),
            Some(release_kind::SLICES_AND_FINISH),
            "{shown:?}"
        );
        deliver(&mut daemon, other(1));
        daemon
    };
    let receives = async move { session.receive_async().await.unwrap().tag() };
    assert_eq!(both(receives, delivers).0, 1001);
}

#[test]
fn a_runtime_that_rests_for_a_while_holds_up_no_task_of_another() {
    let (mut daemon, session, mut message) = halfway();
    let rests = runtime();
    let asleep = session.stats().sleeps;
    // Its task waits, and the runtime is not driven from here on.
    let waits = rests.spawn(async move { message.next_async().await.map(|slice| slice.unwrap().offset()) });
    rests.block_on(slept(&session, asleep + 1));
    let watched = session.clone();
    let delivers = async move {
        slept(&watched, asleep + 2).await;
        deliver(&mut daemon, other(1));
        daemon
    };
    let receives = async move { session.receive_async().await.unwrap().tag() };
    let (tag, mut daemon) = both(receives, delivers);
    assert_eq!(tag, 1001);
    daemon.deliver(half(1, flags::LAST));
    daemon.doorbell.ring();
    assert_eq!(rests.block_on(waits).unwrap().unwrap(), 4096);
}
