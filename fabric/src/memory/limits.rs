//! How much memory this process may still take: by its control groups, and by what the machine has.
//!
//! Where either is used up the kernel kills processes, whether they touch memory or ask for it: there is no error that could be
//! told. So it is looked first. What others take between the look and the taking is not foreseen.

use std::io;
use std::path::{Path, PathBuf};

/// Left to everything else that the process does: stacks, page tables, what the kernel keeps for it.
const MARGIN_BYTES: u64 = 4 << 20;

/// There is not so much.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// A control group does not allow it.
    #[error(
        "{wanted} bytes are more than the {room} that the memory limit of control group {} leaves; raise it (MemoryMax= of \
         the service, --memory of the container), or ask for less", group.display()
    )]
    Group {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that there are.
        room: u64,
        /// Whose limit it is.
        group: PathBuf,
    },
    /// The machine has no more.
    #[error(
        "{wanted} bytes are more than the {room} that this machine has left (MemAvailable); end other programs, or ask \
         for less"
    )]
    Machine {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that there are.
        room: u64,
    },
}

/// Whether so many bytes may be taken. Groups that cannot be read limit nothing.
pub(super) fn check(bytes: usize) -> io::Result<()> {
    let Ok(groups) = std::fs::read_to_string("/proc/self/cgroup") else { return Ok(()) };
    // What can be swapped out makes room that cannot be foreseen.
    if std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1) {
        return Ok(());
    }
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    check_in(bytes, Path::new("/sys/fs/cgroup"), &groups)
        .and_then(|()| check_machine(bytes, &machine))
        .map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))
}

/// As [`check`], with what the kernel says of the machine's memory.
fn check_machine(wanted: usize, machine: &str) -> Result<(), LimitError> {
    let available = machine.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    match available.and_then(|kib| kib.trim().parse::<u64>().ok()) {
        Some(kib) if wanted as u64 > kib.saturating_mul(1024) => {
            Err(LimitError::Machine { wanted, room: kib.saturating_mul(1024) })
        }
        _ => Ok(()),
    }
}

/// As [`check`], with the folder where the file systems are, and what the kernel says of the process.
fn check_in(bytes: usize, root: &Path, groups: &str) -> Result<(), LimitError> {
    let tightest =
        groups.lines().filter_map(Hierarchy::of).filter_map(|(kind, path)| kind.tightest(root, path)).min();
    match tightest {
        Some((room, group)) if (bytes as u64).saturating_add(MARGIN_BYTES) > room => {
            Err(LimitError::Group { wanted: bytes, room: room.saturating_sub(MARGIN_BYTES), group })
        }
        _ => Ok(()),
    }
}

/// The two kinds of control groups.
#[derive(Clone, Copy, Debug)]
enum Hierarchy {
    One,
    Two,
}

impl Hierarchy {
    /// A line of /proc/self/cgroup that is about memory, and its path.
    fn of(line: &str) -> Option<(Self, &str)> {
        let mut parts = line.splitn(3, ':');
        let (_number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => Some((Self::Two, path)),
            names if names.split(',').any(|name| name == "memory") => Some((Self::One, path)),
            _ => None,
        }
    }

    /// The least room of the process's group and of those above it.
    fn tightest(self, root: &Path, path: &str) -> Option<(u64, PathBuf)> {
        let mount = match self {
            Self::One => root.join("memory"),
            Self::Two if root.join("unified").is_dir() => root.join("unified"),
            Self::Two => root.to_owned(),
        };
        // Within a container the path may be one that is seen only outside of it.
        let inside = mount.join(path.trim_start_matches('/'));
        let group = if inside.is_dir() { inside } else { mount.clone() };
        let up = group.ancestors().take_while(|ancestor| ancestor.starts_with(&mount));
        up.filter_map(|group| Some((self.room(group)?, group.to_owned()))).min()
    }

    /// What the group's limit leaves, with the file pages that the kernel drops before it kills anybody.
    fn room(self, group: &Path) -> Option<u64> {
        let (limit, usage, files) = match self {
            Self::One => (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            ),
            Self::Two => ("memory.max", "memory.current", ["inactive_file", "active_file"]),
        };
        let read = |name| std::fs::read_to_string(group.join(name)).ok();
        // No number: "max".
        let limit: u64 = read(limit)?.trim().parse().ok()?;
        let usage: u64 = read(usage)?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let dropped: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| files.contains(name))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum();
        Some(limit.saturating_sub(usage.saturating_sub(dropped)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Groups as files, `(group, limit, usage, file pages)`.
    fn tree(one: bool, groups: &[(&str, &str, u64, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (group, limit, usage, files) in groups {
            let folder = root.path().join(group);
            std::fs::create_dir_all(&folder).unwrap();
            let (limits, usages, prefix) = if one {
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            } else {
                ("memory.max", "memory.current", "")
            };
            std::fs::write(folder.join(limits), format!("{limit}\n")).unwrap();
            std::fs::write(folder.join(usages), format!("{usage}\n")).unwrap();
            let stat = format!("anon 7\n{prefix}inactive_file {files}\nshmem 12345678\n");
            std::fs::write(folder.join("memory.stat"), stat).unwrap();
        }
        root
    }

    fn refused(root: &tempfile::TempDir, groups: &str, mib: u64) -> Option<LimitError> {
        check_in(usize::try_from(mib * MIB).unwrap(), root.path(), groups).err()
    }

    #[test]
    fn the_tightest_of_all_groups_above_counts() {
        let hundred = (100 * MIB).to_string();
        let root = tree(
            false,
            &[
                ("", "max", 900 * MIB, 0),
                ("system.slice", &hundred, 60 * MIB, 10 * MIB),
                ("system.slice/jetd.service", "max", 5 * MIB, 0),
            ],
        );
        let mine = "0::/system.slice/jetd.service\n";
        // 100 less the 50 that cannot be dropped, less the margin.
        assert!(refused(&root, mine, 46).is_none());
        let said = refused(&root, mine, 47).unwrap().to_string();
        assert!(said.contains(&format!("{} bytes are more than the {} that", 47 << 20, 46 << 20)), "{said}");
        assert!(said.contains("system.slice leaves") && said.contains("MemoryMax"), "{said}");
        assert!(refused(&root, "0::/user.slice\n", 4000).is_none(), "no group of that name is seen here");
    }

    #[test]
    fn both_hierarchies_are_looked_at() {
        let (huge, ten) = (i64::MAX.to_string(), (10 * MIB).to_string());
        let root = tree(true, &[("memory", &huge, 9 * MIB, 0), ("memory/docker/7", &ten, MIB, 0)]);
        std::fs::create_dir(root.path().join("unified")).unwrap();
        let groups = "9:name=systemd:/\n4:cpu,memory:/docker/7\n0::/\n";
        assert!(refused(&root, groups, 5).is_none());
        assert!(refused(&root, groups, 6).unwrap().to_string().contains("docker/7 leaves"));
        // Seen from inside, where its own group is the root.
        let inside = tree(true, &[("memory", &ten, MIB, 0)]);
        assert!(refused(&inside, groups, 6).is_some());
    }

    #[test]
    fn no_more_is_taken_than_the_machine_has() {
        let machine = "MemTotal:        9000 kB\nMemAvailable:    1000 kB\nBuffers: 3 kB\n";
        assert!(check_machine(1000 << 10, machine).is_ok());
        let said = check_machine((1000 << 10) + 1, machine).unwrap_err().to_string();
        assert!(said.contains("1024000 that this machine"), "{said}");
        assert!(check_machine(usize::MAX, "").is_ok());
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        let root = tempfile::tempdir().unwrap();
        for groups in ["", "nonsense", "0::", "0::/x\n1:memory:/y"] {
            assert!(refused(&root, groups, 1 << 20).is_none(), "{groups}");
        }
    }
}
