use super::*;
use crate::{Name, Peer, Revoked, Timestamp, Validity};
use std::os::unix::fs::PermissionsExt as _;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

fn key() -> SecretKey {
    SecretKey::generate().unwrap()
}

fn peer(name: &str) -> (Peer, String) {
    let peer = Peer { name: name.parse().unwrap(), key: key().public(), until: None };
    let text = peer.to_text();
    (peer, text)
}

#[test]
fn a_new_secret_key_is_its_owners_alone_and_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jetd.key");
    let key = key();
    write_new_secret_key(&path, &key).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(read_secret_key(&path).unwrap().public(), key.public());
    let again = write_new_secret_key(&path, &self::key());
    assert!(matches!(again, Err(FileError::Exists { .. })));
    assert_eq!(read_secret_key(&path).unwrap().public(), key.public());
    // Nor is what a link leads to overwritten.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).unwrap();
    assert!(matches!(write_new_secret_key(&link, &key), Err(FileError::Exists { .. })));
}

#[test]
fn a_secret_key_that_others_may_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jetd.key");
    write_new_secret_key(&path, &key()).unwrap();
    for bad in [0o640, 0o604, 0o620, 0o602, 0o610, 0o677] {
        set_mode(&path, bad);
        let error = read_secret_key(&path).unwrap_err();
        assert!(matches!(error, FileError::Mode { mode, .. } if mode == bad), "{bad:o}: {error}");
        assert!(error.to_string().contains("run chmod 600"), "{error}");
    }
    for good in [0o600, 0o400] {
        set_mode(&path, good);
        read_secret_key(&path).unwrap();
    }
}

#[test]
fn what_is_no_key_is_told_from_what_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    assert!(matches!(read_secret_key(&path), Err(FileError::System { .. })));
    assert!(matches!(read_secret_key(folder.path()), Err(FileError::Mode { .. } | FileError::Kind { .. })));
    let write = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        set_mode(&path, 0o600);
        read_secret_key(&path).unwrap_err()
    };
    assert!(matches!(write(b""), FileError::SecretKey { .. }));
    assert!(matches!(write(&[0xff; 100]), FileError::System { .. }));
    let long = vec![b' '; usize::try_from(KEY_FILE_BYTES_MAX).unwrap() + 1];
    assert!(matches!(write(&long), FileError::Kind { .. }));
    // A pipe without a writer holds nobody up.
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
    assert!(matches!(read_secret_key(&path), Err(FileError::Kind { .. })));
}

#[test]
fn a_certificate_is_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web-1.cert");
    let validity = Validity { from: Timestamp::from_seconds(1), until: Timestamp::MAX };
    let certificate = Certificate::issue(&key(), key().public(), "web-1".parse().unwrap(), validity).unwrap();
    write_new_certificate(&path, &certificate).unwrap();
    assert_eq!(read_certificate(&path).unwrap(), certificate);
    std::fs::write(&path, "none").unwrap();
    assert!(matches!(read_certificate(&path), Err(FileError::Certificate { .. })));
}

#[test]
fn a_list_that_others_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let (peer, text) = peer("web-1");
    add_to_trust(&path, &text).unwrap();
    for bad in [0o664, 0o646] {
        set_mode(&path, bad);
        assert!(matches!(read_trust(&path), Err(FileError::Mode { .. })), "{bad:o}");
        assert!(matches!(add_to_trust(&path, &text), Err(FileError::Mode { .. })), "{bad:o}");
    }
    set_mode(&path, 0o444);
    let now = Timestamp::from_seconds(0);
    assert_eq!(read_trust(&path).unwrap().identify(peer.key, None, now), Ok(peer.name));
}

#[test]
fn an_entry_is_put_behind_the_list_and_the_rest_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let ((one, first), (two, second)) = (peer("web-1"), peer("web-2"));
    let before = format!("# Our web servers.\n{}", first.trim_end());
    std::fs::write(&path, &before).unwrap();
    set_mode(&path, 0o640);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    // Left by somebody who ended half way.
    std::fs::write(folder.path().join("trust.toml.new"), "half").unwrap();
    add_to_trust(&link, &second).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{before}\n\n{second}"));
    assert_eq!(mode(&path), 0o640);
    assert!(link.is_symlink());
    let revoked = Revoked { key: one.key, why: String::new() }.to_text();
    let trust = add_to_trust(&path, &revoked).unwrap();
    let now = Timestamp::from_seconds(0);
    assert!(trust.identify(one.key, None, now).is_err());
    assert_eq!(trust.identify(two.key, None, now), Ok(two.name));
    let names = |folder: &Path| {
        let mut all: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        all.sort();
        all
    };
    assert_eq!(names(folder.path()), ["link", "trust.toml"]);
}

#[test]
fn what_makes_a_list_invalid_is_not_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let (_, text) = peer("web-1");
    add_to_trust(&path, &text).unwrap();
    let before = std::fs::read_to_string(&path).unwrap();
    let twice = add_to_trust(&path, &text);
    assert!(matches!(twice, Err(FileError::Trust { source: TrustError::Twice { .. }, .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn entries_that_are_added_at_once_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let names: Vec<String> = (0..16).map(|i| format!("web-{i:02}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| add_to_trust(&path, &peer(name).1).unwrap());
        }
    });
    let trust = read_trust(&path).unwrap();
    let found: Vec<&Name> = trust.peers(Timestamp::MAX).into_iter().map(|(peer, _)| &peer.name).collect();
    assert_eq!(found.iter().map(|name| name.as_str()).collect::<Vec<_>>(), names);
}

#[test]
fn who_may_read_a_list_does_not_hold_up_a_revocation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let (one, text) = peer("web-1");
    add_to_trust(&path, &text).unwrap();
    assert_eq!(mode(&path), OPEN_MODE);
    let reader = File::open(&path).unwrap();
    rustix::fs::flock(&reader, FlockOperation::LockExclusive).unwrap();
    add_to_trust(&path, &Revoked { key: one.key, why: String::new() }.to_text()).unwrap();
    // What somebody waits for who cannot read the list is its owner's alone.
    let next = lock_next(&path).unwrap();
    assert_eq!(next.metadata().unwrap().mode() & 0o7777, SECRET_MODE);
}

#[test]
fn what_cannot_be_added_leaves_the_list_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    // A list that is a folder is none, and one that is invalid already gets no entry.
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(
        add_to_trust(&path, &peer("a").1),
        Err(FileError::Kind { .. } | FileError::Mode { .. })
    ));
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "[[people]]\n").unwrap();
    set_mode(&path, 0o644);
    assert!(matches!(add_to_trust(&path, &peer("a").1), Err(FileError::Trust { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "[[people]]\n");
    assert!(!next_to(&path).exists());
    // It is mended by hand, and then takes entries.
    std::fs::write(&path, "").unwrap();
    add_to_trust(&path, &peer("a").1).unwrap();
    assert!(!next_to(&path).exists());
}

#[test]
fn a_file_says_itself_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let key = key();
    write_new_secret_key(&path("key"), &key).unwrap();
    let validity = Validity { from: Timestamp::from_seconds(1), until: Timestamp::MAX };
    let certificate = Certificate::issue(&key, key.public(), "web-1".parse().unwrap(), validity).unwrap();
    write_new_certificate(&path("certificate"), &certificate).unwrap();
    add_to_trust(&path("list"), &peer("web-1").1).unwrap();
    for (name, kind) in
        [("key", FileKind::SecretKey), ("certificate", FileKind::Certificate), ("list", FileKind::Trust)]
    {
        assert_eq!(kind_of(&path(name)).unwrap(), kind);
    }
}

#[test]
fn a_credential_is_named_without_a_path() {
    for bad in ["credential:", "credential:../etc/shadow", "credential:a/b", "credential:.hidden"] {
        let found = read_secret_key(Path::new(bad));
        assert!(matches!(found, Err(FileError::CredentialName { .. })), "{bad}");
    }
}
