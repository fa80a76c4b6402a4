//! Sessions that are awaited.

use super::tests::{Daemon, LONG, Run, check_slice, pair, small};
use crate::registration::{ControlResponse, ErrorCode, encode_frame};
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

#[test]
fn a_task_gets_what_another_task_read_for_it() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let half = |number: u32, flags| Run {
        flags,
        offset: u64::from(number * SLAB_BYTES_U32),
        message_bytes: u64::from(2 * SLAB_BYTES_U32),
        ..small(number, 0, SLAB_BYTES_U32)
    };
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap().unwrap();
    drop(message.next(LONG).unwrap());
    runtime.block_on(async {
        let next = message.next_async();
        let other = async {
            // The first task sleeps by now. Nobody rings: only the reading itself can wake it.
            daemon.deliver(half(1, flags::LAST));
            assert!(session.try_receive().unwrap().is_none());
        };
        let both = async { tokio::join!(next, other) };
        // The clock first: looking once more because the time is over would find the slice without any waking.
        let (slice, ()) = tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_secs(30)) => panic!("the first task was never woken"),
            both = both => both,
        };
        check_slice(&slice.unwrap().unwrap(), 0);
    });
}

/// Runs two futures in one task each of one thread, the first of which begins; fails where they do not end.
fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_secs(30)) => panic!("a task was never woken"),
            both = async { tokio::join!(first, second) } => both,
        }
    })
}

fn half(number: u32, flags: u8) -> Run {
    Run {
        flags,
        offset: u64::from(number * SLAB_BYTES_U32),
        message_bytes: u64::from(2 * SLAB_BYTES_U32),
        ..small(number, 0, SLAB_BYTES_U32)
    }
}

/// As the daemon does: shown, and rung for where the session says that it sleeps.
fn deliver(daemon: &mut Daemon, run: Run) {
    daemon.deliver(run);
    if daemon.end.deliveries.wake_needed() {
        daemon.doorbell.ring();
    }
}

#[test]
fn a_task_that_polls_in_vain_takes_nobodys_wake_up() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap().unwrap();
    drop(message.next(LONG).unwrap());
    let polls = async {
        // The first task sleeps by now, and has asked to be woken. So often that the poller looks after everything.
        for _ in 0..10_000 {
            assert!(session.try_receive().unwrap().is_none());
        }
        // Let the runtime look at what it sleeps on.
        tokio::time::sleep(Duration::from_millis(1)).await;
        deliver(&mut daemon, half(1, flags::LAST));
    };
    let (slice, ()) = both(message.next_async(), polls);
    check_slice(&slice.unwrap().unwrap(), 0);
}

#[test]
fn two_tasks_sleep_on_one_session_and_each_gets_its_own() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap().unwrap();
    drop(message.next(LONG).unwrap());
    for turn in 0..2 {
        let sleeps = std::cell::Cell::new(0);
        let daemon = &mut daemon;
        let others = async {
            // Both look, find nothing and sleep.
            while sleeps.get() < 1 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            // First what wakes the wrong one, too.
            deliver(daemon, Run { slab: 9, ..small(2 + turn, 1 + turn, 10) });
            if turn == 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                deliver(daemon, half(1, flags::LAST));
            }
        };
        let receives = async {
            sleeps.set(1);
            session.receive_async().await.unwrap().tag()
        };
        if turn == 0 {
            // Cancelled while another task sleeps: that one is none the worse for it.
            let cancelled = async {
                let mut next = std::pin::pin!(message.next_async());
                assert!(
                    std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context)))
                        .await
                        .is_pending()
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
            };
            let ((tag, ()), ()) = both(async { tokio::join!(receives, others) }, cancelled);
            assert_eq!(tag, 1001);
        } else {
            let ((tag, ()), slice) = both(async { tokio::join!(receives, others) }, message.next_async());
            assert_eq!(tag, 1002);
            check_slice(&slice.unwrap().unwrap(), 0);
        }
    }
}

#[test]
fn every_task_hears_of_the_sessions_end_whoever_hears_it_first() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap().unwrap();
    drop(message.next(LONG).unwrap());
    let hears = async {
        let said = ControlResponse::Error { code: ErrorCode::BadRequest, message: "enough".into() };
        daemon.control.write_all(&encode_frame(&said).unwrap()).unwrap();
        // Takes the word from the connection, which stays open: nothing is left there that would wake anybody.
        let heard = (0..1 << 20).find_map(|_| session.try_receive().err()).expect("it looks now and then");
        assert!(heard.to_string().contains("enough"));
    };
    let (slice, ()) = both(message.next_async(), hears);
    assert!(slice.unwrap_err().to_string().contains("enough"));
}
