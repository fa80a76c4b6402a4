//! How much memory this process may still take, by its control groups and by what the machine has.
//!
//! Where either is used up, the kernel kills processes, whether they touch memory or ask for it. No error
//! could report that. So this module checks before memory is taken. It cannot foresee what other processes
//! take between the check and the taking.

use super::control_groups;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes left to everything else that the process needs: stacks, page tables, what the kernel keeps for it.
const MARGIN_BYTES: u64 = 4 << 20;

/// Error of a request for more memory than may be taken.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// A control group's limit does not allow so much memory.
    #[error(
        "{wanted} bytes are more than the {room} that the memory limit of control group {} leaves; raise it \
         (MemoryMax= of the service, --memory of the container), or ask for less", group.display()
    )]
    Group {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that may be taken under the group's limit.
        room: u64,
        /// Folder of the control group that has the limit.
        group: PathBuf,
    },
    /// The machine has less memory left than was asked for.
    #[error(
        "{wanted} bytes are more than the {room} that this machine has left (MemAvailable and SwapFree); end \
         other programs, or ask for less"
    )]
    Machine {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that may be taken of what the machine has left, free swap included.
        room: u64,
    },
}

/// Folders in which the kernel reports memory and control groups. Tests use folders of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    /// Folder that is /proc on a real machine.
    pub proc: &'a Path,
    /// Folder that is /sys/fs/cgroup on a real machine.
    pub groups: &'a Path,
}

impl Host<'static> {
    /// Returns the folders of the machine that this process runs on.
    pub fn this() -> Self {
        Self { proc: Path::new("/proc"), groups: Path::new("/sys/fs/cgroup") }
    }
}

impl Host<'_> {
    /// Checks that `wanted` bytes may be taken, with `left` more bytes free after that. A value that cannot
    /// be read limits nothing.
    ///
    /// # Errors
    /// [`NoRoom`], wrapped in an [`io::Error`].
    pub fn check(&self, wanted: usize, left: usize) -> io::Result<()> {
        self.room_for(wanted, left as u64).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))
    }

    fn room_for(&self, wanted: usize, left: u64) -> Result<(), NoRoom> {
        let read = |name| text_of(&self.proc.join(name)).unwrap_or_default();
        let machine = read("meminfo");
        let free_swap = bytes_of(&machine, "SwapFree:").unwrap_or(0);
        let swap =
            control_groups::Swap { free: free_swap, used_by_groups: read("sys/vm/swappiness").trim() != "0" };
        let left_of = |room: u64, margin: u64| room.saturating_sub(left.saturating_add(margin));
        if let Some((room, group)) = control_groups::tightest(self.groups, &read("self/cgroup"), swap) {
            let room = left_of(room, MARGIN_BYTES);
            if wanted as u64 > room {
                return Err(NoRoom::Group { wanted, room, group });
            }
        }
        match bytes_of(&machine, "MemAvailable:") {
            Some(available) if wanted as u64 > left_of(available.saturating_add(free_swap), 0) => {
                Err(NoRoom::Machine { wanted, room: left_of(available.saturating_add(free_swap), 0) })
            }
            _ => Ok(()),
        }
    }
}

/// Reads a file of the kernel's. For its length the system says 0, so it is not asked. Most of these files
/// are short: with room from the start they take one read, and one that finds the end.
pub(super) fn text_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut bytes = vec![0; 8 << 10];
    let mut used = 0;
    loop {
        match file.read(&mut bytes[used..]) {
            Ok(0) => break,
            Ok(more) => used += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if used == bytes.len() {
            bytes.resize(2 * used, 0);
        }
    }
    bytes.truncate(used);
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a line of /proc/meminfo, and returns its value in bytes.
fn bytes_of(machine: &str, name: &str) -> Option<u64> {
    let kib = machine.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"))?;
    Some(kib.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Machine made of files, whose process is in a control group with a memory limit.
    pub struct Pretended {
        proc: tempfile::TempDir,
        groups: tempfile::TempDir,
    }

    impl Pretended {
        pub fn new(limit: usize, meminfo: &str) -> Self {
            let pretended = Self { proc: tempfile::tempdir().unwrap(), groups: tempfile::tempdir().unwrap() };
            for folder in ["self", "sys/vm"] {
                std::fs::create_dir_all(pretended.proc.path().join(folder)).unwrap();
            }
            std::fs::create_dir(pretended.groups.path().join("jetd")).unwrap();
            pretended.tell("self/cgroup", "0::/jetd\n");
            pretended.tell("sys/vm/swappiness", "60\n");
            pretended.tell("meminfo", meminfo);
            pretended.group("memory.max", &format!("{limit}\n"));
            pretended.group("memory.current", "0\n");
            pretended
        }

        pub fn host(&self) -> Host<'_> {
            Host { proc: self.proc.path(), groups: self.groups.path() }
        }

        /// Writes a file of the pretended /proc.
        fn tell(&self, name: &str, text: &str) {
            std::fs::write(self.proc.path().join(name), text).unwrap();
        }

        /// Writes a file of the process's control group.
        fn group(&self, name: &str, text: &str) {
            std::fs::write(self.groups.path().join("jetd").join(name), text).unwrap();
        }

        fn refused(&self, mib: usize, left_mib: usize) -> Option<String> {
            let refused = self.host().check(mib * MIB, left_mib * MIB).err()?;
            assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
            assert!(refused.get_ref().unwrap().is::<NoRoom>());
            Some(refused.to_string())
        }
    }

    #[test]
    fn a_margin_stays_in_a_group_and_what_is_to_be_left() {
        let pretended = Pretended::new(50 * MIB, "");
        assert_eq!(pretended.refused(46, 0), None);
        let said = pretended.refused(47, 0).unwrap();
        assert!(said.contains(&format!("{} bytes are more than the {} that", 47 * MIB, 46 * MIB)), "{said}");
        assert!(said.contains("jetd leaves") && said.contains("MemoryMax"), "{said}");
        assert_eq!(pretended.refused(36, 10), None);
        assert!(pretended.refused(37, 10).unwrap().contains(&format!("than the {} that", 36 * MIB)));
    }

    #[test]
    fn swap_of_the_machine_is_not_the_groups() {
        let pretended =
            Pretended::new(8 * MIB, "MemAvailable: 90000 kB\nSwapTotal: 2000000 kB\nSwapFree: 1000000 kB\n");
        pretended.tell("swaps", "Filename Type Size Used Priority\n/swapfile file 2000000 1000000 -2\n");
        pretended.group("memory.swap.max", "0\n");
        pretended.group("memory.swap.current", "0\n");
        assert!(pretended.refused(5, 0).is_some());
        pretended.group("memory.swap.max", "max\n");
        assert_eq!(pretended.refused(5, 0), None);
        pretended.tell("sys/vm/swappiness", "0\n");
        assert!(pretended.refused(5, 0).is_some());
    }

    #[test]
    fn no_more_is_taken_than_the_machine_has() {
        let pretended =
            Pretended::new(9000 * MIB, "MemTotal: 9000000 kB\nMemAvailable:   10240 kB\nBuffers: 3 kB\n");
        assert_eq!(pretended.refused(10, 0), None);
        let said = pretended.refused(11, 0).unwrap();
        assert!(said.contains("10485760 that this machine") && said.contains("end other programs"), "{said}");
        assert_eq!(pretended.refused(7, 3), None);
        assert!(pretended.refused(8, 3).is_some());
        pretended.tell("meminfo", "MemAvailable:   10240 kB\nSwapFree: 2048 kB\n");
        assert_eq!(pretended.refused(12, 0), None);
        assert!(pretended.refused(13, 0).is_some());
    }

    #[test]
    fn a_machine_that_says_nothing_limits_nothing() {
        let empty = tempfile::tempdir().unwrap();
        let host = Host { proc: empty.path(), groups: empty.path() };
        host.check(usize::MAX, usize::MAX).unwrap();
    }
}
