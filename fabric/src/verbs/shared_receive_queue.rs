//! The shared receive queue. Entries are given to the device in batches.

use super::error::VerbsError;
use super::regions::Domain;
use rdma_sys::{
    ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_post_srq_recv, ibv_recv_wr, ibv_sge, ibv_srq,
    ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Entries that are given to the device in one call.
const BATCH: usize = 64;
/// Scatter entries of an SRQ entry: header and payload.
const SGES: usize = 2;
const SGES_U32: u32 = 2;
/// Number of SRQ entries below which the device raises an event, so that the user is woken to post more.
const LIMIT: u32 = 8;
/// Shortest time between two commands that ask the device for the event.
const LIMIT_EVERY: Duration = Duration::from_secs(1);

/// State of the request for the device's event about few entries.
#[derive(Debug, Default)]
struct Limit {
    is_armed: bool,
    /// Time from which the device may be asked again. `None` before the first request.
    next: Option<Instant>,
}

impl Limit {
    /// Whether the device is to be asked now, with so many entries posted. If so, it counts as asked.
    fn asks(&mut self, posted: u32, now: Instant) -> bool {
        if self.is_armed || posted < 2 * LIMIT || self.next.is_some_and(|next| now < next) {
            return false;
        }
        (self.is_armed, self.next) = (true, Some(now + LIMIT_EVERY));
        true
    }
}

/// Shared receive queue of the device. It is destroyed when dropped, which must be after every QP that takes
/// from it.
pub(super) struct SharedReceiveQueue {
    srq: *mut ibv_srq,
    wrs: Box<[ibv_recv_wr]>,
    sges: Box<[[ibv_sge; SGES]]>,
    gathered: usize,
    limit: Limit,
    has_failed: bool,
    _domain: Arc<Domain>,
}

impl SharedReceiveQueue {
    /// Makes a queue for so many entries.
    pub fn new(domain: &Arc<Domain>, entries: u32) -> Result<Self, VerbsError> {
        let mut attributes = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ibv_srq_attr { max_wr: entries, max_sge: SGES_U32, srq_limit: 0 },
        };
        // SAFETY: the domain lives as long as the queue, which keeps it in `_domain`.
        let srq = unsafe { ibv_create_srq(domain.as_ptr(), &mut attributes) };
        if srq.is_null() {
            let source = io::Error::last_os_error();
            return Err(VerbsError::SrqEntries { verb: "ibv_create_srq", entries, source });
        }
        let wr =
            ibv_recv_wr { wr_id: 0, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
        Ok(Self {
            srq,
            wrs: vec![wr; BATCH].into(),
            sges: vec![[ibv_sge { addr: 0, length: 0, lkey: 0 }; SGES]; BATCH].into(),
            gathered: 0,
            limit: Limit::default(),
            has_failed: false,
            _domain: Arc::clone(domain),
        })
    }

    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.srq
    }

    /// Keeps an entry for the next [`Self::flush`].
    #[inline]
    pub fn post(&mut self, entry: u32, header: ibv_sge, payload: Option<ibv_sge>) {
        if self.gathered == BATCH {
            self.flush();
        }
        let at = self.gathered;
        self.sges[at] = [header, payload.unwrap_or(header)];
        self.wrs[at] = ibv_recv_wr {
            wr_id: u64::from(entry),
            next: std::ptr::null_mut(),
            sg_list: self.sges[at].as_mut_ptr(),
            num_sge: if payload.is_some() { 2 } else { 1 },
        };
        if at > 0 {
            self.wrs[at - 1].next = &raw mut self.wrs[at];
        }
        self.gathered += 1;
    }

    /// Gives the device all entries that were kept.
    #[inline]
    pub fn flush(&mut self) {
        if self.gathered == 0 {
            return;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the requests are chained, and point to scatter entries that stay in place; the device
        // copies both.
        let result = unsafe { ibv_post_srq_recv(self.srq, self.wrs.as_mut_ptr(), &mut bad) };
        // The NIC counts posted entries, so the queue is not full: only a dead device refuses.
        self.has_failed |= result != 0;
        self.gathered = 0;
    }

    /// Whether the device refused an entry, which is then lost.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Asks the device for one event when only a few entries are left, if so many are posted now.
    ///
    /// It is a command to the device, meant for a user that is about to sleep. A polling user sees what
    /// arrives.
    pub fn arm_limit(&mut self, posted: u32, now: Instant) {
        if !self.limit.asks(posted, now) {
            return;
        }
        let mut attributes = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: LIMIT };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
        // SAFETY: the queue lives. A device that does not know limits refuses; then there are no such events.
        unsafe { ibv_modify_srq(self.srq, &mut attributes, mask.cast_signed()) };
    }

    /// Notes that the event was raised. The next [`Self::arm_limit`] asks for it again.
    pub fn limit_was_reached(&mut self) {
        self.limit.is_armed = false;
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: ours; the NIC destroys its QPs before.
        unsafe { ibv_destroy_srq(self.srq) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_asked_once_an_event_and_not_more_often_than_every_so_often() {
        let start = Instant::now();
        let mut limit = Limit::default();
        assert!(!limit.asks(2 * LIMIT - 1, start), "few are there already");
        assert!(limit.asks(2 * LIMIT, start));
        assert!(!limit.asks(1000, start + 10 * LIMIT_EVERY), "it was asked, and has not told");
        limit.is_armed = false;
        assert!(limit.asks(1000, start + 10 * LIMIT_EVERY));
        limit.is_armed = false;
        let soon = start + 10 * LIMIT_EVERY + LIMIT_EVERY / 2;
        assert!(!limit.asks(1000, soon), "events that follow each other are a load");
        assert!(limit.asks(1000, soon + LIMIT_EVERY / 2));
    }
}
