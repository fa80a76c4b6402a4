//! Checksums of messages (Jet §4.2.2): made at once by the receiver, or by workers while the reactor does
//! other work.
//!
//! A large message has one CRC32C over all its bytes, so only its end shows whether the checksum fits. Its
//! READs are delivered in the order of their bytes, each after its own part of the checksum was made. The
//! last READ is delivered only if the whole message fits. A READ whose check is under way keeps its slabs and
//! its place among the READs. Were it delivered, its slabs could be released, and hold another message,
//! before the check is over.

use crate::config::Checksums;
use crate::effects::{Commands, ReadId, Sums};
use crate::messages::Messages;
use crate::reads::Reads;
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::SmallHeader;

/// The result of checking a READ's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The bytes may be delivered.
    Matches,
    /// A worker makes the checksum; its result is not there yet.
    Pending,
    /// The bytes cannot be read, because the hardware lost their memory.
    Unreadable,
    /// All of the message has arrived, and its bytes do not have the checksum that it carries.
    Wrong,
}

/// Checks of messages: who makes them, and how many are under way.
#[derive(Debug)]
pub(crate) struct Checks {
    by: Checksums,
    /// READs that workers are checking.
    under_way: u32,
    checked_bytes: u64,
}

impl Checks {
    /// Creates the record of checks, with none of them under way.
    pub fn new(by: Checksums) -> Self {
        Self { by, under_way: 0, checked_bytes: 0 }
    }

    /// Returns whether checksums are made at all.
    #[inline]
    pub fn are_made(&self) -> bool {
        self.by != Checksums::Off
    }

    /// Returns whether a small message's bytes fit its checksum. The receiver always makes this checksum
    /// itself: handing 4 KiB to a worker costs more than the CRC.
    #[inline]
    pub fn small_fits(&mut self, small: &SmallHeader, slab: u32, effects: &mut impl Sums) -> bool {
        let Some(expected) = small.crc32c() else { return true };
        if !self.are_made() {
            return true;
        }
        let bytes = small.payload_bytes.get();
        self.checked_bytes += u64::from(bytes);
        effects.crc32c(0, slab, bytes) == Some(expected)
    }

    /// Begins the check of a READ that arrived, and whose message is still wanted. With workers the verdict
    /// is [`Verdict::Pending`].
    pub fn begin(
        &mut self,
        read: u32,
        messages: &mut Messages,
        reads: &mut Reads,
        effects: &mut (impl Commands + Sums),
    ) -> Verdict {
        let (message, read_bytes) = (reads[read].message, reads[read].bytes);
        let transfer = messages.transfer(message);
        if transfer.crc_expected.is_none() {
            return Verdict::Matches;
        }
        self.checked_bytes += u64::from(read_bytes);
        if self.by == Checksums::Workers {
            let first = transfer.checks.map_or(read, |(first, last)| {
                reads[last].next_check = Some(read);
                first
            });
            transfer.checks = Some((first, read));
            self.under_way += 1;
            let entry = &mut reads[read];
            (entry.checked, entry.next_check) = (None, None);
            effects.begin_check(ReadId(read), entry.bytes, &entry.runs[..entry.run_count]);
            return Verdict::Pending;
        }
        let entry = &reads[read];
        let mut left = entry.bytes;
        for run in &entry.runs[..entry.run_count] {
            let bytes = left.min(run.count * SLAB_BYTES_U32);
            let Some(crc) = effects.crc32c(transfer.crc, run.first, bytes) else {
                return Verdict::Unreadable;
            };
            transfer.crc = crc;
            left -= bytes;
        }
        Self::verdict(read, messages, reads)
    }

    /// Ends a check that a worker made: `crc` is the CRC32C of the READ's bytes.
    pub fn end(&mut self, read: u32, crc: u32, reads: &mut Reads) {
        reads[read].checked = Some(crc);
        self.under_way -= 1;
    }

    /// Takes the message's next READ, in the order of its bytes, if that READ was checked. `None`: no such
    /// READ is left, or its check is not over.
    pub fn next_checked(&mut self, message: u32, messages: &mut Messages, reads: &Reads) -> Option<u32> {
        let (first, last) = messages.transfer(message).checks?;
        let entry = &reads[first];
        entry.checked?;
        messages.transfer(message).checks = entry.next_check.map(|next| (next, last));
        Some(first)
    }

    /// Appends the READ's CRC32C to the checksum of its message so far. After the last READ, returns whether
    /// the message's checksum fits.
    pub fn combine<S: Sums>(&mut self, read: u32, messages: &mut Messages, reads: &Reads) -> Verdict {
        let entry = &reads[read];
        let crc = entry.checked.expect("its check is over");
        let transfer = messages.transfer(entry.message);
        transfer.crc = S::combine_crc32c(transfer.crc, crc, entry.bytes);
        Self::verdict(read, messages, reads)
    }

    /// Returns whether a checked READ's bytes may be delivered. The message's checksum must include this
    /// READ.
    fn verdict(read: u32, messages: &mut Messages, reads: &Reads) -> Verdict {
        let entry = &reads[read];
        let is_last = entry.offset + u64::from(entry.bytes) == messages[entry.message].length;
        let transfer = messages.transfer(entry.message);
        let fits = !is_last || transfer.crc_expected == Some(transfer.crc);
        if fits { Verdict::Matches } else { Verdict::Wrong }
    }

    /// Returns the number of READs that workers are checking.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Returns the bytes whose checksum was made.
    pub fn checked_bytes(&self) -> u64 {
        self.checked_bytes
    }
}
