//! One application's registration: slots, message numbers, and what is measured of it.

use crate::config::FRAGMENT_SLABS_MAX;
use crate::histogram::Histogram;
use crate::message::{MessageList, NONE};
use crate::pool::{Run, Share};
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
    /// One bit a slice that is not released.
    pub held: u64,
    pub since_ns: u64,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionState {
    Free,
    Open,
    /// Its application is gone; what it held is unused until then.
    Quarantine {
        until_ns: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Session {
    pub state: SessionState,
    pub app: u32,
    pub class: u8,
    pub slots: Box<[Slot]>,
    pub free_slots: Vec<u16>,
    /// Message number -> record, with the number's generation.
    pub messages: Box<[(u32, u16)]>,
    pub free_messages: Vec<u16>,
    /// Small messages that wait for a slot or a number.
    pub backlog: MessageList,
    /// READs (by index) that wait for slots.
    pub read_backlog: (u32, u32),
    /// Messages that began to arrive and are not complete: the oldest, the newest.
    pub incomplete: (u32, u32),
    pub held_slabs: u32,
    pub delivered_messages: u64,
    pub delivered_bytes: u64,
    pub released_since_tick_bytes: u64,
    pub bytes_per_ms: u64,
    pub post_nic_ns: u64,
    pub post_nic: Histogram,
}

impl Session {
    pub fn new(slots: u32, messages: u32) -> Self {
        let empty = Slot {
            message: NONE,
            generation: 0,
            share: Share::Srq,
            run: Run::default(),
            held: 0,
            since_ns: 0,
        };
        let numbers = |n: u32| (0..u16::try_from(n).expect("checked by Config::check")).rev().collect();
        Self {
            state: SessionState::Free,
            app: NONE,
            class: 0,
            slots: vec![empty; slots as usize].into_boxed_slice(),
            free_slots: numbers(slots),
            messages: vec![(NONE, 0); messages as usize].into_boxed_slice(),
            free_messages: numbers(messages),
            backlog: MessageList::EMPTY,
            read_backlog: (NONE, NONE),
            incomplete: (NONE, NONE),
            held_slabs: 0,
            delivered_messages: 0,
            delivered_bytes: 0,
            released_since_tick_bytes: 0,
            bytes_per_ms: 0,
            post_nic_ns: 0,
            post_nic: Histogram::default(),
        }
    }

    /// Whether the message may use what is reserved for the one that the application is waiting for.
    #[inline]
    pub fn may_use_reserve(&self, message: u32) -> bool {
        self.incomplete.0 == NONE || self.incomplete.0 == message
    }

    /// Whether there is a slot for a run of this message (`NONE`: of a small one).
    #[inline]
    pub fn has_slot(&self, message: u32) -> bool {
        let reserve = if self.may_use_reserve(message) { 0 } else { FRAGMENT_SLABS_MAX as usize };
        self.free_slots.len() > reserve
    }

    pub fn is_open(&self) -> bool {
        self.state == SessionState::Open
    }

    /// Ready for another application. Generations go on, so that late releases of the former fail.
    pub fn reset(&mut self) {
        self.state = SessionState::Free;
        self.app = NONE;
        self.free_slots.clear();
        self.free_messages.clear();
        let slots = u16::try_from(self.slots.len()).expect("checked by Config::check");
        let messages = u16::try_from(self.messages.len()).expect("checked by Config::check");
        self.free_slots.extend((0..slots).rev());
        self.free_messages.extend((0..messages).rev());
        self.slots.iter_mut().for_each(|slot| slot.message = NONE);
        self.messages.iter_mut().for_each(|message| message.0 = NONE);
        self.backlog = MessageList::EMPTY;
        self.read_backlog = (NONE, NONE);
        self.incomplete = (NONE, NONE);
        self.held_slabs = 0;
        self.delivered_messages = 0;
        self.delivered_bytes = 0;
        self.released_since_tick_bytes = 0;
        self.bytes_per_ms = 0;
        self.post_nic_ns = 0;
        self.post_nic = Histogram::default();
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
