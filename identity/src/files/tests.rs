use super::adding::*;
use super::checks::*;
use super::*;
use crate::{Name, Peer, PublicKey, Revoked, Timestamp, TrustError, Validity};
use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

fn key() -> SecretKey {
    SecretKey::generate().unwrap()
}

fn peer(name: &str) -> Peer {
    Peer { name: name.parse().unwrap(), key: key().public(), until: None }
}

fn trust_peer(path: &Path, peer: &Peer) -> Result<Trust, FileError> {
    change_trust(path, |_, text| Some(Trust::text_with_peer(text, peer)))
}

fn revoke(path: &Path, key: PublicKey) -> Result<Trust, FileError> {
    change_trust(path, |_, text| Some(Trust::text_with_revoked(text, &Revoked { key, why: String::new() })))
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
    assert!(matches!(read_secret_key(folder.path()), Err(FileError::Kind { .. })));
    let write = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        set_mode(&path, 0o600);
        read_secret_key(&path).unwrap_err()
    };
    assert!(matches!(write(b""), FileError::SecretKey { .. }));
    assert!(matches!(write(&[0xff; 100]), FileError::System { .. }));
    let long = vec![b' '; usize::try_from(KEY_FILE_BYTES_MAX).unwrap() + 1];
    assert!(matches!(write(&long), FileError::Kind { .. }));
    // A list or a folder that is named by mistake is not to be made secret.
    trust_peer(&folder.path().join("list"), &peer("web-1")).unwrap();
    assert!(matches!(read_secret_key(&folder.path().join("list")), Err(FileError::SecretKey { .. })));
    // A pipe without a writer holds nobody up.
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
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
    let peer = peer("web-1");
    trust_peer(&path, &peer).unwrap();
    assert_eq!(mode(&path), OPEN_MODE);
    for bad in [0o664, 0o646] {
        set_mode(&path, bad);
        assert!(matches!(read_trust(&path), Err(FileError::Mode { .. })), "{bad:o}");
        assert!(matches!(revoke(&path, peer.key), Err(FileError::Mode { .. })), "{bad:o}");
    }
    set_mode(&path, 0o444);
    let now = Timestamp::from_seconds(0);
    assert_eq!(read_trust(&path).unwrap().identify(peer.key, None, now), Ok(peer.name));
}

#[test]
fn what_lies_in_a_folder_that_others_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("jet");
    std::fs::create_dir(&inner).unwrap();
    let (secret, list) = (inner.join("jetd.key"), inner.join("trust.toml"));
    write_new_secret_key(&secret, &key()).unwrap();
    let peer = peer("web-1");
    trust_peer(&list, &peer).unwrap();
    // A link from elsewhere does not hide where the file lies.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&list, &link).unwrap();
    for bad in [0o775, 0o777, 0o1777] {
        set_mode(&inner, bad);
        for found in [read_trust(&list), read_trust(&link), revoke(&list, peer.key)] {
            let error = found.unwrap_err();
            assert!(matches!(&error, FileError::Mode { path, .. } if path.ends_with("jet")), "{error}");
        }
        assert!(matches!(read_secret_key(&secret), Err(FileError::Mode { .. })));
    }
    set_mode(&inner, 0o755);
    read_secret_key(&secret).unwrap();
    read_trust(&link).unwrap();
}

#[test]
fn an_entry_is_added_and_the_rest_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let (one, two) = (peer("web-1"), peer("web-2"));
    let before = format!("# Our web servers.\n{}# The last one.", Trust::text_with_peer("", &one));
    std::fs::write(&path, &before).unwrap();
    set_mode(&path, 0o640);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    trust_peer(&link, &two).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, format!("{before}\n\n{}", Trust::text_with_peer("", &two)));
    assert_eq!(mode(&path), 0o640);
    assert!(link.is_symlink());
    let trust = revoke(&path, one.key).unwrap();
    let now = Timestamp::from_seconds(0);
    assert!(trust.identify(one.key, None, now).is_err());
    assert_eq!(trust.identify(two.key, None, now), Ok(two.name));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with("# Our web servers.\n[[revoked]]\n") && text.contains("# The last one."),
        "{text}"
    );
    let mut names: Vec<_> =
        folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["link", "trust.toml", "trust.toml.lock"]);
}

#[test]
fn what_cannot_be_added_leaves_the_list_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let one = peer("web-1");
    trust_peer(&path, &one).unwrap();
    let before = std::fs::read_to_string(&path).unwrap();
    let twice = trust_peer(&path, &one);
    assert!(matches!(twice, Err(FileError::Trust { source: TrustError::Twice { .. }, .. })));
    change_trust(&path, |_, _| None).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    // An invalid list gets no entry until it is mended by hand.
    std::fs::write(&path, "[[people]]\n").unwrap();
    assert!(matches!(revoke(&path, one.key), Err(FileError::Trust { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "[[people]]\n");
    std::fs::write(&path, "").unwrap();
    revoke(&path, one.key).unwrap();
    // A link that leads nowhere may be to what is not mounted: it is not replaced.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("not/mounted"), &link).unwrap();
    assert!(matches!(trust_peer(&link, &one), Err(FileError::System { .. })));
    assert!(link.is_symlink());
    let nowhere = folder.path().join("not/there");
    assert!(matches!(trust_peer(&nowhere, &one), Err(FileError::NoFolder { .. })));
    assert!(matches!(write_new_secret_key(&nowhere, &key()), Err(FileError::NoFolder { .. })));
    let in_place_of_list = folder.path().join("folder");
    std::fs::create_dir(&in_place_of_list).unwrap();
    assert!(matches!(trust_peer(&in_place_of_list, &one), Err(FileError::Kind { .. })));
}

#[test]
fn entries_that_are_added_at_once_are_all_there_beside_those_that_fail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let known = peer("known");
    trust_peer(&path, &known).unwrap();
    let names: Vec<String> = (0..16).map(|i| format!("web-{i:02}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| trust_peer(&path, &peer(name)).unwrap());
            scope.spawn(|| trust_peer(&path, &known).unwrap_err());
            scope.spawn(|| revoke(&path, key().public()).unwrap());
        }
    });
    let trust = read_trust(&path).unwrap();
    let found: Vec<&Name> = trust.peers(Timestamp::MAX).into_iter().map(|(peer, _)| &peer.name).collect();
    assert_eq!(found[1..].iter().map(|name| name.as_str()).collect::<Vec<_>>(), names);
    assert_eq!((found[0], trust.revoked().len()), (&known.name, names.len()));
}

#[test]
fn who_may_read_a_list_does_not_hold_up_a_revocation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    let one = peer("web-1");
    trust_peer(&path, &one).unwrap();
    let reader = File::open(&path).unwrap();
    rustix::fs::flock(&reader, rustix::fs::FlockOperation::LockExclusive).unwrap();
    revoke(&path, one.key).unwrap();
    // What is waited for is its owner's alone. Where others could open it, it is not waited for.
    let lock_path = beside(&path, ".lock");
    assert_eq!(lock(&path).unwrap().metadata().unwrap().mode() & 0o7777, SECRET_MODE);
    set_mode(&lock_path, 0o644);
    assert!(matches!(revoke(&path, one.key), Err(FileError::Mode { .. })));
}

#[test]
fn rights_of_further_users_stay_with_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    trust_peer(&path, &peer("web-1")).unwrap();
    // Version 2; owner rw-, user 1234 r--, group ---, mask r--, others ---.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 1234), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let file = File::open(&path).unwrap();
    let name = "system.posix_acl_access";
    match rustix::fs::fsetxattr(&file, name, &list, rustix::fs::XattrFlags::empty()) {
        Ok(()) => {}
        // This file system has no such rights, so there is nothing to keep.
        Err(rustix::io::Errno::NOTSUP) => return,
        Err(error) => panic!("{error}"),
    }
    trust_peer(&path, &peer("web-2")).unwrap();
    let mut kept = vec![0; 1024];
    let bytes = rustix::fs::fgetxattr(File::open(&path).unwrap(), name, &mut kept[..]).unwrap();
    assert_eq!(kept[..bytes], list);
    assert_eq!(mode(&path), 0o640);
}

#[test]
fn a_file_of_another_user_is_refused() {
    let judge = |owner, user, mode, secrecy| judge(Path::new("key"), owner, user, mode, secrecy);
    for secrecy in [Secrecy::Secret, Secrecy::Credential, Secrecy::Open] {
        for (owner, user) in [(7, 7), (0, 7), (0, 0)] {
            assert!(judge(owner, user, 0o400, secrecy).is_ok(), "{owner} {user}");
        }
        // Root, too, uses no key and no list that another user could change.
        for (owner, user) in [(8, 7), (7, 0)] {
            let found = judge(owner, user, 0o400, secrecy);
            assert!(matches!(found, Err(FileError::Owner { .. })), "{owner} {user}");
        }
    }
    // A credential may be read by its group, and written by nobody else.
    for (mode, is_good) in [(0o440, true), (0o400, true), (0o444, false), (0o460, false), (0o450, false)] {
        assert_eq!(judge(0, 7, mode, Secrecy::Credential).is_ok(), is_good, "{mode:o}");
    }
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
    trust_peer(&path("list"), &peer("web-1")).unwrap();
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
    // systemd writes them, and nobody else.
    let path = Path::new("credential:name");
    assert!(matches!(write_new_secret_key(path, &key()), Err(FileError::CredentialWritten { .. })));
    assert!(matches!(revoke(path, key().public()), Err(FileError::CredentialWritten { .. })));
}
