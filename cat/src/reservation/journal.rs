//! What was there before, in a file, before anything is changed.

use crate::plan::{Change, DomainPlan, Holdings, Plan, Ways, l3_ways, schemata};
use crate::resctrl::{DomainId, GroupName, Mode, Schemata, WayMask, lock_within};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where journals are, unless told otherwise. Of all who reserve: who comes next must find what somebody left.
pub const FOLDER: &str = "/run/jet-cache";

const VERSION: u32 = 1;

/// How long others may look and change.
const LOCK_MAX: Duration = Duration::from_secs(10);

/// Why a journal cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused.
    #[error("cannot {action} {}: {source}; reserving cache needs root", path.display())]
    System {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may write there what root would then do.
    #[error(
        "{} is not this user's alone, so what it says is not trusted; make it so: chown root {}; chmod 700 {}",
        path.display(), path.display(), path.display()
    )]
    Untrusted {
        /// The folder.
        path: PathBuf,
    },
    /// Another process holds a lock.
    #[error("another process has held the lock {} for 10 s (its pid is in /proc/locks); end it, or wait", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It is none, or a later version's.
    #[error(
        "{} is no journal of this version: {problem}; look whether /sys/fs/resctrl is as it should be, then remove the file",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// One group's loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loss {
    pub group: GroupName,
    #[serde(with = "as_schemata")]
    pub before: Ways,
    #[serde(with = "as_schemata")]
    pub after: Ways,
}

/// What is changed, and what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    pub version: u32,
    /// The kernel forgets everything at its end; its number tells whether this is still the same one.
    pub boot: String,
    pub group: GroupName,
    /// It outlives the process that made it: only whoever is asked to gives it back.
    #[serde(default)]
    pub standing: bool,
    /// Tells this mount of the file system from others, where the kernel can (6.8): unmounting undoes everything, and a later
    /// group may have the number of this one.
    #[serde(default)]
    pub mount: Option<u64>,
    /// Of the group's folder, once it is made.
    pub inode: Option<u64>,
    #[serde(with = "as_schemata")]
    pub own: Ways,
    pub losses: Vec<Loss>,
    /// The domains that were asked for.
    pub domains: Vec<DomainId>,
}

impl Journal {
    pub fn of(plan: &Plan, boot: String, mount: Option<u64>) -> Self {
        let loss = |change: &Change| Loss {
            group: change.group.clone(),
            before: change.before.clone(),
            after: change.after.clone(),
        };
        Self {
            version: VERSION,
            boot,
            group: plan.group.clone(),
            standing: false,
            mount,
            inode: None,
            own: plan.own.clone(),
            losses: plan.changes.iter().map(loss).collect(),
            domains: plan.domains.iter().map(|planned| planned.domain).collect(),
        }
    }
}

impl Journal {
    /// What was planned, as far as it is written down.
    pub fn plan(&self, found: &Holdings) -> Plan {
        let ways_of = |ways: &Ways, domain| {
            let ways = ways.values().filter_map(|ways| ways.get(&domain));
            ways.fold(WayMask::EMPTY, |all, ways| all | *ways)
        };
        let default = found.holders.iter().find(|holder| holder.name.is_default());
        let domains = self.domains.iter().map(|&domain| {
            let ways = ways_of(&self.own, domain);
            DomainPlan {
                domain,
                ways,
                bytes: u64::from(ways.count()) * found.way_bytes.get(&domain).copied().unwrap_or(0),
                with_devices: ways & found.cache.shareable,
                left: default.map_or(WayMask::EMPTY, |holder| ways_of(&holder.ways, domain)),
            }
        });
        let change = |loss: &Loss| Change {
            group: loss.group.clone(),
            before: loss.before.clone(),
            after: loss.after.clone(),
        };
        let group = found.holders.iter().find(|holder| holder.name == self.group);
        Plan {
            group: self.group.clone(),
            own: self.own.clone(),
            exclusive: group.is_some_and(|group| group.mode == Mode::Exclusive),
            changes: self.losses.iter().map(change).collect(),
            domains: domains.collect(),
        }
    }
}

/// Ways as the kernel writes them, which is what an operator compares.
mod as_schemata {
    use super::{Schemata, Ways, l3_ways, schemata};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(ways: &Ways, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&schemata(ways))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ways, D::Error> {
        let text = String::deserialize(deserializer)?;
        let schemata: Schemata = text.parse().map_err(serde::de::Error::custom)?;
        let ways = l3_ways(&schemata);
        if ways.len() == schemata.lines.len() {
            Ok(ways)
        } else {
            Err(serde::de::Error::custom("it names something else than ways of the last-level cache"))
        }
    }
}

/// The folder of journals.
#[derive(Clone, Debug)]
pub(crate) struct Journals {
    folder: PathBuf,
}

impl Journals {
    /// Makes the folder where it is not there.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        let failed = |action| move |source| JournalError::System { action, path: folder.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("make"))?;
        let found = fs::metadata(folder).map_err(failed("read"))?;
        let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
        if !is_own {
            return Err(JournalError::Untrusted { path: folder.to_owned() });
        }
        Ok(Self { folder: folder.to_owned() })
    }

    fn lock_file(&self, name: &str) -> Result<(PathBuf, File), JournalError> {
        let path = self.folder.join(name);
        // Only root looks after this: the lock of a stranger would keep it waiting.
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        match opened {
            Ok(file) => Ok((path, file)),
            Err(source) => Err(JournalError::System { action: "open", path, source }),
        }
    }

    /// For as long as something is looked at and changed; waits for others.
    pub fn transaction(&self) -> Result<File, JournalError> {
        let (path, file) = self.lock_file("lock")?;
        match lock_within(&file, LOCK_MAX) {
            Ok(true) => Ok(file),
            Ok(false) => Err(JournalError::Locked { path }),
            Err(source) => Err(JournalError::System { action: "lock", path, source }),
        }
    }

    /// For as long as a reservation stands: the system gives it up when its process ends, however it does. None where
    /// another process has it.
    pub fn ownership(&self, group: &GroupName) -> Result<Option<File>, JournalError> {
        self.ownership_of(&group.to_string())
    }

    /// As [`Self::ownership`], of something that is no group.
    pub fn ownership_of(&self, name: &str) -> Result<Option<File>, JournalError> {
        let (path, file) = self.lock_file(&format!("{name}.lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(JournalError::System { action: "lock", path, source }),
        }
    }

    pub fn path(&self, group: &GroupName) -> PathBuf {
        self.file_of(&name_of(group))
    }

    /// Groups of which there is a journal, in order.
    pub fn groups(&self) -> Result<Vec<GroupName>, JournalError> {
        let failed = |source| JournalError::System { action: "read", path: self.folder.clone(), source };
        let mut groups = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".json"));
            groups.extend(name.and_then(|name| GroupName::new(name).ok()));
        }
        groups.sort();
        Ok(groups)
    }

    /// A group's journal; none where there is none.
    pub fn read(&self, group: &GroupName) -> Result<Option<Journal>, JournalError> {
        let Some(journal) = self.load::<Journal>(&name_of(group))? else { return Ok(None) };
        let path = self.path(group);
        let refused = |problem: String| JournalError::Format { path: path.clone(), problem };
        if journal.version != VERSION {
            return Err(refused(format!("it is of version {}", journal.version)));
        }
        let keys = |ways: &Ways| -> Vec<_> {
            ways.iter()
                .flat_map(|(resource, ways)| ways.keys().map(move |domain| (resource.clone(), *domain)))
                .collect()
        };
        if journal.losses.iter().any(|loss| keys(&loss.before) != keys(&loss.after)) {
            return Err(refused("before and after are not of the same domains".to_owned()));
        }
        if journal.group != *group {
            return Err(refused(format!("it is of the group '{}'", journal.group)));
        }
        Ok(Some(journal))
    }

    pub fn write(&self, journal: &Journal) -> Result<(), JournalError> {
        self.save(&name_of(&journal.group), journal)
    }

    pub fn remove(&self, group: &GroupName) -> Result<(), JournalError> {
        self.forget(&name_of(group))
    }

    pub fn file_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What was saved by that name; none where nothing was.
    pub fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, JournalError> {
        let path = self.file_of(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(JournalError::System { action: "read", path, source }),
        };
        let found = serde_json::from_str(&text);
        found.map(Some).map_err(|error| JournalError::Format { path, problem: error.to_string() })
    }

    /// Saves it whole or not at all: the next start reads what an end in between leaves.
    pub fn save<T: Serialize>(&self, name: &str, what: &T) -> Result<(), JournalError> {
        let (path, new) = (self.file_of(name), self.file_of(&format!("{name}.new")));
        let text = serde_json::to_string_pretty(what).expect("a journal is always JSON");
        let written = (|| {
            let mut file =
                OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        })();
        written.map_err(|source| JournalError::System { action: "write", path, source })
    }

    pub fn forget(&self, name: &str) -> Result<(), JournalError> {
        let path = self.file_of(name);
        fs::remove_file(&path).map_err(|source| JournalError::System { action: "remove", path, source })
    }
}

fn name_of(group: &GroupName) -> String {
    format!("{group}.json")
}

/// The number of this start of the kernel.
pub(crate) fn boot() -> Result<String, JournalError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(JournalError::System { action: "read", path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resctrl::Resource;
    use std::collections::BTreeMap;

    fn journal() -> Journal {
        let ways = |bits| Ways::from([(Resource::L3, BTreeMap::from([(0, WayMask(bits))]))]);
        Journal {
            version: VERSION,
            boot: "b".to_owned(),
            group: GroupName::new("jet").unwrap(),
            standing: false,
            mount: Some(3),
            inode: Some(7),
            own: ways(0xf),
            losses: vec![Loss {
                group: GroupName::default_group(),
                before: ways(0xfffff),
                after: ways(0xffff0),
            }],
            domains: vec![0],
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_an_operator_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let journals = Journals::open(dir.path()).unwrap();
        let journal = journal();
        assert_eq!(journals.read(&journal.group).unwrap(), None);
        journals.write(&journal).unwrap();
        journals.write(&journal).unwrap();
        assert_eq!(journals.read(&journal.group).unwrap(), Some(journal.clone()));
        assert_eq!(journals.groups().unwrap(), std::slice::from_ref(&journal.group));
        let text = fs::read_to_string(journals.path(&journal.group)).unwrap();
        assert!(text.contains("\"before\": \"L3:0=fffff\\n\""), "{text}");
        journals.remove(&journal.group).unwrap();
        assert!(journals.groups().unwrap().is_empty());
    }

    #[test]
    fn what_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let journals = Journals::open(dir.path()).unwrap();
        let group = GroupName::new("jet").unwrap();
        let mut other = journal();
        other.version = 9;
        for (text, problem) in [
            ("", "EOF"),
            ("{\"version\":1}", "missing field"),
            (&*serde_json::to_string(&other).unwrap(), "version 9"),
            (&serde_json::to_string(&journal()).unwrap().replace("jet", "tej"), "of the group 'tej'"),
            (
                &serde_json::to_string(&journal()).unwrap().replace("L3:0=f\\n", "MB:0=10\\n"),
                "something else",
            ),
            (&serde_json::to_string(&journal()).unwrap().replace("L3:0=f\\n", "L3:0=x\\n"), "cannot be read"),
        ] {
            fs::write(dir.path().join("jet.json"), text).unwrap();
            let error = journals.read(&group).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("remove the file"), "{problem}: {error}");
        }
    }

    #[test]
    fn one_process_owns_a_group() {
        let dir = tempfile::tempdir().unwrap();
        let journals = Journals::open(dir.path()).unwrap();
        let group = GroupName::new("jet").unwrap();
        let owned = journals.ownership(&group).unwrap().unwrap();
        assert!(journals.ownership(&group).unwrap().is_none());
        drop(owned);
        assert!(journals.ownership(&group).unwrap().is_some());
    }
}
