//! READs of this end, which copy from the peer's memory.

use super::{Connection, End, Sought};
use crate::nic::{RegionError, Status};
use crate::soft::shm::link::{Fault, REMOTE_OPERATION};
use crate::soft::shm::regions::{PIECES_MAX, Piece, RegionPlace, Unreadable};
use crate::soft::tables::Tables;

impl Connection {
    /// Copies at most `bytes_max` bytes for the oldest READs. `true` where READs remain that can go on.
    ///
    /// Once the peer has left, its memory may have other bytes. No READ succeeds then, and [`Self::hung_up`]
    /// is set.
    pub(in crate::soft::shm) fn read(&mut self, tables: &mut Tables, bytes_max: u32) -> Result<bool, End> {
        let mut budget = bytes_max;
        while let Some(slot) = self.reads.front() {
            let read = tables.reads.get(slot);
            let (key, address, bytes) = (read.key, read.address, read.bytes);
            let from = match self.translate_peer(tables, key, address, bytes)? {
                Sought::At(from) => from,
                Sought::Later => return Ok(false),
                Sought::Nowhere => {
                    self.complete_read(tables, Status::RemoteAccess);
                    return Err(End::work(Status::RemoteAccess, Fault::RemoteAccess));
                }
            };
            while tables.reads.get(slot).done < bytes {
                if budget == 0 {
                    return Ok(true);
                }
                budget -= self.read_pieces(tables, slot, from, budget)?;
            }
            if self.link().has_peer_left() {
                self.hung_up = true;
                self.flush_reads(tables);
                return Ok(false);
            }
            self.complete_read(tables, Status::Success);
        }
        Ok(false)
    }

    /// Copies the next bytes of the oldest READ, which is in `slot`, and returns how many. The READ's first
    /// byte is at `from`.
    fn read_pieces(
        &mut self,
        tables: &mut Tables,
        slot: u32,
        from: RegionPlace,
        bytes_max: u32,
    ) -> Result<u32, End> {
        let from = from.skip(tables.reads.get(slot).done);
        let mut pieces = [Piece::EMPTY; PIECES_MAX];
        let (mut used, mut bytes) = (0, 0);
        while used < PIECES_MAX
            && bytes < bytes_max
            && let Some(stretch) = tables.reads.get(slot).next_stretch(bytes_max - bytes)
        {
            let Some(to) = tables.regions.translate(stretch) else {
                self.complete_read(tables, Status::LocalProtection);
                return Err(End::work(Status::LocalProtection, Fault::Closed));
            };
            pieces[used] = Piece { to, bytes: stretch.bytes };
            used += 1;
            bytes += stretch.bytes;
            tables.reads.get_mut(slot).advance(stretch.bytes);
        }
        // SAFETY: each piece is registered and as long as its stretch, and this NIC's to write while the READ
        // is outstanding. All stretches together are the READ's bytes, which were translated.
        let copied = unsafe { self.copy_from_peer(from, &pieces[..used]) };
        if let Err(end) = copied {
            self.complete_read(tables, Status::Other(REMOTE_OPERATION));
            return Err(end);
        }
        tables.counters.bytes_in += u64::from(bytes);
        Ok(bytes)
    }

    /// Copies the bytes from a place of the peer's memory on into these pieces.
    ///
    /// # Safety
    /// That of [`PeerRegions::copy`](crate::soft::shm::regions::PeerRegions::copy).
    #[inline]
    pub(in crate::soft::shm) unsafe fn copy_from_peer(
        &mut self,
        from: RegionPlace,
        pieces: &[Piece],
    ) -> Result<(), End> {
        // SAFETY: as the caller promises.
        let copied = unsafe { self.peer_regions.copy(from, pieces) };
        Ok(copied.map_err(|Unreadable| RegionError::Unreadable)?)
    }

    /// Completes the oldest READ with this status.
    fn complete_read(&mut self, tables: &mut Tables, status: Status) {
        let slot = tables.reads.pop(&mut self.reads).expect("there is a READ to end");
        tables.complete_read(slot, status);
    }

    /// Completes all READs with [`Status::Flushed`].
    pub(in crate::soft::shm) fn flush_reads(&mut self, tables: &mut Tables) {
        while self.reads.front().is_some() {
            self.complete_read(tables, Status::Flushed);
        }
    }
}
