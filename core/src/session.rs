//! One application's registration: slots, message numbers, and what is measured of it.

use crate::config::{CLASSES_MAX, FRAGMENT_SLABS_MAX};
use crate::histogram::Histogram;
use crate::message::{MessageList, NONE};
use crate::pool::{Run, Share};
use crate::receiver::Stillness;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A delivered run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The record of its message; `NONE`: the slot is empty.
    pub message: u32,
    pub generation: u16,
    pub share: Share,
    pub run: Run,
    /// It lies in the cache, in the budget, and is not being copied: the usual case, in which releasing is short.
    pub plain: bool,
    /// It is being copied to memory: neither it nor its slabs are used for anything else before that is over.
    pub copying: bool,
    /// One bit a slice that is not released.
    pub held: u64,
}

impl Slot {
    /// Every slice of its run.
    pub fn all(&self) -> u64 {
        u64::MAX >> (64 - self.run.count)
    }

    /// The slices that lie where its run does: while that is being copied, those that were released as well.
    pub fn occupied(&self) -> u64 {
        if self.copying { self.all() } else { self.held }
    }
}

/// Slabs of a session's messages that escaped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Escaped<N> {
    pub copied: N,
    pub replaced: N,
    /// Taken from memory instead of waiting.
    pub granted: N,
}

impl Escaped<u32> {
    /// In memory.
    pub fn memory(&self) -> u32 {
        self.copied + self.granted
    }

    /// So many were released.
    pub fn give(&mut self, slabs: u32, share: Share) {
        match share {
            Share::Copied => self.copied -= slabs,
            Share::Granted => self.granted -= slabs,
            Share::Replaced => self.replaced -= slabs,
            Share::Srq | Share::Read => {}
        }
    }
}

/// A session's messages of one class that were not admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    /// How many are in the class's queue.
    pub waiting: u32,
    /// The others: they wait until the session is no longer barred, or until their class's queue has a place for them.
    pub parked: MessageList,
    /// Of them: the last that came out of its class's queue since the session was barred. The next one goes behind it.
    pub parked_last: u32,
}

impl Queued {
    pub const NOTHING: Self = Self { waiting: 0, parked: MessageList::EMPTY, parked_last: NONE };
}

#[derive(Debug)]
pub(crate) struct Session {
    pub slots: Box<[Slot]>,
    pub free_slots: Vec<u16>,
    /// Message number -> record, with the number's generation.
    pub messages: Box<[(u32, u16)]>,
    pub free_messages: Vec<u16>,
    /// Small messages that wait for a slot or a number.
    pub backlog: MessageList,
    /// Messages that began to arrive and are not complete: the oldest, the newest.
    pub incomplete: (u32, u32),
    /// Slots and message numbers that READs in flight will need.
    pub promised_slots: u32,
    pub promised_numbers: u32,
    /// Nothing new is granted to it: it is slow, holds too much memory, or has no slots left.
    pub barred: bool,
    /// That is its own application's doing.
    pub stuck: bool,
    /// It was so at some time since it was barred.
    pub was_stuck: bool,
    /// Its messages that were not admitted, by class. Apart, so that what every message passes lies close together.
    pub queued: Box<[Queued; CLASSES_MAX]>,
    /// It is in the receiver's list of sessions that are barred or have parked messages.
    pub reviewed: bool,
    /// Copies of its runs under way.
    pub copies: u32,
    /// What escaped of that which it holds, and of what is being read for it.
    pub now: Escaped<u32>,
    /// What escaped so far.
    pub escaped: Escaped<u64>,
    pub delivered_messages: u64,
    pub delivered_bytes: u64,
    pub released_since_tick_bytes: u64,
    pub bytes_per_ms: u64,
    pub post_nic_ns: u64,
    pub post_nic: Histogram,
    /// Since when nothing comes to it and nothing comes back.
    pub still: Stillness,
}

impl Session {
    pub fn new(slots: u32, messages: u32) -> Self {
        let empty = Slot {
            message: NONE,
            generation: 0,
            share: Share::Srq,
            run: Run::default(),
            plain: true,
            copying: false,
            held: 0,
        };
        let numbers = |n: u32| (0..u16::try_from(n).expect("checked by Config::check")).rev().collect();
        Self {
            slots: vec![empty; slots as usize].into_boxed_slice(),
            free_slots: numbers(slots),
            messages: vec![(NONE, 0); messages as usize].into_boxed_slice(),
            free_messages: numbers(messages),
            backlog: MessageList::EMPTY,
            incomplete: (NONE, NONE),
            promised_slots: 0,
            promised_numbers: 0,
            barred: false,
            stuck: false,
            was_stuck: false,
            queued: Box::new([Queued::NOTHING; CLASSES_MAX]),
            reviewed: false,
            copies: 0,
            now: Escaped::default(),
            escaped: Escaped::default(),
            delivered_messages: 0,
            delivered_bytes: 0,
            released_since_tick_bytes: 0,
            bytes_per_ms: 0,
            post_nic_ns: 0,
            post_nic: Histogram::default(),
            still: Stillness::default(),
        }
    }

    /// Runs delivered and not wholly released.
    pub fn slots_used(&self) -> u32 {
        u32::try_from(self.slots.len() - self.free_slots.len()).unwrap_or(NONE)
    }

    /// Slots that are neither in use nor kept for READs in flight.
    #[inline]
    pub fn slots_left(&self) -> u32 {
        u32::try_from(self.free_slots.len()).unwrap_or(NONE) - self.promised_slots
    }

    /// Message numbers that are neither in use nor kept for READs in flight.
    #[inline]
    pub fn numbers_left(&self) -> u32 {
        u32::try_from(self.free_messages.len()).unwrap_or(NONE) - self.promised_numbers
    }

    /// Whether there are a slot and a number for a small message.
    #[inline]
    pub fn has_room_for_small(&self) -> bool {
        let reserve = if self.incomplete.0 == NONE { 0 } else { FRAGMENT_SLABS_MAX };
        self.free_slots.len() > (self.promised_slots + reserve) as usize
            && self.free_messages.len() > self.promised_numbers as usize
    }

    /// Whether there are slots for a fragment, whatever its runs, and a number.
    pub fn has_room_for_fragment(&self, slabs: u32) -> bool {
        let reserve = if self.incomplete.0 == NONE { 0 } else { FRAGMENT_SLABS_MAX };
        self.slots_left() >= slabs + reserve && self.numbers_left() > 0
    }

    /// Whether messages of it are parked.
    pub fn has_parked(&self) -> bool {
        self.queued.iter().any(|queued| queued.parked.len() > 0)
    }

    /// Ready for another application. Generations go on, so that late releases of the former fail.
    pub fn reset(&mut self) {
        self.free_slots.clear();
        self.free_messages.clear();
        let slots = u16::try_from(self.slots.len()).expect("checked by Config::check");
        let messages = u16::try_from(self.messages.len()).expect("checked by Config::check");
        self.free_slots.extend((0..slots).rev());
        self.free_messages.extend((0..messages).rev());
        self.slots.iter_mut().for_each(|slot| slot.message = NONE);
        self.messages.iter_mut().for_each(|message| message.0 = NONE);
        self.backlog = MessageList::EMPTY;
        self.incomplete = (NONE, NONE);
        self.promised_slots = 0;
        self.promised_numbers = 0;
        self.barred = false;
        self.stuck = false;
        self.was_stuck = false;
        *self.queued = [Queued::NOTHING; CLASSES_MAX];
        self.now = Escaped::default();
        self.escaped = Escaped::default();
        self.delivered_messages = 0;
        self.delivered_bytes = 0;
        self.released_since_tick_bytes = 0;
        self.bytes_per_ms = 0;
        self.post_nic_ns = 0;
        self.post_nic = Histogram::default();
        self.still = Stillness::default();
    }

    /// Rates over the last tick, averaged with weight 1/8.
    pub fn tick(&mut self, span_ns: u64) {
        let bytes = core::mem::take(&mut self.released_since_tick_bytes);
        let now = bytes.saturating_mul(1_000_000) / span_ns.max(1);
        self.bytes_per_ms = if self.bytes_per_ms == 0 { now } else { (self.bytes_per_ms * 7 + now) / 8 };
    }

    /// A run was released after so long.
    #[inline]
    pub fn note_release(&mut self, span_ns: u64) {
        self.post_nic.add(span_ns);
        self.post_nic_ns =
            if self.post_nic_ns == 0 { span_ns.max(1) } else { (self.post_nic_ns * 15 + span_ns) / 16 };
    }
}
