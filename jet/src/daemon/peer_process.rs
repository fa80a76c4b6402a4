//! The process at the other end of a control connection.

use jet_core::{ProcessId, UserId};
use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use tokio::net::UnixStream;

/// Socket option that returns the pidfd of a Unix socket's peer, since Linux 6.5. The option's number is the
/// same on all architectures that Jet is built for.
const SO_PEERPIDFD: libc::c_int = 77;

/// A process that connected to the control socket, identified safely: by a pidfd and by its number (pid). The
/// kernel may give the number alone to another process later.
pub struct PeerProcess {
    /// The process's pidfd, which is readable once the process has ended.
    pub pidfd: OwnedFd,
    /// The process's number (pid). The number means this process as long as the pidfd is not readable. `None`
    /// for a process in a pid namespace that this one does not see: the kernel says 0 for all of them.
    pub id: Option<Pid>,
}

impl PeerProcess {
    /// Returns the process that connected, or `None` if it has ended already, or if only its number could
    /// tell which it is and the kernel says none.
    pub fn of(stream: &UnixStream) -> Option<Self> {
        use std::os::fd::AsFd;
        let id = stream.peer_cred().ok()?.pid().filter(|&id| id > 0).and_then(Pid::from_raw);
        let pidfd = match pidfd_of_peer(stream.as_fd()) {
            // Kernels before 6.5: open it by its number, which another process may have by now.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOPROTOOPT) => {
                pidfd_open(id?, PidfdFlags::empty()).ok()?
            }
            pidfd => pidfd.ok()?,
        };
        Some(Self { pidfd, id })
    }

    /// Returns a number that no other process has while this one lives: its own, or one made from the inode
    /// of its pidfd. `None` on kernels before 6.9, where pidfds have no inodes, for a process without a
    /// number.
    pub fn identity(&self) -> Option<ProcessId> {
        match self.id {
            Some(id) => Some(ProcessId(id.as_raw_pid().unsigned_abs())),
            None => inode_of(&self.pidfd).map(|inode| {
                // No number of a process is so large. What is cut off the inode differs after two billion
                // processes.
                #[allow(clippy::cast_possible_truncation)]
                ProcessId(inode as u32 | WITHOUT_NUMBER)
            }),
        }
    }
}

/// Returns the user of the process that connected. `None` for users of other user namespaces that have no
/// number here: the kernel says one and the same for all of them.
pub fn user_of(stream: &UnixStream) -> Option<UserId> {
    let user = stream.peer_cred().ok()?.uid();
    // The file is there on every kernel since 2.4.
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    let stands_for_all: u32 = text.trim().parse().ok()?;
    (user != stands_for_all).then_some(UserId(user))
}

/// Bit of identities that are no process numbers: the kernel gives numbers up to 2^22.
const WITHOUT_NUMBER: u32 = 1 << 31;

/// Returns the process number in an identity, if there is one.
pub fn number_in(identity: ProcessId) -> Option<u32> {
    (identity.0 & WITHOUT_NUMBER == 0).then_some(identity.0)
}

/// Returns the inode of a pidfd, which is the process's own for as long as the machine runs. `None` where the
/// kernel has one inode for all pidfds.
fn inode_of(pidfd: &OwnedFd) -> Option<u64> {
    /// Type of the file system of pidfds (linux/magic.h).
    const PIDFS: i64 = 0x5049_4446;
    let is_its_own = fstatfs(pidfd).ok()?.f_type == PIDFS;
    if is_its_own { fstat(pidfd).ok().map(|stat| stat.st_ino) } else { None }
}

/// Gets the pidfd of the process that connected, from the socket itself.
fn pidfd_of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("four");
    // SAFETY: the kernel writes at most `bytes` bytes to `fd`, and the number of bytes to `bytes`. Both
    // outlive the call.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut bytes,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel created the descriptor (close-on-exec) for this call, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_fabric::unix::{receive_with_fds, send_with_fds};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream as StdStream};
    use std::process::{Child, Command, Stdio};

    /// Environment variable with the socket to which a child of these tests connects. A child without the
    /// variable only waits.
    const CONNECT: &str = "JET_PEER_PROCESS_CONNECT";
    /// Limit of processes that a test starts to get one with a reused number.
    const PROCESSES: u32 = 1000;

    /// Returns the process number that the kernel shows for a pidfd.
    fn pid_of(pidfd: &OwnedFd) -> String {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        pid.expect("a process descriptor").trim().to_owned()
    }

    #[test]
    fn the_process_that_connected_is_found_by_its_socket() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (near, _far) = UnixStream::pair().unwrap();
            let process = PeerProcess::of(&near).expect("this process lives");
            let own = std::process::id().to_string();
            let number = process.id.expect("of this namespace").as_raw_pid().to_string();
            assert_eq!((pid_of(&process.pidfd), number), (own.clone(), own.clone()));
            match pidfd_of_peer(near.as_fd()) {
                Ok(pidfd) => assert_eq!(pid_of(&pidfd), own),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "{error}"),
            }
        });
    }

    #[test]
    fn processes_without_a_number_are_told_apart() {
        let children = [start(None), start(None)];
        let process = |child: &Child| {
            let id = Pid::from_child(child);
            PeerProcess { pidfd: pidfd_open(id, PidfdFlags::empty()).unwrap(), id: None }
        };
        let seen: Vec<_> = children.iter().flat_map(|child| [process(child), process(child)]).collect();
        let found: Vec<_> = seen.iter().map(PeerProcess::identity).collect();
        if inode_of(&seen[0].pidfd).is_some() {
            assert!(found[0] == found[1] && found[2] == found[3] && found[0] != found[2], "{found:?}");
            assert!(found.iter().flatten().all(|&identity| number_in(identity).is_none()));
        } else {
            assert_eq!(found, [None; 4]);
        }
        assert_eq!(number_in(ProcessId(std::process::id())), Some(std::process::id()));
        children.into_iter().for_each(end);
    }

    #[test]
    #[ignore = "a child process of the other tests"]
    fn child() {
        if let Ok(path) = std::env::var(CONNECT) {
            let stream = StdStream::connect(path).unwrap();
            // The parent gets this descriptor, so the connection outlives this process.
            send_with_fds(stream.as_fd(), b"mine", &[stream.as_fd()]).unwrap();
        }
        // Waits until the parent closes standard input.
        let _ = std::io::stdin().read_line(&mut String::new());
    }

    fn start(connect: Option<&std::path::Path>) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "daemon::peer_process::tests::child", "--ignored"]);
        command.envs(connect.map(|path| (CONNECT, path)));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    fn has_ended(pidfd: &OwnedFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    /// Starts a living process with this number; returns `None` where the system does not let the test choose
    /// numbers.
    fn another_with(number: i32) -> Option<Child> {
        (0..PROCESSES).find_map(|_| {
            std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).ok()?;
            let child = start(None);
            if i64::from(child.id()) == i64::from(number) {
                return Some(child);
            }
            end(child);
            None
        })
    }

    #[test]
    fn who_has_the_number_or_the_connection_of_a_process_that_ended_is_not_taken_for_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let child = start(Some(&path));
        let (near, _) = listener.accept().unwrap();
        let (_, handed_over) = receive_with_fds(near.as_fd(), &mut [0; 16]).unwrap();
        assert_eq!(handed_over.len(), 1);
        near.set_nonblocking(true).unwrap();
        let near = UnixStream::from_std(near).unwrap();
        let process = PeerProcess::of(&near).expect("it lives");
        let number = i32::try_from(child.id()).unwrap();
        assert_eq!((pid_of(&process.pidfd), process.id), (number.to_string(), Pid::from_raw(number)));
        assert!(!has_ended(&process.pidfd));
        // The child ends. The connection does not: the test process holds the other end.
        end(child);
        assert!(has_ended(&process.pidfd));
        assert!(PeerProcess::of(&near).is_none_or(|process| has_ended(&process.pidfd)));
        let by_socket = !matches!(
            pidfd_of_peer(near.as_fd()),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT)
        );
        // With the variable set, the kernel and the permissions must allow the whole test.
        let wanted = std::env::var_os("JET_TEST_PEER_PIDFD").is_some_and(|wanted| wanted == "1");
        assert!(by_socket || !wanted, "JET_TEST_PEER_PIDFD=1, and the kernel has no SO_PEERPIDFD");
        // With the number alone a process that reuses it cannot be told apart, so there is nothing to test.
        let another = if by_socket { another_with(number) } else { None };
        assert!(
            another.is_some() || !wanted,
            "JET_TEST_PEER_PIDFD=1, and no process got the number {number}"
        );
        if let Some(another) = another {
            assert!(PeerProcess::of(&near).is_none_or(|process| has_ended(&process.pidfd)));
            end(another);
        }
    }
}
