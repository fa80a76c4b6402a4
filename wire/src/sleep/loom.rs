//! Sleeping and waking under the model checker. A wake-up that is lost is a deadlock, which loom reports.

use super::*;
use ::loom::sync::{Arc, Condvar, Mutex};
use ::loom::thread;
use std::vec::Vec;

/// What wakes: it is kept where it comes before the sleep, as a doorbell and `unpark` are.
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

/// Things to do, shown and looked at without any ordering of their own.
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

/// One that sleeps before each thing, of which two come.
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

/// Tasks of one thread that share a word: one sleeps on it, another looks in vain and takes it back, as
/// whoever is up does. It says for the first one again that it sleeps, and looks once more.
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
            // The first sleeps from here on. Now the other:
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

/// As the bell of workers is used: it rings for the first thing without being asked.
#[test]
fn loom_who_is_to_be_woken_from_the_start_is_woken() {
    one_sleeps(Sleeper::asleep);
}

/// Two do the work of one pile: whoever is named, all of it is done.
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
                    // Nothing more comes: let the other end.
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
