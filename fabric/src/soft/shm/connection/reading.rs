//! READs of this end, which copy from the peer's memory.

use super::{Connection, End};
use crate::nic::Status;
use crate::soft::shm::link::Fault;
use crate::soft::tables::Tables;

impl Connection {
    /// Copies at most `bytes_max` bytes for the oldest READs. `true` where READs remain.
    pub(in crate::soft::shm) fn read(&mut self, tables: &mut Tables, bytes_max: u32) -> Result<bool, End> {
        let mut budget = bytes_max;
        while let Some(slot) = self.reads.front() {
            let read = tables.reads.get(slot);
            let (key, address, bytes) = (read.key, read.address, read.bytes);
            let Some(from) = self.translate_peer(tables, key, address, bytes)? else {
                self.complete_read(tables, Status::RemoteAccess);
                return Err(End::work(Status::RemoteAccess, Fault::RemoteAccess));
            };
            while tables.reads.get(slot).done < bytes {
                if budget == 0 {
                    return Ok(true);
                }
                let stretch = tables.reads.get(slot).next_stretch(budget).expect("bytes are missing");
                let Some(to) = tables.regions.translate(stretch) else {
                    self.complete_read(tables, Status::LocalProtection);
                    return Err(End::work(Status::LocalProtection, Fault::Closed));
                };
                let done = tables.reads.get(slot).done as usize;
                // SAFETY: `from` has `bytes` readable bytes, of which `done` are behind; `to` is registered
                // and as long as the stretch. The peer may change its bytes meanwhile: they are copied, not
                // looked at. `copy` and not `copy_nonoverlapping`: a NIC connected to itself may read a
                // region into itself.
                unsafe { to.copy_from(from.add(done), stretch.bytes as usize) };
                tables.reads.get_mut(slot).advance(stretch.bytes);
                tables.counters.bytes_in += u64::from(stretch.bytes);
                budget -= stretch.bytes;
            }
            self.complete_read(tables, Status::Success);
        }
        Ok(false)
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
