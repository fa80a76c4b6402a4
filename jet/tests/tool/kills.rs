//! Tests of each kind of process killed in the middle of a transfer: everything arrives, and nothing is lost.
//!
//! A receiver is stopped (SIGSTOP) while messages reach it. It then holds slabs, and its senders wait, so
//! that "in the middle" is certain.

use crate::host::Host;
use crate::parts::is_part;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_test_support::device::fabrics;
use jet_test_support::tree::{assert_same, large_tree, odd_tree};
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::fs;

const FILES: u64 = 16;
const FILE_BYTES: usize = 3 << 20;
const PIECES: &[&str] = &["--piece-bytes", "1048576"];

fn trees(host: &Host) -> std::path::PathBuf {
    let tree = host.path("tree");
    large_tree(&tree.join("large"), FILES, FILE_BYTES);
    odd_tree(&tree.join("odd"));
    tree
}

#[test]
fn a_receiver_killed_with_slabs_in_its_hands_is_followed_by_another() {
    for &fabric in fabrics() {
        let host = Host::new(fabric);
        let (tree, out) = (trees(&host), host.path("out"));
        let _daemon = host.daemon();
        let mut first = host.recv(&out, &[]);
        first.pause();
        let send = host.send(&[&tree], PIECES);
        host.wait_held();
        first.kill();
        // The second receiver is killed at an arbitrary point.
        let mut second = host.recv(&out, &[]);
        until("some bytes to be written", || {
            let files = fs::read_dir(out.join("tree/large")).ok()?.count();
            (files > 2).then_some(())
        });
        second.kill();
        let third = host.recv(&out, &[]);
        let sent: SendReport = send.succeed();
        assert!(sent.retried > 0, "{sent:?}");
        assert_same(&tree, &out.join("tree"));
        host.wait_whole();
        third.stop::<ReceiveReport>();
    }
}

#[test]
fn a_sender_killed_in_the_middle_costs_nobody_else_and_is_run_again() {
    for &fabric in fabrics() {
        let host = Host::new(fabric);
        let (tree, other, out) = (trees(&host), host.path("other"), host.path("out"));
        large_tree(&other, 3, 2_000_000);
        let _daemon = host.daemon();
        let recv = host.recv(&out, &[]);
        recv.pause();
        let mut killed = host.send(&[&tree], PIECES);
        let others = host.send(&[&other], PIECES);
        host.wait_held();
        killed.kill();
        recv.signal(Signal::CONT);
        others.succeed::<SendReport>();
        assert_same(&other, &out.join("other"));
        host.wait_whole();
        host.send(&[&tree], PIECES).succeed::<SendReport>();
        host.wait_whole();
        recv.stop::<ReceiveReport>();
        // The killed sender left only parts, and they can be swept.
        host.recv(&out, &["--sweep"]).stop::<ReceiveReport>();
        assert_same(&tree, &out.join("tree"));
    }
}

#[test]
fn a_daemon_killed_under_load_is_followed_by_another_and_what_comes_again_is_marked() {
    for &fabric in fabrics() {
        let host = Host::new(fabric);
        let (tree, out) = (trees(&host), host.path("out"));
        let mut daemon = host.daemon();
        let recv = host.recv(&out, &[]);
        recv.pause();
        let send = host.send(&[&tree], PIECES);
        host.wait_held();
        daemon.kill();
        let _next = host.daemon();
        recv.signal(Signal::CONT);
        let sent: SendReport = send.succeed();
        assert!(sent.redelivered > 0, "{sent:?}");
        assert_same(&tree, &out.join("tree"));
        host.wait_whole();
        let status = host.status().unwrap();
        assert!(status.messages.redelivered > 0, "{status:?}");
        let received: ReceiveReport = recv.stop();
        assert_eq!(received.sessions, 2, "{received:?}");
        assert!(received.received.redelivered > 0, "{received:?}");
    }
}

#[test]
fn an_interrupted_sender_leaves_no_parts() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, FILES, FILE_BYTES);
    let _daemon = host.daemon();
    let recv = host.recv(&out, &["--slow", "20ms", "--depth", "2"]);
    let mut send = host.send(&[&tree], PIECES);
    let parts = || {
        let entries = fs::read_dir(out.join("tree")).into_iter().flatten();
        entries.filter(|entry| is_part(&entry.as_ref().unwrap().path())).count()
    };
    until("files to be on their way", || (parts() > 2).then_some(()));
    send.signal(Signal::INT);
    assert_eq!(send.wait().code(), Some(1));
    assert!(send.stderr_text().contains("giving up"), "{}", send.stderr_text());
    host.wait_whole();
    recv.stop::<ReceiveReport>();
    assert_eq!(parts(), 0);
}
