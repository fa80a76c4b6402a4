//! The kernel's resctrl file system, typed: what can be shared out, who has what, and changing it.
//!
//! Nothing is kept: each call asks the kernel, which other tools talk to as well. A change is one write, and
//! what the kernel says about a failing one is in the error beside the text that was written.

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
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
pub(crate) use tree::MAGIC;
use tree::Tree;

/// The mounted file system.
#[derive(Clone, Debug)]
pub struct Resctrl {
    tree: Tree,
    mount: Mount,
}

impl Resctrl {
    /// Finds where it is mounted.
    ///
    /// # Errors
    /// [`OpenError`] says whether there is none, or whether it only has to be mounted.
    pub fn find() -> Result<Self, OpenError> {
        Self::at(mount::find()?)
    }

    fn at(mount: Mount) -> Result<Self, OpenError> {
        let tree = Tree::mounted(&mount.path);
        if tree.is_mounted() { Ok(Self { tree, mount }) } else { Err(OpenError::Other { path: mount.path }) }
    }

    /// A folder of ordinary files laid out like it, for trying what reads and writes them where the kernel
    /// has none. As with the kernel's, a group begins with all ways, and keeps what a written schemata does
    /// not name. It refuses nothing that the kernel would.
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

    /// Where it is, and with what options.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Whether it is mounted still.
    pub fn is_mounted(&self) -> bool {
        self.tree.is_mounted()
    }

    /// A number that tells this mount from others since the kernel's start; none where it cannot be told.
    /// Before Linux 6.8, which numbers mounts: that of a folder that is made anew with each.
    pub fn mount_number(&self) -> Option<u64> {
        // STATX_MNT_ID_UNIQUE of linux/stat.h.
        let unique = rustix::fs::StatxFlags::from_bits_retain(0x4000);
        let path = self.tree.root();
        let found = rustix::fs::statx(rustix::fs::CWD, path, rustix::fs::AtFlags::empty(), unique).ok()?;
        if found.stx_mask & unique.bits() != 0 {
            return Some(found.stx_mnt_id);
        }
        std::fs::metadata(self.tree.path("info")).ok().map(|found| found.ino())
    }

    /// A file or folder in it.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.tree.path(relative)
    }

    /// What can be shared out.
    ///
    /// # Errors
    /// [`AccessError`], as for all of these.
    pub fn info(&self) -> Result<Info, AccessError> {
        Info::read(&self.tree)
    }

    /// All groups but the default one, in order.
    ///
    /// # Errors
    /// As above.
    pub fn groups(&self) -> Result<Vec<GroupName>, AccessError> {
        Ok(self.tree.folders("")?.iter().filter_map(|name| GroupName::new(name).ok()).collect())
    }

    /// One group, whether it is there or not.
    pub fn group<'a>(&'a self, name: &'a GroupName) -> Group<'a> {
        Group::new(&self.tree, name)
    }

    /// Makes a group. It begins with all ways that nobody has for himself.
    ///
    /// # Errors
    /// The kernel's reason: no class left, no id of monitoring left, no way left that is not somebody's own.
    pub fn make(&self, name: &GroupName) -> Result<(), AccessError> {
        self.tree.make(name.folder())
    }

    /// Removes a group. Its threads and processors are the default group's from then on.
    ///
    /// # Errors
    /// The kernel's reason. The default group cannot be removed.
    pub fn remove(&self, name: &GroupName) -> Result<(), AccessError> {
        if name.is_default() {
            let source = std::io::ErrorKind::InvalidInput.into();
            return Err(AccessError::refused(Action::Remove, self.tree.root(), None, source));
        }
        self.tree.remove(name.folder())
    }

    /// What the kernel counts of a group, by domain; empty where it counts nothing.
    ///
    /// # Errors
    /// As above.
    pub fn counts(&self, name: &GroupName) -> Result<BTreeMap<DomainId, Counts>, AccessError> {
        match monitor::counts(&self.tree, name) {
            Err(error) if error.is_missing() && self.group(name).exists() => Ok(BTreeMap::new()),
            found => found,
        }
    }

    /// Bytes of each domain's ways that a group has of a cache, as the kernel reckons.
    ///
    /// # Errors
    /// As above.
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

    /// Whether devices have ways of their own.
    ///
    /// # Errors
    /// As above.
    pub fn io_alloc(&self) -> Result<IoAlloc, AccessError> {
        io_alloc::state(&self.tree)
    }

    /// Gives devices ways of their own, or all again. It takes the highest class, so there must be one fewer
    /// groups.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn set_io_alloc(&self, enabled: bool) -> Result<(), AccessError> {
        io_alloc::set(&self.tree, enabled)
    }

    /// The devices' ways by domain, where they have their own.
    ///
    /// # Errors
    /// As above.
    pub fn io_ways(&self) -> Result<BTreeMap<DomainId, WayMask>, AccessError> {
        io_alloc::ways(&self.tree)
    }

    /// Changes the devices' ways; domains that are not named keep theirs.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn set_io_ways(&self, ways: &BTreeMap<DomainId, WayMask>) -> Result<(), AccessError> {
        io_alloc::set_ways(&self.tree, ways)
    }

    /// Keeps other tools that respect the kernel's convention from changing anything until it is dropped.
    ///
    /// # Errors
    /// As above.
    pub fn lock(&self) -> Result<Lock, AccessError> {
        Ok(Lock { _folder: self.tree.lock()? })
    }
}

/// The lock on the file system that tools which change it agree on.
#[derive(Debug)]
pub struct Lock {
    _folder: File,
}

#[cfg(test)]
pub(crate) mod tests;
