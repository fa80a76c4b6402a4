//! The files of the control socket and the admin socket. A daemon that starts replaces the file of a dead
//! daemon, and does not start if a living daemon has the file. The daemon removes its files when it ends.

use super::DaemonError;
use jet_fabric::unix::refuse_fds;
use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_socket, listen, socket_with,
};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// File mode of the control socket and of the software NIC's socket: owner and group may connect.
pub(super) const SOCKET_MODE: u32 = 0o660;
/// File mode of the admin socket: only the daemon's own user may connect, and root.
pub(super) const ADMIN_MODE: u32 = 0o600;

/// Connections that wait to be accepted at most.
const BACKLOG: i32 = 1024;

/// Listens on a socket of the control plane, whose file has this mode. The socket file of a dead daemon is
/// replaced; that of a living daemon is an error.
pub(super) fn bind(path: &Path, mode: u32) -> Result<UnixListener, DaemonError> {
    let failed = |source| DaemonError::ControlSocket { path: path.to_owned(), source };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(DaemonError::Running { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Connecting to an ordinary file is refused as well, and that file is not ours to remove.
            if !std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
                return Err(DaemonError::NoSocket { path: path.to_owned() });
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        Err(_) => {}
    }
    let listener = bind_with_mode(path, mode).map_err(failed)?;
    // Nothing that a client says has files. The close of one may wait, and the control thread would wait with
    // it. Before Linux 6.16 they cannot be refused.
    let _ = refuse_fds(listener.as_fd());
    // Every process that may connect to the control socket can read every message in the pool: only owner and
    // group may.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    Ok(listener)
}

/// Makes a listener whose file has no more rights than `mode` from its first moment on. Whoever got in before
/// the rights were set would stay.
fn bind_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the file the socket's own mode, less the umask.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind_socket(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Removes the control socket when dropped, if the file is still this daemon's.
pub(super) struct RemoveOnDrop {
    path: PathBuf,
    inode: Option<u64>,
}

impl RemoveOnDrop {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), inode: inode(path) }
    }
}

fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).ok().map(|metadata| metadata.ino())
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if self.inode.is_some() && inode(&self.path) == self.inode {
            // An error means that somebody else has removed the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_its_mode_from_its_first_moment_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for wanted in [SOCKET_MODE, ADMIN_MODE] {
            let path = folder.path().join(format!("{wanted:o}"));
            let _listener = bind_with_mode(&path, wanted).unwrap();
            // The umask may take some of it, and gives nothing.
            assert_eq!(mode(&path) & !wanted, 0, "{:o}", mode(&path));
            std::fs::remove_file(&path).unwrap();
            let _listener = bind(&path, wanted).unwrap();
            assert_eq!(mode(&path), wanted);
        }
    }
}
