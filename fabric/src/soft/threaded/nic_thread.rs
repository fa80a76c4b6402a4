//! The thread that owns the inner NIC: it takes posts in, passes completions and events out, and sleeps when
//! there is no work.

use super::crossing::{Control, Post, RawCompletion, Reply, SGES_IN_FIRST, SendBuffers, Shared, post_kind};
use crate::clock::CoarseClock;
use crate::memory::{HeapConsumer, HeapProducer};
use crate::nic::{
    Completion, Counters, Event, Nic, Payload, PostError, Qp, ReadRequest, SendRequest, Sge, Status, Work,
};
use crate::unix::Doorbell;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Posts taken in before completions are polled again.
const POSTS_PER_ROUND: usize = 256;
/// Completions taken in one call.
const BATCH: usize = 64;
/// The most events carried in one round. While they are, nothing else is, and the NIC may end some
/// connections more for each.
pub(super) const EVENTS: usize = 4;
/// Shortest time for which the thread polls without finding work before it sleeps, if `spin_max` allows it.
const SPIN_MIN: Duration = Duration::from_micros(2);
/// Rounds without work after which the thread yields its core once.
const YIELD_INTERVAL: u32 = 32;

/// QP of completions whose work was for no QP.
pub(super) const NO_QP: Qp = Qp { index: u32::MAX, generation: 0 };

/// Inner NIC, with the thread's end of all queues.
pub(super) struct NicThread<N> {
    pub(super) nic: N,
    pub(super) posts: HeapConsumer<Post>,
    pub(super) completions: HeapProducer<RawCompletion>,
    pub(super) returned: HeapProducer<u64>,
    pub(super) buffers: Arc<SendBuffers>,
    pub(super) shared: Arc<Shared>,
    pub(super) control: Receiver<Control>,
    pub(super) replies: SyncSender<Reply>,
    pub(super) bell: Doorbell,
    pub(super) epoll: OwnedFd,
    pub(super) spin_max: Duration,
    pub(super) work: Carried,
}

/// State that the thread keeps between rounds. Its memory is allocated once.
pub(super) struct Carried {
    /// SENDs that the inner NIC's queue had no room for yet, in their order.
    deferred: VecDeque<Post>,
    /// Number of deferred SENDs of each QP.
    deferred_of_qp: Vec<u32>,
    /// Round in which each QP's deferred SEND was last refused.
    refused_in: Vec<u64>,
    round: u64,
    clock: CoarseClock,
    scatter: Vec<Sge>,
    batch: Vec<Completion>,
    pushed: u64,
    refused: u64,
    /// Counters as the front last got them.
    shown: Counters,
}

impl Carried {
    pub(super) fn new(qps_max: u32, scatter_max: u32, send_buffers: u32) -> Self {
        let empty = Completion { qp: NO_QP, work: Work::Send { id: 0 }, status: Status::Success };
        Self {
            deferred: VecDeque::with_capacity(send_buffers as usize),
            deferred_of_qp: vec![0; qps_max as usize],
            refused_in: vec![0; qps_max as usize],
            round: 0,
            clock: CoarseClock::start(),
            scatter: Vec::with_capacity(scatter_max as usize),
            batch: vec![empty; BATCH],
            pushed: 0,
            refused: 0,
            shown: Counters::default(),
        }
    }
}

/// Time for which the thread has found no work, and time after which it sleeps.
struct Idle {
    since_ns: Option<u64>,
    rounds: u32,
    budget: Duration,
}

impl Idle {
    /// Counts one more round without work. `true` where the thread should poll on.
    fn goes_on(&mut self, now_ns: u64) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        Duration::from_nanos(now_ns - since_ns) < self.budget
    }

    /// Notes that there was work again.
    ///
    /// If the thread had not slept, polling on was worth it: next time it polls on for longer.
    fn over(&mut self, budget_max: Duration) {
        if self.since_ns.take().is_some() {
            self.budget = (self.budget * 2).min(budget_max);
        }
    }
}

/// Guard that tells the front when the thread ends by a panic.
struct DeathNote(Arc<Shared>);

impl Drop for DeathNote {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.dead.store(true, Ordering::Release);
        }
    }
}

impl<N: Nic> NicThread<N> {
    /// Runs until the front is dropped.
    pub(super) fn run(mut self) {
        // Declared last, so dropped first: the thread's end of the bell closes after the flag is set.
        let _note = DeathNote(self.shared.clone());
        let mut idle = Idle { since_ns: None, rounds: 0, budget: self.spin_max };
        loop {
            // Read before the posts, so that posts from before the front was dropped are still taken in.
            let stop = self.shared.stop.load(Ordering::Acquire);
            let busy = self.round();
            if stop {
                return;
            }
            if busy {
                self.work.clock.turn();
                idle.over(self.spin_max);
            } else if idle.goes_on(self.work.clock.read()) {
                if idle.rounds.is_multiple_of(YIELD_INTERVAL) {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            } else {
                if self.sleep() {
                    idle.budget = (idle.budget / 2).max(SPIN_MIN).min(self.spin_max);
                    self.work.clock.read();
                }
                idle.since_ns = None;
            }
        }
    }

    /// Does one round: takes posts, slow calls and completions. Returns whether there was work.
    pub(super) fn round(&mut self) -> bool {
        self.work.round += 1;
        let mut busy = false;
        if self.shared.control_waiting.swap(false, Ordering::AcqRel) {
            while let Ok(control) = self.control.try_recv() {
                busy = true;
                self.carry_out(control);
            }
        }
        let posted = self.retry_deferred() | self.carry_posts();
        if posted {
            self.nic.flush();
        }
        let pushed_before = self.work.pushed;
        let polled = self.poll_once();
        let events = self.carry_events();
        if self.work.pushed != pushed_before || posted || events {
            self.show();
        } else {
            // Counters may change without anything to show, when a peer is hung up on before it was
            // connected.
            self.show_counters();
        }
        busy | posted | (polled > 0) | events
    }

    /// Shows the front all completions and returned buffers that were pushed, and wakes the front if it
    /// sleeps.
    fn show(&mut self) {
        self.show_counters();
        self.returned.publish();
        self.completions.publish();
        if self.completions.wake_needed() {
            self.bell.ring();
        }
    }

    /// Stores the inner NIC's counters for the front if they have changed.
    fn show_counters(&mut self) {
        let counted = self.nic.counters();
        let counters = Counters { flushed: counted.flushed + self.work.refused, ..counted };
        if counters != self.work.shown {
            self.work.shown = counters;
            self.shared.store_counters(&counters);
        }
    }

    fn carry_out(&mut self, control: Control) {
        let nic = &mut self.nic;
        let reply = match control {
            Control::Register(memory, access) => {
                Reply::Registered(nic.register(&memory, access).map(|key| (key, nic.remote_address(key, 0))))
            }
            Control::Deregister(key) => {
                nic.deregister(key);
                Reply::Done
            }
            Control::Listen(address) => Reply::Listening(nic.listen(&address)),
            Control::StopListening => {
                nic.stop_listening();
                Reply::Done
            }
            Control::Connect(address, data) => Reply::Connecting(nic.connect(&address, &data)),
            Control::Accept(qp, data) => Reply::Accepted(nic.accept(qp, &data)),
            Control::Reject(qp, data) => {
                nic.reject(qp, &data);
                Reply::Done
            }
        };
        // One call is out at a time and the channel holds one reply; a front that is gone needs none.
        let _ = self.replies.try_send(reply);
    }

    fn carry_posts(&mut self) -> bool {
        let mut carried = 0;
        while carried < POSTS_PER_ROUND
            && let Some(post) = self.posts.pop()
        {
            carried += 1;
            self.carry_post(post);
        }
        self.posts.advance();
        carried > 0
    }

    fn carry_post(&mut self, post: Post) {
        match post.kind {
            post_kind::SRQ => {
                if let Err(error) = self.nic.post_srq(post.srq_entry()) {
                    self.refuse(NO_QP, Work::SrqFlush { entry: post.number }, error);
                }
            }
            post_kind::SEND => {
                let behind_others = self.work.deferred_of_qp[post.qp_index as usize] > 0;
                if behind_others || !self.post_send(&post) {
                    self.work.deferred_of_qp[post.qp_index as usize] += 1;
                    self.work.deferred.push_back(post);
                }
            }
            post_kind::READ => self.post_read(&post),
            post_kind::DISCONNECT => {
                self.flush_deferred(post.qp());
                self.nic.disconnect(post.qp());
            }
            other => unreachable!("the front posts no kind {other}"),
        }
    }

    /// Passes a SEND to the inner NIC. `false` where its queue is full for now.
    fn post_send(&mut self, post: &Post) -> bool {
        let inline_bytes = usize::try_from(post.address).expect("at most a slab");
        // SAFETY: the buffer's index came in a post and was not returned yet.
        let (header, inline) = unsafe { self.buffers.read(post.number, inline_bytes) };
        let payload = match (post.count, inline_bytes) {
            (1, _) => Payload::Registered(post.a.get()),
            (_, 0) => Payload::None,
            _ => Payload::Inline(inline),
        };
        match self.nic.post_send(post.qp(), SendRequest { id: post.id, header, payload }) {
            Err(PostError::QueueFull) => return false,
            Err(error) => self.refuse(post.qp(), Work::Send { id: post.id }, error),
            Ok(()) => {}
        }
        self.give_back(post);
        true
    }

    fn give_back(&mut self, post: &Post) {
        assert!(self.returned.push(u64::from(post.number)), "as many places as there are buffers");
    }

    fn post_read(&mut self, post: &Post) {
        let count = usize::from(post.count);
        self.work.scatter.clear();
        self.work.scatter.extend([post.a.get(), post.b.get()].into_iter().take(count));
        for _ in 1..Post::read_cells(count) {
            let more = self.posts.pop().expect("a READ's cells are shown together").sges();
            let left = count - self.work.scatter.len();
            self.work.scatter.extend(more.into_iter().take(left).map(super::crossing::RawSge::get));
        }
        debug_assert!(self.work.scatter.len() == count && SGES_IN_FIRST == 2);
        let request =
            ReadRequest { id: post.id, address: post.address, key: post.number, scatter: &self.work.scatter };
        if let Err(error) = self.nic.post_read(post.qp(), request) {
            self.refuse(post.qp(), Work::Read { id: post.id }, error);
        }
    }

    /// Tries deferred SENDs again, those of each QP in their order. Returns whether any was posted.
    fn retry_deferred(&mut self) -> bool {
        let mut posted = false;
        for _ in 0..self.work.deferred.len() {
            let Some(post) = self.work.deferred.pop_front() else { break };
            let at = post.qp_index as usize;
            if self.work.refused_in[at] != self.work.round && self.post_send(&post) {
                self.work.deferred_of_qp[at] -= 1;
                posted = true;
            } else {
                self.work.refused_in[at] = self.work.round;
                self.work.deferred.push_back(post);
            }
        }
        posted
    }

    fn flush_deferred(&mut self, qp: Qp) {
        for _ in 0..self.work.deferred.len() {
            let Some(post) = self.work.deferred.pop_front() else { break };
            if post.qp() == qp {
                self.work.deferred_of_qp[post.qp_index as usize] -= 1;
                self.refuse(qp, Work::Send { id: post.id }, PostError::Stale);
                self.give_back(&post);
            } else {
                self.work.deferred.push_back(post);
            }
        }
    }

    /// Completes a request that the inner NIC refused, after all completions that the inner NIC has.
    fn refuse(&mut self, qp: Qp, work: Work, error: PostError) {
        let status = match error {
            PostError::Stale => Status::Flushed,
            PostError::LocalProtection => Status::LocalProtection,
            PostError::Limit => Status::Other(libc::EINVAL.unsigned_abs()),
            PostError::QueueFull => Status::Other(libc::ENOBUFS.unsigned_abs()),
        };
        while self.poll_once() == BATCH {}
        self.work.refused += u64::from(status == Status::Flushed);
        self.push(&Completion { qp, work, status });
    }

    fn poll_once(&mut self) -> usize {
        let mut batch = std::mem::take(&mut self.work.batch);
        let polled = self.nic.poll(self.work.clock.now_ns(), &mut batch);
        batch[..polled].iter().for_each(|completion| self.push(completion));
        self.work.batch = batch;
        polled
    }

    fn push(&mut self, completion: &Completion) {
        assert!(
            self.completions.push(RawCompletion::new(completion)),
            "the front posts no more than there are places for completions"
        );
        self.work.pushed += 1;
    }

    fn carry_events(&mut self) -> bool {
        let mut any = false;
        for _ in 0..EVENTS {
            if self.shared.events.is_full() {
                break;
            }
            let Some(event) = self.nic.poll_event(self.work.clock.now_ns()) else { break };
            any = true;
            if let Event::Disconnected { .. } = event {
                // All the QP's work completed before this event, so its completions are shown first.
                while self.poll_once() == BATCH {}
            }
            self.completions.publish();
            let pushed = self.shared.events.push((self.work.pushed, event));
            assert!(pushed.is_ok(), "only this thread pushes events, and it looked for room");
        }
        any
    }

    /// Sleeps until the front rings or the inner NIC has work. `false` where there was work after all.
    fn sleep(&mut self) -> bool {
        if self.shared.events.is_full() {
            // The front does not take its events, so the inner NIC has events that cannot be passed on. The
            // front rings when it takes one. The timeout keeps the peers served meanwhile.
            self.wait(Some(rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
            return true;
        }
        if !self.posts.prepare_sleep() {
            return false;
        }
        if !self.nic.arm(self.work.clock.now_ns()) {
            self.posts.awake();
            return false;
        }
        self.wait(None);
        self.posts.awake();
        true
    }

    fn wait(&mut self, timeout: Option<rustix::event::Timespec>) {
        let mut ready =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        match epoll::wait(&self.epoll, &mut ready, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting on an epoll of our own failed: {error}"),
        }
        self.bell.clear();
    }
}

/// Makes the epoll that the thread sleeps in.
pub(super) fn sleeping_place(nic: &impl Nic, bell: &Doorbell) -> io::Result<OwnedFd> {
    let place = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (fd, data) in [(nic.wait_fd(), 0), (bell.as_fd(), 1)] {
        epoll::add(&place, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)?;
    }
    Ok(place)
}

/// Starts the thread, and pins it where `cpu` names a core.
pub(super) fn start<N: Nic + 'static>(
    nic_thread: NicThread<N>,
    cpu: Option<usize>,
) -> io::Result<JoinHandle<()>> {
    let (ready, started) = sync_channel(1);
    let thread = std::thread::Builder::new().name("jet-nic".to_owned()).spawn(move || {
        let pinned = cpu.map_or(Ok(()), pin_to);
        let pinned_well = pinned.is_ok();
        // The front waits for this one message.
        let _ = ready.send(pinned);
        if pinned_well {
            nic_thread.run();
        }
    })?;
    started.recv().unwrap_or_else(|_| Err(io::Error::other("the NIC thread ended at once")))?;
    Ok(thread)
}

fn pin_to(cpu: usize) -> io::Result<()> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {cpu} to pin to")));
    }
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot pin the NIC thread to core {cpu}: {error}"))
    })
}
