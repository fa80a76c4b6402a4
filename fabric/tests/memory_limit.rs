//! Tests at the limit of a real control group, and where huge pages do not suffice: the result is an error,
//! and no process is killed.

use jet_fabric::memory::{NoRoom, Pages, SharedMemory};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIMIT: usize = 24 << 20;
const CHUNK: usize = 1 << 20;
/// Variable for the process that goes into the group: the group's folder.
const GROUP: &str = "JET_TEST_GROUP";

/// Control group with that limit and no swap.
struct Group(PathBuf);

impl Group {
    fn new() -> io::Result<Self> {
        let name = format!("jet-test-{}", std::process::id());
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let path =
            |marker: &str| Some(own.lines().find_map(|line| line.split_once(marker))?.1.trim_matches('/'));
        let one = path(":memory:");
        let folder = match one {
            Some(path) => Path::new("/sys/fs/cgroup/memory").join(path).join(name),
            // The new group is a sibling of the process's own group: a group with processes has no groups
            // with limits below it.
            None => {
                let own = Path::new("/sys/fs/cgroup").join(path("0::").unwrap_or_default());
                own.parent().filter(|up| up.starts_with("/sys/fs/cgroup")).unwrap_or(&own).join(name)
            }
        };
        fs::create_dir(&folder)?;
        let group = Self(folder);
        if one.is_some() {
            fs::write(group.0.join("memory.limit_in_bytes"), LIMIT.to_string())?;
            // This file is absent where swap is not accounted.
            let _ = fs::write(group.0.join("memory.memsw.limit_in_bytes"), LIMIT.to_string());
            fs::write(group.0.join("memory.swappiness"), "0")?;
        } else {
            fs::write(group.0.join("memory.max"), LIMIT.to_string())?;
            let _ = fs::write(group.0.join("memory.swap.max"), "0");
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[ignore = "needs a memory control group of its own, which root may make: .ci/run has it apart"]
fn at_a_groups_limit_there_is_an_error_and_nobody_is_killed() {
    if let Some(group) = std::env::var_os(GROUP) {
        return in_the_group(Path::new(&group));
    }
    let group = Group::new().expect("root may make a memory control group here");
    let ended = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "at_a_groups_limit_there_is_an_error_and_nobody_is_killed",
        ])
        .env(GROUP, &group.0)
        .status()
        .unwrap();
    assert!(ended.success(), "{ended}");
}

fn in_the_group(group: &Path) {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    no_room(&SharedMemory::new("jet-test", 2 * LIMIT, false).expect_err("twice the limit"), group);
    let memory = SharedMemory::lazy("jet-test", LIMIT).unwrap();
    let prepared =
        (0..LIMIT).step_by(CHUNK).map_while(|at| memory.prepare_leaving(at, CHUNK, LIMIT / 2).ok()).count();
    assert!((1..=LIMIT / 2 / CHUNK).contains(&prepared), "half was to be left: {prepared} MiB");
    let refused = (prepared * CHUNK..LIMIT).step_by(CHUNK).find_map(|at| memory.prepare(at, CHUNK).err());
    no_room(&refused.expect("its limit has no room for all of it, with a margin"), group);
}

fn no_room(error: &io::Error, group: &Path) {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<NoRoom>());
    assert!(matches!(inner, Some(NoRoom::Group { group: whose, .. }) if whose == group), "{error}");
}

const HUGE_PAGE: usize = 2 << 20;
/// Huge pages that the host gets, and how many of them a group may have.
const HOST_PAGES: usize = 6;
const GROUP_PAGES: usize = 2;

/// Number of the host's huge pages, restored when dropped.
struct HugePages {
    before: usize,
}

impl HugePages {
    const NUMBER: &str = "/proc/sys/vm/nr_hugepages";

    fn add(pages: usize) -> io::Result<Self> {
        let own = Self { before: Self::number()? };
        fs::write(Self::NUMBER, (own.before + pages).to_string())?;
        // The kernel gives as many as there is room for.
        let now = Self::number()?;
        if now == own.before + pages { Ok(own) } else { Err(io::Error::other(format!("{now} pages"))) }
    }

    fn number() -> io::Result<usize> {
        fs::read_to_string(Self::NUMBER)?.trim().parse().map_err(io::Error::other)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Self::NUMBER, self.before.to_string());
    }
}

/// Control group of version 2 below the root that may have so many huge pages.
struct HugePagesGroup {
    folder: PathBuf,
    /// Folder where the controller for huge pages was enabled for groups below the root, if this test did
    /// that.
    enabled: Option<PathBuf>,
}

impl HugePagesGroup {
    fn new(pages: usize) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let at = fields.next()?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(at))
        });
        let root = root.ok_or(io::ErrorKind::NotFound)?;
        let control = root.join("cgroup.subtree_control");
        let had = fs::read_to_string(&control)?.split_whitespace().any(|name| name == "hugetlb");
        let folder = root.join(format!("jet-test-huge-{}", std::process::id()));
        let group = Self { folder, enabled: (!had).then_some(control.clone()) };
        fs::write(control, "+hugetlb")?;
        fs::create_dir(&group.folder)?;
        fs::write(group.folder.join("hugetlb.2MB.max"), (pages * HUGE_PAGE).to_string())?;
        Ok(group)
    }
}

impl Drop for HugePagesGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
        if let Some(control) = &self.enabled {
            let _ = fs::write(control, "-hugetlb");
        }
    }
}

#[test]
#[ignore = "sets vm.nr_hugepages and makes a hugetlb control group, which takes root: .ci/run has it apart"]
fn where_huge_pages_do_not_suffice_there_are_ordinary_ones_and_nobody_is_killed() {
    if let Some(group) = std::env::var_os(GROUP) {
        return with_huge_pages(Path::new(&group));
    }
    let _pages = HugePages::add(HOST_PAGES).expect("root may have some huge pages here");
    let group = HugePagesGroup::new(GROUP_PAGES).expect("root may make a hugetlb control group here");
    let ended = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "where_huge_pages_do_not_suffice_there_are_ordinary_ones_and_nobody_is_killed",
        ])
        .env(GROUP, &group.folder)
        .status()
        .unwrap();
    assert!(ended.success(), "{ended}");
}

fn with_huge_pages(group: &Path) {
    let pages_of = |pages: usize| {
        let memory = SharedMemory::new("jet-test", pages * HUGE_PAGE, true).expect("ordinary ones at least");
        // SAFETY: within the mapping, which is nobody else's.
        unsafe { memory.base().add(memory.bytes() - 1).write_volatile(1) };
        memory.pages()
    };
    // One more than the host has; then one more than the group may have, once this process is in it.
    assert_eq!(
        (pages_of(HOST_PAGES), pages_of(HugePages::number().unwrap() + 1)),
        (Pages::Huge, Pages::Small)
    );
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    assert_eq!((pages_of(GROUP_PAGES), pages_of(GROUP_PAGES + 1)), (Pages::Huge, Pages::Small));
}
