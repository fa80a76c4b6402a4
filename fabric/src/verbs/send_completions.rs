//! Where SENDs, READs and probes complete: queues that a few connections share, made as connections come.
//!
//! * A queue has a place for everything that its connections can have under way, so it cannot overrun,
//!   however many of them end at once.
//! * Only those are looked into to which something may come: the NIC posted it, so it knows. The others are
//!   empty, cost nothing, and are no part of what cycles through the cache.
//! * A queue stays when its connections go, for those that come after them.

use super::completion_queue::{Batch, CompletionChannel, CompletionQueue, Mark, QueueOnDemand, QueueUse};
use super::seating::Seating;
use crate::limits::Shape;
use rdma_sys::{ibv_cq, ibv_wc};
use std::sync::Arc;

/// The queue of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat(u32);

/// All of them.
pub(super) struct SendCompletions {
    shape: Shape,
    queues: Vec<CompletionQueue>,
    seating: Seating,
    /// Of one queue at a time.
    batch: Batch,
    /// The queues by their addresses, in the order of those: an event names its queue.
    by_address: Vec<(usize, u32)>,
    /// Who uses the NIC may be asleep: what is begun now has to wake it.
    is_watched: bool,
    is_dead: bool,
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
            is_dead: false,
            channel: Arc::clone(channel),
        }
    }

    /// A place for a connection, in a queue that is made with its QP where there is none with room.
    pub fn take(&mut self) -> (Seat, QueueOnDemand) {
        if self.seating.vacant().is_none() {
            self.queues.push(CompletionQueue::later(&self.channel, self.shape.places));
            self.seating.add();
        }
        let seat = Seat(self.seating.take());
        (seat, self.queue(seat).on_demand())
    }

    /// The QP of a connection was made, and so its queue is there.
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

    /// A connection is gone from the device, and nothing of it is left in its queue.
    pub fn leave(&mut self, seat: Seat) {
        self.seating.leave(seat.0);
    }

    fn queue(&self, seat: Seat) -> &CompletionQueue {
        &self.queues[seat.0 as usize]
    }

    /// This moment in what a connection's queue gives.
    pub fn now(&self, seat: Seat) -> Mark {
        self.queue(seat).now()
    }

    /// Whether everything that was in a connection's queue at a moment was looked at since.
    pub fn has_passed(&self, seat: Seat, mark: Mark) -> bool {
        self.queue(seat).has_passed(mark)
    }

    /// Something may come to a connection from now on. Before it is given to the device, so that it wakes who
    /// is asleep.
    #[inline]
    pub fn begin(&mut self, seat: Seat) {
        if self.seating.begin(seat.0) && self.is_watched {
            self.queues[seat.0 as usize].request_event();
        }
    }

    /// Nothing comes to a connection any more.
    #[inline]
    pub fn end(&mut self, seat: Seat) {
        self.seating.end(seat.0);
    }

    /// How many queues there are to look into, about.
    #[inline]
    pub fn in_use(&self) -> usize {
        self.seating.listed()
    }

    /// Looks into the queue at a position among those in use, where nothing of the last one is left; `true`:
    /// it may have more than was taken.
    #[inline]
    pub fn look_at(&mut self, position: usize) -> bool {
        match self.seating.at(position) {
            Some(queue) => self.look_into(queue) && self.batch.was_full(),
            None => false,
        }
    }

    /// Looks into the queue of a connection, where nothing of the last one is left; whether anything came.
    pub fn look_for(&mut self, seat: Seat) -> bool {
        self.seating.is_busy(seat.0) && self.look_into(seat.0)
    }

    #[inline]
    fn look_into(&mut self, queue: u32) -> bool {
        let queue = &mut self.queues[queue as usize];
        let any = queue.poll(&mut self.batch);
        self.is_dead |= queue.is_dead();
        any
    }

    /// The next completion of the queue that was looked into; see [`Batch`].
    #[inline]
    pub fn peek(&self) -> Option<&ibv_wc> {
        self.batch.peek()
    }

    /// Takes what was peeked at.
    #[inline]
    pub fn pass(&mut self) {
        self.batch.pass();
    }

    /// Whether anything completed that was not looked at.
    pub fn has_news(&mut self) -> bool {
        let mut position = 0;
        while self.batch.is_empty()
            && let Some(queue) = self.seating.at(position)
        {
            self.look_into(queue);
            position += 1;
        }
        !self.batch.is_empty()
    }

    /// From now until [`Self::awake`] whatever completes gives an event.
    pub fn watch(&mut self) {
        self.is_watched = true;
        let mut position = 0;
        while let Some(queue) = self.seating.at(position) {
            self.queues[queue as usize].request_event();
            position += 1;
        }
    }

    /// Who uses the NIC looks by itself again.
    #[inline]
    pub fn awake(&mut self) {
        self.is_watched = false;
    }

    /// An event of a queue was taken.
    pub fn event_came(&mut self, cq: *mut ibv_cq) {
        if let Ok(position) = self.by_address.binary_search_by_key(&cq.addr(), |(address, _)| *address) {
            let (_, queue) = self.by_address[position];
            self.queues[queue as usize].event_came();
        }
    }

    /// A queue overran, or the device is gone.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Each queue that was made.
    pub fn queues(&self) -> impl Iterator<Item = QueueUse> + '_ {
        let made = self.queues.iter().filter(|queue| !queue.as_ptr().is_null());
        made.map(|queue| queue.in_use(self.shape.places))
    }
}
