//! What happens at the limit of a real control group: an error, and nobody is killed.

use jet_fabric::memory::{NoRoom, SharedMemory};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIMIT: usize = 24 << 20;
const CHUNK: usize = 1 << 20;
/// Set for the process that goes into the group: its folder.
const GROUP: &str = "JET_TEST_GROUP";

/// A group with that limit and no swap.
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
            // Beside its own group: one that has processes has no groups with limits below it.
            None => {
                let own = Path::new("/sys/fs/cgroup").join(path("0::").unwrap_or_default());
                own.parent().filter(|up| up.starts_with("/sys/fs/cgroup")).unwrap_or(&own).join(name)
            }
        };
        fs::create_dir(&folder)?;
        let group = Self(folder);
        if one.is_some() {
            fs::write(group.0.join("memory.limit_in_bytes"), LIMIT.to_string())?;
            // Not there where swap is not counted.
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
