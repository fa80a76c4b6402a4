//! Output queue of one connection: frames in a ring of bytes, and stretches of registered memory between
//! them, in the order of the stream.
//!
//! Registered memory is named by key and looked up again at each write. So memory that was deregistered
//! meanwhile is never touched. The queue is bounded: callers ask for room before they push.

use super::socket::IoVec;
use crate::nic::{MemoryKey, Sge};
use std::collections::VecDeque;

/// Most stretches that one system call writes.
pub(super) const GATHER_MAX: usize = 128;
/// Source of the bytes that replace memory which was deregistered half way through a frame.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Urgency of output, which decides how full the queue may be for it. A frame that ends a connection always
/// has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Requests of this end.
    Request,
    /// Acknowledgements, and answers to the peer.
    Answer,
    /// An error that ends the connection, or the farewell.
    Last,
}

impl Urgency {
    /// Returns the bytes and pieces that must stay free for more urgent output.
    fn reserve(self) -> (usize, usize) {
        match self {
            Self::Request => (1024, 32),
            Self::Answer => (512, 16),
            Self::Last => (0, 0),
        }
    }
}

/// What registered memory in the stream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerTo {
    /// The READ of the peer with this number.
    Read(u64),
    /// An offer of this end.
    Offer,
}

/// Piece of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// Next bytes of the ring.
    Bytes(usize),
    /// Payload of a SEND of this end.
    Payload { memory: Sge, send: u64 },
    /// Memory for the peer: the answer to a READ, or what was offered.
    Answer { to: AnswerTo, key: u32, address: u64, bytes: u32 },
    /// Bytes that a begun frame still needs although its memory is gone.
    Zeros(u32),
}

impl Piece {
    fn bytes(&self) -> usize {
        match *self {
            Self::Bytes(bytes) => bytes,
            Self::Payload { memory, .. } => memory.bytes as usize,
            Self::Answer { bytes, .. } | Self::Zeros(bytes) => bytes as usize,
        }
    }

    /// Drops the first `by` bytes, fewer than the piece has.
    fn advance(&mut self, by: usize) {
        let short = u32::try_from(by).unwrap_or(u32::MAX);
        match self {
            Self::Bytes(bytes) => *bytes -= by,
            Self::Payload { memory, .. } => {
                memory.offset += u64::from(short);
                memory.bytes -= short;
            }
            Self::Answer { address, bytes, .. } => {
                *address += u64::from(short);
                *bytes -= short;
            }
            Self::Zeros(bytes) => *bytes -= short,
        }
    }
}

/// Table that finds where registered memory lies now.
pub(super) trait Lookup {
    /// Returns the address of memory that this end named. `None` where it is not registered.
    fn local(&self, memory: &Sge) -> Option<*mut u8>;
    /// Returns the address of memory that the peer named. `None` where the peer may not read it.
    fn remote(&self, key: u32, address: u64, bytes: u32) -> Option<*mut u8>;
}

/// Error of a queued frame whose memory is no longer registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revoked {
    /// The memory of a SEND's payload is gone.
    Payload {
        /// Place of the SEND in the order of SENDs.
        send: u64,
    },
    /// The memory of an answer is gone. Zeros replace the rest of the piece.
    Answer {
        /// What it answers.
        to: AnswerTo,
        /// Place of the frame behind the piece, for [`Output::overwrite`].
        behind: usize,
    },
}

/// Output queue of one connection.
#[derive(Debug)]
pub(super) struct Output {
    ring: Box<[u8]>,
    head: usize,
    used: usize,
    pieces: VecDeque<Piece>,
    pieces_max: usize,
    queued: usize,
    answers: usize,
}

impl Output {
    /// Makes a queue of so many bytes of frames and so many pieces.
    ///
    /// Pages that are never used are never touched, so a quiet connection costs little memory.
    pub(super) fn new(ring_bytes: usize, pieces_max: usize) -> Self {
        let ring = vec![0; ring_bytes].into_boxed_slice();
        let pieces = VecDeque::with_capacity(pieces_max);
        Self { ring, head: 0, used: 0, pieces, pieces_max, queued: 0, answers: 0 }
    }

    /// Empties the queue for the next connection.
    pub(super) fn clear(&mut self) {
        (self.head, self.used, self.queued, self.answers) = (0, 0, 0, 0);
        self.pieces.clear();
    }

    /// Returns how many bytes wait, registered memory included.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns how many answers to READs wait, and stretches that were offered.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    /// Whether so many bytes of frames and a stretch of memory still fit.
    pub(super) fn has_room(&self, frame_bytes: usize, urgency: Urgency) -> bool {
        let (bytes, pieces) = urgency.reserve();
        self.ring.len() - self.used >= frame_bytes + bytes
            && self.pieces_max - self.pieces.len() >= 2 + pieces
    }

    /// Appends bytes of a frame.
    ///
    /// # Panics
    /// Where the queue has no room; the caller asks before.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        assert!(self.ring.len() - self.used >= bytes.len(), "the pusher asks for room");
        if self.used == 0 {
            // At low load only the ring's first pages are used.
            self.head = 0;
        }
        let mut tail = self.head + self.used;
        if tail >= self.ring.len() {
            tail -= self.ring.len();
        }
        let first = bytes.len().min(self.ring.len() - tail);
        self.ring[tail..tail + first].copy_from_slice(&bytes[..first]);
        self.ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        self.used += bytes.len();
        self.queued += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Bytes(last)) => *last += bytes.len(),
            _ => self.push_piece(Piece::Bytes(bytes.len())),
        }
    }

    /// Appends the payload of a SEND.
    pub(super) fn push_payload(&mut self, memory: Sge, send: u64) {
        self.push_memory(Piece::Payload { memory, send });
    }

    /// Appends a piece of the answer to a READ, or memory that was offered.
    pub(super) fn push_answer(&mut self, to: AnswerTo, key: u32, address: u64, bytes: u32) {
        self.push_memory(Piece::Answer { to, key, address, bytes });
    }

    fn push_memory(&mut self, piece: Piece) {
        if piece.bytes() > 0 {
            self.queued += piece.bytes();
            self.answers += usize::from(matches!(piece, Piece::Answer { .. }));
            self.push_piece(piece);
        }
    }

    fn push_piece(&mut self, piece: Piece) {
        assert!(self.pieces.len() < self.pieces_max, "the pusher asks for room");
        self.pieces.push_back(piece);
    }

    /// Lists the stretches to write next, about `bytes_max` bytes at most. Returns the number of stretches
    /// and of bytes.
    ///
    /// # Errors
    /// [`Revoked`] for memory that is gone. The rest of an answer is then zeros, and the call may be
    /// repeated.
    pub(super) fn gather(
        &mut self,
        memory: &impl Lookup,
        stretches: &mut [IoVec; GATHER_MAX],
        bytes_max: usize,
    ) -> Result<(usize, usize), Revoked> {
        let (mut count, mut bytes, mut at) = (0, 0, self.head);
        for piece in &mut self.pieces {
            // Bytes may need two stretches: the ring's end, and its beginning.
            if count + 2 > GATHER_MAX || bytes >= bytes_max {
                break;
            }
            let mut add = |base: *mut u8, length: usize| {
                stretches[count] = IoVec { iov_base: base.cast(), iov_len: length };
                count += 1;
                bytes += length;
            };
            match *piece {
                Piece::Bytes(length) => {
                    let first = length.min(self.ring.len() - at);
                    add(self.ring[at..at + first].as_ptr().cast_mut(), first);
                    if first < length {
                        add(self.ring.as_ptr().cast_mut(), length - first);
                    }
                    at = (at + length) % self.ring.len();
                }
                Piece::Payload { memory: place, send } => match memory.local(&place) {
                    Some(base) => add(base, place.bytes as usize),
                    None => return Err(Revoked::Payload { send }),
                },
                Piece::Answer { to, key, address, bytes: length } => {
                    match memory.remote(key, address, length) {
                        Some(base) => add(base, length as usize),
                        None => {
                            *piece = Piece::Zeros(length);
                            self.answers -= 1;
                            return Err(Revoked::Answer { to, behind: at });
                        }
                    }
                }
                Piece::Zeros(length) => {
                    add(ZEROS.as_ptr().cast_mut(), (length as usize).min(ZEROS.len()));
                    if length as usize > ZEROS.len() {
                        break;
                    }
                }
            }
        }
        Ok((count, bytes))
    }

    /// Replaces bytes that were pushed and not written yet.
    pub(super) fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        let first = bytes.len().min(self.ring.len() - at);
        self.ring[at..at + first].copy_from_slice(&bytes[..first]);
        self.ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    /// Returns the first queued SEND whose payload lies in this region, by its place in the order of SENDs.
    pub(super) fn payload_of(&self, key: MemoryKey) -> Option<u64> {
        self.pieces.iter().find_map(|piece| match *piece {
            Piece::Payload { memory, send } if memory.key == key => Some(send),
            _ => None,
        })
    }

    /// Removes bytes that were written.
    pub(super) fn advance(&mut self, written: usize) {
        assert!(written <= self.queued, "no more was written than was listed");
        self.queued -= written;
        let mut left = written;
        while left > 0 {
            let piece = self.pieces.front_mut().expect("what is queued lies in pieces");
            let taken = left.min(piece.bytes());
            if matches!(piece, Piece::Bytes(_)) {
                self.used -= taken;
                self.head += taken;
                if self.head >= self.ring.len() {
                    self.head -= self.ring.len();
                }
            }
            if taken == piece.bytes() {
                self.answers -= usize::from(matches!(piece, Piece::Answer { .. }));
                self.pieces.pop_front();
            } else {
                piece.advance(taken);
            }
            left -= taken;
        }
    }
}

/// Makes an empty list for [`Output::gather`].
pub(super) fn no_stretches() -> [IoVec; GATHER_MAX] {
    [IoVec { iov_base: std::ptr::null_mut(), iov_len: 0 }; GATHER_MAX]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One region that may be deregistered.
    struct Region {
        bytes: Vec<u8>,
        gone: bool,
    }

    impl Lookup for Region {
        fn local(&self, memory: &Sge) -> Option<*mut u8> {
            self.remote(memory.key.0, memory.offset, memory.bytes)
        }

        fn remote(&self, key: u32, address: u64, bytes: u32) -> Option<*mut u8> {
            let start = usize::try_from(address).ok()?;
            let stretch = self.bytes.get(start..start.checked_add(bytes as usize)?)?;
            (key == 1 && !self.gone).then(|| stretch.as_ptr().cast_mut())
        }
    }

    fn region() -> Region {
        Region { bytes: (0..100_000u32).map(|i| (i % 251) as u8).collect(), gone: false }
    }

    /// Returns the bytes of the stretches, in order.
    fn listed(stretches: &[IoVec]) -> Vec<u8> {
        let mut all = Vec::new();
        for stretch in stretches {
            // SAFETY: the test's region and queue outlive the list.
            all.extend_from_slice(unsafe {
                std::slice::from_raw_parts(stretch.iov_base.cast::<u8>(), stretch.iov_len)
            });
        }
        all
    }

    #[derive(Clone, Debug)]
    enum Step {
        Bytes(Vec<u8>),
        Payload(u64, u32),
        Answer(u64, u32),
        Write(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 1..400).prop_map(Step::Bytes),
            (0..50_000u64, 0..5000u32).prop_map(|(at, bytes)| Step::Payload(at, bytes)),
            (0..50_000u64, 0..50_000u32).prop_map(|(at, bytes)| Step::Answer(at, bytes)),
            (0..9000usize).prop_map(Step::Write),
        ]
    }

    proptest! {
        /// All that is pushed comes out once, in order, however short the writes are.
        #[test]
        fn the_stream_is_what_was_pushed(steps in prop::collection::vec(step(), 1..200)) {
            let region = region();
            let mut output = Output::new(4096, 64);
            let mut oracle = VecDeque::<u8>::new();
            let mut stretches = no_stretches();
            let slice = |at: u64, bytes: u32| {
                &region.bytes[usize::try_from(at).unwrap()..][..bytes as usize]
            };
            for step in steps {
                match step {
                    Step::Bytes(bytes) => if output.has_room(bytes.len(), Urgency::Request) {
                        output.push(&bytes);
                        oracle.extend(bytes);
                    },
                    Step::Payload(at, bytes) => if output.has_room(0, Urgency::Request) {
                        output.push_payload(Sge { key: MemoryKey(1), offset: at, bytes }, 0);
                        oracle.extend(slice(at, bytes));
                    },
                    Step::Answer(at, bytes) => if output.has_room(0, Urgency::Answer) {
                        output.push_answer(AnswerTo::Read(0), 1, at, bytes);
                        oracle.extend(slice(at, bytes));
                    },
                    Step::Write(bytes) => {
                        let (count, total) = output.gather(&region, &mut stretches, usize::MAX).unwrap();
                        let found = listed(&stretches[..count]);
                        prop_assert_eq!(found.len(), total);
                        let written = bytes.min(total);
                        let expected: Vec<u8> = oracle.drain(..written).collect();
                        prop_assert_eq!(&found[..written], &expected[..]);
                        output.advance(written);
                    }
                }
                prop_assert_eq!(output.queued(), oracle.len());
            }
        }
    }

    #[test]
    fn an_answer_whose_memory_is_gone_is_finished_with_zeros_and_the_frame_behind_it_replaced() {
        for before in 0..290 {
            let mut region = region();
            let mut output = Output::new(300, 64);
            let mut stretches = no_stretches();
            let gather = |output: &mut Output, region: &Region, stretches: &mut _| {
                output.gather(region, stretches, usize::MAX)
            };
            // Moves the ring's head to every place.
            output.push(&vec![1; before]);
            output.push(b"header");
            output.push_answer(AnswerTo::Read(5), 1, 0, 40_000);
            output.advance(before);
            output.push(b"end");
            output.advance(6 + 100);
            region.gone = true;
            let Err(Revoked::Answer { to: AnswerTo::Read(5), behind }) =
                gather(&mut output, &region, &mut stretches)
            else {
                panic!("the answer is revoked");
            };
            output.overwrite(behind, b"bad");
            let mut stream = Vec::new();
            while output.queued() > 0 {
                let (count, total) = gather(&mut output, &region, &mut stretches).unwrap();
                stream.extend(listed(&stretches[..count]));
                output.advance(total);
            }
            let (zeros, end) = stream.split_at(40_000 - 100);
            assert!(zeros.iter().all(|&byte| byte == 0));
            assert_eq!((end, output.answers()), (&b"bad"[..], 0));
        }
    }

    #[test]
    fn a_payload_whose_memory_is_gone_is_named() {
        let mut region = region();
        let mut output = Output::new(4096, 64);
        output.push_payload(Sge { key: MemoryKey(1), offset: 0, bytes: 10 }, 7);
        region.gone = true;
        assert_eq!(output.payload_of(MemoryKey(1)), Some(7));
        assert_eq!(output.payload_of(MemoryKey(2)), None);
        let found = output.gather(&region, &mut no_stretches(), usize::MAX);
        assert_eq!(found, Err(Revoked::Payload { send: 7 }));
    }
}
