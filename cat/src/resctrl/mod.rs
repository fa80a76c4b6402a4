//! Typed access to the kernel's resctrl file system: which resources there are, what each group has, and
//! changes of that.
//!
//! Nothing is cached: each call asks the kernel, since other tools change the same files. A change is a
//! single write. The error of a failed write holds the text that was written and the kernel's reason.

mod error;
mod group;
mod info;
mod io_alloc;
mod mask;
mod monitor;
mod mount;
mod schemata;
mod tree;

pub use error::{AccessError, Action, OpenError};
pub use group::{Group, GroupName, GroupNameError, Mode};
pub use info::{BandwidthInfo, CacheInfo, Info, MonitorInfo, WayUsage};
pub use io_alloc::IoAlloc;
pub use mask::{WayMask, WayMaskError};
pub use monitor::{Count, Counts};
pub use mount::Mount;
pub use schemata::{DomainId, Line, Resource, Schemata, SchemataError};

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
pub(crate) use tree::MAGIC;
use tree::Tree;

/// Handle to the mounted resctrl file system.
#[derive(Clone, Debug)]
pub struct Resctrl {
    tree: Tree,
    mount: Mount,
}

impl Resctrl {
    /// Finds where resctrl is mounted.
    ///
    /// # Errors
    /// [`OpenError`] says whether the host has no resctrl, or whether it only has to be mounted.
    pub fn find() -> Result<Self, OpenError> {
        Self::at(mount::find()?)
    }

    fn at(mount: Mount) -> Result<Self, OpenError> {
        let tree = Tree::mounted(&mount.path);
        if tree.is_mounted() { Ok(Self { tree, mount }) } else { Err(OpenError::Other { path: mount.path }) }
    }

    /// Opens a folder of ordinary files that imitates resctrl, to test code on a kernel without it.
    ///
    /// As in the kernel, a new group has all ways, and writing a schemata keeps what it does not name. Unlike
    /// the kernel, the imitation refuses nothing.
    #[cfg(test)]
    fn imitation(folder: &Path, cdp: bool) -> Self {
        let mount = Mount {
            path: folder.to_owned(),
            read_only: false,
            cdp,
            cdp_l2: false,
            bandwidth_controller: false,
        };
        Self { tree: Tree::plain(folder), mount }
    }

    /// Returns the mount point and the mount options.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Returns whether the file system is still mounted.
    pub fn is_mounted(&self) -> bool {
        self.tree.is_mounted()
    }

    /// Returns a number that tells this mount from others since the kernel's start, or `None` where there is
    /// none.
    ///
    /// Linux numbers mounts from 6.8 on. On earlier kernels it is the inode number of a folder that the
    /// kernel makes anew with each mount.
    pub fn mount_number(&self) -> Option<u64> {
        // The constant STATX_MNT_ID_UNIQUE of linux/stat.h, which rustix does not name.
        let unique = rustix::fs::StatxFlags::from_bits_retain(0x4000);
        let path = self.tree.root();
        let found = rustix::fs::statx(rustix::fs::CWD, path, rustix::fs::AtFlags::empty(), unique).ok()?;
        if found.stx_mask & unique.bits() != 0 {
            return Some(found.stx_mnt_id);
        }
        std::fs::metadata(self.tree.path("info")).ok().map(|found| found.ino())
    }

    /// Returns the full path of a file or folder in the file system.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.tree.path(relative)
    }

    /// Reads which resources can be allocated to groups.
    ///
    /// # Errors
    /// [`AccessError`], as for all methods of this type but [`Self::find`].
    pub fn info(&self) -> Result<Info, AccessError> {
        Info::read(&self.tree)
    }

    /// Returns the names of all groups but the default one, sorted.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn groups(&self) -> Result<Vec<GroupName>, AccessError> {
        Ok(self.tree.folders("")?.iter().filter_map(|name| GroupName::new(name).ok()).collect())
    }

    /// Returns a handle to a group, whether the group exists or not.
    pub fn group<'a>(&'a self, name: &'a GroupName) -> Group<'a> {
        Group::new(&self.tree, name)
    }

    /// Makes a group. It starts with all ways that are not exclusive to another group.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason: no class is left, no monitoring id is left, or all ways are
    /// exclusive to other groups.
    pub fn make(&self, name: &GroupName) -> Result<(), AccessError> {
        self.tree.make(name.folder())
    }

    /// Removes a group. Its threads and processors then belong to the default group.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason. The default group cannot be removed.
    pub fn remove(&self, name: &GroupName) -> Result<(), AccessError> {
        if name.is_default() {
            let source = std::io::ErrorKind::InvalidInput.into();
            return Err(AccessError::refused(Action::Remove, self.tree.root(), None, source));
        }
        self.tree.remove(name.folder())
    }

    /// Reads the kernel's monitoring counts of a group, by domain. The map is empty where the kernel counts
    /// nothing.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn counts(&self, name: &GroupName) -> Result<BTreeMap<DomainId, Counts>, AccessError> {
        match monitor::counts(&self.tree, name) {
            Err(error) if error.is_missing() && self.group(name).exists() => Ok(BTreeMap::new()),
            found => found,
        }
    }

    /// Reads how many bytes of a cache a group's ways have in each domain, by the kernel's computation.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn sizes(
        &self,
        name: &GroupName,
        resource: &Resource,
    ) -> Result<BTreeMap<DomainId, u64>, AccessError> {
        self.tree.read_as(name.file("size"), |text| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let line = lines.find(|(name, _)| name.trim() == resource.name());
            let (_, entries) = line.ok_or("it has no line of that cache")?;
            let entry = |entry: &str| {
                let (domain, bytes) = entry.split_once('=')?;
                Some((domain.trim().parse().ok()?, bytes.trim().parse().ok()?))
            };
            entries.split(';').map(|text| entry(text).ok_or("an entry is no DOMAIN=BYTES")).collect()
        })
    }

    /// Reads whether devices have ways of their own.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn io_alloc(&self) -> Result<IoAlloc, AccessError> {
        io_alloc::state(&self.tree)
    }

    /// Gives devices ways of their own, or lets them fill all ways again. While `io_alloc` is enabled it
    /// occupies the highest class, so one group fewer can exist.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason.
    pub fn set_io_alloc(&self, enabled: bool) -> Result<(), AccessError> {
        io_alloc::set(&self.tree, enabled)
    }

    /// Reads the devices' own ways, by domain.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn io_ways(&self) -> Result<BTreeMap<DomainId, WayMask>, AccessError> {
        io_alloc::ways(&self.tree)
    }

    /// Changes the devices' own ways. Domains that are not named keep theirs.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason.
    pub fn set_io_ways(&self, ways: &BTreeMap<DomainId, WayMask>) -> Result<(), AccessError> {
        io_alloc::set_ways(&self.tree, ways)
    }

    /// Takes the lock on resctrl, waiting up to 2 s. While it is held, other tools that respect the kernel's
    /// convention change nothing. Dropping the lock releases it.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn lock(&self) -> Result<Lock, AccessError> {
        Ok(Lock { _lock: self.tree.lock()? })
    }
}

/// Lock on resctrl, on which tools that change resctrl agree. Dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    _lock: crate::lock::Lock,
}

#[cfg(test)]
pub(crate) mod tests;
