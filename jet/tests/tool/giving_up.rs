//! Tests of `jet send` where not everything can be sent. It ends all the same, and reports every file
//! correctly.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_client::receive::{RegisterOptions, Session};
use jet_test_support::tree::{large_tree, snapshot, test_bytes};
use jet_test_support::waiting::{WAIT_LIMIT, until};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

// Kinds of messages, as in `jet::files::header`.
const DIRECTORY: u8 = 1;
const COMPLETE: u8 = 4;
const WHOLE: u8 = 8;

/// Covers a next receiver that takes no message as long as the path. The sender cannot even tell it to remove
/// its part of the file.
#[test]
fn a_path_that_the_next_receiver_takes_no_more_ends_the_file() {
    let host = Host::new("shm");
    let (path, out) = (host.path(&"n".repeat(200)), host.path("out"));
    fs::write(&path, test_bytes(1, 40 << 20)).unwrap();
    let mut daemon = host.daemon();
    let mut recv = host.recv(&out, &["--slow", "20ms", "--depth", "2"]);
    let mut send = host.send(&[&path], &["--piece-bytes", "1048576"]);
    until("a part with some MiB", || {
        let blocks = |entry: fs::DirEntry| entry.metadata().map_or(0, |metadata| metadata.blocks());
        let some = |entry: std::io::Result<fs::DirEntry>| entry.is_ok_and(|entry| blocks(entry) > 4 << 11);
        fs::read_dir(&out).unwrap().any(some).then_some(())
    });
    recv.kill();
    daemon.kill();
    let _daemon = host.daemon_with(&["read.message_bytes_max=100"]);
    let recv = host.recv(&out, &[]);
    assert_eq!(send.wait().code(), Some(1));
    let (said, sent) = (send.stderr_text(), send.printed::<SendReport>());
    assert_eq!((sent.files, sent.failed), (0, 1), "{sent:?}");
    assert!(said.contains("read.message_bytes_max"), "{said}");
    recv.stop::<ReceiveReport>();
}

#[test]
fn what_arrives_after_a_signal_is_called_sent() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    // All files are in flight at once, the large one last.
    large_tree(&tree.join("small"), 100, 1000);
    large_tree(&tree.join("large"), 1, 100_000);
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    recv.pause();
    let mut send = host.send(&[&tree.join("small"), &tree.join("large")], &[]);
    host.wait_held();
    send.signal(Signal::TERM);
    until("it to be giving up", || send.stderr_text().contains("giving up").then_some(()));
    recv.signal(Signal::CONT);
    assert_eq!(send.wait().code(), Some(1));
    let sent: SendReport = send.printed();
    assert_eq!((sent.files, sent.failed), (101, 0), "{sent:?}");
    for directory in ["small", "large"] {
        let modes_aside = |root: &std::path::Path| {
            let files = snapshot(root).into_iter();
            files.map(|(name, (_, hash))| (name, hash)).collect::<Vec<_>>()
        };
        assert_eq!(modes_aside(&tree.join(directory)), modes_aside(&out.join(directory)));
    }
    recv.stop::<ReceiveReport>();
}

/// Covers each message that ends a file or a directory and is consumed after the signal.
#[test]
fn what_is_consumed_after_a_signal_is_called_sent() {
    for (kind, files, directories) in [(WHOLE, 1, 0), (COMPLETE, 1, 0), (DIRECTORY, 1, 1)] {
        let host = Host::new("shm");
        let path = host.path("path");
        match kind {
            WHOLE => fs::write(&path, "x").unwrap(),
            COMPLETE => fs::File::create(&path).unwrap().set_len(1 << 20).unwrap(),
            _ => large_tree(&path, 1, 1000),
        }
        let _daemon = host.daemon();
        let mut options = RegisterOptions::new("store");
        options.control_socket = host.control();
        let session = Session::register(&options).unwrap();
        let mut send = host.send(&[&path], &[]);
        let mut given_up = false;
        while send.is_running() {
            // The daemon learns with the next call of `receive` what was consumed.
            let Ok(mut message) = session.receive_timeout(Duration::from_millis(20)) else {
                continue;
            };
            while message.next_timeout(WAIT_LIMIT).unwrap().is_some() {}
            if message.user_header()[1] == kind && !std::mem::replace(&mut given_up, true) {
                send.signal(Signal::TERM);
                until("it to be giving up", || send.stderr_text().contains("giving up").then_some(()));
            }
            message.consume();
        }
        assert_eq!(send.wait().code(), Some(1));
        let sent: SendReport = send.printed();
        let ends = [sent.files, sent.directories, sent.failed];
        assert_eq!(ends, [files, directories, 0], "kind {kind}: {sent:?}");
    }
}
