//! Tests of `jet keys`: the files that it makes, and what it refuses.

use jet::commands::{NewKeyReport, RevokeReport, ShowReport, SignReport, TrustReport};
use jet_identity::{PublicKey, Standing, Timestamp};
use jet_test_support::folder::Folder;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

/// Key of nobody here: that of an example of RFC 8410.
const OTHER: &str = "ed25519:Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE";
/// Key by which anybody could sign.
const WEAK: &str = "ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Runs `jet keys` in a folder until it ends.
fn keys_with(folder: &Folder, arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jet"));
    command.arg("keys").args(arguments).current_dir(folder.path());
    prepare(&mut command);
    command.output().unwrap()
}

/// Runs `jet keys`, which must succeed, and returns its report.
#[track_caller]
fn keys<T: serde::de::DeserializeOwned>(folder: &Folder, arguments: &[&str]) -> T {
    let output = keys_with(folder, &[arguments, &["--json"]].concat(), |_| {});
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{arguments:?}: {}: {said}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs `jet keys`, which must fail, and returns what it said.
#[track_caller]
fn fails(folder: &Folder, arguments: &[&str]) -> String {
    let output = keys_with(folder, arguments, |_| {});
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {}", output.status);
    String::from_utf8(output.stderr).unwrap()
}

fn new(folder: &Folder, file: &str) -> String {
    keys::<NewKeyReport>(folder, &["new", file]).key.to_string()
}

/// How each peer in the list stands.
fn standings(folder: &Folder) -> Vec<(String, Standing)> {
    match keys(folder, &["show", "trust.toml"]) {
        ShowReport::Trust { peers, .. } => {
            peers.into_iter().map(|peer| (peer.name.to_string(), peer.standing)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_key_is_made_shown_trusted_changed_and_revoked() {
    let folder = Folder::new();
    let (old, new_key) = (new(&folder, "old.key"), new(&folder, "new.key"));
    assert_ne!(old, new_key);
    assert_eq!(std::fs::metadata(folder.join("old.key")).unwrap().mode() & 0o7777, 0o600);
    let shown = keys_with(&folder, &["show", "old.key"], |_| {});
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), format!("{old}\n"));
    for key in [&old, &new_key] {
        let report: TrustReport = keys(&folder, &["trust", "web-1", key, "--list", "trust.toml"]);
        assert_eq!((report.key.to_string(), report.until), (key.clone(), None));
    }
    let both = [("web-1".to_owned(), Standing::Trusted), ("web-1".to_owned(), Standing::Trusted)];
    assert_eq!(standings(&folder), both);
    let revoke = ["revoke", &old, "--why", "its disk was sold", "--list", "trust.toml"];
    let first: TrustReport = keys(&folder, &["trust", "web-1", &old, "--list", "trust.toml"]);
    assert!(first.again);
    assert!(!keys::<RevokeReport>(&folder, &revoke).again);
    assert!(keys::<RevokeReport>(&folder, &revoke).again);
    let mut standings: Vec<_> = standings(&folder).into_iter().map(|(_, standing)| standing).collect();
    standings.sort_by_key(|standing| *standing == Standing::Revoked);
    assert_eq!(standings, [Standing::Trusted, Standing::Revoked]);
    let said = fails(&folder, &["trust", "web-1", &old, "--list", "trust.toml"]);
    assert!(said.contains("is revoked in trust.toml"), "{said}");
    let list = std::fs::read_to_string(folder.join("trust.toml")).unwrap();
    assert_eq!(list.matches("its disk was sold").count(), 1, "{list}");
}

#[test]
fn an_authority_signs_a_certificate_that_says_what_it_was_asked_for() {
    let folder = Folder::new();
    let (authority, key) = (new(&folder, "fleet.key"), new(&folder, "web-7.key"));
    let names = "web-*,spiffe://example.org/*";
    let trust = ["trust", "fleet", &authority, "--authority", names, "--for", "90d", "--list", "trust.toml"];
    let report: TrustReport = keys(&folder, &trust);
    assert_eq!(report.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), names);
    let before = Timestamp::from(std::time::SystemTime::now());
    let sign = ["sign", "web-7", &key, "--by", "fleet.key", "--for", "30d", "--out", "web-7.cert"];
    let report: SignReport = keys(&folder, &sign);
    // Two hours for clocks that are behind.
    assert!(report.from < before && report.until.seconds() - report.from.seconds() == 30 * 86_400 + 7_200);
    let expected = ShowReport::Certificate {
        name: "web-7".parse().unwrap(),
        key: key.parse().unwrap(),
        authority: authority.parse().unwrap(),
        from: report.from,
        until: report.until,
        holds: true,
        signed: true,
    };
    assert_eq!(keys::<ShowReport>(&folder, &["show", "web-7.cert"]), expected);
    let shown = keys_with(&folder, &["show", "trust.toml"], |_| {});
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("fleet") && shown.contains("web-* spiffe://example.org/*"), "{shown}");
}

#[test]
fn what_would_harm_is_refused_and_nothing_changes() {
    let folder = Folder::new();
    let key = new(&folder, "jetd.key");
    let before = std::fs::read(folder.join("jetd.key")).unwrap();
    assert!(fails(&folder, &["new", "jetd.key"]).contains("is there already"));
    assert_eq!(std::fs::read(folder.join("jetd.key")).unwrap(), before);
    // The secret is in no error, also where its file is taken for something else.
    let text = String::from_utf8(before.clone()).unwrap();
    let secret = text.lines().nth(1).unwrap();
    std::fs::write(folder.join("headless"), &text[text.find('\n').unwrap()..]).unwrap();
    set_mode(&folder.join("headless"), 0o600);
    for arguments in [&["show", "headless"][..], &["trust", "a", OTHER, "--list", "headless"]] {
        let said = fails(&folder, arguments);
        assert!(said.contains("headless: line 2") && !said.contains(&secret[..12]), "{said}");
    }
    set_mode(&folder.join("jetd.key"), 0o644);
    let said = fails(&folder, &["show", "jetd.key"]);
    assert!(said.contains("run chmod 600 jetd.key"), "{said}");
    let sign = ["sign", "a", OTHER, "--by", "jetd.key", "--for", "1d", "--out", "a.cert"];
    assert!(fails(&folder, &sign).contains("run chmod 600 jetd.key"));
    set_mode(&folder.join("jetd.key"), 0o600);
    keys::<TrustReport>(&folder, &["trust", "web-1", &key, "--list", "trust.toml"]);
    let list = std::fs::read(folder.join("trust.toml")).unwrap();
    for (arguments, said) in [
        (&["trust", "web-2", &key, "--list", "trust.toml"][..], "stands twice"),
        (&["trust", "web 2", OTHER, "--list", "trust.toml"], "is no name"),
        (&["trust", "web-2", "ed25519:short", "--list", "trust.toml"], "that is no public key"),
        (&["trust", "web-2", WEAK, "--list", "trust.toml"], "by which anybody could sign"),
        (&["trust", "web-2", OTHER, "--list", "credential:trust.toml"], "which only reads it"),
        (&["trust", "web-2", OTHER, "--list", "not/there"], "install -d not"),
        (&["new", "not/there"], "install -d not"),
        (&["trust", "fleet", OTHER, "--authority", "we*b", "--list", "trust.toml"], "is no name"),
        (
            &["trust", "a", OTHER, "--until", "2020-01-01T00:00:00Z", "--list", "trust.toml"],
            "is over already",
        ),
        (&["revoke", OTHER, "--list", "trust.toml"], "is not in trust.toml"),
        (&["sign", "a", OTHER, "--by", "jetd.key", "--out", "a.cert"], "--until"),
        (&["sign", "a", OTHER, "--by", "jetd.key", "--for", "0", "--out", "a.cert"], "is over already"),
        (
            &["sign", "a", OTHER, "--by", "trust.toml", "--for", "1d", "--out", "a.cert"],
            "holds no Ed25519 key",
        ),
        (&["sign", "a", OTHER, "--by", ".", "--for", "1d", "--out", "a.cert"], "is no file of"),
        (&["show", "missing"], "No such file"),
        (&["show", "."], "is no file of"),
    ] {
        let error = fails(&folder, arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    assert_eq!(std::fs::read(folder.join("trust.toml")).unwrap(), list);
    assert!(!folder.join("a.cert").exists());
    let revoked: RevokeReport = keys(&folder, &["revoke", OTHER, "--unlisted", "--list", "trust.toml"]);
    assert_eq!(revoked.key, OTHER.parse::<PublicKey>().unwrap());
}

#[test]
fn a_credential_of_systemd_is_a_key_file_that_its_group_may_read() {
    let folder = Folder::new();
    let key = new(&folder, "jetd.key");
    let show = |directory: Option<&OsStr>| {
        keys_with(&folder, &["show", "credential:jetd.key"], |command| {
            match directory {
                Some(directory) => command.env("CREDENTIALS_DIRECTORY", directory),
                None => command.env_remove("CREDENTIALS_DIRECTORY"),
            };
        })
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let said = text(show(None).stderr);
    assert!(said.contains("LoadCredential=jetd.key:/etc/jet/jetd.key"), "{said}");
    // The mode that systemd gives a credential for a service with a user of its own.
    set_mode(&folder.join("jetd.key"), 0o440);
    assert_eq!(text(show(Some(folder.path().as_os_str())).stdout), format!("{key}\n"));
    set_mode(&folder.join("jetd.key"), 0o444);
    let said = text(show(Some(folder.path().as_os_str())).stderr);
    assert!(said.contains("run chmod 440"), "{said}");
}
