//! A disk that is full under `jet recv`: the sender hears it, the receiver goes on, no slab is lost.

mod tool_support;

use std::ffi::CString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use tool_support::{Host, assert_same, bytes, fabrics};

/// A tiny file system, unmounted when dropped.
struct TinyDisk(PathBuf);

impl TinyDisk {
    fn mount(at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        let target = c_path(at);
        // SAFETY: all strings end with a zero byte and outlive the call.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=1m".as_ptr().cast())
        };
        let error = std::io::Error::last_os_error();
        assert_eq!(mounted, 0, "mount: {error}; it takes root, and in a container CAP_SYS_ADMIN");
        Self(at.to_owned())
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
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

/// What ends the files at 1 MiB.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// A tiny disk.
    Disk,
    /// What the receiver's process may write to one file.
    FileSize,
}

fn large_files_are_rejected(fabric: &str, limit: Limit) {
    let host = Host::new(fabric);
    let (tree, out) = (host.path("tree"), host.path("out"));
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("a small"), bytes(1, 3000)).unwrap();
    fs::write(tree.join("b large"), bytes(2, 4 << 20)).unwrap();
    fs::write(tree.join("c pieces"), bytes(3, 6 << 20)).unwrap();
    let _daemon = host.daemon();
    let _disk = (limit == Limit::Disk).then(|| TinyDisk::mount(&out));
    let errno = if limit == Limit::Disk { "ENOSPC" } else { "EFBIG" };
    let recv = host.recv_with(&out, &[], |command| {
        if limit == Limit::FileSize {
            // SAFETY: one system call between fork and exec.
            unsafe {
                command.pre_exec(|| {
                    let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
                    Ok(rustix::process::setrlimit(rustix::process::Resource::Fsize, limit)?)
                });
            }
        }
    });
    let mut send = host.send(&[&tree], &["--piece-bytes", "4194304"]);
    assert_eq!(send.wait().code(), Some(1), "{}", send.said());
    let (said, sent) = (send.said(), send.printed());
    assert_eq!((&sent["files"], &sent["failed"]), (&1.into(), &2.into()), "{said}");
    for name in ["b large", "c pieces"] {
        let line = said.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {said}"));
        assert!(line.contains(errno), "{line}");
    }
    // What was written of them is gone, and the receiver goes on.
    let left: Vec<_> =
        fs::read_dir(out.join("tree")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["a small"], "{left:?}");
    let after = host.path("after");
    fs::create_dir_all(&after).unwrap();
    fs::write(after.join("file"), bytes(5, 50_000)).unwrap();
    host.send(&[&after], &[]).succeed();
    assert_same(&after, &out.join("after"));
    host.wait_whole();
    let received = recv.stop();
    assert!(received["rejected"].as_u64() >= Some(2), "{received}");
}

#[test]
#[ignore = "mounts a file system, which takes root: .ci/run has it apart"]
fn a_full_disk_is_heard_by_the_sender() {
    fabrics().iter().for_each(|fabric| large_files_are_rejected(fabric, Limit::Disk));
}

#[test]
fn a_file_size_limit_is_heard_by_the_sender() {
    fabrics().iter().for_each(|fabric| large_files_are_rejected(fabric, Limit::FileSize));
}
