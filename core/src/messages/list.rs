//! Lists of messages. A message is in at most one list.

use crate::index::NONE;
use crate::messages::Messages;

/// A first-in first-out list of messages, linked through their `next`. A message is in at most one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageList {
    head: u32,
    tail: u32,
    len: u32,
}

impl MessageList {
    pub const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    pub fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn push(&mut self, messages: &mut Messages, index: u32) {
        messages[index].next = NONE;
        if self.tail == NONE {
            self.head = index;
        } else {
            messages[self.tail].next = index;
        }
        self.tail = index;
        self.len += 1;
    }

    /// Takes one message out of the list; it is usually the first.
    pub fn take_one(&mut self, messages: &mut Messages, index: u32) {
        if self.head == index {
            self.pop(messages);
        } else {
            self.take_out(messages, |message| message == index);
        }
    }

    /// Takes every message out of the list for which `leaves` returns `true`; the others keep their order.
    pub fn take_out(&mut self, messages: &mut Messages, mut leaves: impl FnMut(u32) -> bool) {
        let mut rest = core::mem::replace(self, Self::EMPTY);
        while let Some(index) = rest.pop(messages) {
            if !leaves(index) {
                self.push(messages, index);
            }
        }
    }

    /// Puts one message at the front of the list.
    pub fn push_front(&mut self, messages: &mut Messages, index: u32) {
        messages[index].next = self.head;
        self.head = index;
        self.tail = if self.tail == NONE { index } else { self.tail };
        self.len += 1;
    }

    /// Puts one message behind another that is in the list.
    pub fn insert_after(&mut self, messages: &mut Messages, before: u32, index: u32) {
        messages[index].next = core::mem::replace(&mut messages[before].next, index);
        if self.tail == before {
            self.tail = index;
        }
        self.len += 1;
    }

    /// Takes the first messages off the list, `most` at most, as a list of their own.
    pub fn split_front(&mut self, messages: &mut Messages, most: u32) -> Self {
        let mut front = Self::EMPTY;
        while front.len < most
            && let Some(index) = self.pop(messages)
        {
            front.push(messages, index);
        }
        front
    }

    pub fn pop(&mut self, messages: &Messages) -> Option<u32> {
        let index = self.head()?;
        self.head = messages[index].next;
        if self.head == NONE {
            self.tail = NONE;
        }
        self.len -= 1;
        Some(index)
    }
}
