//! A NIC on a thread of its own.
//!
//! [`Threaded`] runs any [`Nic`] on a "NIC thread" and is itself a [`Nic`]. Posts go to the thread over one
//! ring, and completions return over another. Connection events return over a bounded queue. Slow calls
//! (register, listen, connect, ...) go over a channel and wait for an answer. A sender over `tcp:` needs such
//! a thread, because its NIC must serve READs while its application does something else. A host with a core
//! to spare may use one, too.
//!
//! Differences from the inner NIC:
//! * A request that the inner NIC refuses is refused later than when it is posted: it completes with
//!   [`Status::LocalProtection`](crate::nic::Status) (an SRQ entry as [`Work::SrqFlush`]), with `Flushed`
//!   where the connection had gone, and with `Other(EINVAL)` where it exceeds the limits. The completion may
//!   overtake those of requests still in flight. The QP stays usable, as it does where the inner NIC refuses
//!   a post.
//! * [`PostError::QueueFull`] may also mean that the thread is behind. Polling and trying again helps then,
//!   too.
//! * The time is the thread's own: the thread has a clock, and passes its time to the inner NIC.
//! * [`Nic::offer`] does nothing: who has a NIC on a thread READs, and offers nothing.
//! * [`Nic::remote_address`] of the inner NIC must be linear in the offset.
//!
//! Neither side makes a system call while the other side is awake. The thread polls while there is work.
//! After that it polls on for a time, which grows when polling on found work and shrinks when it did not.
//! Then it arms the inner NIC, and sleeps in an epoll on the inner NIC and on a doorbell that the
//! [`Threaded`], its front, rings.

mod crossing;
mod nic_thread;

use crate::address::Address;
use crate::memory::{HeapConsumer, HeapProducer, SharedMemory, heap_ring};
use crate::nic::{
    Access, Completion, ConnectError, Counters, Event, Limits, ListenError, MemoryKey, Nic, Payload,
    PostError, PrivateData, Qp, ReadRequest, RegisterError, SendRequest, SrqEntry, Work,
};
use crate::unix::Doorbell;
use crossing::{
    Control, MoreSges, Post, RawCompletion, RawSge, Reply, SGES_IN_FIRST, SGES_PER_CELL, SendBuffers, Shared,
    post_kind,
};
use nic_thread::{Carried, NicThread, sleeping_place, start};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Sizes of a [`Threaded`]'s queues, and the core of its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadedOptions {
    /// Core that the NIC thread is pinned to. `None` leaves the choice to the system (the default).
    pub cpu: Option<usize>,
    /// Longest time that the thread polls without finding work before it sleeps (default 100 us: a few times
    /// what a wake-up costs). With zero it sleeps at once.
    pub spin_max: Duration,
    /// SENDs that are posted and not completed, over all QPs (default 8,192).
    pub sends_max: u32,
    /// Buffers for SENDs on their way to the thread: 4.2 KiB each, the last freed one used first (default
    /// 512).
    pub send_buffers: u32,
    /// Connection events that are not polled yet (default 1,024). The inner NIC keeps further events.
    pub events_max: u32,
}

impl Default for ThreadedOptions {
    fn default() -> Self {
        Self {
            cpu: None,
            spin_max: Duration::from_micros(100),
            sends_max: 8192,
            send_buffers: 512,
            events_max: 1024,
        }
    }
}

/// State of a QP, as the front, the [`Threaded`], knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QpState {
    Vacant,
    /// The connection was asked for, and is not answered.
    Pending,
    Live,
    /// The user has asked for the connection's end.
    Closing,
}

#[derive(Clone, Copy, Debug)]
struct QpEntry {
    generation: u32,
    state: QpState,
    sends: u32,
    reads: u32,
    /// READs that may be outstanding; not known before the connection's event was polled.
    reads_max: Option<u32>,
}

impl QpEntry {
    fn new(generation: u32, state: QpState) -> Self {
        Self { generation, state, sends: 0, reads: 0, reads_max: None }
    }
}

/// Front of a NIC that runs on a thread of its own. Dropping it stops and joins the thread.
pub struct Threaded {
    limits: Limits,
    sends_max: u32,
    posts: HeapProducer<Post>,
    completions: HeapConsumer<RawCompletion>,
    returned: HeapConsumer<u64>,
    buffers: Arc<SendBuffers>,
    free_buffers: Vec<u32>,
    shared: Arc<Shared>,
    control: SyncSender<Control>,
    replies: Receiver<Reply>,
    bell: Doorbell,
    qps: Vec<QpEntry>,
    /// QPs whose place the inner NIC has reused while their end still waits among the events.
    replaced: Vec<(Qp, QpEntry)>,
    srq_entries: u32,
    sends: u32,
    reads: u32,
    /// Number of completions that were polled.
    polled: u64,
    /// Next event, with the number of completions that were shown before it.
    next_event: Option<(u64, Event)>,
    /// QPs to be ended for which the post ring has had no room yet.
    leaving: Vec<Qp>,
    /// Registered keys, each with the address of its first byte.
    regions: Vec<(MemoryKey, u64)>,
    unflushed: bool,
    armed: bool,
    thread: Option<JoinHandle<()>>,
}

impl Threaded {
    /// Moves a NIC onto a thread, and returns its front.
    ///
    /// # Errors
    /// What the system says: no descriptors or threads left, or no such core to pin to.
    ///
    /// # Panics
    /// Where an option that counts something is 0 (`spin_max` may be).
    pub fn new<N: Nic + 'static>(nic: N, options: &ThreadedOptions) -> io::Result<Self> {
        let (mut front, nic_thread) = Self::halves(nic, options)?;
        front.thread = Some(start(nic_thread, options.cpu)?);
        Ok(front)
    }

    /// Makes a front without a thread, and what its thread runs.
    fn halves<N: Nic>(nic: N, options: &ThreadedOptions) -> io::Result<(Self, NicThread<N>)> {
        let &ThreadedOptions { spin_max, sends_max, send_buffers, events_max, .. } = options;
        assert!(
            sends_max > 0 && send_buffers > 0 && events_max > 0,
            "every queue needs a place: {options:?}"
        );
        let limits = nic.limits();
        let limits = Limits {
            scatter_max: limits.scatter_max.min(u32::from(u16::MAX)),
            inline_bytes_max: limits.inline_bytes_max.min(jet_wire::SLAB_BYTES_U32),
            ..limits
        };
        let (posts, posts_end) = heap_ring(post_cells(&limits, send_buffers));
        let completion_cells = limits.srq_entries_max + limits.reads_max + sends_max;
        let (completions_end, completions) = heap_ring(completion_cells.next_power_of_two());
        let (returned_end, returned) = heap_ring(send_buffers.next_power_of_two());
        let buffers = Arc::new(SendBuffers::new(send_buffers));
        let shared = Arc::new(Shared::new(events_max as usize));
        let (control, control_end) = sync_channel(1);
        let (replies_end, replies) = sync_channel(1);
        let (bell, bell_end) = Doorbell::pair()?;
        let carried = Carried::new(limits.qps_max, limits.scatter_max, send_buffers);
        let nic_thread = NicThread {
            epoll: sleeping_place(&nic, &bell_end)?,
            nic,
            posts: posts_end,
            completions: completions_end,
            returned: returned_end,
            buffers: buffers.clone(),
            shared: shared.clone(),
            control: control_end,
            replies: replies_end,
            bell: bell_end,
            spin_max,
            work: carried,
        };
        let vacant = QpEntry::new(0, QpState::Vacant);
        let front = Self {
            limits,
            sends_max,
            posts,
            completions,
            returned,
            buffers,
            free_buffers: (0..send_buffers).rev().collect(),
            shared,
            control,
            replies,
            bell,
            qps: vec![vacant; limits.qps_max as usize],
            replaced: Vec::new(),
            srq_entries: 0,
            sends: 0,
            reads: 0,
            polled: 0,
            next_event: None,
            leaving: Vec::with_capacity(limits.qps_max as usize),
            regions: Vec::new(),
            unflushed: false,
            armed: false,
            thread: None,
        };
        Ok((front, nic_thread))
    }

    /// Passes a slow call to the thread, and waits for its answer.
    fn call(&mut self, control: Control) -> Reply {
        self.flush();
        let gone = "the NIC thread ends only with its front, unless it panicked";
        let sent = self.control.try_send(control).is_ok();
        assert!(sent, "one call is out at a time; {gone}");
        self.shared.control_waiting.store(true, Ordering::Release);
        self.bell.ring();
        self.replies.recv().expect(gone)
    }

    fn entry(&mut self, qp: Qp) -> Option<&mut QpEntry> {
        let at = qp.index as usize;
        let place = self.qps.get(at)?;
        if place.generation == qp.generation && place.state != QpState::Vacant {
            return self.qps.get_mut(at);
        }
        self.replaced.iter_mut().find(|(replaced, _)| *replaced == qp).map(|(_, entry)| entry)
    }

    fn live_entry(&mut self, qp: Qp) -> Result<&mut QpEntry, PostError> {
        self.entry(qp).filter(|entry| entry.state == QpState::Live).ok_or(PostError::Stale)
    }

    /// Begins the life of a QP in the front's table.
    ///
    /// The inner NIC may reuse a place once the thread has polled the end of its last QP. The user may not
    /// have polled that end yet.
    fn open(&mut self, qp: Qp) {
        let place = &mut self.qps[qp.index as usize];
        let fresh = QpEntry::new(qp.generation, QpState::Pending);
        let before = std::mem::replace(place, fresh);
        if before.state != QpState::Vacant {
            let ended = Qp { index: qp.index, generation: before.generation };
            self.replaced.push((ended, QpEntry { state: QpState::Closing, ..before }));
        }
    }

    fn set_state(&mut self, qp: Qp, from: QpState, to: QpState) {
        if let Some(entry) = self.entry(qp)
            && entry.state == from
        {
            entry.state = to;
        }
    }

    fn push(&mut self, post: Post) -> Result<(), PostError> {
        if !self.posts.push(post) {
            return Err(PostError::QueueFull);
        }
        self.unflushed = true;
        Ok(())
    }

    fn take_buffer(&mut self) -> Result<u32, PostError> {
        if self.free_buffers.is_empty() {
            while let Some(index) = self.returned.pop() {
                self.free_buffers.push(u32::try_from(index).expect("an index that went out"));
            }
            self.returned.advance();
        }
        self.free_buffers.pop().ok_or(PostError::QueueFull)
    }

    /// Counts a completion that is about to be passed to the user.
    fn account(&mut self, completion: &Completion) {
        self.polled += 1;
        match completion.work {
            Work::Receive { .. } | Work::SrqFlush { .. } => self.srq_entries -= 1,
            Work::Send { .. } => {
                self.sends -= 1;
                self.entry(completion.qp).expect("a QP outlives its work").sends -= 1;
            }
            Work::Read { .. } => {
                self.reads -= 1;
                self.entry(completion.qp).expect("a QP outlives its work").reads -= 1;
            }
        }
    }

    /// Takes the next event off the queue, and returns whether it may be passed to the user.
    fn event_ready(&mut self) -> bool {
        if self.next_event.is_none() {
            let was_full = self.shared.events.is_full();
            self.next_event = self.shared.events.pop();
            if was_full {
                self.bell.ring(); // the thread may wait for room
            }
        }
        match self.next_event {
            // The end of a QP may be shown only after all its completions were polled.
            Some((shown_before, Event::Disconnected { qp, .. })) => {
                let polled = self.polled;
                polled >= shown_before && self.entry(qp).is_none_or(|entry| entry.sends + entry.reads == 0)
            }
            Some(_) => true,
            None => false,
        }
    }

    fn assert_alive(&self) {
        assert!(!self.shared.dead.load(Ordering::Acquire), "the NIC thread panicked");
    }
}

/// Returns the cells of the post ring: enough for all that may be posted before the thread takes posts again.
/// There are at most as many SENDs as send buffers.
fn post_cells(limits: &Limits, send_buffers: u32) -> u32 {
    let read_cells = Post::read_cells(limits.scatter_max as usize);
    let reads = limits.reads_max.saturating_mul(u32::try_from(read_cells).unwrap_or(u32::MAX));
    let all = limits.srq_entries_max.saturating_add(reads).saturating_add(send_buffers).saturating_add(64);
    all.min(1 << 20).next_power_of_two()
}

impl Nic for Threaded {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn counters(&self) -> Counters {
        self.shared.counters()
    }

    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError> {
        let Reply::Registered(answer) = self.call(Control::Register(memory.clone(), access)) else {
            unreachable!("each call has its own answer")
        };
        let (key, address) = answer?;
        self.regions.push((key, address));
        Ok(key)
    }

    fn deregister(&mut self, key: MemoryKey) {
        self.call(Control::Deregister(key));
        self.regions.retain(|(known, _)| *known != key);
    }

    fn remote_address(&self, key: MemoryKey, offset: u64) -> u64 {
        let base = self.regions.iter().find(|(known, _)| *known == key).map_or(0, |(_, address)| *address);
        base.wrapping_add(offset)
    }

    fn listen(&mut self, address: &Address) -> Result<Address, ListenError> {
        let Reply::Listening(answer) = self.call(Control::Listen(address.clone())) else {
            unreachable!("each call has its own answer")
        };
        answer
    }

    fn stop_listening(&mut self) {
        self.call(Control::StopListening);
    }

    fn connect(&mut self, address: &Address, private_data: &PrivateData) -> Result<Qp, ConnectError> {
        let Reply::Connecting(answer) = self.call(Control::Connect(address.clone(), *private_data)) else {
            unreachable!("each call has its own answer")
        };
        let qp = answer?;
        self.open(qp);
        Ok(qp)
    }

    fn accept(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        if self.entry(qp).is_none_or(|entry| entry.state != QpState::Pending) {
            return Err(PostError::Stale);
        }
        let Reply::Accepted(answer) = self.call(Control::Accept(qp, *private_data)) else {
            unreachable!("each call has its own answer")
        };
        answer?;
        self.set_state(qp, QpState::Pending, QpState::Live);
        Ok(())
    }

    fn reject(&mut self, qp: Qp, private_data: &PrivateData) {
        if self.entry(qp).is_some_and(|entry| entry.state == QpState::Pending) {
            self.call(Control::Reject(qp, *private_data));
            self.set_state(qp, QpState::Pending, QpState::Vacant);
        }
    }

    fn disconnect(&mut self, qp: Qp) {
        let Some(entry) = self.entry(qp).filter(|entry| entry.state != QpState::Closing) else { return };
        entry.state = QpState::Closing;
        // Queued behind earlier posts, so that a farewell goes first.
        if self.push(Post::of_qp(post_kind::DISCONNECT, qp)).is_err() {
            self.leaving.push(qp);
        }
        self.flush();
    }

    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        if self.srq_entries == self.limits.srq_entries_max {
            return Err(PostError::QueueFull);
        }
        self.push(Post::of_srq(&entry))?;
        self.srq_entries += 1;
        Ok(())
    }

    fn post_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        let (sends_of_qp_max, inline_max) = (self.limits.sends_per_qp_max, self.limits.inline_bytes_max);
        let full = self.sends == self.sends_max;
        let entry = self.live_entry(qp)?;
        let mut post = Post { id: request.id, ..Post::of_qp(post_kind::SEND, qp) };
        let inline: &[u8] = match request.payload {
            Payload::None => &[],
            Payload::Inline(bytes) if bytes.len() <= inline_max as usize => bytes,
            Payload::Registered(sge) if sge.bytes <= jet_wire::SLAB_BYTES_U32 => {
                (post.count, post.a) = (1, RawSge::new(sge));
                &[]
            }
            Payload::Inline(_) | Payload::Registered(_) => return Err(PostError::Limit),
        };
        if full || entry.sends == sends_of_qp_max {
            return Err(PostError::QueueFull);
        }
        let buffer = self.take_buffer()?;
        // SAFETY: the buffer came off the free list, so it is the front's.
        unsafe { self.buffers.write(buffer, request.header, inline) };
        (post.number, post.address) = (buffer, inline.len() as u64);
        if let Err(error) = self.push(post) {
            self.free_buffers.push(buffer);
            return Err(error);
        }
        self.sends += 1;
        self.live_entry(qp)?.sends += 1;
        Ok(())
    }

    fn post_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError> {
        let limits = self.limits;
        let QpEntry { reads: reads_of_qp, reads_max: reads_of_qp_max, .. } = *self.live_entry(qp)?;
        let count = request.scatter.len();
        if reads_of_qp_max == Some(0) || count > limits.scatter_max as usize {
            return Err(PostError::Limit);
        }
        let cells = Post::read_cells(count);
        if self.reads == limits.reads_max
            || reads_of_qp >= reads_of_qp_max.unwrap_or(0)
            || (self.posts.room() as usize) < cells
        {
            return Err(PostError::QueueFull);
        }
        let raw = |at: usize| request.scatter.get(at).map_or(RawSge::default(), |sge| RawSge::new(*sge));
        self.push(Post {
            count: u16::try_from(count).expect("scatter_max fits"),
            number: request.key,
            id: request.id,
            address: request.address,
            a: raw(0),
            b: raw(1),
            ..Post::of_qp(post_kind::READ, qp)
        })?;
        for cell in 1..cells {
            let first = SGES_IN_FIRST + (cell - 1) * SGES_PER_CELL;
            let more: MoreSges = std::array::from_fn(|place| raw(first + place));
            self.push(Post::of_sges(more)).expect("there was room for every cell");
        }
        self.reads += 1;
        self.live_entry(qp)?.reads += 1;
        Ok(())
    }

    fn flush(&mut self) {
        while let Some(&qp) = self.leaving.last()
            && self.push(Post::of_qp(post_kind::DISCONNECT, qp)).is_ok()
        {
            self.leaving.pop();
        }
        if self.unflushed {
            self.unflushed = false;
            self.posts.publish();
            if self.posts.wake_needed() {
                self.bell.ring();
            }
        }
    }

    fn poll(&mut self, _now_ns: u64, completions: &mut [Completion]) -> usize {
        self.flush();
        if self.armed {
            self.armed = false;
            self.completions.awake();
        }
        let mut polled = 0;
        while polled < completions.len()
            && let Some(raw) = self.completions.pop()
        {
            let completion = raw.get();
            self.account(&completion);
            completions[polled] = completion;
            polled += 1;
        }
        self.completions.advance();
        if polled == 0 {
            self.assert_alive();
        }
        polled
    }

    fn poll_event(&mut self, _now_ns: u64) -> Option<Event> {
        self.flush();
        if !self.event_ready() {
            return None;
        }
        let (_, event) = self.next_event.take()?;
        match event {
            Event::ConnectRequest { qp, .. } => self.open(qp),
            Event::Connected { qp, reads_max, .. } => {
                self.set_state(qp, QpState::Pending, QpState::Live);
                if let Some(entry) = self.entry(qp) {
                    entry.reads_max = Some(reads_max);
                }
            }
            Event::Rejected { qp, .. } | Event::Disconnected { qp, .. } => {
                if let Some(entry) = self.entry(qp) {
                    entry.state = QpState::Vacant;
                }
                self.leaving.retain(|leaving| *leaving != qp);
                self.replaced.retain(|(replaced, _)| *replaced != qp);
            }
            Event::Gone => {}
        }
        Some(event)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn arm(&mut self, _now_ns: u64) -> bool {
        self.flush();
        self.assert_alive();
        self.bell.clear();
        // The word says "sleeping" before the last check for events: the thread first shows an event, then
        // reads the word.
        if !self.completions.prepare_sleep() {
            return false;
        }
        self.armed = true;
        if self.event_ready() {
            self.armed = false;
            self.completions.awake();
            return false;
        }
        true
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.flush();
        self.shared.stop.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // The thread has printed its panic; nobody here can handle it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
