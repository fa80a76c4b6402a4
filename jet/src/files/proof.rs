//! Proof that a file at the receiver is the one that its sender read: a hash of the file, which both ends
//! make while the bytes pass through them.
//!
//! Pieces are sent, read and written in any order, and slices of a piece arrive in any order. The hash is
//! therefore a sum. Each block of 4 KiB gives a term that depends on its bytes and on its number in the file.
//! The terms are added, and the digest is made of the sum and the file's length. A block of zeros gives no
//! term, so a hole and the zeros that are read from it are the same.
//!
//! * [`Hash::Fast`]: XXH3 of 128 bits; terms are added modulo 2^128. It protects against accidents only:
//!   somebody who may choose the bytes can make two files of one digest.
//! * [`Hash::Blake3`]: BLAKE3; a term is 1024 numbers of 16 bits, added one by one (LtHash). Sums of shorter
//!   terms could be forged by somebody who may choose many blocks. The digest is the first 128 bits of a
//!   BLAKE3 of the sum and the file's length.

use std::fmt;
use twox_hash::XxHash3_128;

/// Length of a block, in bytes. Every block but a file's last has this length.
pub const BLOCK_BYTES: usize = 4096;
/// Length of a digest, in bytes.
pub const DIGEST_BYTES: usize = 16;
/// Number of 16-bit numbers in a BLAKE3 term.
const LANES: usize = 1024;

/// Kind of hash that proves a file. The discriminant is the value on the wire, where 0 stands for no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hash {
    /// XXH3 of 128 bits. It protects against accidents.
    Fast = 1,
    /// BLAKE3. It also protects against somebody who chooses the bytes.
    Blake3 = 2,
}

/// Result of hashing a whole file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; DIGEST_BYTES]);

/// Hash of a file, by which its receiver can check that it has the file that the sender read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Kind of hash that the digest was made with.
    pub hash: Hash,
    /// Digest of the whole file.
    pub digest: Digest,
}

/// Sum of the terms of a file's blocks, or of some of them.
#[derive(Clone)]
pub struct Sum(Terms);

#[derive(Clone)]
enum Terms {
    Fast(u128),
    Blake3(Box<[u16; LANES]>),
}

impl Sum {
    /// Makes the sum of no block.
    pub fn new(hash: Hash) -> Self {
        Self(match hash {
            Hash::Fast => Terms::Fast(0),
            Hash::Blake3 => Terms::Blake3(Box::new([0; LANES])),
        })
    }

    /// Returns the kind of hash that the sum is made with.
    pub fn hash(&self) -> Hash {
        match self.0 {
            Terms::Fast(_) => Hash::Fast,
            Terms::Blake3(_) => Hash::Blake3,
        }
    }

    /// Adds the blocks that begin at `offset` of the file. Only the file's last block may be short.
    ///
    /// # Panics
    /// Panics where `offset` is no multiple of [`BLOCK_BYTES`].
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset.is_multiple_of(BLOCK_BYTES as u64), "a block does not begin at {offset}");
        let first = offset / BLOCK_BYTES as u64;
        for (block, number) in bytes.chunks(BLOCK_BYTES).zip(first..) {
            if !is_zero(block) {
                self.add_block(block, number);
            }
        }
    }

    #[inline]
    fn add_block(&mut self, block: &[u8], number: u64) {
        match &mut self.0 {
            Terms::Fast(sum) => {
                let term = hash_pair(XxHash3_128::oneshot(block), number);
                *sum = sum.wrapping_add(term);
            }
            Terms::Blake3(sum) => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(blake3::hash(block).as_bytes()).update(&number.to_le_bytes());
                let mut term = [0; 2 * LANES];
                hasher.finalize_xof().fill(&mut term);
                for (lane, bytes) in sum.iter_mut().zip(term.as_chunks().0) {
                    *lane = lane.wrapping_add(u16::from_le_bytes(*bytes));
                }
            }
        }
    }

    /// Adds another sum of blocks of the same file. No block may be in both sums.
    ///
    /// # Panics
    /// Panics where the two sums are of different kinds of hash.
    pub fn merge(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            (Terms::Fast(sum), Terms::Fast(other)) => *sum = sum.wrapping_add(*other),
            (Terms::Blake3(sum), Terms::Blake3(other)) => {
                for (lane, other) in sum.iter_mut().zip(other.iter()) {
                    *lane = lane.wrapping_add(*other);
                }
            }
            _ => panic!("sums of two hashes cannot be added"),
        }
    }

    /// Returns the proof of a file of `file_bytes` bytes, all of whose blocks were added.
    pub fn proof(&self, file_bytes: u64) -> Proof {
        let digest = match &self.0 {
            Terms::Fast(sum) => hash_pair(*sum, file_bytes).to_le_bytes(),
            Terms::Blake3(sum) => {
                let mut hasher = blake3::Hasher::new();
                for lane in sum.iter() {
                    hasher.update(&lane.to_le_bytes());
                }
                let mut digest = [0; DIGEST_BYTES];
                hasher.update(&file_bytes.to_le_bytes()).finalize_xof().fill(&mut digest);
                digest
            }
        };
        Proof { hash: self.hash(), digest: Digest(digest) }
    }
}

/// Hashes two numbers to one.
#[inline]
fn hash_pair(wide: u128, number: u64) -> u128 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&wide.to_le_bytes());
    bytes[16..].copy_from_slice(&number.to_le_bytes());
    XxHash3_128::oneshot(&bytes)
}

#[inline]
fn is_zero(block: &[u8]) -> bool {
    // The first bytes of most blocks are not all zero, which decides it.
    let first = block.first_chunk().is_none_or(|first: &[u8; 16]| u128::from_ne_bytes(*first) == 0);
    first && block.iter().fold(0, |any, byte| any | byte) == 0
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sum({:?})", self.hash())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASHES: [Hash; 2] = [Hash::Fast, Hash::Blake3];

    fn bytes(length: usize) -> Vec<u8> {
        (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1).collect()
    }

    fn proof(hash: Hash, bytes: &[u8]) -> Proof {
        let mut sum = Sum::new(hash);
        sum.add(0, bytes);
        sum.proof(bytes.len() as u64)
    }

    #[test]
    fn pieces_in_any_order_and_of_any_length_give_the_same() {
        let file = bytes(10 * BLOCK_BYTES + 17);
        for hash in HASHES {
            for piece in [1, 2, 3, 11] {
                let mut sums: Vec<Sum> = Vec::new();
                for (number, bytes) in file.chunks(piece * BLOCK_BYTES).enumerate() {
                    let mut sum = Sum::new(hash);
                    sum.add((number * piece * BLOCK_BYTES) as u64, bytes);
                    sums.push(sum);
                }
                let mut all = Sum::new(hash);
                sums.iter().rev().for_each(|sum| all.merge(sum));
                assert_eq!(all.proof(file.len() as u64), proof(hash, &file), "{piece}");
            }
        }
    }

    #[test]
    fn every_other_file_has_another_digest() {
        let file = bytes(3 * BLOCK_BYTES + 100);
        for hash in HASHES {
            let good = proof(hash, &file);
            for at in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, file.len() - 1] {
                let mut other = file.clone();
                other[at] ^= 1;
                assert_ne!(proof(hash, &other), good, "a bit of byte {at}");
            }
            let mut swapped = file.clone();
            swapped[..2 * BLOCK_BYTES].rotate_left(BLOCK_BYTES);
            assert_ne!(proof(hash, &swapped), good, "two blocks in each other's place");
            let mut hole = file.clone();
            hole[BLOCK_BYTES..2 * BLOCK_BYTES].fill(0);
            assert_ne!(proof(hash, &hole), good, "a block of zeros");
            assert_ne!(proof(hash, &file[..file.len() - 1]), good, "a byte less");
            let longer = [&file[..], &[0; 1]].concat();
            assert_ne!(proof(hash, &longer), good, "a zero more");
        }
    }

    #[test]
    fn a_hole_is_as_its_zeros() {
        let mut file = bytes(4 * BLOCK_BYTES);
        file[BLOCK_BYTES..3 * BLOCK_BYTES].fill(0);
        for hash in HASHES {
            let mut sum = Sum::new(hash);
            sum.add(0, &file[..BLOCK_BYTES]);
            sum.add(3 * BLOCK_BYTES as u64, &file[3 * BLOCK_BYTES..]);
            assert_eq!(sum.proof(file.len() as u64), proof(hash, &file));
            assert_ne!(
                Sum::new(hash).proof(5),
                Sum::new(hash).proof(6),
                "only their length tells holes apart"
            );
        }
    }

    /// Checks digests that another program made, with the libraries of another language. All builds of Jet
    /// must make the same digests.
    #[test]
    fn the_digests_are_these() {
        let file: Vec<u8> = (0..10_000u32).map(|at| (at % 251) as u8).collect();
        let shown = |hash| format!("{:?}", proof(hash, &file).digest);
        assert_eq!(shown(Hash::Fast), "74089282a26c388129a5328865662ed6");
        assert_eq!(shown(Hash::Blake3), "32ea7011974f7bb4e2296daf9dd90891");
    }
}
