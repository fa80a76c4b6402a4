//! Mount point and mount options of resctrl.

use super::error::OpenError;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Folder that the kernel provides as mount point.
pub(super) const MOUNT_POINT: &str = "/sys/fs/resctrl";

/// Mount of resctrl, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount point.
    pub path: PathBuf,
    /// Whether the mount is read-only, so that nothing can be changed.
    pub read_only: bool,
    /// Whether CDP is on for the last-level cache: its ways are allocated separately for code and for data.
    pub cdp: bool,
    /// Whether CDP is on for the second-level cache.
    pub cdp_l2: bool,
    /// Whether the kernel's software controller limits bandwidth, in MiB/s (`mba_MBps`).
    pub bandwidth_controller: bool,
}

/// Finds the mount of resctrl that this process sees; the last one where there are several.
pub(super) fn find() -> Result<Mount, OpenError> {
    let list = Path::new("/proc/self/mountinfo");
    let text =
        fs::read_to_string(list).map_err(|source| OpenError::Mounts { path: list.to_owned(), source })?;
    match in_list(&text) {
        Some(mount) => Ok(mount),
        // The kernel makes the mount point only where resctrl is supported.
        None if known_to(&fs::read_to_string("/proc/filesystems")) || Path::new(MOUNT_POINT).exists() => {
            Err(OpenError::NotMounted)
        }
        None => Err(OpenError::Unsupported),
    }
}

fn known_to(file_systems: &io::Result<String>) -> bool {
    let lists = |text: &String| text.lines().any(|line| line.split_whitespace().last() == Some("resctrl"));
    file_systems.as_ref().is_ok_and(lists)
}

/// Decodes a path in the list of mounts, where the kernel writes blanks and similar bytes as octal numbers.
fn unescaped(path: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let code = (byte == b'\\').then(|| behind.get(..3)).flatten();
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn in_list(mounts: &str) -> Option<Mount> {
    mounts.lines().rev().find_map(|line| {
        // Example: 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(4);
        let mut file_system = file_system.split(' ');
        let (path, options) = (mount.next()?, mount.next()?);
        let (kind, _, own) = (file_system.next()?, file_system.next()?, file_system.next()?);
        let has = |option: &str| options.split(',').chain(own.split(',')).any(|found| found == option);
        (kind == "resctrl").then(|| Mount {
            path: unescaped(path),
            read_only: has("ro"),
            cdp: has("cdp"),
            cdp_l2: has("cdpl2"),
            bandwidth_controller: has("mba_MBps"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_with_its_options() {
        let list = "22 26 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
                    91 22 0:60 / /sys/fs/resctrl ro,relatime shared:9 - resctrl resctrl rw,cdp,mba_MBps\n\
                    95 22 0:61 / /tmp/a\\040b rw - tmpfs resctrl rw\n";
        let mount = in_list(list).unwrap();
        assert_eq!(mount.path, Path::new("/sys/fs/resctrl"));
        assert!(mount.read_only && mount.cdp && !mount.cdp_l2 && mount.bandwidth_controller);
        assert_eq!(in_list("22 26 0:21 / /sys rw - sysfs sysfs rw\n"), None);
        assert_eq!(in_list("garbage\n - \n"), None);
        assert_eq!(unescaped(r"/a\040b\134\"), Path::new(r"/a b\\"));
    }

    #[test]
    fn a_kernel_that_knows_it_lists_it() {
        assert!(known_to(&Ok("nodev\tsysfs\nnodev\tresctrl\n".to_owned())));
        assert!(!known_to(&Ok("nodev\tsysfs\n".to_owned())));
    }
}
