//! Table of the runs and messages that the daemon delivered and the application has not given back.
//!
//! Deliveries of several messages interleave in one ring. Each delivery is stored at its slot's index. The
//! runs of a message that the application has not taken yet form a list through those entries. All sizes
//! follow the segment's shape, so nothing here grows.

use super::error::Fault;
use jet_wire::message::USER_HEADER_MAX;
use jet_wire::segment::{
    AppEnd, DELIVERY_USER_HEADER_MAX, Delivery, SegmentShape, delivery_flags, delivery_kind,
};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::cell::{Cell, UnsafeCell};

/// Index that marks the end of a list.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The slot is free for the daemon's next delivery.
    Free,
    /// The run was delivered, and is in its message's list.
    Queued,
    /// The application holds slices of the run.
    Taken,
}

/// A slot of the session, with the run that was delivered in it.
pub(super) struct SlotEntry {
    pub state: Cell<SlotState>,
    pub generation: Cell<u16>,
    pub next: Cell<u32>,
    pub message: Cell<u32>,
    pub message_generation: Cell<u16>,
    pub offset: Cell<u64>,
    pub bytes: Cell<u32>,
    /// Slices that are not released yet.
    pub slices_left: Cell<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageState {
    /// The entry was never used.
    Free,
    /// The message waits for `receive`.
    Ready,
    /// The application has the message.
    Held,
    /// The application ended the message, but has not given back all of its slices.
    Closing,
    /// The message was consumed before all of it arrived. What arrives later is released at once. The last
    /// run, or the withdrawal of the message, finishes it.
    Draining,
    /// The message is finished. Late deliveries for it are released at once.
    Finished,
}

/// [`MessageEntry::reply_bytes`] of a message without a reply.
const NO_REPLY: u16 = u16::MAX;

/// A place for a delivered message, with its state and its runs. All but the user header is one cache line.
#[repr(align(64))]
pub(super) struct MessageEntry {
    pub state: Cell<MessageState>,
    pub generation: Cell<u16>,
    pub redelivered: Cell<bool>,
    /// Whether the sender has memory for a reply.
    pub wants_reply: Cell<bool>,
    /// Bytes of the reply in the message's reply cell, or [`NO_REPLY`].
    reply_bytes: Cell<u16>,
    /// Whether the last run was delivered.
    pub complete: Cell<bool>,
    /// Set where the rest will not arrive; `true`: because the message was corrupt.
    pub withdrawn: Cell<Option<bool>>,
    pub user_header_bytes: Cell<u16>,
    /// First run that is not taken yet.
    pub head: Cell<u32>,
    tail: Cell<u32>,
    next_ready: Cell<u32>,
    /// Runs that are taken and not wholly released.
    pub runs_taken: Cell<u32>,
    /// Code to finish the message with, in the state `Closing`.
    pub code: Cell<u32>,
    pub bytes: Cell<u64>,
    pub tag: Cell<u64>,
    pub sequence: Cell<u64>,
    pub sender: Cell<u64>,
    user_header: UnsafeCell<[u8; USER_HEADER_MAX]>,
}

const _: () = assert!(size_of::<MessageEntry>() == 64 + USER_HEADER_MAX);

impl MessageEntry {
    /// Returns the bytes of the reply in the message's reply cell, where the application gave one.
    #[inline]
    pub fn reply_bytes(&self) -> Option<u16> {
        Some(self.reply_bytes.get()).filter(|&bytes| bytes != NO_REPLY)
    }

    /// Notes that the message's reply cell has its reply.
    pub fn set_reply(&self, bytes: u16) {
        self.reply_bytes.set(bytes);
    }
}

/// Result of accepting a delivery.
pub(super) enum Accepted {
    /// The delivered run was stored for the application. `begins`: it is the first one of its message.
    Stored { begins: bool },
    /// The message was consumed or finished meanwhile: release `slices` slices of the slot at once.
    Late { slices: u16 },
    /// The rest of the message will not arrive.
    Withdrawn,
}

pub(super) struct Table {
    slots: Box<[SlotEntry]>,
    messages: Box<[MessageEntry]>,
    ready_head: Cell<u32>,
    ready_tail: Cell<u32>,
}

/// Returns the number of slices of a run. A message without bytes has a slab, too.
pub(super) fn slices_of(bytes: u32) -> u32 {
    bytes.div_ceil(SLAB_BYTES_U32).max(1)
}

impl Table {
    pub(super) fn new(shape: SegmentShape) -> Self {
        let slot = || SlotEntry {
            state: Cell::new(SlotState::Free),
            generation: Cell::new(0),
            next: Cell::new(NONE),
            message: Cell::new(NONE),
            message_generation: Cell::new(0),
            offset: Cell::new(0),
            bytes: Cell::new(0),
            slices_left: Cell::new(0),
        };
        let message = || MessageEntry {
            state: Cell::new(MessageState::Free),
            generation: Cell::new(0),
            redelivered: Cell::new(false),
            wants_reply: Cell::new(false),
            reply_bytes: Cell::new(NO_REPLY),
            complete: Cell::new(false),
            withdrawn: Cell::new(None),
            user_header_bytes: Cell::new(0),
            head: Cell::new(NONE),
            tail: Cell::new(NONE),
            next_ready: Cell::new(NONE),
            runs_taken: Cell::new(0),
            code: Cell::new(0),
            bytes: Cell::new(0),
            tag: Cell::new(0),
            sequence: Cell::new(0),
            sender: Cell::new(0),
            user_header: UnsafeCell::new([0; USER_HEADER_MAX]),
        };
        Self {
            slots: (0..shape.slots).map(|_| slot()).collect(),
            messages: (0..shape.messages).map(|_| message()).collect(),
            ready_head: Cell::new(NONE),
            ready_tail: Cell::new(NONE),
        }
    }

    /// Returns the most deliveries that the daemon can make without reading a release: every slot, and every
    /// message's withdrawal.
    pub(super) fn deliveries_max(&self) -> usize {
        self.slots.len() + self.messages.len()
    }

    /// Returns the entry of a slot, whose number was checked before.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> &SlotEntry {
        &self.slots[index as usize]
    }

    /// Returns the entry of a message, whose number was checked before.
    #[inline]
    pub(super) fn message(&self, index: u32) -> &MessageEntry {
        &self.messages[index as usize]
    }

    /// Checks a delivery against the segment and the table, and stores it.
    #[inline]
    pub(super) fn accept(&self, delivery: &Delivery, end: &AppEnd) -> Result<Accepted, Fault> {
        match delivery.kind {
            delivery_kind::SLICES => self.accept_slices(delivery, end),
            delivery_kind::WITHDRAWN => self.accept_withdrawal(delivery),
            _ => Err(Self::bad_index(delivery)),
        }
    }

    fn accept_slices(&self, delivery: &Delivery, end: &AppEnd) -> Result<Accepted, Fault> {
        let (Some(slot), Some(message)) =
            (self.slots.get(delivery.slot as usize), self.messages.get(delivery.message as usize))
        else {
            return Err(Self::bad_index(delivery));
        };
        let Delivery { offset, bytes, message_bytes, .. } = *delivery;
        let extent = Fault::Extent { offset, bytes, message_bytes };
        if offset.checked_add(u64::from(bytes)).is_none_or(|end| end > message_bytes) {
            return Err(extent);
        }
        let slices = u16::try_from(slices_of(bytes)).map_err(|_| extent)?;
        if slot.state.get() != SlotState::Free {
            return Err(Self::out_of_turn(delivery));
        }
        let generation = delivery.message_generation();
        if delivery.flags & delivery_flags::FIRST != 0 {
            self.begin(message, delivery, end)?;
        } else if generation != message.generation.get() {
            return Err(Self::out_of_turn(delivery));
        }
        slot.generation.set(delivery.slot_generation());
        slot.message.set(delivery.message);
        slot.message_generation.set(generation);
        slot.slices_left.set(slices);
        slot.offset.set(offset);
        slot.bytes.set(bytes);
        slot.next.set(NONE);
        match message.state.get() {
            MessageState::Finished => Ok(Accepted::Late { slices }),
            MessageState::Draining if !message.complete.get() => {
                message.complete.set(delivery.flags & delivery_flags::LAST != 0);
                Ok(Accepted::Late { slices })
            }
            MessageState::Ready | MessageState::Held if !message.complete.get() => {
                message.complete.set(delivery.flags & delivery_flags::LAST != 0);
                slot.state.set(SlotState::Queued);
                if message.head.get() == NONE {
                    message.head.set(delivery.slot);
                } else {
                    self.slot(message.tail.get()).next.set(delivery.slot);
                }
                message.tail.set(delivery.slot);
                Ok(Accepted::Stored { begins: delivery.flags & delivery_flags::FIRST != 0 })
            }
            _ => Err(Self::out_of_turn(delivery)),
        }
    }

    fn begin(&self, message: &MessageEntry, delivery: &Delivery, end: &AppEnd) -> Result<(), Fault> {
        if !matches!(message.state.get(), MessageState::Free | MessageState::Finished) {
            return Err(Self::out_of_turn(delivery));
        }
        let used = usize::from(delivery.user_header_bytes);
        if used > USER_HEADER_MAX {
            let message_bytes = delivery.message_bytes;
            return Err(Fault::Extent {
                offset: 0,
                bytes: u32::from(delivery.user_header_bytes),
                message_bytes,
            });
        }
        // SAFETY: no `Message` of this entry is alive (Free or Finished), so nobody holds a reference to the
        // bytes.
        let kept = unsafe { &mut *message.user_header.get() };
        if used <= DELIVERY_USER_HEADER_MAX {
            kept[..DELIVERY_USER_HEADER_MAX].copy_from_slice(&delivery.user_header);
        } else {
            *kept = end.read_user_header(delivery.message).ok_or_else(|| Self::bad_index(delivery))?;
        }
        message.generation.set(delivery.message_generation());
        message.redelivered.set(delivery.flags & delivery_flags::REDELIVERED != 0);
        message.wants_reply.set(delivery.flags & delivery_flags::WANTS_REPLY != 0);
        message.reply_bytes.set(NO_REPLY);
        message.complete.set(false);
        message.withdrawn.set(None);
        message.user_header_bytes.set(delivery.user_header_bytes);
        message.head.set(NONE);
        message.runs_taken.set(0);
        message.bytes.set(delivery.message_bytes);
        message.tag.set(delivery.tag);
        message.sequence.set(delivery.sequence);
        message.sender.set(delivery.sender);
        message.state.set(MessageState::Ready);
        message.next_ready.set(NONE);
        if self.ready_head.get() == NONE {
            self.ready_head.set(delivery.message);
        } else {
            self.message(self.ready_tail.get()).next_ready.set(delivery.message);
        }
        self.ready_tail.set(delivery.message);
        Ok(())
    }

    fn accept_withdrawal(&self, delivery: &Delivery) -> Result<Accepted, Fault> {
        let message =
            self.messages.get(delivery.message as usize).ok_or_else(|| Self::bad_index(delivery))?;
        // Where the application finished the message meanwhile, there is nothing to report.
        if message.generation.get() == delivery.message_generation() {
            message.withdrawn.set(Some(delivery.flags & delivery_flags::CORRUPT != 0));
        }
        Ok(Accepted::Withdrawn)
    }

    /// Returns the bytes of all slabs that were delivered and not released. Reads every slot.
    #[cold]
    pub(super) fn held_bytes(&self) -> u64 {
        let held = self.slots.iter().filter(|slot| slot.state.get() != SlotState::Free);
        held.map(|slot| u64::from(slot.slices_left.get()) * SLAB_BYTES as u64).sum()
    }

    /// Whether a message waits that the application has not received.
    pub(super) fn has_ready(&self) -> bool {
        self.ready_head.get() != NONE
    }

    /// Takes the next message that the application has not received.
    #[inline]
    pub(super) fn take_ready(&self) -> Option<u32> {
        let index = self.ready_head.get();
        if index == NONE {
            return None;
        }
        let message = self.message(index);
        self.ready_head.set(message.next_ready.get());
        message.state.set(MessageState::Held);
        Some(index)
    }

    /// Takes the next run out of a message's list.
    #[inline]
    pub(super) fn take_run(&self, message: u32) -> Option<u32> {
        let message = self.message(message);
        let index = message.head.get();
        if index == NONE {
            return None;
        }
        message.head.set(self.slot(index).next.get());
        Some(index)
    }

    /// Returns the user header of a message that is held.
    pub(super) fn user_header(&self, message: u32) -> &[u8] {
        let message = self.message(message);
        // SAFETY: the bytes are written only by `begin`, which refuses an entry whose message is alive; the
        // caller's reference lives no longer than its `Message`.
        let bytes = unsafe { &*message.user_header.get() };
        &bytes[..usize::from(message.user_header_bytes.get())]
    }

    fn bad_index(delivery: &Delivery) -> Fault {
        Fault::Index { slot: delivery.slot, message: delivery.message, kind: delivery.kind }
    }

    fn out_of_turn(delivery: &Delivery) -> Fault {
        Fault::OutOfTurn { slot: delivery.slot, message: delivery.message }
    }
}
