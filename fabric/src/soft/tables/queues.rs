//! Bounded queues: SRQ entries, completions, events.

use crate::nic::{Completion, Event, SrqEntry};
use std::collections::VecDeque;

/// A first-in-first-out queue that never grows. The caller has made sure that there is room.
#[derive(Debug)]
pub(crate) struct Bounded<T> {
    items: VecDeque<T>,
    max: usize,
}

impl<T> Bounded<T> {
    pub(crate) fn new(max: usize) -> Self {
        Self { items: VecDeque::with_capacity(max), max }
    }

    /// Appends.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        assert!(self.items.len() < self.max, "room was reserved when the work was posted");
        self.items.push_back(item);
    }

    /// Takes the oldest.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// The oldest.
    pub(crate) fn front(&self) -> Option<&T> {
        self.items.front()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether no more may be pushed.
    pub(crate) fn is_full(&self) -> bool {
        self.items.len() == self.max
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

/// The shared receive queue.
pub(crate) type Srq = Bounded<SrqEntry>;
/// Completions that wait to be polled.
pub(crate) type Completions = Bounded<Completion>;

/// An event, and how many completions must have been polled before it is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) event: Event,
    pub(crate) after_completions: u64,
}

/// Events that wait to be polled: at most a request, a connection and an end a QP.
pub(crate) type Events = Bounded<QueuedEvent>;

/// The most events that one QP has waiting.
pub(crate) const EVENTS_PER_QP: usize = 3;
