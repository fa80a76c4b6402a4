//! Memory that lies in ways of the cache and is evicted from them by nobody (the kernel's pseudo-locking).
//!
//! The kernel has it for some processors only, and gives at most 4 MiB at once. What it gives is memory of a
//! device's: it can be read and written, and no NIC can register it, nor can a file be read into it past the
//! page cache (both answer EFAULT).

use super::{Reservation, ReserveError, RestoreError, Restored};
use crate::plan::{Plan, Request};
use crate::resctrl::{AccessError, DomainId, Resctrl, Resource};
use crate::topology::{Topology, TopologyError};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Where the kernel makes a device for each region.
const DEVICES: &str = "/dev/pseudo_lock";

/// Why no memory was locked. Everything is as before.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The ways cannot be had, or the kernel did not lock.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The size cannot be read.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The caches cannot be told.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// This thread may not run where the memory can be mapped.
    #[error(
        "memory in the cache {domain} is mapped from a processor of it, and this thread may use none: \
         {source}"
    )]
    Processors {
        /// The cache.
        domain: DomainId,
        /// What the system said.
        source: io::Error,
    },
    /// The region's device cannot be mapped.
    #[error("cannot map {bytes} bytes of {}: {source}", path.display())]
    Map {
        /// The device.
        path: PathBuf,
        /// The region's size.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// Such memory, mapped. Dropped, it is unmapped and the ways are given back.
#[derive(Debug)]
pub struct LockedRegion {
    mapping: Mapping,
    reservation: Reservation,
}

impl LockedRegion {
    /// Takes the ways, locks memory into them, and maps it. The request is for one domain, and
    /// [`Request::locked`].
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
        // The kernel maps it from a processor of the cache only.
        let topology = Topology::of_host()?;
        let cpus = topology.domain(domain).map(|found| found.cpus.clone()).unwrap_or_default();
        let stay = cpus.stay().map_err(|source| LockError::Processors { domain, source })?;
        let mapping = Mapping::make(&path, bytes);
        drop(stay);
        let mapping = mapping.map_err(|source| LockError::Map { path, bytes, source })?;
        Ok(Self { mapping, reservation })
    }

    /// Its first byte. It is filled with zeros at first.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// What was done.
    pub fn plan(&self) -> &Plan {
        self.reservation.plan()
    }

    /// Gives it up: the memory is gone then.
    ///
    /// # Errors
    /// [`RestoreError`]; the next start tries again.
    pub fn restore(self) -> Result<Restored, RestoreError> {
        // The kernel removes no region that is mapped.
        drop(self.mapping);
        self.reservation.restore()
    }
}

/// The device's memory in this process.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory, valid from any thread for as long as this lives; what is done with it is the caller's
// promise.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn make(path: &Path, bytes: usize) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(path)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the system chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &device, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `make` with this length, and nothing of it is used any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
