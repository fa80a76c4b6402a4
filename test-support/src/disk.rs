//! A file system that is soon full.

use std::ffi::CString;
use std::io::Error;
use std::path::{Path, PathBuf};

/// A tiny file system in memory (tmpfs), unmounted when dropped. Mounting it requires root.
pub struct TinyDisk(PathBuf);

impl TinyDisk {
    /// Mounts a file system of `kib` KiB at `at`.
    ///
    /// # Panics
    /// If the process may not mount.
    pub fn mount(at: &Path, kib: u32) -> Self {
        std::fs::create_dir_all(at).expect("a directory");
        let target = c_path(at);
        let size = CString::new(format!("size={kib}k")).expect("no zero byte");
        // SAFETY: all strings end with a zero byte and outlive the call.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, size.as_ptr().cast())
        };
        let error = Error::last_os_error();
        assert_eq!(mounted, 0, "mount: {error}; it takes root, and in a container CAP_SYS_ADMIN");
        Self(at.to_owned())
    }

    /// Remounts the file system read-only: writes fail afterwards.
    pub fn make_read_only(&self) {
        let (target, flags) = (c_path(&self.0), libc::MS_REMOUNT | libc::MS_RDONLY);
        // SAFETY: all strings end with a zero byte and outlive the call.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), flags, std::ptr::null())
        };
        assert_eq!(mounted, 0, "remount: {}", Error::last_os_error());
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let target = c_path(&self.0);
        // SAFETY: the path ends with a zero byte and outlives the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte")
}
