//! The process at the other end of a control connection.

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
    /// The process's number (pid). The number means this process as long as the pidfd is not readable.
    pub id: i32,
}

impl PeerProcess {
    /// Returns the process that connected, or `None` if it has ended already or lies in another pid
    /// namespace.
    pub fn of(stream: &UnixStream) -> Option<Self> {
        use std::os::fd::AsFd;
        let id = stream.peer_cred().ok()?.pid()?;
        let pidfd = match pidfd_of_peer(stream.as_fd()) {
            // Kernels before 6.5: open it by its number, which another process may have by now.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOPROTOOPT) => {
                pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?
            }
            pidfd => pidfd.ok()?,
        };
        Some(Self { pidfd, id })
    }
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
            assert_eq!((pid_of(&process.pidfd), process.id.to_string()), (own.clone(), own.clone()));
            match pidfd_of_peer(near.as_fd()) {
                Ok(pidfd) => assert_eq!(pid_of(&pidfd), own),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "{error}"),
            }
        });
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
        assert_eq!((pid_of(&process.pidfd), process.id), (number.to_string(), number));
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
