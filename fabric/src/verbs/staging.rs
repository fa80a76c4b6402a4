//! Where headers, and payloads that are copied, lie while the device reads them.

use super::error::VerbsError;
use super::regions::{Domain, Region};
use crate::memory::SharedMemory;
use crate::nic::Access;
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use rdma_sys::ibv_sge;
use std::rc::Rc;
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
    pub fn new(domain: &Rc<Domain>, name: &str, places: u32, place_bytes: usize) -> Result<Self, VerbsError> {
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

    /// Copies bytes into a free place, which the caller knows there is; returns it and its stretch.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> (u32, ibv_sge) {
        assert!(bytes.len() <= self.place_bytes, "a place has {} bytes", self.place_bytes);
        let place = self.free.pop().expect("the caller looked for room");
        let offset = place as usize * self.place_bytes;
        // SAFETY: the place lies within the memory, and the device does not read it: it is free.
        unsafe {
            self.memory.base().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        let length = u32::try_from(bytes.len()).expect("a place is small");
        let sge = self.region.sge(offset as u64, length).expect("places lie within the region");
        (place, sge)
    }

    /// As [`Self::put`], for a header.
    #[inline]
    pub fn put_header(&mut self, header: &HeaderBytes) -> (u32, ibv_sge) {
        const { assert!(HEADER_BYTES == 128) };
        self.put(&header.0)
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
