//! Completion queues, and the channel that wakes a thread which sleeps on them.

use super::device::Device;
use super::error::VerbsError;
use super::set_up::count_slow_call;
use crate::memory::ThreadPrefers;
use rdma_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq, ibv_wc,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// Completions taken from a queue in one call.
const BATCH: usize = 32;
const BATCH_I32: i32 = 32;

/// Channel over which queues report that something completed.
///
/// It is destroyed when dropped. Each queue holds it, so that is after every queue.
#[derive(Debug)]
pub(super) struct CompletionChannel {
    channel: *mut ibv_comp_channel,
    context: *mut ibv_context,
    vector: i32,
    /// NUMA node where its queues should lie.
    numa_node: Option<u32>,
}

// SAFETY: verbs may be called by any thread, and by several at once; nothing in this type changes.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    pub fn new(device: &Device, numa_node: Option<u32>) -> Result<Self, VerbsError> {
        let context = device.context().as_ptr();
        // SAFETY: the device's context is open.
        let channel = unsafe { ibv_create_comp_channel(context) };
        if channel.is_null() {
            return Err(VerbsError::verb("ibv_create_comp_channel", "raise ulimit -n"));
        }
        let vector = i32::try_from(device.completion_vector()).unwrap_or(0);
        let this = Self { channel, context, vector, numa_node };
        let flags = fcntl_getfl(this.fd()).map_err(io::Error::from)?;
        fcntl_setfl(this.fd(), flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(this)
    }

    /// Returns the descriptor that is readable after an event that was asked for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives as long as this.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Takes an event, and returns the completion queue that raised it. `None` where there is no event.
    pub fn next_event(&self) -> Option<*mut ibv_cq> {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel does not block; a queue with an event that was not acknowledged cannot be
        // destroyed, and this one is acknowledged at once.
        unsafe {
            if ibv_get_cq_event(self.channel, &mut cq, &mut context) != 0 {
                return None;
            }
            ibv_ack_cq_events(cq, 1);
        }
        Some(cq)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: ours; every queue that reports to this channel holds an `Arc` of it.
        unsafe { ibv_destroy_comp_channel(self.channel) };
    }
}

/// Completions that were taken from a queue and not handled yet.
pub(super) struct Batch {
    wcs: [ibv_wc; BATCH],
    at: usize,
    filled: usize,
}

impl Batch {
    pub fn new() -> Self {
        // SAFETY: plain numbers, of which all zeros is a value.
        Self { wcs: unsafe { std::mem::zeroed() }, at: 0, filled: 0 }
    }

    /// Returns the next completion, which stays until [`Self::pass`].
    #[inline]
    pub fn peek(&self) -> Option<&ibv_wc> {
        self.wcs[..self.filled].get(self.at)
    }

    /// Takes the completion that [`Self::peek`] returned.
    #[inline]
    pub fn pass(&mut self) {
        self.at += 1;
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == self.filled
    }

    /// Whether the last poll filled the batch, so that the queue may have more.
    #[inline]
    pub fn was_full(&self) -> bool {
        self.filled == BATCH
    }
}

/// Moment in the stream of completions that a queue gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    times_empty: u64,
    taken: u64,
}

impl Mark {
    /// Whether all that was in a queue of so many places at this moment was handled by `now`.
    ///
    /// That is so once the queue was found empty, or once so many completions were taken that a whole batch
    /// lies behind the last of them.
    fn is_passed(self, now: Self, places: u32) -> bool {
        now.times_empty > self.times_empty || now.taken - self.taken >= u64::from(places) + BATCH as u64
    }
}

/// Use of a completion queue, as [`super::VerbsNic::completion_queues`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueUse {
    /// Completions that fit into the queue, as the device said.
    pub places: u32,
    /// Most completions that can be in the queue at once.
    pub completions_max: u32,
    /// Completions that were taken from the queue.
    pub taken: u64,
}

/// Completion queue of the device.
///
/// It is destroyed when dropped, which must be after every QP and SRQ that completes to it.
#[derive(Debug)]
struct DeviceQueue {
    cq: *mut ibv_cq,
    places: u32,
    _channel: Arc<CompletionChannel>,
}

// SAFETY: verbs may be called by any thread, and by several at once; nothing in this type changes.
unsafe impl Send for DeviceQueue {}
// SAFETY: as above.
unsafe impl Sync for DeviceQueue {}

impl DeviceQueue {
    /// Makes a queue for so many completions at once.
    fn new(channel: &Arc<CompletionChannel>, entries: u32) -> io::Result<Self> {
        count_slow_call();
        let wanted = i32::try_from(entries).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // Queues are made with the connections, on whatever node their thread runs. Where a node cannot be
        // chosen, the NIC has reported that already.
        let _near = channel.numa_node.and_then(|node| ThreadPrefers::node(node).ok());
        let no_context = std::ptr::null_mut();
        // SAFETY: the device's context is open, and stays so while the channel lives.
        let cq =
            unsafe { ibv_create_cq(channel.context, wanted, no_context, channel.channel, channel.vector) };
        if cq.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the verb succeeded.
        let places = u32::try_from(unsafe { (*cq).cqe }).unwrap_or(0);
        let this = Self { cq, places, _channel: Arc::clone(channel) };
        // Completions that do not fit would be lost, and every QP with them.
        if places < entries { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(this) }
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        // SAFETY: ours; the NIC destroys its QPs and its SRQ before.
        unsafe { ibv_destroy_cq(self.cq) };
    }
}

/// Completion queue that is made together with its first QP, on the thread that makes the QP.
#[derive(Clone, Debug)]
pub(super) struct QueueOnDemand {
    made: Arc<OnceLock<DeviceQueue>>,
    channel: Arc<CompletionChannel>,
    entries: u32,
}

impl QueueOnDemand {
    /// Returns the queue, and makes it first if it is not there yet.
    ///
    /// # Errors
    /// What the system says where it cannot make one more queue.
    pub fn make(&self) -> io::Result<*mut ibv_cq> {
        if let Some(queue) = self.made.get() {
            return Ok(queue.cq);
        }
        let queue = DeviceQueue::new(&self.channel, self.entries)?;
        Ok(self.made.get_or_init(|| queue).cq)
    }
}

/// Completion queue as the thread that polls it sees it.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    on_demand: QueueOnDemand,
    /// Null until [`Self::is_made`] has returned `true`.
    cq: *mut ibv_cq,
    places: u32,
    now: Mark,
    /// Whether an event was asked for and has not been taken.
    ///
    /// Until it is taken the next completion raises it, so there is no need to ask again: the device forgets
    /// the request only when it raises the event.
    is_armed: bool,
    has_failed: bool,
}

impl CompletionQueue {
    /// Makes a queue for so many completions at once, which the device does not have yet.
    pub fn later(channel: &Arc<CompletionChannel>, entries: u32) -> Self {
        let on_demand =
            QueueOnDemand { made: Arc::new(OnceLock::new()), channel: Arc::clone(channel), entries };
        let cq = std::ptr::null_mut();
        Self { on_demand, cq, places: 0, now: Mark::default(), is_armed: false, has_failed: false }
    }

    /// Makes a queue for so many completions at once.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(channel: &Arc<CompletionChannel>, entries: u32) -> io::Result<Self> {
        let mut this = Self::later(channel, entries);
        this.on_demand.make()?;
        this.is_made();
        Ok(this)
    }

    /// Returns the queue for the code that makes QPs which complete to it.
    pub fn on_demand(&self) -> QueueOnDemand {
        self.on_demand.clone()
    }

    /// Whether the device has the queue by now. Before that nothing can complete to it, and it may not be
    /// polled.
    pub fn is_made(&mut self) -> bool {
        if let Some(queue) = self.on_demand.made.get() {
            (self.cq, self.places) = (queue.cq, queue.places);
        }
        !self.cq.is_null()
    }

    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Returns the queue's use. `completions_max` is how many completions can be in it at once.
    pub fn in_use(&self, completions_max: u32) -> QueueUse {
        QueueUse { places: self.places, completions_max, taken: self.now.taken }
    }

    /// Takes completions, as many as fit into the batch, which must be empty. Returns whether there were any.
    #[inline]
    pub fn poll(&mut self, batch: &mut Batch) -> bool {
        debug_assert!(batch.is_empty(), "what was not looked at would be lost");
        // SAFETY: the batch has room for `BATCH` of them.
        let polled = unsafe { ibv_poll_cq(self.cq, BATCH_I32, batch.wcs.as_mut_ptr()) };
        self.has_failed |= polled < 0;
        let filled = usize::try_from(polled).unwrap_or(0);
        (batch.at, batch.filled) = (0, filled);
        self.now.taken += filled as u64;
        self.now.times_empty += u64::from(filled == 0);
        filled > 0
    }

    /// Whether the queue overran, or the device is gone. No completions come from it any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns the present moment in the queue's stream of completions.
    pub fn now(&self) -> Mark {
        self.now
    }

    /// Whether all that was in the queue at a moment was handled since.
    pub fn has_passed(&self, mark: Mark) -> bool {
        mark.is_passed(self.now, self.places)
    }

    /// Asks for an event with the next completion.
    pub fn request_event(&mut self) {
        if !std::mem::replace(&mut self.is_armed, true) {
            // SAFETY: the queue lives.
            unsafe { ibv_req_notify_cq(self.cq, 0) };
        }
    }

    /// Notes that the queue's event was taken.
    pub fn event_came(&mut self) {
        self.is_armed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_over_when_all_that_was_there_was_looked_at() {
        let mark = Mark { times_empty: 7, taken: 100 };
        let later = |times_empty, taken| mark.is_passed(Mark { times_empty, taken }, 10);
        assert!(!later(7, 100));
        assert!(later(8, 100), "it was found empty");
        // The last of the ten may still lie in a batch, until another one was taken.
        let batch = BATCH as u64;
        assert!(!later(7, 100 + 10) && !later(7, 100 + 9 + batch));
        assert!(later(7, 100 + 10 + batch));
    }
}
