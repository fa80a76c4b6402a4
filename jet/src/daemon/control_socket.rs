//! The control socket's file: taken over from a dead daemon, respected while it is a living one's, removed at
//! the end.

use super::DaemonError;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Of this socket and the software NIC's: the owner and the group.
pub(super) const SOCKET_MODE: u32 = 0o660;

/// Listens on the control socket: replaces a dead daemon's, respects a living one's.
pub(super) fn bind(path: &Path) -> Result<UnixListener, DaemonError> {
    let failed = |source| DaemonError::ControlSocket { path: path.to_owned(), source };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(DaemonError::Running { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Connecting to an ordinary file is refused as well, and that is somebody's.
            if !std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
                return Err(DaemonError::NoSocket { path: path.to_owned() });
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Whoever may connect may read every message in the pool: the owner and the group.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
    Ok(listener)
}

/// Removes the control socket at the end, if it is still ours.
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
            // Gone already is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
