//! Tests of `jet recv --fsync`. Every file that it acknowledges was synced, with every name above it, and
//! descriptors do not run out.

use crate::host::Host;
use crate::parts::is_part;
use crate::syncs::Syncs;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_test_support::limits::{limit, limit_within};
use jet_test_support::tree::{assert_same, test_bytes};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const WATCHED: &[&str] = &["--fsync", "--no-io-uring"];
const PIECES: &[&str] = &["--piece-bytes", "65536"];

/// Makes a tree with a file of one message, one of several, and empty directories.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("a/b/c")).unwrap();
    fs::create_dir_all(at.join("empty/of/everything")).unwrap();
    fs::write(at.join("a/small"), test_bytes(1, 3000)).unwrap();
    fs::write(at.join("a/b/c/large"), test_bytes(2, 300_000)).unwrap();
}

#[test]
fn a_file_and_all_names_above_it_are_synced_before_it_is_called_sent() {
    let host = Host::new("shm");
    let (sent, above) = (host.path("tree"), host.path("made"));
    let out = above.join("with/out");
    tree(&sent);
    let _daemon = host.daemon();
    let mut syncs = None;
    let recv = host.recv_with(&out, WATCHED, |command| syncs = Some(Syncs::watch(command, |_| None)));
    host.send(&[&sent], PIECES).succeed::<SendReport>();
    assert_same(&sent, &out.join("tree"));
    recv.stop::<ReceiveReport>();
    let synced = syncs.unwrap().all();
    let dir = fs::canonicalize(host.folder.path()).unwrap();
    let first = ["made/with", "made", ""].map(|path| dir.join(path).components().collect::<PathBuf>());
    assert_eq!(synced[..3], first);
    // Every piece is synced, and the end of every file.
    let parts = synced.iter().filter(|path| is_part(path)).count();
    assert!(parts > 1 + 5, "{synced:?}");
    let out = dir.join("made/with/out");
    let below = |path: &PathBuf| path.strip_prefix(&out).ok().map(|path| path.to_string_lossy().into_owned());
    let directories: BTreeSet<_> = synced.iter().filter(|path| !is_part(path)).filter_map(below).collect();
    let expected = [
        "",
        "tree",
        "tree/a",
        "tree/a/b",
        "tree/a/b/c",
        "tree/empty",
        "tree/empty/of",
        "tree/empty/of/everything",
    ];
    assert_eq!(directories, expected.map(str::to_owned).into());
}

#[test]
fn what_stands_in_a_directory_that_cannot_be_synced_is_not_called_sent() {
    // The sync fails in a directory above both files, in that of the large file, and in one of the empty
    // directories.
    for (refused, not_sent) in [("tree/a", 2), ("tree/a/b/c", 1), ("tree/empty/of", 1)] {
        let host = Host::new("shm");
        let (sent, out) = (host.path("tree"), host.path("out"));
        tree(&sent);
        let _daemon = host.daemon();
        let at = fs::canonicalize(host.folder.path()).unwrap().join("out").join(refused);
        let refuse = move |path: &Path| (path == at).then_some(libc::EIO);
        let recv = host.recv_with(&out, WATCHED, |command| {
            Syncs::watch(command, refuse);
        });
        let mut send = host.send(&[&sent], PIECES);
        assert_eq!(send.wait().code(), Some(1), "{refused}");
        let said = send.stderr_text();
        assert!(
            said.matches("was not sent: cannot be written at the receiver: EIO").count() >= not_sent,
            "{said}"
        );
        recv.stop::<ReceiveReport>();
    }
}

#[test]
fn an_out_that_is_made_again_is_synced_in_its_parent() {
    let host = Host::new("shm");
    let (sent, out) = (host.path("file"), host.path("made/out"));
    fs::write(&sent, test_bytes(1, 3000)).unwrap();
    let _daemon = host.daemon();
    let mut syncs = None;
    let recv = host.recv_with(&out, WATCHED, |command| syncs = Some(Syncs::watch(command, |_| None)));
    fs::remove_dir_all(host.path("made")).unwrap();
    host.send(&[&sent], &[]).succeed::<SendReport>();
    recv.stop::<ReceiveReport>();
    let synced = syncs.unwrap().all();
    let dir = fs::canonicalize(host.folder.path()).unwrap();
    for above in [dir.join("made"), dir] {
        assert_eq!(synced.iter().filter(|path| **path == above).count(), 2, "{above:?}: {synced:?}");
    }
}

#[test]
fn many_files_deep_in_a_new_tree_are_sent_with_the_descriptors_that_there_are() {
    let host = Host::new("shm");
    let (sent, out) = (host.path("tree"), host.path("out"));
    for file in 0..300 {
        // Some files share their directories, and some have their own.
        let deep = sent.join(format!("{}/b/c/d/e/f/g/{}", file % 3, file % 100));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join(file.to_string()), test_bytes(file, 100)).unwrap();
    }
    let _daemon = host.daemon();
    for descriptors in [1024, 300, 128] {
        for options in [&["--fsync"][..], WATCHED] {
            let recv = host.recv_with(&out, options, |command| {
                limit(command, Resource::Nofile, descriptors);
            });
            let sent_back: SendReport = host.send(&[&sent], &[]).succeed();
            assert_eq!((sent_back.files, sent_back.failed), (300, 0), "{sent_back:?}");
            assert_same(&sent, &out.join("tree"));
            recv.stop::<ReceiveReport>();
            fs::remove_dir_all(&out).unwrap();
        }
    }
}

#[test]
fn a_receiver_takes_the_descriptors_that_it_may_have() {
    let host = Host::new("shm");
    let _daemon = host.daemon();
    let hard = getrlimit(Resource::Nofile).maximum.map_or(4096, |maximum| maximum.min(4096));
    let recv =
        host.recv_with(&host.path("out"), &[], |command| limit_within(command, Resource::Nofile, 256, hard));
    let same = Rlimit { current: Some(hard), maximum: Some(hard) };
    assert_eq!(prlimit(Some(recv.pid()), Resource::Nofile, same).unwrap(), same);
    recv.stop::<ReceiveReport>();
}
