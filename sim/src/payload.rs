//! Payload that is known from its message alone: each word of 8 bytes follows from the sender, the message's
//! tag and the word's place.

use crate::event::{CHEAT, MessageName};
use jet_wire::message::{SMALL_USER_HEADER_MAX, USER_HEADER_MAX};

/// Bytes of a word.
const WORD: usize = 8;
/// Step from one word to the next: odd, so that 2^64 words differ.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of the memory that a cheat sends from.
pub const CHEAT_BYTES: usize = 1 << 20;

/// Returns the place of the first word of a message's bytes that is wrong, counted from `offset`, a multiple
/// of 8. A cheat may send any stretch of its memory under any number.
pub fn find_damage(message: MessageName, offset: u64, bytes: &[u8]) -> Option<usize> {
    if !message.is_of_cheat() {
        return Payload::of(message.sender, message.sequence).find_damage(offset, bytes);
    }
    let payload = Payload::of_cheat(message.sender);
    let damage = payload.find_damage(offset, bytes)?;
    let mut memory = vec![0; CHEAT_BYTES];
    payload.write(0, &mut memory);
    let is_elsewhere = memory.windows(bytes.len()).any(|stretch| stretch == bytes);
    (!is_elsewhere).then_some(damage)
}

/// Bytes of the user header of a message, at most: where it is a small one, and where it is a large one.
const USER_HEADER_BYTES: [usize; 2] = [SMALL_USER_HEADER_MAX, USER_HEADER_MAX];

/// Writes a message's user header to the front of `place`, and returns it. Each byte follows from the message
/// and from the header's length, which is at least 1.
pub fn user_header(message: MessageName, large: bool, place: &mut [u8; USER_HEADER_MAX]) -> &[u8] {
    let most = USER_HEADER_BYTES[usize::from(large)] as u64;
    // Mostly a short one.
    let length = match message.sequence % 8 {
        0 => 1 + message.sequence / 8 % most,
        _ => 8,
    };
    let header = &mut place[..usize::try_from(length).expect("it is short")];
    Payload::of(message.sender, message.sequence ^ length << 32).write(0, header);
    header
}

/// Returns whether a user header is the message's. That of a cheat may be anything.
pub fn is_user_header(message: MessageName, header: &[u8]) -> bool {
    let of_length = Payload::of(message.sender, message.sequence ^ (header.len() as u64) << 32);
    message.is_of_cheat() || (!header.is_empty() && of_length.find_damage(0, header).is_none())
}

/// Returns the reply to a message: `None` for every fourth one.
pub fn reply(message: MessageName) -> Option<Vec<u8>> {
    let length = message.sequence.wrapping_mul(0x9e37) % (jet_wire::SLAB_BYTES as u64 + 1);
    let mut bytes = vec![0; usize::try_from(length).expect("it is short")];
    Payload::of(message.sender, message.sequence ^ 1 << 62).write(0, &mut bytes);
    (!message.sequence.is_multiple_of(4)).then_some(bytes)
}

/// Payload of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload(u64);

impl Payload {
    /// Returns what all messages of a cheat are of: its whole memory. `sender`: one of its identities,
    /// of which the low bits say which cheat it is.
    pub fn of_cheat(sender: u64) -> Self {
        Self::of((sender & (CHEAT - 1)) | CHEAT, 0)
    }

    /// Returns the payload of a sender's message.
    pub fn of(sender: u64, tag: u64) -> Self {
        // Messages whose numbers are near each other have words that are not.
        let mut mixed = sender.rotate_left(32) ^ tag.wrapping_mul(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(mixed ^ (mixed >> 31))
    }

    fn word(self, index: u64) -> u64 {
        self.0.wrapping_add(index.wrapping_mul(STEP))
    }

    /// Writes the message's bytes from `offset` on, which is a multiple of 8.
    pub fn write(self, offset: u64, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<WORD>();
        // Counted on by the step: a multiplication for each word takes three times as long.
        let mut next = self.word(offset / WORD as u64);
        for word in words {
            *word = next.to_le_bytes();
            next = next.wrapping_add(STEP);
        }
        rest.copy_from_slice(&next.to_le_bytes()[..rest.len()]);
    }

    /// Returns the place of the first word that is not the message's, counted from `offset`, a multiple of 8.
    pub fn find_damage(self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let first = offset / WORD as u64;
        let (words, rest) = bytes.as_chunks::<WORD>();
        // Without a branch for each word.
        let mut differs = 0;
        let mut next = self.word(first);
        for word in words {
            differs |= u64::from_le_bytes(*word) ^ next;
            next = next.wrapping_add(STEP);
        }
        if differs == 0 && rest == &next.to_le_bytes()[..rest.len()] {
            return None;
        }
        let is_wrong =
            |(at, word): &(usize, &[u8; WORD])| u64::from_le_bytes(**word) != self.word(first + *at as u64);
        Some(words.iter().enumerate().find(is_wrong).map_or(words.len(), |(at, _)| at) * WORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cheats_bytes_may_be_any_of_its_memory_and_no_others() {
        let message = MessageName { sender: 5 << 16 | CHEAT | 1, sequence: 9 };
        let mut memory = vec![0; CHEAT_BYTES];
        Payload::of_cheat(message.sender).write(0, &mut memory);
        for from in [0, 1, 4096, 70_001] {
            assert_eq!(find_damage(message, 0, &memory[from..][..5000]), None);
        }
        memory[70_007] ^= 1;
        assert_eq!(find_damage(message, 0, &memory[70_001..][..5000]), Some(0));
        let other = MessageName { sender: message.sender + 1, ..message };
        assert_eq!(find_damage(other, 0, &memory[..5000]), Some(0));
    }

    #[test]
    fn what_was_written_is_found_whole_in_any_pieces_and_each_changed_byte_is_found() {
        for bytes in [1, 7, 8, 9, 4095, 4096, 10_001] {
            let payload = Payload::of(7, 31);
            let mut whole = vec![0; bytes];
            payload.write(0, &mut whole);
            for piece in [8, 4096] {
                for (at, part) in whole.chunks(piece).enumerate() {
                    assert_eq!(payload.find_damage((at * piece) as u64, part), None);
                }
            }
            for at in (0..bytes).step_by(97).chain([bytes - 1]) {
                whole[at] ^= 0x40;
                assert_eq!(payload.find_damage(0, &whole), Some(at / WORD * WORD));
                whole[at] ^= 0x40;
            }
            for other in [Payload::of(7, 32), Payload::of(8, 31), Payload::of(31, 7)] {
                assert_eq!(other.find_damage(0, &whole), Some(0));
            }
        }
    }
}
