//! Memory for headers, and for copied payloads, while the device reads them.

use super::error::VerbsError;
use super::regions::{Domain, Region};
use crate::memory::SharedMemory;
use crate::nic::Access;
use rdma_sys::ibv_sge;
use std::sync::Arc;

/// Places of one size in registered memory. The place that was freed last is used next.
#[derive(Debug)]
pub(super) struct Staging {
    region: Region,
    memory: Arc<SharedMemory>,
    place_bytes: usize,
    free: Vec<u32>,
}

impl Staging {
    pub fn new(
        domain: &Arc<Domain>,
        name: &str,
        places: u32,
        place_bytes: usize,
    ) -> Result<Self, VerbsError> {
        let memory = Arc::new(SharedMemory::new(name, (places as usize).max(1) * place_bytes, false)?);
        let region = Region::new(domain, &memory, Access::LocalWrite).map_err(|source| VerbsError::Verb {
            verb: "ibv_reg_mr",
            source,
            advice: "raise ulimit -l (memlock), in a service LimitMEMLOCK=infinity",
        })?;
        Ok(Self { region, memory, place_bytes, free: (0..places).rev().collect() })
    }

    /// Whether a place is free.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Copies bytes into a free place, one part behind the other. Returns the place and its stretch.
    ///
    /// # Panics
    /// Where no place is free; the caller checks that before.
    #[inline]
    pub fn put(&mut self, parts: &[&[u8]]) -> (u32, ibv_sge) {
        let place = self.free.pop().expect("the caller looked for room");
        let offset = place as usize * self.place_bytes;
        let mut filled = 0;
        for part in parts {
            assert!(part.len() <= self.place_bytes - filled, "a place has {} bytes", self.place_bytes);
            // SAFETY: the part's place lies within the memory, and the device does not read it: it is free.
            unsafe {
                let to = self.memory.base().add(offset + filled);
                to.copy_from_nonoverlapping(part.as_ptr(), part.len());
            }
            filled += part.len();
        }
        let length = u32::try_from(filled).expect("a place is small");
        let sge = self.region.sge(offset as u64, length).expect("places lie within the region");
        (place, sge)
    }

    /// Returns the address of a stretch in this process, for sending it inline.
    #[inline]
    pub fn address(&self, sge: &ibv_sge) -> u64 {
        self.memory.base() as u64 + sge.addr
    }

    /// Gives back a place that the device has read.
    #[inline]
    pub fn give(&mut self, place: u32) {
        self.free.push(place);
    }
}
