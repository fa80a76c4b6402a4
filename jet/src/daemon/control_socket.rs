//! The file of the control socket. A daemon that starts replaces the file of a dead daemon, and does not
//! start if a living daemon has the file. The daemon removes its file when it ends.

use super::DaemonError;
use jet_fabric::unix::refuse_fds;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// File mode of the control socket and of the software NIC's socket: owner and group may connect.
pub(super) const SOCKET_MODE: u32 = 0o660;

/// Listens on the control socket, with mode [`SOCKET_MODE`]. The socket file of a dead daemon is replaced;
/// that of a living daemon is an error.
pub(super) fn bind(path: &Path) -> Result<UnixListener, DaemonError> {
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
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Nothing that a client says has files. The close of one may wait, and the control thread would wait with
    // it. Before Linux 6.16 they cannot be refused.
    let _ = refuse_fds(listener.as_fd());
    // Every process that may connect can read every message in the pool: only owner and group may.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
    Ok(listener)
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
