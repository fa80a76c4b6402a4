//! The protection domain, and the memory registered in it.

use super::device::Device;
use super::error::VerbsError;
use super::lookup::Lookup;
use crate::memory::SharedMemory;
use crate::nic::{Access, MemoryKey, RegisterError, Sge};
use rdma_sys::{
    ibv_access_flags, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_mr, ibv_pd, ibv_reg_mr_iova2, ibv_sge,
};
use std::io;
use std::sync::Arc;

/// Protection domain. It is freed when dropped, which is after everything in it.
#[derive(Debug)]
pub(super) struct Domain {
    pd: *mut ibv_pd,
}

// SAFETY: verbs may be called by any thread, and by several at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(device: &Device) -> Result<Self, VerbsError> {
        // SAFETY: the device's context is open.
        let pd = unsafe { ibv_alloc_pd(device.context().as_ptr()) };
        if pd.is_null() {
            return Err(VerbsError::verb("ibv_alloc_pd", "the device has no protection domain left"));
        }
        Ok(Self { pd })
    }

    pub fn as_ptr(&self) -> *mut ibv_pd {
        self.pd
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: ours, and everything in the domain is held together with an `Arc` of it.
        unsafe { ibv_dealloc_pd(self.pd) };
    }
}

/// Registration of memory, taken back when dropped. It keeps the memory and the domain alive.
#[derive(Debug)]
pub(super) struct Region {
    mr: *mut ibv_mr,
    bytes: u64,
    lkey: u32,
    memory: Arc<SharedMemory>,
    _domain: Arc<Domain>,
}

impl Region {
    /// Registers all of the memory. Addresses in it count from 0, so a peer learns nothing of this process's
    /// layout.
    pub fn new(domain: &Arc<Domain>, memory: &Arc<SharedMemory>, access: Access) -> io::Result<Self> {
        let allowed = match access {
            Access::LocalWrite => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteRead => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        };
        // Relaxed ordering is optional: the library leaves it out where the kernel or the device does not
        // know it.
        let flags = (allowed | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING).0;
        // SAFETY: the mapping lives as long as the registration: `memory` keeps it.
        let mr = unsafe {
            ibv_reg_mr_iova2(domain.as_ptr(), memory.base().cast(), memory.bytes(), 0, flags as libc::c_uint)
        };
        if mr.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the verb succeeded.
        let lkey = unsafe { (*mr).lkey };
        Ok(Self {
            mr,
            bytes: memory.bytes() as u64,
            lkey,
            memory: Arc::clone(memory),
            _domain: Arc::clone(domain),
        })
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { (*self.mr).rkey }
    }

    /// Returns a stretch of the region for the device; `None` where it does not lie inside.
    #[inline]
    pub fn sge(&self, offset: u64, bytes: u32) -> Option<ibv_sge> {
        let end = offset.checked_add(u64::from(bytes))?;
        (end <= self.bytes).then_some(ibv_sge { addr: offset, length: bytes, lkey: self.lkey })
    }

    /// Returns the address of a stretch in this process.
    fn address(&self, stretch: &ibv_sge) -> *const u8 {
        let offset = usize::try_from(stretch.addr).expect("within the mapping");
        self.memory.base().wrapping_add(offset).cast_const()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: ours; the NIC takes it out of its table first, so no new request names it.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

/// Table of the regions that the NIC's user registered.
#[derive(Debug)]
pub(super) struct Regions {
    domain: Arc<Domain>,
    places: Box<[Option<Region>]>,
    by_key: Lookup,
}

impl Regions {
    pub fn new(domain: &Arc<Domain>, max: u32) -> Self {
        Self {
            domain: Arc::clone(domain),
            places: (0..max).map(|_| None).collect(),
            by_key: Lookup::new(max as usize),
        }
    }

    pub fn register(
        &mut self,
        memory: &Arc<SharedMemory>,
        access: Access,
    ) -> Result<MemoryKey, RegisterError> {
        let max = self.places.len();
        let place = self.places.iter().position(Option::is_none).ok_or(RegisterError::TooMany { max })?;
        let region = Region::new(&self.domain, memory, access)
            .map_err(|source| RegisterError::System { bytes: memory.bytes(), source })?;
        // Memory that peers may read has the key that they name. Other memory has the key for local use.
        let key = match access {
            Access::LocalWrite => region.lkey,
            Access::RemoteRead => region.rkey(),
        };
        self.by_key.insert(key, u32::try_from(place).expect("regions are few"));
        self.places[place] = Some(region);
        Ok(MemoryKey(key))
    }

    pub fn deregister(&mut self, key: MemoryKey) {
        if let Some(place) = self.by_key.get(key.0) {
            self.by_key.remove(key.0);
            self.places[place as usize] = None;
        }
    }

    /// Returns the stretch in the device's form; `None` where it does not lie within a registered region.
    #[inline]
    pub fn translate(&self, sge: Sge) -> Option<ibv_sge> {
        let place = self.by_key.get(sge.key.0)?;
        self.places[place as usize].as_ref()?.sge(sge.offset, sge.bytes)
    }

    /// Returns the address of a stretch in this process, valid until the region is deregistered.
    pub fn address(&self, sge: Sge) -> Option<*const u8> {
        let region = self.places[self.by_key.get(sge.key.0)? as usize].as_ref()?;
        region.sge(sge.offset, sge.bytes).map(|stretch| region.address(&stretch))
    }
}
