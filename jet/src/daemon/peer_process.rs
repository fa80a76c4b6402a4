//! The process at the other end of a control connection.

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use tokio::net::UnixStream;

/// From Linux 6.5 on; the same on all architectures that Jet is built for.
const SO_PEERPIDFD: libc::c_int = 77;

/// A process that cannot be taken for another: its descriptor, readable once it has ended, and its number.
pub struct PeerProcess {
    /// The descriptor.
    pub pidfd: OwnedFd,
    /// The number, which means this process for as long as that is not readable.
    pub id: i32,
}

impl PeerProcess {
    /// The process that connected. None where it ended already, or is not to be seen from here (another pid namespace).
    pub fn of(stream: &UnixStream) -> Option<Self> {
        use std::os::fd::AsFd;
        let id = stream.peer_cred().ok()?.pid()?;
        let pidfd = match pidfd_of_peer(stream.as_fd()) {
            // By its number, which another process may have by now.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOPROTOOPT) => {
                pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?
            }
            pidfd => pidfd.ok()?,
        };
        Some(Self { pidfd, id })
    }
}

/// The descriptor of the process that connected, from the socket itself.
fn pidfd_of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("four");
    // SAFETY: the kernel writes at most `bytes` bytes at the first place, and how many at the second.
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
    // SAFETY: the kernel made it for this call (close-on-exec), and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// What the kernel says of a process descriptor.
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
}
