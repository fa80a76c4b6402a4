//! How much memory the limits of this process's control groups leave, in both versions of control groups.
//!
//! Before the kernel kills a process for a limit, it takes back what it can: pages of files, dentries and
//! inodes, and, by swapping, other memory that is not locked. All of that counts as room. A value that cannot
//! be read counts as room, too: refusing memory on a healthy machine is worse than missing a limit.

use super::room::text_of;
use std::path::{Path, PathBuf};

/// Limit from which on a group of version 1 has none: the kernel says 2^63 less a page then.
const UNLIMITED: u64 = 1 << 62;

/// State of the machine's swap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swap {
    /// Bytes of swap that are free.
    pub free: u64,
    /// Whether control groups of version 2 are swapped when they reach their limits.
    ///
    /// With a swappiness of 0 they are not, though the machine itself may swap. Groups of version 1 have a
    /// swappiness each.
    pub used_by_groups: bool,
}

/// Returns how many bytes the control group with the least room leaves, and that group's folder. `None` where
/// no group has a limit.
///
/// `own` are the lines of /proc/self/cgroup. `root` is the folder where the hierarchies are mounted.
pub(super) fn tightest(root: &Path, own: &str, swap: Swap) -> Option<(u64, PathBuf)> {
    let lines = own.lines().filter_map(Hierarchy::of);
    lines.filter_map(|(kind, path)| tightest_of(&kind.folders(root, path), kind, swap)).min()
}

/// Versions of control groups.
#[derive(Clone, Copy, Debug)]
enum Hierarchy {
    One,
    Two,
}

impl Hierarchy {
    /// Reads a line of /proc/self/cgroup: the version and the path, if the line is about memory.
    fn of(line: &str) -> Option<(Self, &str)> {
        let mut parts = line.splitn(3, ':');
        let (_number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => Some((Self::Two, path)),
            names if names.split(',').any(|name| name == "memory") => Some((Self::One, path)),
            _ => None,
        }
    }

    /// Returns the folders of the process's control group and of the groups above it.
    fn folders(self, root: &Path, path: &str) -> Vec<PathBuf> {
        let mount = match self {
            Self::One => root.join("memory"),
            Self::Two if root.join("unified").is_dir() => root.join("unified"),
            Self::Two => root.to_owned(),
        };
        // Within a container the path may be one that exists only outside of it.
        let inside = mount.join(path.trim_start_matches('/'));
        let group = if inside.is_dir() { inside } else { mount.clone() };
        group.ancestors().take_while(|up| up.starts_with(&mount)).map(Path::to_owned).collect()
    }

    /// Returns whether a control group has a limit of its own.
    fn has_limit(self, folder: &Path) -> bool {
        let limits: &[&str] = match self {
            Self::One => &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
            Self::Two => &["memory.max"],
        };
        limits.iter().any(|name| number(folder, name).is_some_and(|limit| limit < UNLIMITED))
    }

    fn group(self, folder: &Path, swap: Swap) -> Group {
        match self {
            Self::One => Group::of_one(folder, swap),
            Self::Two => Group::of_two(folder, swap),
        }
    }
}

/// Finds the control group with the least room in one hierarchy, among the process's group and those above
/// it.
fn tightest_of(folders: &[PathBuf], kind: Hierarchy, swap: Swap) -> Option<(u64, PathBuf)> {
    // The usual case. What is used is in many files, and the kernel adds it up for each reading.
    if !folders.iter().any(|folder| kind.has_limit(folder)) {
        return None;
    }
    let mut groups: Vec<Group> = folders.iter().map(|folder| kind.group(folder, swap)).collect();
    // Swapped memory counts in every group above, too.
    let mut above = u64::MAX;
    for group in groups.iter_mut().rev() {
        above = above.min(group.swap);
        group.swap = above;
    }
    // At a group's limit the kernel also swaps memory of other processes in the group. This process's own
    // memory may be exempt from swapping.
    let mut swapped = if groups.first().is_some_and(|own| own.swaps) { u64::MAX } else { 0 };
    let mut below = u64::MAX;
    let rooms = groups.iter().map(|group| {
        let others = group.swappable.saturating_sub(below);
        swapped = group.swap.min(others.saturating_add(swapped));
        below = group.swappable;
        group.memory.map(|memory| memory.saturating_add(swapped).min(group.memory_and_swap))
    });
    rooms.zip(folders).filter_map(|(room, folder)| Some((room?, folder.clone()))).min()
}

/// Memory figures of one control group.
#[derive(Debug)]
struct Group {
    /// Bytes that the group's memory limit leaves, after the kernel drops what it can. `None` without a
    /// limit.
    memory: Option<u64>,
    /// Bytes that may still be swapped for the group and all groups below it.
    swap: u64,
    /// Whether the group's own processes are swapped when it reaches a limit.
    swaps: bool,
    /// Bytes that the group's limit of memory and swap together leaves, after the kernel drops what it can.
    memory_and_swap: u64,
    /// Bytes of the group's memory that the kernel would swap.
    swappable: u64,
}

impl Group {
    fn of_two(folder: &Path, swap: Swap) -> Self {
        let stat = Stat::of(folder);
        // These are pages of files that are neither shared memory nor locked. Pages that are not written yet
        // will be written, and then dropped.
        let dropped = stat.sum(&["inactive_file", "active_file", "slab_reclaimable"]);
        let swap_left = room(folder, "memory.swap.max", "memory.swap.current", 0).unwrap_or(u64::MAX);
        Self {
            memory: room(folder, "memory.max", "memory.current", dropped),
            swap: if swap.used_by_groups { swap_left.min(swap.free) } else { 0 },
            swaps: true,
            memory_and_swap: u64::MAX,
            swappable: stat.sum(&["inactive_anon", "active_anon"]),
        }
    }

    fn of_one(folder: &Path, swap: Swap) -> Self {
        let stat = Stat::of(folder);
        let files = stat.sum(&["total_inactive_file", "total_active_file"]);
        // Kernel memory is dentries and inodes, but also stacks and page tables, which the kernel keeps. It
        // does not say how much of each. A large value is mostly dentries and inodes. Of a small value the
        // margin covers what is kept.
        let kernel = number(folder, "memory.kmem.usage_in_bytes").unwrap_or(0);
        let dropped = files.saturating_add(kernel);
        // These files are absent where swap is not accounted.
        let both = room(folder, "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", dropped);
        Self {
            memory: room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", dropped),
            swap: swap.free,
            swaps: number(folder, "memory.swappiness") != Some(0),
            memory_and_swap: both.unwrap_or(u64::MAX),
            swappable: stat.sum(&["total_inactive_anon", "total_active_anon"]),
        }
    }
}

/// Returns the bytes that a limit leaves, after `dropped` bytes of what is used are dropped. `None` where the
/// limit is no number: "max".
fn room(folder: &Path, limit: &str, usage: &str, dropped: u64) -> Option<u64> {
    let (limit, usage) = (number(folder, limit)?, number(folder, usage)?);
    Some(limit.saturating_sub(usage.saturating_sub(dropped)))
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    text_of(&folder.join(name)).ok()?.trim().parse().ok()
}

/// Text of a control group's file memory.stat.
struct Stat(String);

impl Stat {
    fn of(folder: &Path) -> Self {
        Self(text_of(&folder.join("memory.stat")).unwrap_or_default())
    }

    fn sum(&self, names: &[&str]) -> u64 {
        let lines = self.0.lines().filter_map(|line| line.split_once(' '));
        let values = lines.filter(|(name, _)| names.contains(name));
        values.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const MIB: u64 = 1 << 20;
    const NO_SWAP: Swap = Swap { free: 0, used_by_groups: true };
    const SWAP: Swap = Swap { free: 1000 * MIB, used_by_groups: true };
    const MINE: &str = "0::/a/b\n";

    /// Makes a hierarchy of control groups on disk: groups, the files of each, and their text. Numbers are in
    /// MiB, also those of memory.stat.
    fn tree(groups: &[(&str, &[(&str, &str)])]) -> TempDir {
        let bytes = |word: &str| word.parse::<u64>().map_or(word.to_owned(), |mib| (mib * MIB).to_string());
        let root = tempfile::tempdir().unwrap();
        for (group, files) in groups {
            let folder = root.path().join(group);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in *files {
                let lines =
                    text.split(',').map(|line| line.split(' ').map(bytes).collect::<Vec<_>>().join(" "));
                std::fs::write(folder.join(name), lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
            }
        }
        root
    }

    /// Returns the room in MiB that the control group with the least room leaves.
    fn room(tree: &TempDir, own: &str, swap: Swap) -> Option<u64> {
        tightest(tree.path(), own, swap).map(|(room, _)| room / MIB)
    }

    #[test]
    fn the_tightest_of_all_groups_above_counts() {
        let tree = tree(&[
            ("", &[("memory.max", "max"), ("memory.current", "900")]),
            (
                "a",
                &[
                    ("memory.max", "100"),
                    ("memory.current", "60"),
                    ("memory.stat", "inactive_file 4,active_file 6"),
                ],
            ),
            ("a/b", &[("memory.max", "max"), ("memory.current", "5")]),
            ("a/c", &[("memory.max", "20"), ("memory.current", "5")]),
        ]);
        assert_eq!(tightest(tree.path(), MINE, NO_SWAP), Some((50 * MIB, tree.path().join("a"))));
        assert_eq!(room(&tree, "0::/a/c\n", NO_SWAP), Some(15));
        assert_eq!(room(&tree, "0::/seen/only/outside\n", NO_SWAP), None);
    }

    #[test]
    fn a_limit_of_any_kind_counts_and_none_is_none() {
        const NONE: &str = "9223372036854771712";
        type Files = &'static [(&'static str, &'static str)];
        let cases: [(Hierarchy, Files, bool); 6] = [
            (
                Hierarchy::One,
                &[("memory.limit_in_bytes", NONE), ("memory.memsw.limit_in_bytes", NONE)],
                false,
            ),
            (Hierarchy::One, &[("memory.limit_in_bytes", NONE), ("memory.memsw.limit_in_bytes", "9")], true),
            (Hierarchy::One, &[("memory.limit_in_bytes", "9")], true),
            (Hierarchy::Two, &[("memory.max", "max")], false),
            (Hierarchy::Two, &[("memory.max", "9")], true),
            (Hierarchy::Two, &[], false),
        ];
        for (kind, files, has_limit) in cases {
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in files {
                std::fs::write(folder.path().join(name), text).unwrap();
            }
            assert_eq!(kind.has_limit(folder.path()), has_limit, "{kind:?} {files:?}");
        }
        // A group without a limit has no room of its own, whatever it uses.
        let files = [("memory.limit_in_bytes", NONE), ("memory.usage_in_bytes", "9")];
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("memory")).unwrap();
        for (name, text) in files {
            std::fs::write(root.path().join("memory").join(name), text).unwrap();
        }
        assert_eq!(tightest(root.path(), "4:memory:/\n", NO_SWAP), None);
    }

    #[test]
    fn what_the_kernel_drops_before_it_kills_is_room() {
        let stat = "anon 3,shmem 9,inactive_anon 5,active_anon 7,inactive_file 1,active_file 2,unevictable \
                    11,\
                    slab_reclaimable 60,slab_unreclaimable 12,slab 72";
        let limits = |stat| {
            tree(&[("a/b", &[("memory.max", "100"), ("memory.current", "99"), ("memory.stat", stat)])])
        };
        assert_eq!(room(&limits(stat), MINE, NO_SWAP), Some(1 + 3 + 60));
        // More than is used, since counters are not all read at one moment.
        assert_eq!(room(&limits("slab_reclaimable 120"), MINE, NO_SWAP), Some(100));
        assert_eq!(room(&limits("slab_reclaimable none"), MINE, NO_SWAP), Some(1));
    }

    #[test]
    fn swap_is_room_as_far_as_the_group_may_have_it() {
        let limits = |swap: &[(&str, &str)]| {
            let memory = [("memory.max", "8"), ("memory.current", "3")];
            tree(&[("a/b", &[&memory, swap].concat())])
        };
        let none = limits(&[("memory.swap.max", "0"), ("memory.swap.current", "0")]);
        assert_eq!(room(&none, MINE, SWAP), Some(5));
        let some = limits(&[("memory.swap.max", "20"), ("memory.swap.current", "4")]);
        assert_eq!(room(&some, MINE, SWAP), Some(5 + 16));
        assert_eq!(room(&some, MINE, Swap { free: 7 * MIB, ..SWAP }), Some(5 + 7));
        assert_eq!(room(&some, MINE, NO_SWAP), Some(5));
        assert_eq!(room(&some, MINE, Swap { used_by_groups: false, ..SWAP }), Some(5));
        let lowered = limits(&[("memory.swap.max", "2"), ("memory.swap.current", "4")]);
        assert_eq!(room(&lowered, MINE, SWAP), Some(5));
        for unlimited in [limits(&[("memory.swap.max", "max"), ("memory.swap.current", "4")]), limits(&[])] {
            assert_eq!(room(&unlimited, MINE, SWAP), Some(5 + 1000));
        }
    }

    #[test]
    fn swap_is_limited_by_the_groups_above() {
        let limits = |above, own, anon| {
            tree(&[
                (
                    "a",
                    &[
                        ("memory.max", "100"),
                        ("memory.current", "90"),
                        ("memory.stat", anon),
                        ("memory.swap.max", above),
                        ("memory.swap.current", "0"),
                    ],
                ),
                (
                    "a/b",
                    &[
                        ("memory.max", "30"),
                        ("memory.current", "20"),
                        ("memory.stat", "inactive_anon 8,active_anon 10"),
                        ("memory.swap.max", own),
                        ("memory.swap.current", "0"),
                    ],
                ),
            ])
        };
        let tightest =
            |tree: &TempDir| tightest(tree.path(), MINE, SWAP).map(|(room, group)| (room / MIB, group));
        let of = |tree: &TempDir, room, group| Some((room, tree.path().join(group)));
        let alone = "inactive_anon 8,active_anon 10";
        // What the group above may not swap, the group below may not either, though only one of them has a
        // memory limit.
        let tree = limits("0", "max", alone);
        assert_eq!(tightest(&tree), of(&tree, 10, "a"));
        std::fs::write(tree.path().join("a/memory.max"), "max\n").unwrap();
        assert_eq!(tightest(&tree), of(&tree, 10, "a/b"));
        let tree = limits("7", "max", alone);
        assert_eq!(tightest(&tree), of(&tree, 17, "a"));
        // At the limit of the group above, this process's memory stays, and that of other processes is
        // swapped.
        let tree = limits("max", "0", alone);
        assert_eq!(tightest(&tree), of(&tree, 10, "a"));
        let tree = limits("max", "50", "inactive_anon 18,active_anon 20");
        assert_eq!(tightest(&tree), of(&tree, 10 + 50, "a/b"));
        let tree = limits("max", "5", "inactive_anon 9,active_anon 10");
        assert_eq!(tightest(&tree), of(&tree, 10 + 5, "a/b"));
        std::fs::write(tree.path().join("a/b/memory.max"), "max\n").unwrap();
        assert_eq!(tightest(&tree), of(&tree, 10 + 5 + 1, "a"));
    }

    #[test]
    fn both_hierarchies_are_looked_at() {
        let tree = tree(&[
            ("memory", &[("memory.limit_in_bytes", "8796093022207"), ("memory.usage_in_bytes", "9")]),
            ("memory/docker/7", &[("memory.limit_in_bytes", "10"), ("memory.usage_in_bytes", "1")]),
            ("unified/x", &[("memory.max", "5"), ("memory.current", "1")]),
        ]);
        let own = "9:name=systemd:/\n4:cpu,memory:/docker/7\n0::/\n";
        assert_eq!(tightest(tree.path(), own, NO_SWAP), Some((9 * MIB, tree.path().join("memory/docker/7"))));
        assert_eq!(room(&tree, &own.replace("0::/", "0::/x"), NO_SWAP), Some(4));
        // As seen from inside a container, where the process's own group is the root.
        let inside =
            self::tree(&[("memory", &[("memory.limit_in_bytes", "10"), ("memory.usage_in_bytes", "1")])]);
        assert_eq!(room(&inside, own, NO_SWAP), Some(9));
    }

    #[test]
    fn groups_of_version_1_tell_of_the_kernels_memory_and_of_both_together() {
        let limits = |more: &[(&str, &str)]| {
            let memory = [
                ("memory.limit_in_bytes", "100"),
                ("memory.usage_in_bytes", "90"),
                ("memory.stat", "inactive_file 1,total_inactive_file 2,total_active_file 3,total_shmem 40"),
            ];
            tree(&[("memory/a/b", &[&memory, more].concat())])
        };
        let own = "4:memory:/a/b\n";
        assert_eq!(room(&limits(&[]), own, NO_SWAP), Some(10 + 5));
        assert_eq!(room(&limits(&[("memory.kmem.usage_in_bytes", "30")]), own, NO_SWAP), Some(10 + 5 + 30));
        // Where swap is not accounted, or not limited, the machine's free swap is the limit.
        assert_eq!(room(&limits(&[]), own, SWAP), Some(10 + 5 + 1000));
        let both =
            |limit| limits(&[("memory.memsw.limit_in_bytes", limit), ("memory.memsw.usage_in_bytes", "94")]);
        assert_eq!(room(&both("8796093022207"), own, SWAP), Some(10 + 5 + 1000));
        assert_eq!(room(&both("100"), own, SWAP), Some(6 + 5));
        assert_eq!(room(&both("150"), own, SWAP), Some(56 + 5));
        assert_eq!(room(&both("150"), own, Swap { free: 20 * MIB, ..SWAP }), Some(10 + 5 + 20));
        // For version 1 the group's own swappiness counts; /proc/sys/vm/swappiness does not.
        assert_eq!(room(&limits(&[("memory.swappiness", "0")]), own, SWAP), Some(10 + 5));
        assert_eq!(room(&limits(&[]), own, Swap { used_by_groups: false, ..SWAP }), Some(10 + 5 + 1000));
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        let root = tempfile::tempdir().unwrap();
        for own in ["", "nonsense", "0::", "0::/x\n1:memory:/y"] {
            assert_eq!(tightest(root.path(), own, NO_SWAP), None, "{own}");
        }
    }
}
