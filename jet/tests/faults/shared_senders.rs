//! Tests of threads and tasks that send by one sender.

use crate::children::Role;
use crate::rig::Rig;
use crate::traffic::fill;
use jet_client::send::{AckStatus, RetryPolicy, SendError, SendHandle, SharedSender, SubmitError};
use jet_test_support::device::fabrics;
use jet_test_support::waiting::{WAIT_LIMIT, until};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const THREADS: u64 = 3;
const TASKS: u64 = 4;
const EACH: u64 = 60;

/// A message is large each fourth time.
fn is_large(tag: u64) -> bool {
    tag.is_multiple_of(4)
}

/// Sends a message as a thread, and waits for room where there is none.
fn send(sender: &SharedSender, tag: u64) -> SendHandle {
    loop {
        let sent = if is_large(tag) {
            let mut buffer = sender.buffer(40_000).expect("memory");
            fill(tag, &mut buffer);
            sender.send(tag, buffer).map_err(|not_sent| not_sent.error)
        } else {
            let mut bytes = [0; 100];
            fill(tag, &mut bytes);
            sender.send_small(tag, &bytes)
        };
        match sent {
            Ok(handle) => return handle,
            Err(error) if error.is_would_block() => sender.room().expect("a wait"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends a message as a task.
async fn send_async(sender: &SharedSender, tag: u64) -> SendHandle {
    let mut bytes = [0; 100];
    fill(tag, &mut bytes);
    loop {
        match sender.send_small(tag, &bytes) {
            Ok(handle) => return handle,
            Err(error) if error.is_would_block() => sender.room_async().await.expect("a wait"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends two messages at a time from each of several tasks, which hear of one of the two.
fn send_as_tasks(sender: &SharedSender) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let tasks: Vec<_> = (1..=TASKS)
        .map(|task| {
            let sender = sender.clone();
            runtime.spawn(async move {
                for number in 0..EACH {
                    let tag = 1_000_000_000 * task + 2 * number;
                    let heard = send_async(&sender, tag).await;
                    drop(send_async(&sender, tag + 1).await);
                    let ticket = heard.ticket();
                    let end = heard.await.expect("a wait");
                    assert_eq!((end.ticket, end.tag, end.status), (ticket, tag, AckStatus::Consumed));
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).expect("no panic");
    }
}

/// Closes a sender with messages under way, as two tasks and a thread, and hears their ends afterwards.
fn close(sender: &SharedSender) {
    let handles: Vec<_> = (0..4).map(|tag| send(sender, tag)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| sender.close_timeout(WAIT_LIMIT));
        let drained = sender.clone();
        let drains = runtime.spawn(async move { drained.drain_async().await });
        runtime.block_on(sender.close_async()).expect("a wait");
        runtime.block_on(drains).expect("no panic").expect("a wait");
        closes.join().expect("no panic").expect("closed in time");
    });
    assert!(matches!(sender.send_small(5, b"late"), Err(SendError::Submit(SubmitError::Closed))));
    assert!(!sender.is_connected());
    for handle in handles {
        assert_eq!(handle.wait().expect("a wait").status, AckStatus::Consumed);
    }
}

#[test]
fn threads_and_tasks_send_by_one_sender_and_each_hears_its_own_end() {
    for fabric in 0..fabrics().len() {
        let mut rig = Rig::start(&[]);
        let _application = rig.application(Role::Consumer, "store");
        let address = rig.addresses()[fabric].clone();
        // Less room than there are threads and tasks with two messages each, so they wait for it.
        let options = Rig::sender_options(&address, "store")
            .in_flight_max(8)
            .retry(RetryPolicy::all_for(Duration::MAX));
        let sender = SharedSender::connect(&options).expect("let in");
        let ended = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (sender, ended) = (&sender, &ended);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let tag = 1_000_000 * thread + number;
                        let handle = send(sender, tag);
                        let ticket = handle.ticket();
                        let end = handle.wait().expect("a wait");
                        assert_eq!((end.ticket, end.tag, end.status), (ticket, tag, AckStatus::Consumed));
                        assert_eq!(end.buffer.is_some(), is_large(tag));
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| send_as_tasks(&sender));
            // The daemon dies under all of them.
            until("half of it", || {
                (ended.load(Ordering::Relaxed) as u64 >= THREADS * EACH / 2).then_some(())
            });
            rig.kill_daemon();
            rig.start_again();
        });
        close(&sender);
        rig.wait_whole();
    }
}
