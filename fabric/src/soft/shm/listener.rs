//! The Unix socket on which connections arrive.

use crate::address::Address;
use crate::nic::ListenError;
use crate::source::Source;
use crate::unix::peer_of;
use rustix::fs::{FileType, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted; the system caps it (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Listening socket and its file. Dropping the listener removes the file.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    file: SocketFile,
}

/// File of a listening socket. Dropping it removes the file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file, to tell it from a file that was put there later.
    file: (u64, u64),
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connects to the socket at this path, without waiting: it succeeds at once or fails.
pub(super) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Listener {
    /// Listens at a path. A socket file that nobody listens on any more is replaced.
    pub(super) fn bind(path: &Path) -> Result<Self, ListenError> {
        let address = || Address::Shm(path.to_owned());
        let system = |source: io::Error| ListenError::System { address: address(), source };
        let socket = new_socket().map_err(system)?;
        let name = SocketAddrUnix::new(path).map_err(|error| system(error.into()))?;
        match bind(&socket, &name) {
            Err(Errno::ADDRINUSE) => {
                if !is_socket(path) {
                    return Err(ListenError::NoSocket { address: address() });
                }
                if !is_stale(path) {
                    return Err(ListenError::InUse { address: address() });
                }
                unlink(path).map_err(|error| system(error.into()))?;
                bind(&socket, &name)
            }
            outcome => outcome,
        }
        .map_err(|error| system(error.into()))?;
        listen(&socket, BACKLOG).map_err(|error| system(error.into()))?;
        let found = lstat(path).map_err(|error| system(error.into()))?;
        let file = SocketFile { path: path.to_owned(), file: (found.st_dev, found.st_ino) };
        Ok(Self { socket, file })
    }

    /// Removes the socket's file, and returns the socket.
    pub(super) fn stop(self) -> OwnedFd {
        drop(self.file);
        self.socket
    }

    /// Takes a connection that waits, if there is one, and returns where it comes from.
    ///
    /// # Errors
    /// The system has no descriptor or memory left for the connection. It stays waiting; the caller should
    /// try again later.
    pub(super) fn accept(&self) -> io::Result<Option<(OwnedFd, Source)>> {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let peer = peer_of(socket.as_fd())?;
                    return Ok(Some((socket, Source::of_process(peer.process, peer.user))));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A file that somebody else put there meanwhile is not removed.
        if lstat(&self.path).is_ok_and(|found| (found.st_dev, found.st_ino) == self.file) {
            let _ = unlink(&self.path);
        }
    }
}

fn is_socket(path: &Path) -> bool {
    lstat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket)
}

/// Whether nobody listens on the socket.
fn is_stale(path: &Path) -> bool {
    connect_to(path).is_err_and(|error| error.raw_os_error() == Some(Errno::CONNREFUSED.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_file_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic.sock");
        // The socket is bound and its file never unlinked, as a killed process leaves it.
        let dead = new_socket().unwrap();
        bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        let listener = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::InUse { .. })));
        // The probe that the second `bind` made waits in the backlog, already closed.
        while listener.accept().unwrap().is_some() {}
        let _client = connect_to(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        drop(listener);
        assert!(!path.exists());
        assert!(connect_to(&path).is_err());
    }

    #[test]
    fn a_file_that_is_no_socket_or_is_somebody_elses_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic.sock");
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::NoSocket { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        std::fs::remove_file(&path).unwrap();
        let listener = Listener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(listener);
        assert_eq!(std::fs::read(&path).unwrap(), b"another's");
    }
}
