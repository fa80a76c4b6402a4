//! Memory that is locked into ways of the cache, from which no other access evicts it (the kernel's
//! pseudo-locking).
//!
//! The kernel supports it on some processors only, and locks at most 4 MiB at once. Locked memory is the
//! memory of a device that the kernel makes. It can be read and written, but no NIC can register it, and no
//! file can be read into it past the page cache; both fail with EFAULT.

use super::{Reservation, ReserveError, RestoreError, Restored};
use crate::plan::{Plan, Request};
use crate::resctrl::{AccessError, DomainId, Resctrl, Resource};
use crate::topology::{Topology, TopologyError};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Folder in which the kernel makes a device for each region.
const DEVICES: &str = "/dev/pseudo_lock";

/// Reason why no memory was locked. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The ways cannot be reserved, or the kernel refused to lock memory into them.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The size of the region cannot be read.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The host's caches cannot be determined.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The calling thread may use no processor of the cache, but the memory can be mapped only from one.
    #[error(
        "memory in the cache {domain} is mapped from a processor of it, and this thread may use none: \
         {source}"
    )]
    Processors {
        /// Id of the cache.
        domain: DomainId,
        /// Error of the system call.
        source: io::Error,
    },
    /// The region's device cannot be mapped.
    #[error("cannot map {bytes} bytes of {}: {source}", path.display())]
    Map {
        /// Path of the device.
        path: PathBuf,
        /// Size of the region in bytes.
        bytes: usize,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Pseudo-locked memory that is mapped into this process. When dropped it is unmapped, and its ways are given
/// back.
#[derive(Debug)]
pub struct LockedRegion {
    mapping: Mapping,
    reservation: Reservation,
}

impl LockedRegion {
    /// Reserves ways, locks memory into them, and maps it. The request must be for one domain;
    /// [`Request::locked`] is set by this function.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn make(resctrl: &Resctrl, request: &Request, folder: &Path) -> Result<Self, LockError> {
        let request = Request { locked: true, ..request.clone() };
        let reservation = Reservation::make(resctrl, &request, folder, &mut |_| {})?;
        let plan = reservation.plan();
        let domain = plan.domains.first().map_or(0, |planned| planned.domain);
        let bytes = resctrl.sizes(&plan.group, &Resource::L3)?.get(&domain).copied().unwrap_or(0);
        let path = Path::new(DEVICES).join(plan.group.to_string());
        let bytes = usize::try_from(bytes).unwrap_or(0);
        // The kernel lets only a processor of the cache map the region.
        let topology = Topology::of_host()?;
        let cpus = topology.domain(domain).map(|found| found.cpus.clone()).unwrap_or_default();
        let pinning = cpus.pin_thread().map_err(|source| LockError::Processors { domain, source })?;
        let mapping = Mapping::make(&path, bytes);
        drop(pinning);
        let mapping = mapping.map_err(|source| LockError::Map { path, bytes, source })?;
        Ok(Self { mapping, reservation })
    }

    /// Returns the address of the first byte. The memory is initially filled with zeros.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// Returns the plan that was carried out.
    pub fn plan(&self) -> &Plan {
        self.reservation.plan()
    }

    /// Unmaps the memory and gives its ways back. The contents are lost.
    ///
    /// # Errors
    /// [`RestoreError`]; the next start tries again.
    pub fn restore(self) -> Result<Restored, RestoreError> {
        // The kernel does not remove a region that is mapped.
        drop(self.mapping);
        self.reservation.restore()
    }
}

/// Mapping of a pseudo-locked region's device in this process.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory, which is valid from any thread as long as this value lives. Accesses
// to it are under the caller's own promises.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn make(path: &Path, bytes: usize) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(path)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases no memory of this process.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &device, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `make` made the mapping with this length, and nothing of it is used any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
