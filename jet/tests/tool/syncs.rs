//! Watch of the files and directories that a process syncs, as the kernel sees it. Each `fsync` waits until
//! the test has answered. The process must be started with `--no-io-uring`, because a sync by a ring is no
//! system call.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

/// Thread that watches a process until it ends.
pub struct Syncs(JoinHandle<Vec<PathBuf>>);

impl Syncs {
    /// Watches the process that the command will start. `answer` is called before each sync. If it returns an
    /// errno, the sync fails with it.
    pub fn watch(command: &mut Command, answer: impl FnMut(&Path) -> Option<i32> + Send + 'static) -> Self {
        let (ours, its) = UnixStream::pair().expect("a socket pair");
        // SAFETY: between fork and exec there are only system calls, and no memory is allocated.
        unsafe {
            command.pre_exec(move || {
                let listener = filter_syncs()?;
                let fds = [listener.as_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                ancillary.push(SendAncillaryMessage::ScmRights(&fds));
                sendmsg(&its, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty())?;
                Ok(())
            });
        }
        Self(std::thread::spawn(move || answer_all(&receive(&ours), answer)))
    }

    /// Returns the paths that were synced, in their order. Waits for the process to end.
    pub fn all(self) -> Vec<PathBuf> {
        self.0.join().expect("the watcher does not fail")
    }
}

/// Makes the kernel ask before every `fsync` of this process. Returns the descriptor over which it asks,
/// whichever process holds it.
#[allow(clippy::cast_possible_truncation)] // small numbers
fn filter_syncs() -> std::io::Result<OwnedFd> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut lines = [
        line(LOAD, 0, 0),
        line(EQUAL, 1, u32::try_from(libc::SYS_fsync).expect("a small number")),
        line(RETURN, 0, libc::SECCOMP_RET_USER_NOTIF),
        line(RETURN, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: lines.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the program outlives the call, and what comes back is a descriptor of ours.
    unsafe {
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        );
        if listener < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(i32::try_from(listener).expect("a descriptor")))
    }
}

fn receive(from: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .expect("a message");
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    rights.expect("the kernel asks by seccomp")
}

#[allow(clippy::cast_possible_truncation)] // a flag
fn answer_all(listener: &OwnedFd, mut answer: impl FnMut(&Path) -> Option<i32>) -> Vec<PathBuf> {
    let mut synced = Vec::new();
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled.expect("a poll"),
        };
        // The descriptor is readable, or the process has ended.
        if !fds[0].revents().contains(PollFlags::IN) {
            return synced;
        }
        // SAFETY: both structures are plain numbers, for which the kernel asks for zeros. Both outlive the
        // calls.
        unsafe {
            let mut asked: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) != 0 {
                // The process was killed meanwhile.
                continue;
            }
            let link = format!("/proc/{}/fd/{}", asked.pid, asked.data.args[0]);
            let Ok(path) = fs::read_link(link) else { continue };
            let mut answered: libc::seccomp_notif_resp = std::mem::zeroed();
            answered.id = asked.id;
            match answer(&path) {
                Some(errno) => answered.error = -errno,
                None => answered.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            }
            libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answered);
            synced.push(path);
        }
    }
}
