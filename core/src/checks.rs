//! Checksums of large messages (Jet §4.2.2): made here and now, or elsewhere while the reactor goes on.
//!
//! A message has one CRC32C over all its bytes, so whether it fits is known at its end only. Its READs are
//! delivered in the order of their bytes, each after its own part was made; the last is delivered only if the
//! whole fits. A READ that is being checked elsewhere keeps its slabs and its place among the READs: what is
//! delivered may be released, and be another message's a moment later.

use crate::config::Checksums;
use crate::effects::{Commands, ReadId, Sums};
use crate::messages::Messages;
use crate::reads::Reads;
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::SmallHeader;

/// What is known of a READ's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They may be delivered.
    Good,
    /// The check is made elsewhere.
    Pending,
    /// They cannot be read.
    Unreadable,
    /// The message is at its end, and does not fit its checksum.
    Wrong,
}

/// The checks.
#[derive(Debug)]
pub(crate) struct Checks {
    by: Checksums,
    /// READs that are being checked elsewhere.
    under_way: u32,
    checked_bytes: u64,
}

impl Checks {
    /// None is under way.
    pub fn new(by: Checksums) -> Self {
        Self { by, under_way: 0, checked_bytes: 0 }
    }

    /// Whether anybody makes checksums.
    #[inline]
    pub fn are_made(&self) -> bool {
        self.by != Checksums::Off
    }

    /// Whether a small message's bytes fit its checksum. Always made here: handing 4 KiB over costs more than
    /// its CRC.
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

    /// A READ arrived whose message is still wanted.
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
            return Verdict::Good;
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

    /// A check made elsewhere is over: the READ's bytes have this CRC32C.
    pub fn end(&mut self, read: u32, crc: u32, reads: &mut Reads) {
        reads[read].checked = Some(crc);
        self.under_way -= 1;
    }

    /// The next READ of the message of which all before it were checked, and its own part; `None`: there is
    /// none now.
    pub fn next_checked(&mut self, message: u32, messages: &mut Messages, reads: &Reads) -> Option<u32> {
        let (first, last) = messages.transfer(message).checks?;
        let entry = &reads[first];
        entry.checked?;
        messages.transfer(message).checks = entry.next_check.map(|next| (next, last));
        Some(first)
    }

    /// What is known of it, now that it is its turn.
    pub fn combine<S: Sums>(&mut self, read: u32, messages: &mut Messages, reads: &Reads) -> Verdict {
        let entry = &reads[read];
        let crc = entry.checked.expect("its check is over");
        let transfer = messages.transfer(entry.message);
        transfer.crc = S::combine_crc32c(transfer.crc, crc, entry.bytes);
        Self::verdict(read, messages, reads)
    }

    /// The message's checksum is made up to the end of this READ.
    fn verdict(read: u32, messages: &mut Messages, reads: &Reads) -> Verdict {
        let entry = &reads[read];
        let is_last = entry.offset + u64::from(entry.bytes) == messages[entry.message].length;
        let transfer = messages.transfer(entry.message);
        let fits = !is_last || transfer.crc_expected == Some(transfer.crc);
        if fits { Verdict::Good } else { Verdict::Wrong }
    }

    /// READs that are being checked elsewhere.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Bytes whose checksum was made.
    pub fn checked_bytes(&self) -> u64 {
        self.checked_bytes
    }
}
