//! Tests of a disk that is full under `jet recv`. The sender gets the error, the receiver still serves, and
//! no slab is lost.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_test_support::device::fabrics;
use jet_test_support::disk::TinyDisk;
use jet_test_support::limits;
use jet_test_support::tree::{assert_same, test_bytes};
use rustix::process::Resource;
use std::fs;

/// Limit that ends the files at 1 MiB.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// The disk is tiny.
    Disk,
    /// The receiver's process may write no more to one file.
    FileSize,
}

fn large_files_are_rejected(fabric: &str, limit: Limit) {
    let host = Host::new(fabric);
    let (tree, out) = (host.path("tree"), host.path("out"));
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("a small"), test_bytes(1, 3000)).unwrap();
    fs::write(tree.join("b large"), test_bytes(2, 4 << 20)).unwrap();
    fs::write(tree.join("c pieces"), test_bytes(3, 6 << 20)).unwrap();
    let _daemon = host.daemon();
    let _disk = (limit == Limit::Disk).then(|| TinyDisk::mount(&out, 1 << 10));
    let errno = if limit == Limit::Disk { "ENOSPC" } else { "EFBIG" };
    let recv = host.recv_with(&out, &[], |command| {
        if limit == Limit::FileSize {
            limits::limit(command, Resource::Fsize, 1 << 20);
        }
    });
    let mut send = host.send(&[&tree], &["--piece-bytes", "4194304"]);
    assert_eq!(send.wait().code(), Some(1), "{}", send.stderr_text());
    let (said, sent) = (send.stderr_text(), send.printed::<SendReport>());
    assert_eq!((sent.files, sent.failed), (1, 2), "{said}");
    for name in ["b large", "c pieces"] {
        let line = said.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {said}"));
        assert!(line.contains(errno), "{line}");
    }
    // The parts of the large files are gone, and the receiver still serves.
    let left: Vec<_> =
        fs::read_dir(out.join("tree")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["a small"], "{left:?}");
    let after = host.path("after");
    fs::create_dir_all(&after).unwrap();
    fs::write(after.join("file"), test_bytes(5, 50_000)).unwrap();
    host.send(&[&after], &[]).succeed::<SendReport>();
    assert_same(&after, &out.join("after"));
    host.wait_whole();
    let received: ReceiveReport = recv.stop();
    assert!(received.received.rejected >= 2, "{received:?}");
}

#[test]
#[ignore = "mounts a file system, which takes root: .ci/run has it apart"]
fn a_full_disk_is_heard_by_the_sender() {
    fabrics().iter().for_each(|fabric| large_files_are_rejected(fabric, Limit::Disk));
}

#[test]
fn a_file_size_limit_is_heard_by_the_sender() {
    fabrics().iter().for_each(|fabric| large_files_are_rejected(fabric, Limit::FileSize));
}

#[test]
#[ignore = "mounts a file system, which takes root: .ci/run has it apart"]
fn an_out_on_a_read_only_file_system_is_refused_before_anybody_sends() {
    let host = Host::new("shm");
    let out = host.path("out");
    let _daemon = host.daemon();
    let disk = TinyDisk::mount(&out, 1 << 10);
    disk.make_read_only();
    let mut recv = host.recv_unwatched(&out, &[], |_| {});
    assert_eq!(recv.wait().code(), Some(1));
    assert!(recv.stderr_text().contains("Read-only file system"), "{}", recv.stderr_text());
}
