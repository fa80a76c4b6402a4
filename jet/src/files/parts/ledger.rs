//! Record of what is in a part: the extents that were written, and the sum of their hashes.
//!
//! A ledger begins with its part and lives as long as the receiver's process. A part that an earlier process
//! began has no ledger, so its file is read again before the part is trusted.

use super::Key;
use super::file::Identity;
use crate::files::proof::{Hash, Proof, Sum};
use std::collections::HashMap;

/// Limit of the ledgers that are kept. Beyond that limit, the ledger that was not used for the longest time
/// is removed, and its part is read again.
const LEDGERS_MAX: usize = 4096;
/// Limit of the written extents, with gaps between them, in one part. A sender has at most as many as it has
/// messages in flight.
const EXTENTS_MAX: usize = 1024;

/// Judgment of a part, by what was accounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All bytes of the file were written, and their hash is the sender's (or the sender made no hash).
    Proven,
    /// Some bytes of the file were not written.
    Incomplete,
    /// All bytes of the file were written, and their hash is not the sender's.
    Different,
    /// The ledger cannot say what is in the part: only reading it can.
    Unproven,
}

#[derive(Debug)]
struct Ledger {
    identity: Identity,
    file_bytes: u64,
    sum: Option<Sum>,
    /// Ranges of bytes that were written, as (from, to). They are sorted, with gaps between them.
    extents: Vec<(u64, u64)>,
    used_at: u64,
}

#[derive(Debug, Default)]
pub(super) struct Ledgers {
    ledgers: HashMap<Key, Ledger>,
    clock: u64,
}

impl Ledgers {
    pub(super) fn begin(&mut self, key: Key, identity: Identity, file_bytes: u64, hash: Option<Hash>) {
        self.clock += 1;
        if self.ledgers.len() >= LEDGERS_MAX
            && !self.ledgers.contains_key(&key)
            && let Some(oldest) =
                self.ledgers.iter().min_by_key(|(_, ledger)| ledger.used_at).map(|(&key, _)| key)
        {
            self.ledgers.remove(&oldest);
        }
        let ledger = Ledger {
            identity,
            file_bytes,
            sum: hash.map(Sum::new),
            extents: Vec::new(),
            used_at: self.clock,
        };
        self.ledgers.insert(key, ledger);
    }

    pub(super) fn forget(&mut self, key: Key) {
        self.ledgers.remove(&key);
    }

    /// Returns the identity and the length of the file that the ledger is about.
    pub(super) fn get(&self, key: Key) -> Option<(Identity, u64)> {
        self.ledgers.get(&key).map(|ledger| (ledger.identity, ledger.file_bytes))
    }

    /// Returns the kind of hash that is made of each piece of the file, if any.
    pub(super) fn hash(&self, key: Key) -> Option<Hash> {
        self.ledgers.get(&key)?.sum.as_ref().map(Sum::hash)
    }

    /// Returns whether all bytes of an extent were written.
    pub(super) fn has(&self, key: Key, from: u64, to: u64) -> bool {
        self.ledgers.get(&key).is_some_and(|ledger| {
            let at = ledger.extents.partition_point(|&(_, end)| end < to);
            ledger.extents.get(at).is_some_and(|&(start, _)| start <= from)
        })
    }

    /// Notes that bytes may have been written that are not accounted for. Where they overlap bytes that are
    /// accounted for, the ledger is forgotten.
    pub(super) fn doubt(&mut self, key: Key, from: u64, to: u64) {
        let Some(ledger) = self.ledgers.get(&key) else { return };
        let at = ledger.extents.partition_point(|&(_, end)| end <= from);
        if ledger.extents.get(at).is_some_and(|&(start, _)| start < to) {
            self.forget(key);
        }
    }

    /// Accounts for bytes that were written, or for a hole, which has no sum of hashes. Where they overlap
    /// bytes that are accounted for, nobody knows which were written last, and the ledger is forgotten.
    pub(super) fn add(&mut self, key: Key, from: u64, to: u64, sum: Option<&Sum>) {
        self.clock += 1;
        let Some(ledger) = self.ledgers.get_mut(&key) else { return };
        ledger.used_at = self.clock;
        match ledger.extend(from, to) {
            Extended::New => {
                if let (Some(all), Some(sum)) = (&mut ledger.sum, sum) {
                    all.merge(sum);
                }
            }
            Extended::Nothing => {}
            Extended::Unclear => self.forget(key),
        }
    }

    pub(super) fn verdict(&self, key: Key, proof: Option<Proof>) -> Verdict {
        let Some(ledger) = self.ledgers.get(&key) else { return Verdict::Unproven };
        let whole = match ledger.extents[..] {
            [] => ledger.file_bytes == 0,
            [extent] => extent == (0, ledger.file_bytes),
            _ => false,
        };
        match (proof, &ledger.sum) {
            _ if !whole => Verdict::Incomplete,
            (None, _) => Verdict::Proven,
            (Some(proof), Some(sum)) if sum.proof(ledger.file_bytes) == proof => Verdict::Proven,
            (Some(_), Some(_)) => Verdict::Different,
            // The beginning announced no hash, and so none was counted: the file is read again.
            (Some(_), None) => Verdict::Unproven,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extended {
    New,
    /// The extent has no bytes.
    Nothing,
    /// The extent overlaps others, or there are too many: what is in the part is not known any more.
    Unclear,
}

impl Ledger {
    fn extend(&mut self, from: u64, to: u64) -> Extended {
        if from == to {
            return Extended::Nothing;
        }
        let at = self.extents.partition_point(|&(_, end)| end < from);
        match self.extents.get(at) {
            Some(&(start, end)) if from < end && start < to => return Extended::Unclear,
            _ => {}
        }
        let joins_before = self.extents.get(at).is_some_and(|&(_, end)| end == from);
        let next = at + usize::from(joins_before);
        let next_start = self.extents.get(next).map(|&(start, _)| start);
        match (joins_before, next_start) {
            (_, Some(start)) if start < to => return Extended::Unclear,
            (true, Some(start)) if start == to => {
                self.extents[at].1 = self.extents[next].1;
                self.extents.remove(next);
            }
            (true, _) => self.extents[at].1 = to,
            (false, Some(start)) if start == to => self.extents[next].0 = from,
            (false, _) if self.extents.len() >= EXTENTS_MAX => return Extended::Unclear,
            (false, _) => self.extents.insert(at, (from, to)),
        }
        Extended::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (1, 1);
    const IDENTITY: Identity = Identity { device: 1, inode: 2 };
    const BLOCK: u64 = 4096;

    fn ledgers(blocks: u64, hash: Option<Hash>) -> Ledgers {
        let mut ledgers = Ledgers::default();
        ledgers.begin(KEY, IDENTITY, blocks * BLOCK, hash);
        ledgers
    }

    fn piece(from: u64, to: u64) -> Sum {
        let mut sum = Sum::new(Hash::Fast);
        for block in from..to {
            sum.add(block * BLOCK, &[u8::try_from(block).unwrap() + 1; 4096]);
        }
        sum
    }

    #[test]
    fn pieces_in_any_order_are_whole_when_all_are_there() {
        let proof = Some(piece(0, 6).proof(6 * BLOCK));
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1], [0, 2, 1], [1, 0, 2]] {
            let mut ledgers = ledgers(6, Some(Hash::Fast));
            for (count, piece_at) in order.into_iter().enumerate() {
                assert_eq!(ledgers.verdict(KEY, proof), Verdict::Incomplete, "{count} of {order:?}");
                let (from, to) = (piece_at * 2, piece_at * 2 + 2);
                assert!(!ledgers.has(KEY, from * BLOCK, to * BLOCK));
                ledgers.add(KEY, from * BLOCK, to * BLOCK, Some(&piece(from, to)));
                assert!(ledgers.has(KEY, from * BLOCK, to * BLOCK));
            }
            assert_eq!(ledgers.verdict(KEY, proof), Verdict::Proven, "{order:?}");
            assert_eq!(ledgers.verdict(KEY, None), Verdict::Proven);
            let other = Some(piece(0, 5).proof(6 * BLOCK));
            assert_eq!(ledgers.verdict(KEY, other), Verdict::Different);
        }
    }

    #[test]
    fn a_hole_counts_without_a_sum_and_an_empty_file_without_a_piece() {
        let mut with_hole = ledgers(6, Some(Hash::Fast));
        with_hole.add(KEY, 0, 2 * BLOCK, Some(&piece(0, 2)));
        with_hole.add(KEY, 2 * BLOCK, 6 * BLOCK, None);
        assert_eq!(with_hole.verdict(KEY, Some(piece(0, 2).proof(6 * BLOCK))), Verdict::Proven);
        assert_eq!(ledgers(0, None).verdict(KEY, None), Verdict::Proven);
    }

    #[test]
    fn what_cannot_be_accounted_for_is_not_known() {
        for (from, to) in [(1, 3), (0, 3), (3, 5), (1, 5), (0, 2), (5, 6)] {
            let mut ledgers = ledgers(9, None);
            ledgers.add(KEY, 0, 2 * BLOCK, None);
            ledgers.add(KEY, 4 * BLOCK, 6 * BLOCK, None);
            assert_eq!(ledgers.verdict(KEY, None), Verdict::Incomplete);
            ledgers.add(KEY, from * BLOCK, to * BLOCK, None);
            assert_eq!(ledgers.verdict(KEY, None), Verdict::Unproven, "{from} {to}");
        }
        let mut many = ledgers(4 * EXTENTS_MAX as u64, None);
        for extent in 0..=EXTENTS_MAX as u64 {
            assert_eq!(many.verdict(KEY, None), Verdict::Incomplete);
            many.add(KEY, 2 * extent * BLOCK, (2 * extent + 1) * BLOCK, None);
        }
        assert_eq!(many.verdict(KEY, None), Verdict::Unproven);
        let proof = Some(piece(0, 1).proof(BLOCK));
        let mut unhashed = ledgers(1, None);
        unhashed.add(KEY, 0, BLOCK, None);
        assert_eq!(unhashed.verdict(KEY, proof), Verdict::Unproven);
    }

    #[test]
    fn what_was_written_on_others_is_doubted_and_what_lies_beside_them_is_not() {
        for (from, to, doubted) in [
            (0, 2, false),
            (2, 3, true),
            (3, 4, true),
            (1, 3, true),
            (4, 6, false),
            (6, 9, true),
            (8, 9, false),
        ] {
            let mut ledgers = ledgers(9, None);
            ledgers.add(KEY, 2 * BLOCK, 4 * BLOCK, None);
            ledgers.add(KEY, 6 * BLOCK, 8 * BLOCK, None);
            ledgers.doubt(KEY, from * BLOCK, to * BLOCK);
            assert_eq!(ledgers.get(KEY).is_none(), doubted, "{from} {to}");
        }
    }

    #[test]
    fn the_one_that_was_not_used_for_the_longest_time_goes_first() {
        let mut ledgers = Ledgers::default();
        for file_id in 0..LEDGERS_MAX as u64 {
            ledgers.begin((1, file_id), IDENTITY, 4096, None);
        }
        ledgers.add((1, 0), 0, 4096, None);
        ledgers.begin((1, u64::MAX), IDENTITY, 4096, None);
        assert!(ledgers.get((1, 0)).is_some() && ledgers.get((1, u64::MAX)).is_some());
        assert_eq!((ledgers.get((1, 1)), ledgers.ledgers.len()), (None, LEDGERS_MAX));
    }
}
