//! The journal of changes to the NIC: settings and their previous values, on disk before a change is made.
//! From the journal, the next daemon restores the settings that a killed daemon left changed.

use super::{ActuatorKind, Setting, files, mstcongestion};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// Limit of settings in a journal: room for eight priorities and the other knobs of more devices than a host
/// has.
const SETTINGS_MAX: usize = 64;

/// Limit of bytes that are read of a journal. [`SETTINGS_MAX`] settings need less.
const BYTES_MAX: u64 = 64 << 10;

/// Returns the path of the journal of the daemon with this control socket: beside the socket, as in
/// `jetd.congestion.journal`.
pub fn journal_path(control_socket: &Path) -> PathBuf {
    control_socket.with_extension("congestion.journal")
}

/// The journal's file, which exists exactly while a setting of the NIC may be lowered.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
}

/// Reason why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The journal cannot be read, so it is unknown which settings are lowered.
    #[error("cannot read {}, which says what an earlier daemon changed of the NIC: {source}", path.display())]
    Read {
        /// Path of the journal.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// The file is not a journal of this user and version, so nothing is restored from it.
    #[error("{} is {why}; nothing is restored from it", path.display())]
    Foreign {
        /// Path of the journal.
        path: PathBuf,
        /// Description of what is wrong with the file.
        why: String,
    },
    /// The journal cannot be written, so no setting may be lowered.
    #[error("cannot write {}: {source}; nothing is lowered that could not be undone", path.display())]
    Write {
        /// Path of the journal.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    settings: Vec<Setting>,
}

impl Journal {
    /// Creates the handle of the journal of the daemon with this control socket. No file is touched yet.
    pub(super) fn of(control_socket: &Path) -> Self {
        Self { path: journal_path(control_socket) }
    }

    /// Reads the settings that an earlier daemon left changed, in the order of the changes. Without a file
    /// there are no such settings.
    pub(super) fn load(&self) -> Result<Vec<Setting>, JournalError> {
        let failed = |source| JournalError::Read { path: self.path.clone(), source };
        let foreign = |why: &str| JournalError::Foreign { path: self.path.clone(), why: why.to_owned() };
        let file = match OpenOptions::new()
            .read(true)
            .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK))
            .open(&self.path)
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(foreign("a link")),
            Err(error) => return Err(failed(error)),
        };
        // Restoring runs as root, so a user who can write the journal could set knobs.
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0
        {
            return Err(foreign("not a file that only this user may write"));
        }
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
        let content: Content =
            serde_json::from_slice(&text).map_err(|error| foreign(&format!("no journal ({error})")))?;
        if content.version != VERSION {
            return Err(foreign(&format!("of version {}, this is {VERSION}", content.version)));
        }
        if content.settings.len() > SETTINGS_MAX {
            return Err(foreign("longer than any journal"));
        }
        if let Some(setting) = content.settings.iter().find(|setting| !is_valid_setting(setting)) {
            return Err(foreign(&format!("not of this version ({setting:?})")));
        }
        Ok(content.settings)
    }

    /// Renames a refused journal, so that it can be inspected. Returns the new path.
    pub(super) fn put_aside(&self) -> io::Result<PathBuf> {
        let aside = self.path.with_extension("journal.refused");
        std::fs::rename(&self.path, &aside)?;
        Ok(aside)
    }

    /// Replaces the journal's content, which is on disk when this function returns. If there are no settings,
    /// the file is removed.
    pub(super) fn store(&self, settings: &[Setting]) -> Result<(), JournalError> {
        self.replace(settings).map_err(|source| JournalError::Write { path: self.path.clone(), source })
    }

    fn replace(&self, settings: &[Setting]) -> io::Result<()> {
        if settings.len() > SETTINGS_MAX {
            // Happens only if many settings of earlier configurations cannot be restored. A longer journal
            // could not be loaded.
            return Err(io::Error::other(format!(
                "more than {SETTINGS_MAX} settings are still to be restored"
            )));
        }
        if settings.is_empty() {
            match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => return self.sync_directory(),
            }
        }
        let new = self.path.with_extension("journal.new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let content = Content { version: VERSION, settings: settings.to_vec() };
        serde_json::to_writer_pretty(&mut file, &content)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        self.sync_directory()
    }

    fn sync_directory(&self) -> io::Result<()> {
        let directory = self.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).expect("the flags of open() are an int")
}

/// Whether this version of Jet could have written the setting to the journal. The check matters, because
/// restoring writes the setting's value to a path that the setting names.
fn is_valid_setting(setting: &Setting) -> bool {
    match ActuatorKind::ALL.into_iter().find(|kind| kind.name() == setting.actuator) {
        None => false,
        Some(ActuatorKind::Mstcongestion) => mstcongestion::is_valid_setting(setting),
        Some(kind) => files::is_valid_setting(kind, setting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn setting(actuator: &str, device: &str, knob: &str, before: &str, lowered: &str) -> Setting {
        Setting {
            actuator: actuator.into(),
            device: device.into(),
            knob: knob.into(),
            before: before.into(),
            lowered: lowered.into(),
        }
    }

    fn some() -> Vec<Setting> {
        vec![
            setting("roce_np", "eth2", "enable/3", "0", "1"),
            setting("cc_params", "0000:3b:00.0", "min_time_between_cnps", "4", "0"),
            setting("mstcongestion", "0000:3b:00.0", "action", "disabled", "mark"),
        ]
    }

    fn journal() -> (tempfile::TempDir, Journal) {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::of(&directory.path().join("jetd.sock"));
        (directory, journal)
    }

    #[test]
    fn what_is_stored_is_loaded_and_goes() {
        let (directory, journal) = journal();
        assert_eq!(journal.load().unwrap(), []);
        journal.store(&some()).unwrap();
        assert_eq!(journal.load().unwrap(), some());
        journal.store(&some()[..1]).unwrap();
        assert_eq!(journal.load().unwrap(), some()[..1]);
        journal.store(&[]).unwrap();
        journal.store(&[]).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_journal_that_is_not_ours_is_refused_and_put_aside() {
        let (_directory, journal) = journal();
        let good = |settings: &[Setting]| {
            serde_json::to_string(&Content { version: VERSION, settings: settings.to_vec() }).unwrap()
        };
        let mut bad = vec![
            String::new(),
            "{\"version\":1".into(),
            "{\"version\":2,\"settings\":[]}".into(),
            "{\"version\":1,\"settings\":[],\"more\":1}".into(),
            good(&vec![some()[0].clone(); SETTINGS_MAX + 1]),
        ];
        for wrong in [
            setting("roce_np", "../../etc", "enable/3", "0", "1"),
            setting("roce_np", "eth2", "enable/../x", "0", "1"),
            setting("roce_np", "eth2", "enable/8", "0", "1"),
            setting("roce_np", "eth2", "min_time_between_cnps", "-1", "0"),
            setting("roce_np", "eth2", "min_time_between_cnps", "04", "0"),
            setting("cc_params", "eth2", "min_time_between_cnps", "4", "0"),
            setting("cc_params", "0000:3b:00.0", "enable/3", "0", "1"),
            setting("mstcongestion", "0000:3b:00.0", "action", "N/A", "mark"),
            setting("mstcongestion", "--help", "action", "drop", "mark"),
            setting("pcie_cong", "0000:3b:00.0", "action", "drop", "mark"),
            setting("soft", "", "", "", ""),
        ] {
            bad.push(good(&[some()[0].clone(), wrong]));
        }
        for text in bad {
            std::fs::write(&journal.path, &text).unwrap();
            std::fs::set_permissions(&journal.path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let error = journal.load().unwrap_err();
            assert!(matches!(error, JournalError::Foreign { .. }), "{text}: {error}");
        }
        let aside = journal.put_aside().unwrap();
        assert!(aside.ends_with("jetd.congestion.journal.refused") && aside.exists());
        assert_eq!(journal.load().unwrap(), []);
    }

    #[test]
    fn a_journal_that_others_may_write_is_refused() {
        let (_directory, journal) = journal();
        journal.store(&some()).unwrap();
        std::fs::set_permissions(&journal.path, std::fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(journal.load(), Err(JournalError::Foreign { .. })));
        std::fs::remove_file(&journal.path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &journal.path).unwrap();
        assert!(matches!(journal.load(), Err(JournalError::Foreign { .. })));
    }

    #[test]
    fn where_it_cannot_be_written_it_says_so() {
        let journal = Journal::of(Path::new("/nonexistent/jetd.sock"));
        let error = journal.store(&some()).unwrap_err().to_string();
        assert!(journal.store(&vec![some()[0].clone(); SETTINGS_MAX + 1]).is_err());
        assert!(error.contains("cannot write /nonexistent/jetd.congestion.journal"), "{error}");
    }
}
