//! Where headers, and payloads that are copied, lie while the device reads them.

use super::error::VerbsError;
use super::regions::{Domain, Region};
use crate::memory::SharedMemory;
use crate::nic::Access;
use rdma_sys::ibv_sge;
use std::sync::Arc;

/// Places of one size in registered memory, last used first.
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

    /// Copies bytes into a free place, which the caller knows there is, behind one another; returns it and
    /// its stretch.
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

    /// The address of a stretch, for sending it inline.
    #[inline]
    pub fn address(&self, sge: &ibv_sge) -> u64 {
        self.memory.base() as u64 + sge.addr
    }

    /// The device is done with a place.
    #[inline]
    pub fn give(&mut self, place: u32) {
        self.free.push(place);
    }
}
