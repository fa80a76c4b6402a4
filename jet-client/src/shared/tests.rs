//! Tests of the hub with an end that does nothing else: letters that are waited for by number.

use super::End;
use super::hub::Hub;
use super::sleepers::Sleepers;
use super::wait::{Wait, block};
use crate::backoff::nanoseconds;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

struct Post {
    sleepers: Sleepers<u32>,
    bell: OwnedFd,
    letters: Vec<u32>,
    /// Whether the bell rings for the next letter.
    is_armed: bool,
    /// Whether it was used, and may not be armed any more.
    is_used: bool,
    /// Letter that comes just when somebody prepares to sleep.
    comes_then: Option<u32>,
    prepared: u32,
    sleeps: u32,
    settled: u32,
    /// Time at which the post is to be settled, and how long after that again.
    due_ns: Option<u64>,
    every: Option<Duration>,
    began: Instant,
}

impl Post {
    fn new() -> Arc<Hub<Self>> {
        let post = Self {
            sleepers: Sleepers::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            letters: Vec::new(),
            is_armed: false,
            is_used: false,
            comes_then: None,
            prepared: 0,
            sleeps: 0,
            settled: 0,
            due_ns: None,
            every: None,
            began: Instant::now(),
        };
        Arc::new(Hub::new(post, Duration::ZERO).unwrap())
    }

    fn deliver(&mut self, letter: u32) {
        self.letters.push(letter);
        if std::mem::take(&mut self.is_armed) {
            rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        }
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }

    /// Is to be settled after a millisecond, and again and again.
    fn settle_often(&mut self) {
        let every = Duration::from_millis(1);
        (self.every, self.due_ns) = (Some(every), Some(self.now_ns() + nanoseconds(every)));
    }

    fn take(&mut self, letter: u32) -> Option<u32> {
        let at = self.letters.iter().position(|known| *known == letter)?;
        Some(self.letters.remove(at))
    }
}

impl End for Post {
    type Wants = u32;
    type Memory = ();
    type Error = io::Error;
    type Unheard = ();
    const HAS_TIMES: bool = true;

    fn take_unheard(&mut self) {}

    fn sleepers(&self) -> &Sleepers<u32> {
        &self.sleepers
    }
    fn descriptor(&mut self) -> (BorrowedFd<'_>, u32) {
        (self.bell.as_fd(), 0)
    }
    fn begin_wait(&mut self) {}
    fn prepare_sleep(&mut self) -> io::Result<bool> {
        self.prepared += 1;
        if let Some(letter) = self.comes_then.take() {
            self.letters.push(letter);
            self.is_armed = false;
            self.sleepers.wake_all();
            return Ok(false);
        }
        self.is_armed = true;
        Ok(true)
    }
    fn check_wait(&mut self, (): &()) -> io::Result<()> {
        Ok(())
    }
    fn settle(&mut self) -> io::Result<()> {
        self.settled += 1;
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.letters.iter().for_each(|letter| self.sleepers.wake_one(*letter));
        self.is_armed = self.sleepers.any();
        self.due_ns = self.every.map(|every| self.now_ns() + nanoseconds(every));
        Ok(())
    }
    fn prepare_for_others(&mut self) {
        if self.is_used {
            (self.is_used, self.is_armed) = (false, true);
        }
    }
    fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }
    fn until(&self, due_ns: u64) -> Duration {
        Duration::from_nanos(due_ns.saturating_sub(self.now_ns()))
    }
    fn note_sleep(&mut self) {
        self.sleeps += 1;
    }
    fn hand_on(&self, _wants: u32) {}
    fn refused(error: io::Error) -> io::Error {
        error
    }
}

fn wants(post: &Arc<Hub<Post>>, letter: u32) -> JoinHandle<Option<u32>> {
    let post = Arc::clone(post);
    std::thread::spawn(move || {
        block(&post, letter, Instant::now().checked_add(LONG), |post| post.take(letter)).unwrap()
    })
}

fn until(what: &str, post: &Arc<Hub<Post>>, holds: impl Fn(&Post) -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds(&post.lock().end) {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn each_letter_wakes_the_thread_that_waits_for_it_and_no_other() {
    let post = Post::new();
    let threads: Vec<_> = (0..4)
        .map(|letter| {
            let thread = wants(&post, letter);
            until("it to sleep", &post, |post| post.sleeps == letter + 1);
            thread
        })
        .collect();
    // The last one follows, and so nobody but the leader and itself wakes.
    post.lock().end.deliver(3);
    until("it to be taken", &post, |post| post.letters.is_empty());
    let sleeps = post.lock().end.sleeps;
    assert!(sleeps <= 5, "{sleeps} sleeps");
    (0..3).for_each(|letter| post.lock().end.deliver(letter));
    for (letter, thread) in (0..).zip(threads) {
        assert_eq!(thread.join().unwrap(), Some(letter));
    }
}

#[test]
fn who_uses_the_end_while_others_sleep_leaves_it_prepared_for_them() {
    let post = Post::new();
    let thread = wants(&post, 1);
    until("it to sleep", &post, |post| post.sleeps == 1);
    let mut state = post.lock();
    (state.end.is_armed, state.end.is_used) = (false, true);
    drop(state);
    post.lock().end.deliver(1);
    assert_eq!(thread.join().unwrap(), Some(1));
}

#[test]
fn what_the_end_has_to_do_at_a_time_is_done_though_nothing_comes() {
    let post = Post::new();
    post.lock().end.settle_often();
    let thread = wants(&post, 1);
    until("the thread to settle", &post, |post| post.settled > 2);
    post.lock().end.deliver(1);
    assert_eq!(thread.join().unwrap(), Some(1));
}

#[test]
fn a_leader_that_sleeps_without_limit_hears_of_a_time_that_others_bring_about() {
    let post = Post::new();
    let thread = wants(&post, 1);
    until("it to sleep", &post, |post| post.sleeps == 1);
    post.lock().end.settle_often();
    until("the thread to settle", &post, |post| post.settled > 2);
    post.lock().end.deliver(1);
    assert_eq!(thread.join().unwrap(), Some(1));
}

#[cfg(feature = "tokio")]
mod tasks {
    use super::*;
    use tokio::runtime::Builder;

    async fn letter(post: &Arc<Hub<Post>>, letter: u32) -> u32 {
        let mut wait = Wait::new(post, letter);
        std::future::poll_fn(|context| wait.poll(context, |post| post.take(letter))).await.unwrap()
    }

    #[test]
    fn who_does_not_fall_asleep_after_all_wakes_those_who_sleep() {
        let post = Post::new();
        let thread = wants(&post, 1);
        until("it to sleep", &post, |post| post.sleeps == 1);
        post.lock().end.comes_then = Some(2);
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        assert_eq!(runtime.block_on(letter(&post, 2)), 2);
        // The bell does not ring for the next letter before somebody prepares again.
        until("the thread to prepare again", &post, |post| post.is_armed);
        post.lock().end.deliver(1);
        assert_eq!(thread.join().unwrap(), Some(1));
    }

    #[test]
    fn what_the_end_has_to_do_at_a_time_is_done_though_no_task_is_polled() {
        let post = Post::new();
        post.lock().end.settle_often();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap();
        let waiting = Arc::clone(&post);
        let task = runtime.spawn(async move { letter(&waiting, 1).await });
        until("the runtime to settle again and again", &post, |post| post.settled > 5);
        let sleeps = post.lock().end.sleeps;
        assert_eq!(sleeps, 1, "the task sleeps on");
        post.lock().end.deliver(1);
        assert_eq!(runtime.block_on(task).unwrap(), 1);
    }

    #[test]
    fn tasks_that_sleep_without_limit_hear_of_a_time_though_its_finder_is_cancelled() {
        let post = Post::new();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap();
        let waiting = Arc::clone(&post);
        let task = runtime.spawn(async move { letter(&waiting, 1).await });
        until("it to sleep", &post, |post| post.sleeps == 1);
        let other = Builder::new_current_thread().enable_io().build().unwrap();
        other.block_on(async {
            let mut wait = Wait::new(&post, 2);
            let looks = std::future::poll_fn(|context| {
                let polled = wait.poll(context, |post| {
                    post.settle_often();
                    post.take(2)
                });
                std::task::Poll::Ready(polled.is_pending())
            });
            assert!(looks.await);
        });
        until("the runtime to settle again and again", &post, |post| post.settled > 5);
        post.lock().end.deliver(1);
        assert_eq!(runtime.block_on(task).unwrap(), 1);
    }

    #[test]
    fn two_runtimes_watch_each_for_its_own_tasks() {
        let post = Post::new();
        let runtimes =
            [1, 2].map(|_| Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap());
        let tasks: Vec<_> = (0..6)
            .map(|number| {
                let waiting = Arc::clone(&post);
                let task = runtimes[number as usize % 2].spawn(async move { letter(&waiting, number).await });
                until("it to sleep", &post, |post| post.sleeps > number);
                task
            })
            .collect();
        assert_eq!(post.lock().watches(), 2);
        for (number, task) in (0..).zip(tasks) {
            post.lock().end.deliver(number);
            assert_eq!(runtimes[1].block_on(task).unwrap(), number);
        }
        assert_eq!(post.lock().watches(), 0);
    }
}
