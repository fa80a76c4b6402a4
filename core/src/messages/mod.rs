//! The table of messages that the receiver knows, from their arrival to their acknowledgement.

mod list;
mod state;

pub(crate) use list::MessageList;
pub(crate) use state::{AppState, MessageState};

use crate::index::NONE;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::{PIECE_BYTES, PIECES_BYTES_MAX, USER_HEADER_MAX, pieces as pieces_of};

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The message occupies an SRQ slab, and needs no READs.
    Small,
    /// The message is read when its class has its turn.
    Large { class: u8 },
}

/// The record of one message. It lives until the sender has the acknowledgement and the application is done
/// with the message.
///
/// It is two cache lines long and begins at one. So finding it by its number takes a shift, and no
/// multiplication.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Message {
    pub state: MessageState,
    pub app_state: AppState,
    pub kind: Kind,
    pub redelivered: bool,
    /// Whether its sender has memory for a reply.
    pub wants_reply: bool,
    /// Index of the sender's connection; `NONE` when the sender is gone.
    pub peer: u32,
    /// Index of the session that the message is for; `NONE` if it has none, or its session is over.
    pub session: u32,
    pub next: u32,
    /// READs of the message that are in flight or being checked.
    pub reads: u32,
    /// Slices of the message that were delivered and not released.
    pub held: u32,
    pub sequence: u64,
    pub sender: u64,
    pub tag: u64,
    pub length: u64,
    /// Bytes of the message that were delivered.
    pub arrived: u64,
    pub user_header_bytes: u16,
}

const EMPTY: Message = Message {
    state: MessageState::Free,
    app_state: AppState::Unaware,
    kind: Kind::Small,
    redelivered: false,
    wants_reply: false,
    peer: NONE,
    session: NONE,
    next: NONE,
    reads: 0,
    held: 0,
    sequence: 0,
    sender: 0,
    tag: 0,
    length: 0,
    arrived: 0,
    user_header_bytes: 0,
};

const _: () =
    assert!(size_of::<Message>() == 128, "a record is written for every small message: two cache lines");

/// Fields of a small message that are known when it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    pub redelivered: bool,
    pub wants_reply: bool,
    pub peer: u32,
    pub session: u32,
    pub sequence: u64,
    pub sender: u64,
    pub tag: u64,
    pub length: u64,
}

/// A small message that its application consumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumedSmall {
    pub peer: u32,
    pub session: u32,
    /// Number by which the application knows the message.
    pub number: u16,
    pub sequence: u64,
}

impl Message {
    /// Begins the record of a small message, writing every field in place. Building the record elsewhere and
    /// copying it stalls: the wide loads of the copy would wait for the narrow stores before them.
    #[inline]
    fn begin_small(&mut self, small: &Small) {
        let Self {
            state,
            app_state,
            kind,
            redelivered,
            wants_reply,
            peer,
            session,
            reads,
            held,
            sequence,
            sender,
            tag,
            length,
            arrived,
            // These are written before they are read: when the message waits in a list or for a slot.
            next: _,
            user_header_bytes: _,
        } = self;
        *state = MessageState::Settling;
        *app_state = AppState::Unaware;
        *kind = Kind::Small;
        *redelivered = small.redelivered;
        *wants_reply = small.wants_reply;
        *peer = small.peer;
        *session = small.session;
        *reads = 0;
        *held = 0;
        *sequence = small.sequence;
        *sender = small.sender;
        *tag = small.tag;
        *length = small.length;
        *arrived = 0;
    }

    /// Returns the class that the message waits in.
    #[inline]
    pub fn class(&self) -> usize {
        match self.kind {
            Kind::Small => 0,
            Kind::Large { class } => usize::from(class),
        }
    }

    /// Returns whether the receiver or the application decided how the message ends.
    pub fn is_decided(&self) -> bool {
        self.state.has_failed() || self.state.is_over() || self.app_state.is_finished()
    }

    /// Returns whether nobody wants what still arrives of the message.
    #[inline]
    pub fn is_discarded(&self) -> bool {
        self.session == NONE || self.state.has_failed() || self.app_state.is_finished()
    }
}

/// The part of a record that only large messages use: where the payload lies, and how far its READs are. It
/// is apart from [`Message`], so that small messages do not touch it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub address: u64,
    pub key: u32,
    /// Pieces that the payload lies in, where it lies in several. Their list is apart.
    pub pieces: u8,
    /// Bytes of the message for which READs were posted.
    pub requested: u64,
    /// Checksum that all bytes of the message together must have, where it carries one.
    pub crc_expected: Option<u32>,
    /// Checksum of the message's bytes that were checked so far.
    pub crc: u32,
    /// First and last of the message's READs that workers check, in the order of their bytes.
    pub checks: Option<(u32, u32)>,
    /// Session whose requests the message counts among.
    pub request_of: Option<u32>,
    pub footprint_bytes: u64,
    /// Bytes of the message's READs in the READ share, in flight or being checked.
    pub in_pool_bytes: u64,
    /// Whether the message counts among those being read.
    pub running: bool,
    /// Whether the message's READs go to escape memory.
    pub in_memory: bool,
    /// Whether a message number is kept for the message, because a READ was posted before its application
    /// knew of it.
    pub numbered: bool,
    /// Next newer message in the session's list of messages that began to arrive and are not complete.
    pub newer: u32,
    /// Next older message in the session's list of messages that began to arrive and are not complete.
    pub older: u32,
    /// Whether the message is in the session's list of those that began to arrive and are not complete.
    pub listed: bool,
}

impl Transfer {
    /// Returns whether the message has a footprint, in which its READs in the READ share are: it is being
    /// read, and waited for room in the pool.
    #[inline]
    pub fn counts_in_pool(&self) -> bool {
        self.running && !self.in_memory
    }

    /// Returns the bytes of its READs that its footprint has.
    #[inline]
    pub fn counted_in_pool_bytes(&self) -> u64 {
        if self.counts_in_pool() { self.in_pool_bytes } else { 0 }
    }
}

/// Bytes of a large message in one piece, from the first one for which no READ was posted on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub address: u64,
    pub key: u32,
    pub bytes: u64,
}

/// All messages, with a stack of unused records: the last one used is used first.
#[derive(Debug)]
pub(crate) struct Messages {
    records: Box<[Message]>,
    transfers: Box<[Transfer]>,
    free: Vec<u32>,
    /// Records that were ever used: the first so many. The last one used is used first, so they are as many
    /// as were ever in use at once.
    ever_used: u32,
    user_headers: Box<[u8]>,
    /// Lists of pieces. Of those of messages that lie in one piece no byte is ever touched.
    pieces: Box<[u8]>,
}

impl Messages {
    pub fn new(capacity: u32) -> Self {
        Self {
            records: vec![EMPTY; capacity as usize].into_boxed_slice(),
            transfers: vec![Transfer::default(); capacity as usize].into_boxed_slice(),
            free: (0..capacity).rev().collect(),
            ever_used: 0,
            // Of plain zeros the allocator touches no page.
            user_headers: vec![0; capacity as usize * USER_HEADER_MAX].into_boxed_slice(),
            pieces: vec![0; capacity as usize * PIECES_BYTES_MAX].into_boxed_slice(),
        }
    }

    pub fn available(&self) -> usize {
        self.free.len()
    }

    pub fn in_use(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Takes an empty record for a large message; `None` if there is none left.
    pub fn add(&mut self) -> Option<u32> {
        let index = self.take_free()?;
        self.records[index as usize] = EMPTY;
        Some(index)
    }

    /// Takes a record for a small message and fills it; `None` if there is none left.
    #[inline]
    pub fn add_small(&mut self, small: &Small) -> Option<u32> {
        let index = self.take_free()?;
        self.records[index as usize].begin_small(small);
        Some(index)
    }

    #[inline]
    fn take_free(&mut self) -> Option<u32> {
        let index = self.free.pop()?;
        if index >= self.ever_used {
            self.ever_used = index + 1;
        }
        Some(index)
    }

    /// Returns what the end of a small message needs that its application consumed and gave back whole, and
    /// that nothing else happened to: it waits for no READ and has no reply, and both its sender and its
    /// session are there. `None`: it is another message.
    #[inline(always)] // on every message's way
    pub fn consumed_small(&self, index: u32) -> Option<ConsumedSmall> {
        let record = &self.records[index as usize];
        match record.app_state {
            AppState::Finished { number, code: 0 }
                if record.kind == Kind::Small
                    && record.state == MessageState::Settling
                    && !record.wants_reply
                    && record.held == 0
                    && record.peer != NONE
                    && record.session != NONE =>
            {
                debug_assert!(record.reads == 0, "a small message has no READs");
                let Message { peer, session, sequence, .. } = *record;
                Some(ConsumedSmall { peer, session, number, sequence })
            }
            _ => None,
        }
    }

    /// Frees the record of a message that [`Self::consumed_small`] named, and whose end is among its sender's
    /// pending ones.
    #[inline(always)] // on every message's way
    pub fn free_consumed(&mut self, index: u32) {
        let record = &mut self.records[index as usize];
        debug_assert!(record.state == MessageState::Settling, "message {index} is freed twice");
        record.state = MessageState::Free;
        self.free.push(index);
    }

    /// Notes that the message's end was handed on to its sender, or that there is no sender. Frees the record
    /// if nobody needs it any more.
    pub fn mark_acknowledged(&mut self, index: u32) {
        self.records[index as usize].state.mark_acknowledged();
        self.free_if_settled(index);
    }

    /// Notes that the message's sender is gone.
    pub fn forget_sender(&mut self, index: u32) {
        self.records[index as usize].peer = NONE;
    }

    /// Frees the record if neither the sender nor the application needs it.
    #[inline]
    pub fn free_if_settled(&mut self, index: u32) {
        let record = &mut self.records[index as usize];
        if record.state.is_acknowledged() && !record.app_state.is_open() && record.reads == 0 {
            record.state = MessageState::Free;
            self.free.push(index);
        }
    }

    pub fn transfer(&mut self, index: u32) -> &mut Transfer {
        &mut self.transfers[index as usize]
    }

    /// Returns whether any of a large message was requested.
    #[inline]
    pub fn has_begun(&self, index: u32) -> bool {
        self.transfers[index as usize].requested > 0
    }

    /// Keeps a user header beside the message until it is delivered.
    pub fn keep_user_header(&mut self, index: u32, user_header: &[u8]) {
        let used = user_header.len().min(USER_HEADER_MAX);
        let place = &mut self.user_headers[index as usize * USER_HEADER_MAX..];
        place[..used].copy_from_slice(&user_header[..used]);
        self.records[index as usize].user_header_bytes = u16::try_from(used).unwrap_or(0);
    }

    /// Keeps the list of a message's pieces, which was checked.
    pub fn keep_pieces(&mut self, index: u32, list: &[u8]) {
        self.pieces[index as usize * PIECES_BYTES_MAX..][..list.len()].copy_from_slice(list);
        self.transfers[index as usize].pieces = u8::try_from(list.len() / PIECE_BYTES).expect("at most 16");
    }

    /// Returns where the next bytes of a large message lie for which no READ was posted, and how many of them
    /// lie in one piece: 0 where READs of all of it were posted.
    pub fn next_to_read(&self, index: u32) -> Unread {
        let Transfer { address, key, pieces, requested, .. } = self.transfers[index as usize];
        if pieces == 0 {
            let left = self.records[index as usize].length - requested;
            return Unread { address: address.wrapping_add(requested), key, bytes: left };
        }
        let list = &self.pieces[index as usize * PIECES_BYTES_MAX..][..usize::from(pieces) * PIECE_BYTES];
        let mut before = 0;
        for piece in pieces_of(list) {
            let (address, bytes) = (piece.address.get(), u64::from(piece.bytes.get()));
            let within = requested - before;
            if within < bytes {
                return Unread { address: address + within, key: piece.key.get(), bytes: bytes - within };
            }
            before += bytes;
        }
        // The pieces are the message, and READs of all of it were posted.
        Unread { address: 0, key: 0, bytes: 0 }
    }

    /// Returns the place of the user header that was kept, and how many of its bytes are used.
    #[inline]
    pub fn user_header(&self, index: u32) -> (&[u8; USER_HEADER_MAX], usize) {
        let used = usize::from(self.records[index as usize].user_header_bytes);
        let place = self.user_headers[index as usize * USER_HEADER_MAX..].first_chunk();
        (place.expect("each message has its place"), used)
    }

    /// Returns the indices of all records that were ever used.
    pub fn indices(&self) -> core::ops::Range<u32> {
        0..self.ever_used
    }
}

impl core::ops::Index<u32> for Messages {
    type Output = Message;
    #[inline]
    fn index(&self, index: u32) -> &Message {
        &self.records[index as usize]
    }
}

impl core::ops::IndexMut<u32> for Messages {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Message {
        &mut self.records[index as usize]
    }
}

#[cfg(test)]
mod tests;
