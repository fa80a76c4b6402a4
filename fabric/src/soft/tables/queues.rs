//! Bounded queues for SRQ entries, completions and events.

use crate::nic::{Completion, Event, SrqEntry};
use std::collections::VecDeque;

/// First-in-first-out queue that never grows. The caller makes sure that there is room.
#[derive(Debug)]
pub(crate) struct Bounded<T> {
    items: VecDeque<T>,
    max: usize,
}

impl<T> Bounded<T> {
    pub(crate) fn new(max: usize) -> Self {
        Self { items: VecDeque::with_capacity(max), max }
    }

    /// Appends an item.
    ///
    /// # Panics
    /// Where the queue is full.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        assert!(self.items.len() < self.max, "room was reserved when the work was posted");
        self.items.push_back(item);
    }

    /// Takes the oldest item.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// Returns the oldest item, and leaves it in the queue.
    pub(crate) fn front(&self) -> Option<&T> {
        self.items.front()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the queue is full.
    pub(crate) fn is_full(&self) -> bool {
        self.items.len() == self.max
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

/// Shared receive queue.
pub(crate) type Srq = Bounded<SrqEntry>;
/// Queue of completions that wait to be polled.
pub(crate) type Completions = Bounded<Completion>;

/// Event, with the number of completions that must have been polled before its connection's end is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) event: Event,
    pub(crate) after_completions: u64,
}

/// Queue of events that wait to be polled. One QP has at most a request, a connection and an end.
pub(crate) type Events = Bounded<QueuedEvent>;

/// Most events that one QP can have waiting.
pub(crate) const EVENTS_PER_QP: usize = 3;
