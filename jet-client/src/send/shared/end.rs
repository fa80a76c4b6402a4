//! A sender as an end that is shared, with the ends of messages that nobody has taken yet.

use crate::send::error::WaitError;
use crate::send::sender::{Completion, Sender};
use crate::send::submission::Ticket;
use crate::shared::sleepers::Sleepers;
use crate::shared::{End, Prepared};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// What one waits for on a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// The end of that message.
    End(Ticket),
    /// Room for another message.
    Room,
    /// That every message has ended.
    Drained,
}

/// A sender, and what became of its messages.
pub(super) struct Post {
    pub sender: Sender,
    /// Messages that somebody has a handle of: `None` until they have ended.
    ends: HashMap<Ticket, Option<Completion>>,
    sleepers: Sleepers<Wants>,
    /// Whether the sender was used since it was last prepared for a sleep: its NIC may ring nobody any more,
    /// and it may have something to do earlier.
    is_used: bool,
    /// Time by which somebody settles it, if nothing happens before.
    settled_by: Option<Instant>,
}

impl Post {
    pub(super) fn new(sender: Sender) -> Self {
        // Twice the room, so that the table is never made anew.
        let ends = HashMap::with_capacity(2 * sender.in_flight_max());
        Self { sender, ends, sleepers: Sleepers::default(), is_used: false, settled_by: None }
    }

    /// Notes that somebody has a handle of the message.
    pub(super) fn await_end(&mut self, ticket: Ticket) {
        self.is_used = true;
        self.ends.insert(ticket, None);
    }

    /// Forgets a message: nobody has a handle of it any more.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        self.ends.remove(&ticket);
    }

    /// Takes the end of a message, if it has one.
    pub(super) fn take_end(&mut self, ticket: Ticket) -> Option<Completion> {
        if self.ends.get(&ticket).is_none_or(Option::is_none) {
            self.collect();
        }
        match self.ends.entry(ticket) {
            Entry::Occupied(entry) if entry.get().is_some() => entry.remove(),
            _ => None,
        }
    }

    /// Returns whether there is room for another message.
    pub(super) fn has_room(&mut self) -> bool {
        self.collect();
        self.sender.has_room()
    }

    /// Takes the ends that there are, and wakes those who wait for them. The end of a message without a
    /// handle is dropped, and its buffer is free again.
    pub(super) fn collect(&mut self) {
        self.is_used = true;
        while let Some(completion) = self.sender.poll() {
            let ticket = completion.ticket;
            if let Some(end) = self.ends.get_mut(&ticket) {
                *end = Some(completion);
                self.sleepers.wake_one(Wants::End(ticket));
            }
            self.sleepers.wake_one(Wants::Room);
        }
        if self.sleepers.any() && self.sender.in_flight() == 0 {
            self.sleepers.wake_each(Wants::Drained);
        }
    }

    /// Prepares the sender for a sleep. Returns the time by which it must be settled; `Err`: there is
    /// something, look again.
    fn prepare(&mut self) -> Result<Option<Instant>, ()> {
        if !self.sender.prepare_sleep() {
            return Err(());
        }
        self.is_used = false;
        Ok(self.sender.next_timeout().and_then(|span| Instant::now().checked_add(span)))
    }

    /// Returns whether every message has ended.
    pub(super) fn is_drained(&mut self) -> bool {
        self.collect();
        self.sender.in_flight() == 0
    }
}

impl End for Post {
    type Wants = Wants;
    type Memory = ();
    type Error = WaitError;

    fn sleepers(&self) -> &Sleepers<Wants> {
        &self.sleepers
    }

    fn descriptor(&mut self) -> (BorrowedFd<'_>, u32) {
        let number = self.sender.devices();
        (self.sender.as_fd(), number)
    }

    fn begin_wait(&mut self) {}

    fn prepare_sleep(&mut self) -> Result<Prepared, WaitError> {
        let Ok(by) = self.prepare() else { return Ok(Prepared::LookAgain) };
        self.settled_by = by;
        Ok(Prepared::Sleep(by.map(|by| by.saturating_duration_since(Instant::now()))))
    }

    fn check_wait(&mut self, (): &()) -> Result<(), WaitError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<Option<Duration>, WaitError> {
        self.collect();
        // Whoever still sleeps after that is prepared for before the lock is given back.
        let span = self.sender.next_timeout();
        self.settled_by = span.and_then(|span| Instant::now().checked_add(span));
        Ok(span)
    }

    fn prepare_for_others(&mut self) {
        if !self.is_used || !self.sleepers.any() {
            return;
        }
        let by = loop {
            match self.prepare() {
                Ok(by) => break by,
                Err(()) => self.collect(),
            }
        };
        // Those who sleep rely on an earlier look than they arranged.
        if by.is_some_and(|by| self.settled_by.is_none_or(|arranged| by < arranged)) {
            self.sleepers.wake_all();
        }
    }

    fn note_sleep(&mut self) {}

    fn hand_on(&self, wants: Wants) {
        if wants == Wants::Room && self.sender.has_room() {
            self.sleepers.wake_one(Wants::Room);
        }
    }

    fn refused(error: io::Error) -> WaitError {
        WaitError::System(error)
    }
}
