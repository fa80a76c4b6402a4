//! A sender as an end that is shared, with the ends of messages that nobody has taken yet.

use crate::send::buffer::SendBuffer;
use crate::send::error::{BufferError, WaitError};
use crate::send::memory::SendMemory;
use crate::send::sender::{Completion, Sender};
use crate::send::submission::Ticket;
use crate::shared::End;
use crate::shared::sleepers::Sleepers;
use jet_fabric::nic::RegisterError;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Turns of an attempt to prepare the sender for those who sleep.
const PREPARING_TURNS_MAX: u32 = 16;

/// What one waits for on a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// The end of that message.
    End(Ticket),
    /// Room for another message.
    Room,
    /// That every message has ended.
    Drained,
    /// That the connection has ended after that.
    Closed,
}

/// A sender, and what became of its messages.
pub(super) struct Post {
    pub sender: Sender,
    /// Messages that somebody has a handle of: `None` until they have ended.
    ends: HashMap<Ticket, Option<Completion>>,
    /// Ends without a handle whose drop may run the program's own code.
    unheard: Vec<Completion>,
    sleepers: Sleepers<Wants>,
    /// Whether the sender accepts no further messages.
    is_closing: bool,
    /// Whether the sender was used since it was last prepared for a sleep: its NIC may ring nobody any more.
    is_used: bool,
    /// Number of the device whose descriptor the sleepers watch.
    watched_device: u32,
}

impl Post {
    pub(super) fn new(sender: Sender) -> Self {
        // Twice the room, so that the table is made anew only for handles that are kept after their ends.
        let ends = HashMap::with_capacity(2 * sender.in_flight_max());
        Self {
            sender,
            ends,
            unheard: Vec::new(),
            sleepers: Sleepers::default(),
            is_closing: false,
            is_used: false,
            watched_device: 0,
        }
    }

    /// Notes that somebody has a handle of the message.
    pub(super) fn await_end(&mut self, ticket: Ticket) {
        self.ends.insert(ticket, None);
    }

    /// Returns a registered buffer.
    pub(super) fn buffer(&mut self, bytes: usize) -> Result<SendBuffer, BufferError> {
        // Where the peer does not take the memory, the connection ends, and nothing rings for that.
        self.is_used = true;
        self.sender.buffer(bytes)
    }

    /// Returns several registered buffers.
    pub(super) fn buffers(&mut self, bytes: usize, count: usize) -> Result<Vec<SendBuffer>, BufferError> {
        // As for one.
        self.is_used = true;
        self.sender.buffers(bytes, count)
    }

    /// Registers memory of the program.
    pub(super) fn register(&mut self, memory: &SendMemory) -> Result<(), RegisterError> {
        // As for a buffer.
        self.is_used = true;
        self.sender.register(memory)
    }

    /// Takes a message back, and tells the receiver at once.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.sender.cancel(ticket);
        self.collect();
    }

    /// Forgets a message: nobody has a handle of it any more.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        if let Some(Some(end)) = self.ends.remove(&ticket) {
            self.drop_unheard(end);
        }
    }

    /// Drops an end that nobody hears of. Bytes may be anybody's ([`bytes::Bytes::from_owner`]), and the drop
    /// of their owner may use this sender: they are dropped without the lock.
    fn drop_unheard(&mut self, end: Completion) {
        #[cfg(feature = "bytes")]
        if end.bytes.is_some() {
            self.unheard.push(end);
            return;
        }
        drop(end);
    }

    /// Takes the end of a message. `None`: it has none yet. `Some(None)`: its end was taken already.
    pub(super) fn take_end(&mut self, ticket: Ticket) -> Option<Option<Completion>> {
        if matches!(self.ends.get(&ticket), Some(None)) {
            self.collect();
        }
        match self.ends.entry(ticket) {
            Entry::Occupied(entry) if entry.get().is_none() => None,
            Entry::Occupied(entry) => Some(entry.remove()),
            Entry::Vacant(_) => Some(None),
        }
    }

    /// Returns whether nobody has to wait for room: there is some, or there will be none.
    pub(super) fn has_room(&mut self) -> bool {
        self.collect();
        self.is_closing || self.sender.has_room()
    }

    /// Takes the ends that there are, and wakes those who wait for them. The end of a message without a
    /// handle is dropped, and its buffer is free again.
    pub(super) fn collect(&mut self) {
        self.is_used = true;
        while let Some(completion) = self.sender.poll() {
            let ticket = completion.ticket;
            match self.ends.get_mut(&ticket) {
                Some(end) => {
                    *end = Some(completion);
                    self.sleepers.wake_one(Wants::End(ticket));
                }
                None => self.drop_unheard(completion),
            }
            // Whoever has waited longest: the others would come first again and again.
            self.sleepers.wake_oldest(Wants::Room);
        }
        if self.sleepers.any() && self.sender.in_flight() == 0 {
            self.sleepers.wake_each(Wants::Drained);
            if self.sender.is_closed() {
                self.sleepers.wake_each(Wants::Closed);
            }
        }
    }

    /// Accepts no further messages, and ends the connection when every message has its end.
    pub(super) fn begin_to_close(&mut self) {
        self.is_used = true;
        self.is_closing = true;
        self.sender.begin_to_close();
        self.sleepers.wake_each(Wants::Room);
    }

    /// Returns whether the connection has ended after it was to.
    pub(super) fn is_closed(&mut self) -> bool {
        self.collect();
        self.sender.is_closed()
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
    type Unheard = Vec<Completion>;
    const HAS_TIMES: bool = true;

    fn take_unheard(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.unheard)
    }

    fn sleepers(&self) -> &Sleepers<Wants> {
        &self.sleepers
    }

    fn descriptor(&mut self) -> (BorrowedFd<'_>, u32) {
        let number = self.sender.devices();
        (self.sender.as_fd(), number)
    }

    fn begin_wait(&mut self) {}

    fn prepare_sleep(&mut self) -> Result<bool, WaitError> {
        let sleeps = !self.sender.has_ended() && self.sender.prepare_sleep();
        self.is_used = !sleeps;
        Ok(sleeps)
    }

    fn check_wait(&mut self, (): &()) -> Result<(), WaitError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<(), WaitError> {
        self.collect();
        Ok(())
    }

    fn prepare_for_others(&mut self) {
        let devices = self.sender.devices();
        if std::mem::replace(&mut self.watched_device, devices) != devices {
            // They sleep on a descriptor of a device that is gone.
            return self.sleepers.wake_all();
        }
        let mut turns = 0;
        while self.is_used && !matches!(self.prepare_sleep(), Ok(true)) {
            turns += 1;
            if turns > PREPARING_TURNS_MAX {
                // So much comes that somebody had better look for it.
                return self.sleepers.wake_all();
            }
            self.collect();
        }
    }

    fn due_ns(&self) -> Option<u64> {
        self.sender.due_ns()
    }

    fn until(&self, due_ns: u64) -> Duration {
        self.sender.until(due_ns)
    }

    fn note_sleep(&mut self) {}

    fn hand_on(&self, wants: Wants) {
        if wants == Wants::Room && self.sender.has_room() {
            self.sleepers.wake_oldest(Wants::Room);
        }
    }

    fn refused(error: io::Error) -> WaitError {
        WaitError::System(error)
    }
}
