//! Control groups of resctrl: sets of threads and processors, with the ways that they may fill.

use super::error::AccessError;
use super::schemata::Schemata;
use super::tree::Tree;
use crate::cpu_set::CpuSet;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Name of a group, which is also the name of its folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

/// Error: a text is no valid name of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is no name of a group: {problem}")]
pub struct GroupNameError {
    /// Text that was refused.
    pub name: String,
    /// Description of what is wrong with it.
    pub problem: &'static str,
}

/// Names of the kernel's own files and folders, which no group can have.
const TAKEN: [&str; 10] = [
    "info",
    "mon_groups",
    "mon_data",
    "schemata",
    "tasks",
    "cpus",
    "cpus_list",
    "mode",
    "size",
    "ctrl_hw_id",
];

impl GroupName {
    /// Returns the name of the default group, to which everything belongs that is in no other group. Its
    /// folder is the file system's root.
    pub fn default_group() -> Self {
        Self(String::new())
    }

    /// Checks a text and makes it a group's name.
    ///
    /// # Errors
    /// [`GroupNameError`]: the text is empty, too long, reserved by the kernel, or no name of a single
    /// folder.
    pub fn new(name: &str) -> Result<Self, GroupNameError> {
        let refused = |problem| Err(GroupNameError { name: name.to_owned(), problem });
        if name.is_empty() || name == "." || name == ".." {
            return refused("it is empty, or means another folder");
        }
        if name.len() > 255 || name.contains(['/', '\n', '\0']) {
            return refused("it has more than 255 bytes, or '/', or the end of a line");
        }
        if TAKEN.contains(&name) {
            return refused("the kernel has that name for itself");
        }
        Ok(Self(name.to_owned()))
    }

    /// Returns whether this is the default group's name.
    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn file(&self, file: &str) -> PathBuf {
        PathBuf::from(&self.0).join(file)
    }

    pub(super) fn folder(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_default() { "the default group" } else { &self.0 })
    }
}

impl serde::Serialize for GroupName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for GroupName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name.is_empty() { Ok(Self(name)) } else { Self::new(&name).map_err(serde::de::Error::custom) }
    }
}

/// Mode of a group: how it shares its ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Other groups may have the same ways, too.
    Shareable,
    /// The kernel refuses the group's ways to all other groups.
    Exclusive,
    /// The group is being set up as a pseudo-locked region.
    PseudoLocksetup,
    /// The group is a pseudo-locked region.
    PseudoLocked,
}

impl Mode {
    const WORDS: [(Self, &'static str); 4] = [
        (Self::Shareable, "shareable"),
        (Self::Exclusive, "exclusive"),
        (Self::PseudoLocksetup, "pseudo-locksetup"),
        (Self::PseudoLocked, "pseudo-locked"),
    ];

    /// Returns the kernel's word for the mode.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(mode, _)| *mode == self).map_or("", |(_, word)| word)
    }
}

/// Handle to one group, which need not exist. It caches nothing: every call reads or writes the kernel's
/// files.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    tree: &'a Tree,
    name: &'a GroupName,
}

impl<'a> Group<'a> {
    pub(super) fn new(tree: &'a Tree, name: &'a GroupName) -> Self {
        Self { tree, name }
    }

    /// Reads what the group may use of each resource.
    ///
    /// # Errors
    /// [`AccessError`], as for all methods of this type that can fail.
    pub fn schemata(&self) -> Result<Schemata, AccessError> {
        self.tree.read_as(self.name.file("schemata"), str::parse)
    }

    /// Changes what the group may use, all lines together or none. Resources and domains that are not named
    /// keep their values.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason.
    pub fn set_schemata(&self, schemata: &Schemata) -> Result<(), AccessError> {
        self.tree.write(self.name.file("schemata"), &schemata.to_string())
    }

    /// Reads the group's mode.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn mode(&self) -> Result<Mode, AccessError> {
        self.tree.read_as(self.name.file("mode"), |text| {
            let mode = Mode::WORDS.iter().find(|(_, word)| *word == text.trim());
            mode.map(|(mode, _)| *mode).ok_or("it is no mode of a group")
        })
    }

    /// Changes the group's mode.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason.
    pub fn set_mode(&self, mode: Mode) -> Result<(), AccessError> {
        self.tree.write(self.name.file("mode"), &format!("{}\n", mode.word()))
    }

    /// Reads the group's processors. Threads of the default group use this group's share of the resources
    /// while they run on these processors.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn cpus(&self) -> Result<CpuSet, AccessError> {
        self.tree.read_as(self.name.file("cpus_list"), str::parse)
    }

    /// Changes the group's processors. Processors that it loses go to the default group.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason.
    pub fn set_cpus(&self, cpus: &CpuSet) -> Result<(), AccessError> {
        self.tree.write(self.name.file("cpus_list"), &format!("{cpus}\n"))
    }

    /// Reads the ids of the group's threads, in this process's PID namespace.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn threads(&self) -> Result<Vec<i32>, AccessError> {
        self.tree
            .read_as(self.name.file("tasks"), |text| text.lines().map(str::parse).collect::<Result<_, _>>())
    }

    /// Moves one thread into the group. Threads and processes that it starts afterwards belong to the group,
    /// too. Lines that the thread already has in the cache stay where they are.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason.
    pub fn add_thread(&self, thread: i32) -> Result<(), AccessError> {
        self.tree.write(self.name.file("tasks"), &format!("{thread}\n"))
    }

    /// Returns the inode number of the group's folder, or `None` where there is no such group. No two groups
    /// have the same number at a time, and a later group is unlikely to get it again.
    pub fn inode(&self) -> Option<u64> {
        std::fs::metadata(self.tree.path(self.name.folder())).ok().map(|found| found.ino())
    }

    /// Returns whether the group exists.
    pub fn exists(&self) -> bool {
        self.inode().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        assert!(GroupName::new("jet").is_ok());
        for bad in ["", ".", "..", "a/b", "info", "mon_data", "a\nb", "tasks"] {
            assert!(GroupName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(GroupName::default_group().to_string(), "the default group");
        assert_eq!(serde_json::from_str::<GroupName>("\"\"").unwrap(), GroupName::default_group());
        assert!(serde_json::from_str::<GroupName>("\"../x\"").is_err());
    }
}
