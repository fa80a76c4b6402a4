//! Sleeping and waking under the model checker. A lost wake-up is a deadlock, which loom reports.

use super::*;
use ::loom::sync::{Arc, Condvar, Mutex};
use ::loom::thread;
use std::vec::Vec;

/// A wake-up that is kept if it comes before the sleep, like a doorbell and `unpark`.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A pile of work, shown and looked at without any ordering of its own.
struct Pile(AtomicU32);

impl Pile {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        left > 0 && self.0.compare_exchange(left, left - 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// Runs one sleeper that sleeps before each piece of work, of which two come.
fn one_sleeps(first: fn() -> Sleeper) {
    model(move || {
        let shared = Arc::new((first(), Pile(AtomicU32::new(0)), Bell::default()));
        let theirs = shared.clone();
        let shows = thread::spawn(move || {
            for _ in 0..2 {
                theirs.1.add();
                if theirs.0.must_be_woken() {
                    theirs.2.ring();
                }
            }
        });
        let (word, pile, bell) = &*shared;
        let mut taken = 0;
        while taken < 2 {
            if pile.take() {
                taken += 1;
                continue;
            }
            word.sleeps();
            if pile.is_empty() {
                bell.sleep();
            }
            word.is_up();
        }
        shows.join().unwrap();
    });
}

#[test]
fn loom_who_sleeps_is_woken() {
    one_sleeps(Sleeper::awake);
}

/// Checks two tasks of one thread that share a word. One sleeps on it; the other finds no work and takes the
/// announcement back. It then announces the sleep again for the first one, and looks once more.
#[test]
fn loom_a_word_that_is_taken_back_under_a_sleeper_is_said_again() {
    model(|| {
        let shared = Arc::new((Sleeper::awake(), Pile(AtomicU32::new(0)), Bell::default()));
        let theirs = shared.clone();
        let shows = thread::spawn(move || {
            theirs.1.add();
            if theirs.0.must_be_woken() {
                theirs.2.ring();
            }
        });
        let (word, pile, bell) = &*shared;
        word.sleeps();
        if pile.is_empty() {
            // The first task sleeps from here on. Now the other:
            if pile.is_empty() {
                word.is_up();
                word.sleeps();
            }
            if pile.is_empty() {
                bell.sleep();
            }
        }
        word.is_up();
        assert!(pile.take());
        shows.join().unwrap();
    });
}

/// Checks a word that begins asleep, as the bell of workers does: it is rung for the first work without
/// having been asked.
#[test]
fn loom_who_is_to_be_woken_from_the_start_is_woken() {
    one_sleeps(Sleeper::asleep);
}

/// Checks that of two sleepers at one pile, one does the work, whichever is named.
#[test]
fn loom_of_two_that_sleep_one_does_what_comes() {
    model(|| {
        let shared =
            Arc::new((Sleepers::awake(), Pile(AtomicU32::new(0)), [Bell::default(), Bell::default()]));
        let done = Arc::new(AtomicU32::new(0));
        let workers: Vec<_> = (0..2)
            .map(|who| {
                let (shared, done) = (shared.clone(), done.clone());
                thread::spawn(move || {
                    let (sleepers, pile, bells) = &*shared;
                    // Each sleeps at most once, so that the one that nobody wakes ends as well.
                    if !pile.take() {
                        sleepers.sleeps(who);
                        if pile.is_empty() {
                            bells[who].sleep();
                        }
                        sleepers.is_up(who);
                        if !pile.take() {
                            return;
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    // Nothing more comes: let the other one end.
                    bells[1 - who].ring();
                })
            })
            .collect();
        let (sleepers, pile, bells) = &*shared;
        pile.add();
        if let Some(who) = sleepers.to_wake() {
            bells[who].ring();
        }
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(done.load(Ordering::Relaxed), 1);
    });
}
