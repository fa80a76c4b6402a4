//! Messages that are under way, by their senders and numbers.

use crate::event::MessageName;
use std::collections::{BTreeMap, VecDeque};

/// Messages of one sender.
#[derive(Debug)]
struct OfSender<T> {
    /// Number of the first place.
    first: u64,
    /// One place for each number from there on; `None`: the message was removed.
    places: VecDeque<Option<T>>,
}

impl<T> OfSender<T> {
    fn place(&mut self, sequence: u64) -> Option<&mut Option<T>> {
        let at = sequence.checked_sub(self.first)?;
        self.places.get_mut(usize::try_from(at).ok()?)
    }

    fn open(&self) -> impl Iterator<Item = u64> {
        (self.first..).zip(&self.places).filter_map(|(sequence, place)| place.is_some().then_some(sequence))
    }
}

/// What is known of each message that is under way. Senders number their messages from 1 without gaps.
#[derive(Debug)]
pub struct Open<T>(BTreeMap<u64, OfSender<T>>);

impl<T> Default for Open<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Open<T> {
    /// Adds a sender's next message.
    pub fn add(&mut self, MessageName { sender, sequence }: MessageName, known: T) {
        let new = || OfSender { first: sequence, places: VecDeque::new() };
        let messages = self.0.entry(sender).or_insert_with(new);
        assert_eq!(messages.first + messages.places.len() as u64, sequence, "senders count");
        messages.places.push_back(Some(known));
    }

    /// Returns what is known of a message, where it is under way.
    pub fn get_mut(&mut self, MessageName { sender, sequence }: MessageName) -> Option<&mut T> {
        self.0.get_mut(&sender)?.place(sequence)?.as_mut()
    }

    /// Removes a message that is under way.
    pub fn remove(&mut self, MessageName { sender, sequence }: MessageName) -> Option<T> {
        let messages = self.0.get_mut(&sender)?;
        let known = messages.place(sequence)?.take()?;
        while let Some(None) = messages.places.front() {
            messages.places.pop_front();
            messages.first += 1;
        }
        Some(known)
    }

    /// Returns whether a message was ever added.
    pub fn was_added(&self, MessageName { sender, sequence }: MessageName) -> bool {
        let messages = self.0.get(&sender);
        sequence > 0
            && messages.is_some_and(|messages| sequence < messages.first + messages.places.len() as u64)
    }

    /// Removes a sender and all its messages.
    pub fn remove_sender(&mut self, sender: u64) {
        self.0.remove(&sender);
    }

    /// Returns what is known of all messages.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().flat_map(|messages| &mut messages.places).flatten()
    }

    /// Returns the first message.
    pub fn first(&self) -> Option<MessageName> {
        let first = |(sender, messages): (&u64, &OfSender<T>)| {
            messages.open().next().map(|sequence| MessageName { sender: *sender, sequence })
        };
        self.0.iter().find_map(first)
    }

    /// Returns how many messages are under way.
    pub fn count(&self) -> usize {
        self.0.values().map(|messages| messages.open().count()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(sender: u64, sequence: u64) -> MessageName {
        MessageName { sender, sequence }
    }

    #[test]
    fn messages_are_found_while_they_are_under_way_and_known_of_afterwards() {
        let mut open = Open::default();
        for sequence in 1..=5 {
            open.add(name(7, sequence), sequence);
            open.add(name(3, sequence), 0);
        }
        for sequence in [2, 1, 4] {
            assert_eq!(open.remove(name(7, sequence)), Some(sequence));
            assert_eq!(open.remove(name(7, sequence)), None);
            assert_eq!(open.get_mut(name(7, sequence)), None);
            assert!(open.was_added(name(7, sequence)));
        }
        assert_eq!(open.get_mut(name(7, 5)).copied(), Some(5));
        assert_eq!((open.first(), open.count()), (Some(name(3, 1)), 7));
        open.remove_sender(3);
        assert_eq!((open.first(), open.count()), (Some(name(7, 3)), 2));
        assert_eq!(open.values_mut().map(|known| *known).collect::<Vec<_>>(), [3, 5]);
        for never in [name(7, 0), name(7, 6), name(7, u64::MAX), name(3, 1), name(9, 1)] {
            assert!(!open.was_added(never), "{never}");
            assert_eq!(open.remove(never), None);
        }
        open.add(name(7, 6), 6);
        assert_eq!(open.remove(name(7, 6)), Some(6));
    }
}
