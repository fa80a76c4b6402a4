//! Completion queues for SENDs, READs and probes. A few connections share each queue, and queues are made as
//! connections are.
//!
//! * A queue has a place for everything that its connections can have under way. So it cannot overrun,
//!   however many of them end at once.
//! * Only the queues to which completions may come are polled. The NIC knows them, since it posted the work.
//!   The others are empty, cost nothing, and do not occupy the cache.
//! * A queue stays when its connections end, and serves later connections.

use super::completion_queue::{Batch, CompletionChannel, CompletionQueue, Mark, QueueOnDemand, QueueUse};
use super::seating::Seating;
use crate::limits::Shape;
use rdma_sys::{ibv_cq, ibv_wc};
use std::sync::Arc;

/// Seat of a connection: the index of its completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat(u32);

/// All completion queues for posted work.
pub(super) struct SendCompletions {
    shape: Shape,
    queues: Vec<CompletionQueue>,
    seating: Seating,
    /// Completions that were taken from one queue and not handled yet.
    batch: Batch,
    /// Queues by their address in ascending order, since an event names its queue by address.
    by_address: Vec<(usize, u32)>,
    /// Whether the NIC's user may be asleep. Work that begins then must ask its queue for an event.
    is_watched: bool,
    has_failed: bool,
    channel: Arc<CompletionChannel>,
}

impl SendCompletions {
    pub fn new(channel: &Arc<CompletionChannel>, shape: Shape) -> Self {
        let room = shape.queues as usize;
        Self {
            shape,
            queues: Vec::with_capacity(room),
            seating: Seating::new(&shape),
            batch: Batch::new(),
            by_address: Vec::with_capacity(room),
            is_watched: false,
            has_failed: false,
            channel: Arc::clone(channel),
        }
    }

    /// Takes a seat for a connection. Where no queue has a free one, a new queue is made together with the
    /// connection's QP.
    pub fn take(&mut self) -> (Seat, QueueOnDemand) {
        if self.seating.vacant().is_none() {
            self.queues.push(CompletionQueue::later(&self.channel, self.shape.places));
            self.seating.add();
        }
        let seat = Seat(self.seating.take());
        (seat, self.queue(seat).on_demand())
    }

    /// Notes that a connection's QP was made, and so its queue exists.
    pub fn made(&mut self, seat: Seat) {
        let queue = &mut self.queues[seat.0 as usize];
        if !queue.as_ptr().is_null() {
            return;
        }
        assert!(queue.is_made(), "a QP is made with its queue");
        let address = queue.as_ptr().addr();
        let position = self.by_address.partition_point(|(other, _)| *other < address);
        self.by_address.insert(position, (address, seat.0));
    }

    /// Gives back the seat of a connection that the device does not have any more. No completion of it may be
    /// left in the queue.
    pub fn leave(&mut self, seat: Seat) {
        self.seating.leave(seat.0);
    }

    fn queue(&self, seat: Seat) -> &CompletionQueue {
        &self.queues[seat.0 as usize]
    }

    /// Returns the present moment in the stream of completions of a connection's queue.
    pub fn now(&self, seat: Seat) -> Mark {
        self.queue(seat).now()
    }

    /// Whether all that was in a connection's queue at a moment was handled since.
    pub fn has_passed(&self, seat: Seat, mark: Mark) -> bool {
        self.queue(seat).has_passed(mark)
    }

    /// Notes that completions may come to a connection. To be called before work is given to the device, so
    /// that its completion wakes a sleeping user.
    #[inline]
    pub fn begin(&mut self, seat: Seat) {
        if self.seating.begin(seat.0) && self.is_watched {
            self.queues[seat.0 as usize].request_event();
        }
    }

    /// Notes that no completion comes to a connection any more.
    #[inline]
    pub fn end(&mut self, seat: Seat) {
        self.seating.end(seat.0);
    }

    /// Returns how many queues are to be polled, at most.
    #[inline]
    pub fn in_use(&self) -> usize {
        self.seating.listed()
    }

    /// Polls the queue at a position among those in use. The batch must be empty. `true` where the queue may
    /// have more.
    #[inline]
    pub fn poll_at(&mut self, position: usize) -> bool {
        match self.seating.at(position) {
            Some(queue) => self.poll_queue(queue) && self.batch.was_full(),
            None => false,
        }
    }

    /// Polls the queue of a connection. The batch must be empty. Returns whether anything came.
    pub fn poll_of(&mut self, seat: Seat) -> bool {
        self.seating.is_busy(seat.0) && self.poll_queue(seat.0)
    }

    #[inline]
    fn poll_queue(&mut self, queue: u32) -> bool {
        let queue = &mut self.queues[queue as usize];
        let any = queue.poll(&mut self.batch);
        self.has_failed |= queue.has_failed();
        any
    }

    /// Returns the next completion of the queue that was polled; see [`Batch`].
    #[inline]
    pub fn peek(&self) -> Option<&ibv_wc> {
        self.batch.peek()
    }

    /// Takes the completion that [`Self::peek`] returned.
    #[inline]
    pub fn pass(&mut self) {
        self.batch.pass();
    }

    /// Whether anything completed that was not handled.
    pub fn has_news(&mut self) -> bool {
        let mut position = 0;
        while self.batch.is_empty()
            && let Some(queue) = self.seating.at(position)
        {
            self.poll_queue(queue);
            position += 1;
        }
        !self.batch.is_empty()
    }

    /// Makes every completion raise an event, until [`Self::awake`].
    pub fn watch(&mut self) {
        self.is_watched = true;
        let mut position = 0;
        while let Some(queue) = self.seating.at(position) {
            self.queues[queue as usize].request_event();
            position += 1;
        }
    }

    /// Notes that the NIC's user polls again, so later work needs no events.
    #[inline]
    pub fn awake(&mut self) {
        self.is_watched = false;
    }

    /// Notes that an event of a queue was taken.
    pub fn event_came(&mut self, cq: *mut ibv_cq) {
        if let Ok(position) = self.by_address.binary_search_by_key(&cq.addr(), |(address, _)| *address) {
            let (_, queue) = self.by_address[position];
            self.queues[queue as usize].event_came();
        }
    }

    /// Whether a queue overran, or the device is gone.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns the use of each queue that was made.
    pub fn queues(&self) -> impl Iterator<Item = QueueUse> + '_ {
        let made = self.queues.iter().filter(|queue| !queue.as_ptr().is_null());
        made.map(|queue| queue.in_use(self.shape.places))
    }
}
