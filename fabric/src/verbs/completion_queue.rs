//! The completion queue, and the channel that wakes who sleeps on it.

use super::device::Device;
use super::error::VerbsError;
use rdma_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq, ibv_wc,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;

/// Taken from the device at once.
const BATCH: usize = 32;
const BATCH_I32: i32 = 32;

/// One for SENDs, READs and the SRQ. Destroyed when dropped: after every QP that completes to it.
pub(super) struct CompletionQueue {
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    batch: [ibv_wc; BATCH],
    at: usize,
    filled: usize,
    is_dead: bool,
}

impl CompletionQueue {
    /// `events` is told of events; it must live longer.
    pub fn new(device: &Device, entries: u32, events: &AtomicU32) -> Result<Self, VerbsError> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: the device's context is open; what was made is destroyed where the next step fails.
        unsafe {
            let channel = ibv_create_comp_channel(device.context());
            if channel.is_null() {
                return Err(VerbsError::verb("ibv_create_comp_channel", "raise ulimit -n"));
            }
            let cq = ibv_create_cq(
                device.context(),
                entries,
                std::ptr::from_ref(events).cast_mut().cast(),
                channel,
                0,
            );
            if cq.is_null() {
                let error =
                    VerbsError::verb("ibv_create_cq", "the device has no room for so many completions");
                ibv_destroy_comp_channel(channel);
                return Err(error);
            }
            let this = Self { cq, channel, batch: std::mem::zeroed(), at: 0, filled: 0, is_dead: false };
            let flags = fcntl_getfl(this.fd()).map_err(std::io::Error::from)?;
            fcntl_setfl(this.fd(), flags | OFlags::NONBLOCK).map_err(std::io::Error::from)?;
            Ok(this)
        }
    }

    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Readable after an event that was asked for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives as long as this.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// The next completion, which stays until [`Self::pass`]. Asks the device where none is left.
    #[inline]
    pub fn peek(&mut self) -> Option<&ibv_wc> {
        if self.at == self.filled {
            // SAFETY: the batch has room for `BATCH` of them.
            let polled = unsafe { ibv_poll_cq(self.cq, BATCH_I32, self.batch.as_mut_ptr()) };
            self.is_dead |= polled < 0;
            self.filled = usize::try_from(polled).unwrap_or(0);
            self.at = 0;
        }
        self.batch[..self.filled].get(self.at)
    }

    /// The queue overran, or the device is gone: nothing comes any more.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Takes what was peeked at.
    #[inline]
    pub fn pass(&mut self) {
        self.at += 1;
    }

    /// Asks for an event with the next completion.
    pub fn request_event(&self) {
        // SAFETY: the queue lives.
        unsafe { ibv_req_notify_cq(self.cq, 0) };
    }

    /// Takes the events that came.
    pub fn take_events(&self) {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is of this queue alone and does not block; each event taken is acknowledged.
        unsafe {
            while ibv_get_cq_event(self.channel, &mut cq, &mut context) == 0 {
                ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: ours; the NIC destroys its QPs and its SRQ before.
        unsafe {
            ibv_destroy_cq(self.cq);
            ibv_destroy_comp_channel(self.channel);
        }
    }
}
