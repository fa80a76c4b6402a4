//! Tests of files that change between the walk, the first look and the end. A file that is reported as sent
//! arrived as it is.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_client::receive::{RegisterOptions, Session};
use jet_test_support::tree::test_bytes;
use jet_test_support::waiting::{WAIT_LIMIT, until};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

#[test]
fn a_sparse_file_that_is_filled_before_there_is_a_receiver_is_sent_as_it_is_then() {
    let host = Host::new("shm");
    let (path, out) = (host.path("file"), host.path("out"));
    let file = File::create(&path).unwrap();
    // The file is shorter than a piece, so that the sender looks into it at once.
    file.set_len(4 << 20).unwrap();
    let _daemon = host.daemon();
    let send = host.send(&[&path], &["-v"]);
    until("the beginning to be refused", || {
        send.stderr_text().contains("no application 'store' is registered").then_some(())
    });
    for at in 0..4 {
        file.write_all_at(&test_bytes(at, 1 << 20), at << 20).unwrap();
    }
    let recv = host.recv(&out, &[]);
    let sent: SendReport = send.succeed();
    assert!(fs::read(&path).unwrap() == fs::read(out.join("file")).unwrap(), "called sent, and differs");
    assert_eq!((sent.sent_again, sent.files), (1, 1), "{sent:?}");
    recv.stop::<ReceiveReport>();
}

/// Covers a file that is written to while its last piece is in flight. No check of a later piece can show the
/// change.
#[test]
fn a_file_that_changes_after_its_last_piece_was_read_is_sent_again() {
    const COMPLETE: u8 = 4;
    const BEGIN: u8 = 6;
    let host = Host::new("shm");
    let path = host.path("file");
    fs::write(&path, test_bytes(1, 30_000)).unwrap();
    let _daemon = host.daemon();
    let mut options = RegisterOptions::new("store");
    options.control_socket = host.control();
    let session = Session::register(&options).unwrap();
    let send = host.send(&[&path], &["--piece-bytes", "8192"]);
    let (mut kinds, mut piece_bytes) = (Vec::new(), 0);
    while send.is_running() {
        // The daemon learns with the next call of `receive` what was consumed.
        let Ok(mut message) = session.receive_timeout(Duration::from_millis(20)) else {
            continue;
        };
        while message.next_timeout(WAIT_LIMIT).unwrap().is_some() {}
        kinds.push(message.user_header()[1]);
        piece_bytes += message.bytes();
        if piece_bytes == 30_000 {
            piece_bytes = 0;
            if kinds.iter().filter(|&&kind| kind == BEGIN).count() == 1 {
                File::options().append(true).open(&path).unwrap().set_len(29_999).unwrap();
                File::options().append(true).open(&path).unwrap().set_len(30_000).unwrap();
            }
        }
        message.consume();
    }
    let sent: SendReport = send.succeed();
    let count = |wanted| kinds.iter().filter(|&&kind| kind == wanted).count();
    assert_eq!((count(BEGIN), count(COMPLETE), sent.sent_again), (2, 1, 1), "{kinds:?} {sent:?}");
}

#[test]
fn a_file_that_says_it_is_empty_and_is_not_is_refused() {
    let host = Host::new("shm");
    let out = host.path("out");
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    let mut send = host.send(&[Path::new("/proc/cpuinfo")], &[]);
    assert_eq!(send.wait().code(), Some(1));
    assert!(send.stderr_text().contains("write what it holds to another file"), "{}", send.stderr_text());
    assert!(!out.join("cpuinfo").exists());
    recv.stop::<ReceiveReport>();
}

/// Sends a file directly in `.`, whose path has one component, like that of a file that is named on the
/// command line.
#[test]
fn a_link_that_takes_a_files_place_while_it_is_sent_is_not_followed() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("file"), test_bytes(1, 40 << 20)).unwrap();
    fs::write(host.path("elsewhere"), "nobody's business").unwrap();
    std::os::unix::fs::symlink(host.path("elsewhere"), host.path("link")).unwrap();
    let _daemon = host.daemon();
    let recv = host.recv(&out, &["--slow", "20ms", "--depth", "2"]);
    let mut send = host.send_with(&[Path::new(".")], &["--piece-bytes", "1048576"], |command| {
        command.current_dir(&tree);
    });
    // The transfer has begun, and pieces have arrived.
    host.wait_held();
    fs::rename(host.path("link"), tree.join("file")).unwrap();
    assert_eq!(send.wait().code(), Some(1));
    assert!(send.stderr_text().contains("is a symbolic link now"), "{}", send.stderr_text());
    assert!(!out.join("file").exists());
    recv.stop::<ReceiveReport>();
}
