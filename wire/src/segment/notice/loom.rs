//! The notice under the model checker, beside the delivery ring: one wake-up serves both.

use super::*;
use crate::ring::loom::ring;
use ::loom::sync::{Arc, Condvar, Mutex};
use ::loom::thread;

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

const HELD: Notice = Notice { limit: HeldLimit::Pool, lasting: false, number: 1, releases: 0 };

/// Checks that a waiting application gets the notice: it sleeps and is woken, or sees the notice before it
/// sleeps. It sees what was delivered before the notice along with it.
#[test]
fn loom_who_waits_hears_of_the_notice_after_what_was_delivered() {
    model(|| {
        let shared = Arc::new((AtomicU64::new(0), Mutex::new(false), Condvar::new()));
        let ((mut producer, memory), (mut consumer, _held)) = ring(2, 0);
        let theirs = shared.clone();
        let daemon = thread::spawn(move || {
            let _memory = memory;
            producer.push(7).unwrap();
            NoticeWord(&theirs.0).put_behind(&mut producer, Some(HELD));
            if producer.wake_needed() {
                *theirs.1.lock().unwrap() = true;
                theirs.2.notify_one();
            }
        });
        let (word, bell, rung) = &*shared;
        let mut taken = false;
        loop {
            if let Some(item) = consumer.pop().unwrap() {
                assert_eq!(item, 7);
                taken = true;
                continue;
            }
            if !consumer.prepare_sleep() {
                continue;
            }
            if NoticeWord(word).read().is_some() {
                consumer.awake();
                // The ring was looked at before the notice was, so it is looked at once more.
                if consumer.is_empty() {
                    break;
                }
                continue;
            }
            let mut rings = bell.lock().unwrap();
            while !*rings {
                rings = rung.wait(rings).unwrap();
            }
            *rings = false;
            consumer.awake();
        }
        assert!(taken, "the notice was believed beside an unread delivery");
        daemon.join().unwrap();
    });
}
