//! Checksums of large messages (Jet §4.2.2): made here and now, or elsewhere while the reactor goes on.
//!
//! A message has one CRC32C over all its bytes, so whether it fits is known at its end only. Its READs are delivered in the
//! order of their bytes, each after its own part was made; the last is delivered only if the whole fits. A READ that is
//! being checked elsewhere keeps its slabs and its place among the READs: what is delivered may be released, and be another
//! message's a moment later.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::config::Checksums;
use crate::effects::{Effects, ReadId};
use crate::message::NONE;
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::{AckStatus, SmallHeader};

impl<P: GrantPolicy> Receiver<P> {
    /// Whether a small message's bytes fit its checksum. Always made here: handing 4 KiB over costs more than its CRC.
    #[inline]
    pub(super) fn small_fits(&mut self, small: &SmallHeader, slab: u32, effects: &mut impl Effects) -> bool {
        let Some(expected) = small.crc32c() else { return true };
        if self.config.checksums == Checksums::Off {
            return true;
        }
        let bytes = small.payload_bytes.get();
        self.stats.checked_bytes += u64::from(bytes);
        effects.crc32c(0, slab, bytes) == Some(expected)
    }

    /// A READ arrived whose message is still wanted: it is checked, and delivered if it may be.
    pub(super) fn check_read(&mut self, now_ns: u64, read: u32, effects: &mut impl Effects) {
        let entry = &self.reads[read];
        let transfer = self.messages.transfer(entry.message);
        if transfer.crc_expected.is_none() {
            self.deliver_read(now_ns, read, effects);
            return;
        }
        self.stats.checked_bytes += u64::from(entry.bytes);
        if self.config.checksums == Checksums::Workers {
            let first = transfer.checks.map_or(read, |(first, last)| {
                self.reads[last].next_check = Some(read);
                first
            });
            transfer.checks = Some((first, read));
            self.checks += 1;
            let entry = &mut self.reads[read];
            (entry.checked, entry.next_check) = (None, None);
            effects.begin_check(ReadId(read), entry.bytes, &entry.runs[..entry.run_count]);
            return;
        }
        let mut left = entry.bytes;
        for run in &entry.runs[..entry.run_count] {
            let bytes = left.min(run.count * SLAB_BYTES_U32);
            let Some(crc) = effects.crc32c(transfer.crc, run.first, bytes) else {
                let message = entry.message;
                self.end_unreadable(message, effects);
                self.drop_read_of(now_ns, read, effects);
                return;
            };
            transfer.crc = crc;
            left -= bytes;
        }
        self.end_check(now_ns, read, effects);
    }

    /// A check that [`Effects::begin_check`] began is over: the READ's bytes have this CRC32C.
    pub fn handle_checked(&mut self, now_ns: u64, read: ReadId, crc: u32, effects: &mut impl Effects) {
        let message = self.reads[read.0].message;
        assert!(message != NONE && !self.reads[read.0].in_flight, "{read:?} was checked but is not");
        self.reads[read.0].checked = Some(crc);
        self.checks -= 1;
        // Each READ left in the list keeps its message's record.
        while let Some((first, last)) = self.messages.transfer(message).checks {
            let entry = &self.reads[first];
            let Some(crc) = entry.checked else { return };
            let (bytes, next) = (entry.bytes, entry.next_check);
            self.messages.transfer(message).checks = next.map(|next| (next, last));
            if self.is_unwanted(message) {
                self.drop_read_of(now_ns, first, effects);
            } else {
                let transfer = self.messages.transfer(message);
                transfer.crc = effects.combine_crc32c(transfer.crc, crc, bytes);
                self.end_check(now_ns, first, effects);
            }
            if next.is_none() {
                return;
            }
        }
    }

    /// The message's checksum is made up to the end of this READ: delivers it, unless it is the last and the whole does not
    /// fit.
    fn end_check(&mut self, now_ns: u64, read: u32, effects: &mut impl Effects) {
        let entry = &self.reads[read];
        let message = entry.message;
        let is_last = entry.offset + u64::from(entry.bytes) == self.messages[message].length;
        let transfer = self.messages.transfer(message);
        if is_last && transfer.crc_expected != Some(transfer.crc) {
            self.withdraw(message, true, effects);
            self.messages[message].failure = Some(AckStatus::Corrupt);
            self.drop_read_of(now_ns, read, effects);
            return;
        }
        self.deliver_read(now_ns, read, effects);
    }

    /// Whether nobody takes what arrives of the message.
    pub(super) fn is_unwanted(&self, message: u32) -> bool {
        let record = &self.messages[message];
        record.failure.is_some() || record.finished || record.session == NONE
    }
}
