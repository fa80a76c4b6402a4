//! Bytes that show which message they belong to, so that a receiver can check what arrives.
//!
//! A message is a row of 8-byte words. The word at an offset follows from the sender, the message's tag and
//! the offset. At full load only the first word of each slab is written and checked. This check finds a slab
//! in the wrong place or used twice, and costs a fiftieth of a copy. To show that a whole message is intact,
//! every word is written and checked.

use jet_wire::SLAB_BYTES;

const WORD_BYTES: usize = 8;

/// Part of a message that carries the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// The first word of each slab carries the pattern.
    FirstOfSlab,
    /// Every word carries the pattern.
    Every,
}

/// An odd number whose multiples are spread over all 64 bits: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a pseudorandom number made from the value alone; neighbouring values give unlike numbers.
pub fn scatter(value: u64) -> u64 {
    fastrand::Rng::with_seed(value).u64(..)
}

/// Returns the number by which a message is recognised. The sum of these numbers over all messages, in any
/// order, shows whether each message arrived once.
pub fn fingerprint(sender: u64, tag: u64) -> u64 {
    scatter(sender ^ scatter(tag))
}

fn word(seed: u64, offset: u64) -> u64 {
    seed.wrapping_add(offset.wrapping_mul(STEP))
}

fn stride(words: Words) -> usize {
    match words {
        Words::FirstOfSlab => SLAB_BYTES,
        Words::Every => WORD_BYTES,
    }
}

/// Writes a message's pattern into `bytes`. Bytes at the end that make less than a word stay unchanged.
pub fn write(words: Words, sender: u64, tag: u64, bytes: &mut [u8]) {
    let seed = fingerprint(sender, tag);
    let mut offset = 0;
    for piece in bytes.chunks_mut(stride(words)) {
        if let Some((first, _)) = piece.split_first_chunk_mut::<WORD_BYTES>() {
            *first = word(seed, offset).to_ne_bytes();
        }
        offset += stride(words) as u64;
    }
}

/// Returns whether `bytes`, which begin at `offset` of their message, carry the message's pattern. `offset`
/// is a multiple of the slab's size.
pub fn is_intact(words: Words, sender: u64, tag: u64, offset: u64, bytes: &[u8]) -> bool {
    let seed = fingerprint(sender, tag);
    let mut at = offset;
    let mut differ = 0;
    for piece in bytes.chunks(stride(words)) {
        if let Some((first, _)) = piece.split_first_chunk::<WORD_BYTES>() {
            differ |= u64::from_ne_bytes(*first) ^ word(seed, at);
        }
        at += stride(words) as u64;
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_found_again_and_another_messages_or_places_is_not() {
        for words in [Words::FirstOfSlab, Words::Every] {
            let mut bytes = vec![0; 3 * SLAB_BYTES + 20];
            write(words, 7, 9, &mut bytes);
            assert!(is_intact(words, 7, 9, 0, &bytes));
            assert!(is_intact(words, 7, 9, 8192, &bytes[8192..]));
            assert!(!is_intact(words, 7, 10, 0, &bytes));
            assert!(!is_intact(words, 8, 9, 0, &bytes));
            assert!(!is_intact(words, 7, 9, 4096, &bytes));
        }
    }

    #[test]
    fn every_word_is_checked_where_all_carry_the_pattern() {
        let mut bytes = vec![0; 2 * SLAB_BYTES];
        write(Words::Every, 1, 2, &mut bytes);
        for at in [0, 8, 4000, 4096, 8191] {
            bytes[at] ^= 1;
            assert!(!is_intact(Words::Every, 1, 2, 0, &bytes), "byte {at}");
            bytes[at] ^= 1;
        }
        assert!(is_intact(Words::Every, 1, 2, 0, &bytes));
    }
}
