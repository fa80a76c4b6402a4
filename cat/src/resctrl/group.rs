//! Groups: who may use what.

use super::error::AccessError;
use super::schemata::Schemata;
use super::tree::Tree;
use crate::cpu_set::CpuSet;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A group's name: one folder's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

/// Why a text names no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is no name of a group: {problem}")]
pub struct GroupNameError {
    /// The text.
    pub name: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// The kernel's own folders and files beside the groups.
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
    /// The group that everything is in that is in no other: the file system's root.
    pub fn default_group() -> Self {
        Self(String::new())
    }

    /// A group's name.
    ///
    /// # Errors
    /// That it is none.
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

    /// Whether it is the default group.
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

/// How a group shares its ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Others may have them, too.
    Shareable,
    /// The kernel refuses them to all others.
    Exclusive,
    /// It is to become a pseudo-locked region.
    PseudoLocksetup,
    /// It is one.
    PseudoLocked,
}

impl Mode {
    const WORDS: [(Self, &'static str); 4] = [
        (Self::Shareable, "shareable"),
        (Self::Exclusive, "exclusive"),
        (Self::PseudoLocksetup, "pseudo-locksetup"),
        (Self::PseudoLocked, "pseudo-locked"),
    ];

    /// The kernel's word for it.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(mode, _)| *mode == self).map_or("", |(_, word)| word)
    }
}

/// One group, by its name: nothing is kept, every call asks the kernel.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    tree: &'a Tree,
    name: &'a GroupName,
}

impl<'a> Group<'a> {
    pub(super) fn new(tree: &'a Tree, name: &'a GroupName) -> Self {
        Self { tree, name }
    }

    /// What it may use.
    ///
    /// # Errors
    /// [`AccessError`], as for all of these.
    pub fn schemata(&self) -> Result<Schemata, AccessError> {
        self.tree.read_as(self.name.file("schemata"), str::parse)
    }

    /// Changes what it may use. All lines together, or none; what is not named stays.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn set_schemata(&self, schemata: &Schemata) -> Result<(), AccessError> {
        self.tree.write(self.name.file("schemata"), &schemata.to_string())
    }

    /// How it shares its ways.
    ///
    /// # Errors
    /// As above.
    pub fn mode(&self) -> Result<Mode, AccessError> {
        self.tree.read_as(self.name.file("mode"), |text| {
            let mode = Mode::WORDS.iter().find(|(_, word)| *word == text.trim());
            mode.map(|(mode, _)| *mode).ok_or("it is no mode of a group")
        })
    }

    /// Changes how it shares its ways.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn set_mode(&self, mode: Mode) -> Result<(), AccessError> {
        self.tree.write(self.name.file("mode"), &format!("{}\n", mode.word()))
    }

    /// Its processors: whatever runs there and is in no group of its own uses this one's share.
    ///
    /// # Errors
    /// As above.
    pub fn cpus(&self) -> Result<CpuSet, AccessError> {
        self.tree.read_as(self.name.file("cpus_list"), str::parse)
    }

    /// Changes its processors. Those that it loses are the default group's.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn set_cpus(&self, cpus: &CpuSet) -> Result<(), AccessError> {
        self.tree.write(self.name.file("cpus_list"), &format!("{cpus}\n"))
    }

    /// Its threads, by the ids that this process knows them by.
    ///
    /// # Errors
    /// As above.
    pub fn threads(&self) -> Result<Vec<i32>, AccessError> {
        self.tree
            .read_as(self.name.file("tasks"), |text| text.lines().map(str::parse).collect::<Result<_, _>>())
    }

    /// Moves one thread into it; its children will be there, too. The lines that it has in the cache stay
    /// where they are.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn add_thread(&self, thread: i32) -> Result<(), AccessError> {
        self.tree.write(self.name.file("tasks"), &format!("{thread}\n"))
    }

    /// The number of its folder, which no other group has while this one is there, and a later one is
    /// unlikely to have; none where there is no such group.
    pub fn inode(&self) -> Option<u64> {
        std::fs::metadata(self.tree.path(self.name.folder())).ok().map(|found| found.ino())
    }

    /// Whether it is there.
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
