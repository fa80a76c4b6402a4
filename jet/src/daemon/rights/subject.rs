//! Who asks: the user, the groups and the program of a process that connected.

use crate::daemon::peer_process::{PeerProcess, user_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use tokio::net::UnixStream;

/// Most groups that a process can have (NGROUPS_MAX of the kernel).
const GROUPS_MAX: usize = 1 << 16;

/// Who asks. The kernel noted the user and the groups when the process connected, as it does for a file that
/// is opened: what the process gives up or is given later does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Its user. `None` for users of other user namespaces that have no number here.
    pub user: Option<u32>,
    /// Its groups, without those of other user namespaces that have no number here.
    pub groups: Vec<u32>,
    /// File of the program that it runs now, where the daemon may see it.
    pub program: Option<FileIdentity>,
}

/// What tells a file from all others of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Number of its file system's device.
    pub device: u64,
    /// Number of its inode.
    pub inode: u64,
}

impl FileIdentity {
    /// Returns the identity of the file at a path. Symbolic links are followed. A file system on another host
    /// is not asked for it, as far as the kernel knows the file already.
    pub fn of(path: &Path) -> Option<Self> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let found = statx(CWD, path, flags, StatxFlags::INO).ok()?;
        let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
        Some(Self { device, inode: found.stx_ino })
    }
}

impl Subject {
    /// Returns who is at the other end of a connection. `with_program`: the program is asked for, too.
    pub fn of(stream: &UnixStream, process: Option<&PeerProcess>, with_program: bool) -> Self {
        let user = user_of(stream).map(|user| user.0);
        let mut groups = groups_of(stream.as_fd()).unwrap_or_default();
        groups.extend(stream.peer_cred().ok().map(|peer| peer.gid()));
        // The kernel says one and the same number for all that have none here.
        let stands_for_all = overflow_group();
        groups.retain(|&group| stands_for_all.is_some_and(|stands_for_all| group != stands_for_all));
        let program = process.filter(|_| with_program).and_then(program_of);
        Self { user, groups, program }
    }
}

/// Returns the number that the kernel says for groups that have none here.
fn overflow_group() -> Option<u32> {
    // The file is there on every kernel since 2.4.
    std::fs::read_to_string("/proc/sys/kernel/overflowgid").ok()?.trim().parse().ok()
}

/// Returns the program that a process runs.
fn program_of(process: &PeerProcess) -> Option<FileIdentity> {
    let id = process.id?;
    let found = FileIdentity::of(Path::new(&format!("/proc/{}/exe", id.as_raw_pid())))?;
    // Only while the process lives its number is not another's.
    let lives = poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], Some(&Timespec::default())) == Ok(0);
    lives.then_some(found)
}

/// Returns the supplementary groups of the process that connected.
fn groups_of(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let wanted = size_of_val(&groups[..]);
        let mut bytes = libc::socklen_t::try_from(wanted).expect("at most 256 KiB");
        // SAFETY: the kernel writes at most `bytes` bytes to the groups, and the number of bytes to `bytes`.
        // Both outlive the call.
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let has = bytes as usize / size_of::<libc::gid_t>();
        if got == 0 {
            groups.truncate(has);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if Errno::from_io_error(&error) != Some(Errno::RANGE) || has <= groups.len() || has > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(has, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream as StdStream};

    #[test]
    fn the_one_who_connected_is_found_by_the_socket() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let _far = StdStream::connect(&path).unwrap();
        let (near, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = UnixStream::from_std(near).unwrap();
        let process = PeerProcess::of(&near).unwrap();
        let subject = Subject::of(&near, Some(&process), true);
        assert_eq!(subject.user, Some(rustix::process::geteuid().as_raw()));
        let own = rustix::process::getgroups().unwrap();
        let own = own.into_iter().chain([rustix::process::getegid()]).map(rustix::fs::Gid::as_raw);
        assert!(own.clone().all(|group| subject.groups.contains(&group)), "{subject:?}");
        assert_eq!(subject.groups.len(), own.count(), "{subject:?}");
        let exe = std::env::current_exe().unwrap();
        assert_eq!(subject.program, FileIdentity::of(&exe));
        assert_ne!(subject.program, FileIdentity::of(Path::new("/")));
        assert_eq!(Subject::of(&near, Some(&process), false).program, None);
    }
}
