//! Tests of a receiver that is slow on purpose, as slow storage makes it. It still writes every byte, and its
//! class and its `--memory` option reach the daemon.

use crate::host::Host;
use crate::parts::is_part;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_test_support::device::fabrics;
use jet_test_support::tree::{assert_same, large_tree, odd_tree};
use jet_test_support::waiting::until;
use std::fs;
use std::path::Path;

const PIECES: &[&str] = &["--piece-bytes", "1048576"];

/// Sends a tree to a receiver with these options. Returns the receiver's report and its log.
fn arrives(fabric: &str, recv_options: &[&str]) -> (ReceiveReport, String) {
    let host = Host::new(fabric);
    let (tree, out) = (host.path("tree"), host.path("out"));
    odd_tree(&tree.join("odd"));
    large_tree(&tree.join("large"), 4, 3_000_001);
    let _daemon = host.daemon();
    let recv = host.recv(&out, recv_options);
    let sent: SendReport = host.send(&[&tree], PIECES).succeed();
    assert_eq!(sent.failed, 0, "{sent:?}");
    assert_same(&tree, &out.join("tree"));
    host.wait_whole();
    let said = recv.stderr_text();
    let received: ReceiveReport = recv.stop();
    assert_eq!(received.received.bytes, sent.bytes, "{received:?}");
    assert_eq!(received.received.files, sent.files, "{received:?}");
    assert_eq!(received.received.rejected, 0, "{received:?}");
    (received, said)
}

#[test]
fn one_slice_in_ten_is_held_and_every_byte_arrives() {
    for &fabric in fabrics() {
        let (received, said) = arrives(fabric, &["--slow", "5ms/10"]);
        assert!(said.contains("slow on purpose: one slice in 10 is held 5ms before it is written"), "{said}");
        assert_eq!(received.slow.as_deref(), Some("5ms/10"), "{received:?}");
        assert!(received.received.held > 0, "{received:?}");
    }
}

#[test]
fn as_much_is_held_as_the_depth_allows_and_every_byte_arrives() {
    for options in [&["--depth", "2"][..], &["--depth", "7", "--no-io-uring", "--fsync"]] {
        let (received, _) = arrives("shm", &[options, &["--slow", "500us"]].concat());
        assert!(received.received.held > 200, "{received:?}");
    }
}

#[test]
fn after_a_stop_everything_is_read() {
    let (received, said) = arrives("shm", &["--slow", "stop:300ms@0s,1ms/50"]);
    assert!(said.contains("0s after the registration nothing is read for 300ms"), "{said}");
    assert_eq!(received.slow.as_deref(), Some("1ms/50,stop:300ms@0s"), "{received:?}");
}

/// Sends a tree to a receiver whose options keep it from finishing. When `far` returns, the receiver is asked
/// to leave, and the next one gets the rest. Returns the first one's report.
fn left_in_the_middle(host: &Host, tree: &Path, options: &[&str], far: impl FnOnce(&Path)) -> ReceiveReport {
    let out = host.path("out");
    let _daemon = host.daemon();
    let first = host.recv(&out, options);
    let send = host.send(&[tree], PIECES);
    far(&out);
    let left: ReceiveReport = first.stop();
    assert_eq!(left.ended, "stopped", "{left:?}");
    let second = host.recv(&out, &[]);
    let sent: SendReport = send.succeed();
    assert_eq!(sent.failed, 0, "{sent:?}");
    assert_same(tree, &out.join("tree"));
    host.wait_whole();
    second.stop::<ReceiveReport>();
    left
}

#[test]
fn what_is_held_is_written_when_the_receiver_leaves() {
    let host = Host::new("shm");
    let tree = host.path("tree");
    // Each file is one slice, and every second slice is held for an hour. The depth is enough for all of
    // them.
    large_tree(&tree, 40, 1000);
    let left = left_in_the_middle(&host, &tree, &["--slow", "3600s/2"], |out| {
        until("files that were not held", || {
            (fs::read_dir(out.join("tree")).ok()?.filter(is_named).count() >= 8).then_some(())
        });
    });
    let (files, held) = (left.received.files, left.received.held);
    assert!(held >= 7, "{left:?}");
    assert!(
        files == 2 * held || files == 2 * held + 1,
        "those that were held have their names, too: {left:?}"
    );
}

fn is_named(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| !is_part(&entry.path()))
}

#[test]
fn a_receiver_that_reads_nothing_leaves_when_it_is_asked_to() {
    let host = Host::new("shm");
    let tree = host.path("tree");
    large_tree(&tree, 15, 1_000_000);
    // Messages that the receiver does not read on purpose do not make it leave as idle.
    let options = ["--slow", "stop:3600s@0s", "--until-idle", "0"];
    let left = left_in_the_middle(&host, &tree, &options, |_| host.wait_held());
    assert_eq!((left.received.bytes, left.received.messages), (0, 0), "{left:?}");
}

#[test]
fn class_and_memory_instead_of_waiting_are_asked_for() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 2, 2_000_000);
    let _daemon = host.daemon();
    let recv = host.recv(&out, &["--class", "3", "--memory"]);
    let status = host.status().expect("the daemon answers");
    let session = &status.rows.sessions[0];
    assert_eq!((session.class, session.memory_instead_of_waiting), (3, true), "{status:?}");
    host.send(&[&tree], &[]).succeed::<SendReport>();
    assert_same(&tree, &out.join("tree"));
    let received: ReceiveReport = recv.stop();
    assert_eq!((received.class, received.memory), (3, true), "{received:?}");
}
