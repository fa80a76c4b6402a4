//! Sessions that are awaited.

use super::tests::{LONG, Run, check_slice, pair, small};
use jet_wire::segment::delivery_flags as flags;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
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
