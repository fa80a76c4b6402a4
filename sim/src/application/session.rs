//! What an application knows of its session: the segment's end, its messages, and the runs that it holds.

use crate::event::MessageName;
use crate::payload::reply;
use crate::receiver::Opened;
use jet_fabric::memory::SharedMemory;
use jet_reactor::SessionTicket;
use jet_wire::ring::PushError;
use jet_wire::segment::{AppEnd, Place, Release, release_kind};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::collections::VecDeque;
use std::sync::Arc;

/// A run that was delivered and not given back.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub slot: u32,
    pub generation: u16,
    pub message: u32,
    pub offset: u64,
    pub bytes: u32,
}

impl Run {
    /// Returns how many slices it has.
    pub fn slices(&self) -> u16 {
        u16::try_from(self.bytes.div_ceil(SLAB_BYTES_U32).max(1)).expect("a fragment at most")
    }
}

/// A run that is being read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub until_ns: u64,
    pub run: Run,
    pub place: Place,
    /// The run's message, and the number of its delivery: the message may end while the run is read.
    pub name: MessageName,
    pub delivery: u32,
    /// Whether the message is rejected at the end of this run.
    pub fails: bool,
    /// First of the slices that were read and given back before the end, and the one behind them.
    pub early: (u16, u16),
}

impl Reading {
    /// Returns the stretches of the run that are read at the end: the first byte of each, and the one behind.
    pub fn rest(&self) -> [(usize, usize); 2] {
        let bytes = self.run.bytes as usize;
        let at = |slice: u16| (usize::from(slice) * SLAB_BYTES).min(bytes);
        match self.early {
            (_, 0) => [(0, bytes), (bytes, bytes)],
            (first, end) => [(0, at(first)), (at(end), bytes)],
        }
    }
}

/// A message of which all slices were given back, and that is finished later.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished {
    pub until_ns: u64,
    pub message: u32,
    /// Number of its delivery: it may be withdrawn meanwhile.
    pub delivery: u32,
}

/// What the application knows of a message number.
#[derive(Clone, Debug)]
pub struct Message {
    pub generation: u16,
    pub name: MessageName,
    /// Number of its delivery.
    pub delivery: u32,
    pub whole_bytes: u64,
    /// Bytes that were delivered, and that were read.
    pub delivered: u64,
    pub read: u64,
    pub complete: bool,
    pub is_open: bool,
    pub is_rejected: bool,
    /// Whether its sender has memory for a reply.
    pub wants_reply: bool,
    /// Whether its runs wait until all of them are there.
    pub is_collected: bool,
    pub waiting: VecDeque<Run>,
}

impl Message {
    /// A number that no message has had.
    pub const UNUSED: Self = Self {
        generation: 0,
        name: MessageName { sender: 0, sequence: 0 },
        delivery: 0,
        whole_bytes: 0,
        delivered: 0,
        read: 0,
        complete: false,
        is_open: false,
        is_rejected: false,
        wants_reply: false,
        is_collected: false,
        waiting: VecDeque::new(),
    };
}

/// What one session shares with the receiver.
pub struct Session {
    pub ticket: SessionTicket,
    pub end: AppEnd,
    pub segment: Arc<SharedMemory>,
    pub pool: Arc<SharedMemory>,
    pub escape: Option<Arc<SharedMemory>>,
    pub messages: Vec<Message>,
    /// Generation of the last run in each slot.
    pub slots: Vec<Option<u16>>,
    /// Messages that began to arrive.
    pub begun: u32,
    /// Open messages in the order in which they began to arrive.
    pub order: VecDeque<u32>,
    pub reading: Vec<Reading>,
    /// Messages of which it has given all slices back, and that it has not finished.
    pub unfinished: Vec<Unfinished>,
    /// Releases that found the ring full.
    pub unwritten: VecDeque<Release>,
}

impl Session {
    /// Makes the session of an application that has just got its memory.
    pub fn new(opened: Opened) -> Self {
        let Opened { ticket, end, segment, pool, escape } = opened;
        let messages = vec![Message::UNUSED; end.shape().messages as usize];
        let slots = vec![None; end.shape().slots as usize];
        Self {
            ticket,
            slots,
            end,
            segment,
            pool,
            escape,
            messages,
            begun: 0,
            order: VecDeque::new(),
            reading: Vec::new(),
            unfinished: Vec::new(),
            unwritten: VecDeque::new(),
        }
    }

    /// Returns the runs that wait to be read, and those that are being read.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        let reading = self.reading.iter().map(|reading| reading.run);
        self.messages.iter().flat_map(|message| &message.waiting).copied().chain(reading)
    }

    fn write(&mut self, release: Release) {
        self.unwritten.push_back(release);
        self.write_unwritten();
    }

    /// Writes the releases that found the ring full, as far as there is room.
    pub fn write_unwritten(&mut self) {
        while let Some(release) = self.unwritten.front() {
            match self.end.releases.push(*release) {
                Ok(()) => drop(self.unwritten.pop_front()),
                Err(PushError::Full) => return,
                // The application itself broke the ring, or the receiver is wrong; its session ends then.
                Err(PushError::Broken(_)) => return self.unwritten.clear(),
            }
        }
    }

    /// Gives some of a run's slices back.
    pub fn give_back(&mut self, run: &Run, first: u16, count: u16) {
        let (index, generation, kind) = (run.slot, run.generation, release_kind::SLICES);
        self.write(Release { index, generation, first, count, kind, reserved: 0, code: 0 });
    }

    /// Ends a message, and gives what waits of it back.
    pub fn finish(&mut self, message: u32, code: u32) {
        let Message { name, wants_reply, .. } = self.messages[message as usize];
        let generation = self.close(message);
        let reply = if wants_reply { reply(name) } else { None };
        let (first, kind) = match reply {
            Some(reply) => {
                assert!(self.end.write_reply(message, &reply), "each number has a cell");
                (u16::try_from(reply.len()).expect("it is short"), release_kind::REPLY)
            }
            None => (0, release_kind::FINISH),
        };
        self.write(Release { index: message, generation, first, count: 0, kind, reserved: 0, code });
    }

    /// Ends a message with the last slices that it has: with one release, as the library does.
    pub fn give_back_and_finish(&mut self, run: &Run, first: u16, count: u16, code: u32) {
        if self.messages[run.message as usize].wants_reply {
            self.give_back(run, first, count);
            return self.finish(run.message, code);
        }
        self.close(run.message);
        let (index, generation, kind) = (run.slot, run.generation, release_kind::SLICES_AND_FINISH);
        self.write(Release { index, generation, first, count, kind, reserved: 0, code });
    }

    /// Forgets a message, and gives what waits of it back. Returns its generation.
    fn close(&mut self, message: u32) -> u16 {
        let known = &mut self.messages[message as usize];
        known.is_open = false;
        let (generation, waiting) = (known.generation, std::mem::take(&mut known.waiting));
        for run in &waiting {
            self.give_back(run, 0, run.slices());
        }
        self.messages[message as usize].waiting = waiting;
        self.messages[message as usize].waiting.clear();
        // Mostly the first one.
        if let Some(at) = self.order.iter().position(|open| *open == message) {
            self.order.remove(at);
        }
        generation
    }

    /// Returns the memory and the place of a run; `None` where that lies outside of what it shares.
    pub fn place(&self, run: &Run, place: Place) -> Option<(&Arc<SharedMemory>, usize)> {
        let memory = if place.escaped { self.escape.as_ref()? } else { &self.pool };
        let from = place.slab as usize * SLAB_BYTES;
        (from + run.bytes as usize <= memory.bytes()).then_some((memory, from))
    }

    /// Returns the bytes of a run at its place; `None` where that lies outside of what it shares.
    pub fn bytes(&self, run: &Run, place: Place) -> Option<&[u8]> {
        let (memory, from) = self.place(run, place)?;
        let bytes = run.bytes as usize;
        // SAFETY: within the mapping, as just checked. While the run is pinned, nobody writes its bytes; that
        // they do not is what the simulation checks.
        Some(unsafe { std::slice::from_raw_parts(memory.base().add(from), bytes) })
    }
}
