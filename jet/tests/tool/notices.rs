//! Tests of what the tool reports when something is wrong, and of its exit codes.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_client::send::{AckStatus, Sender, SenderOptions};
use jet_control::status::Checksums;
use jet_test_support::tree::{assert_same, large_tree};
use jet_test_support::waiting::{WAIT_LIMIT, until};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::process::Stdio;

const PIECES: &[&str] = &["--piece-bytes", "1048576"];

#[test]
fn a_sweep_leaves_the_parts_of_a_receiver_that_lives() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 12, 1 << 20);
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    recv.pause();
    let send = host.send(&[&tree], PIECES);
    host.wait_held();
    let (control, os) = (host.control(), OsStr::new);
    let sweep = || {
        let mut arguments = vec![os("recv"), os("--app"), os("other"), os("--out"), out.as_os_str()];
        arguments.extend([
            os("--control-socket"),
            control.as_os_str(),
            os("--sweep"),
            os("--until-idle"),
            os("0"),
        ]);
        host.start(&arguments)
    };
    let left = out.join(".jet-part-left");
    fs::write(&left, "x").unwrap();
    let mut refused = sweep();
    assert_eq!(refused.wait().code(), Some(1));
    assert!(refused.stderr_text().contains("another receiver uses it"), "{}", refused.stderr_text());
    assert!(left.exists());
    recv.signal(Signal::CONT);
    send.succeed::<SendReport>();
    assert_same(&tree, &out.join("tree"));
    recv.stop::<ReceiveReport>();
    let mut swept = sweep();
    assert_eq!(swept.wait().code(), Some(0), "{}", swept.stderr_text());
    assert!(swept.stderr_text().contains("removed 1 part\n"), "{}", swept.stderr_text());
    assert!(!left.exists());
}

#[test]
fn a_daemon_that_goes_is_told_by_both_ends_and_so_is_the_next() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 12, 1 << 20);
    let mut daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    recv.pause();
    let send = host.send(&[&tree], PIECES);
    host.wait_held();
    daemon.kill();
    until("the loss to be told", || send.stderr_text().contains("lost; trying again for 30 s").then_some(()));
    recv.signal(Signal::CONT);
    until("the receiver to notice", || recv.stderr_text().contains("the daemon is gone").then_some(()));
    let _next = host.daemon();
    until("the connection to be told", || send.stderr_text().contains("is back").then_some(()));
    send.succeed::<SendReport>();
    until("the receiver to tell", || recv.stderr_text().contains("registered as store").then_some(()));
    let said = recv.stderr_text();
    assert_eq!(said.matches("registering again as soon as one runs").count(), 1, "{said}");
    assert!(!said.contains("trying again"), "{said}");
    recv.stop::<ReceiveReport>();
}

#[test]
fn an_application_that_is_away_is_told_while_it_is_waited_for() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 1, 100);
    let _daemon = host.daemon();
    let send = host.send(&[&tree], &[]);
    until("the refusals to be told", || {
        send.stderr_text().contains("no application 'store' is registered").then_some(())
    });
    let recv = host.recv(&out, &[]);
    send.succeed::<SendReport>();
    recv.stop::<ReceiveReport>();
}

#[test]
fn what_was_never_tried_is_counted() {
    let host = Host::new("shm");
    let tree = host.path("tree");
    large_tree(&tree, 500, 10);
    let _daemon = host.daemon();
    let mut send = host.send(&[&tree], &["--retry-for", "0"]);
    assert_eq!(send.wait().code(), Some(1));
    let sent: SendReport = send.printed();
    assert!(sent.not_tried > 0, "{sent:?}");
    assert_eq!(sent.files + sent.directories + sent.failed + sent.not_tried, 501, "{sent:?}");
    assert_eq!(sent.total, 501, "{sent:?}");
}

#[test]
fn a_receiver_that_never_registered_prints_an_error_alone() {
    let host = Host::new("shm");
    let mut recv = host.recv_unwatched(&host.path("out"), &["--daemon-timeout", "0"], |_| {});
    assert_eq!(recv.wait().code(), Some(1));
    assert_eq!(recv.printed_bytes(), b"");
    assert!(recv.stderr_text().contains("is jetd running?"), "{}", recv.stderr_text());
}

/// A tree of which more fails than the log takes of lines that a stranger can cause.
#[test]
fn each_file_that_was_not_sent_is_named_however_many_there_are() {
    const FILES: usize = 60;
    let host = Host::new("shm");
    let _daemon = host.daemon();
    let (tree, out) = (host.path("tree"), host.path("out"));
    std::fs::create_dir(&tree).unwrap();
    for n in 0..FILES {
        std::fs::write(tree.join(format!("file-{n}.")), b"x").unwrap();
        // A file cannot take the name of a directory that is not empty.
        std::fs::create_dir_all(out.join(format!("tree/file-{n}./occupied"))).unwrap();
    }
    let _recv = host.recv(&out, &[]);
    let mut send = host.send(&[&tree], &[]);
    assert_eq!(send.wait().code(), Some(1));
    let said = send.stderr_text();
    for n in 0..FILES {
        assert!(said.contains(&format!("tree/file-{n}. was not sent: ")), "{n}: {said}");
    }
}

#[test]
fn what_cannot_be_done_is_an_error_that_is_named() {
    let host = Host::new("shm");
    let os = OsStr::new;
    let mut send = host.send(&[std::path::Path::new("/dev/null")], &[]);
    assert_eq!(send.wait().code(), Some(1));
    assert!(
        send.stderr_text().contains("/dev/null is neither a file nor a directory"),
        "{}",
        send.stderr_text()
    );
    let work = host.folder.path().as_os_str();
    let mut demo = host.start(&[os("demo"), os("--bytes"), os("1MiB"), os("--work-dir"), work]);
    assert_eq!(demo.wait().code(), Some(1));
    assert!(demo.stderr_text().contains("(96MiB)"), "{}", demo.stderr_text());
    let _daemon = host.daemon();
    let control = host.control();
    for json in [&[][..], &["--json"]] {
        let mut arguments = vec![os("status"), os("--control-socket"), control.as_os_str()];
        arguments.extend(json.iter().map(|option| os(option)));
        let mut status = host.start_with(&arguments, |command| {
            command.stdout(Stdio::from(File::options().write(true).open("/dev/full").unwrap()));
        });
        assert_eq!(status.wait().code(), Some(1));
        assert!(status.stderr_text().contains("cannot print"), "{}", status.stderr_text());
    }
}

#[test]
fn checksums_that_the_next_daemon_checks_none_of_are_told_and_counted() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 24, 1 << 20);
    let mut daemon = host.daemon_with(&["read.checksums=workers"]);
    let recv = host.recv(&out, &[]);
    recv.pause();
    let send = host.send(&[&tree], &["--piece-bytes", "1048576", "--crc"]);
    host.wait_held();
    assert!(!send.stderr_text().contains("checksums"), "{}", send.stderr_text());
    daemon.kill();
    recv.signal(Signal::CONT);
    let next = host.daemon_with(&["read.checksums=off"]);
    until("it to be told", || send.stderr_text().contains("what is sent goes without").then_some(()));
    assert_eq!(host.status().unwrap().reads.checksums, Checksums::Off);
    let sent: SendReport = send.succeed();
    assert!(sent.unchecked > 0, "{sent:?}");
    assert_same(&tree, &out.join("tree"));
    recv.stop::<ReceiveReport>();
    drop(next);
}

#[test]
fn messages_that_are_rejected_again_and_again_are_told_in_few_lines_and_counted() {
    const MESSAGES: u64 = 2000;
    let host = Host::on_shm();
    let mut daemon = host.daemon();
    let recv = host.recv(&host.path("out"), &[]);
    let address = host.address().parse().expect("an address");
    let mut sender = Sender::connect(&SenderOptions::new(address, "store")).expect("let in");
    for tag in 0..MESSAGES {
        sender.send_small(tag, b"no part of a file").expect("there is room for one");
        let end = sender.wait_timeout(WAIT_LIMIT).expect("it ends").expect("it is in flight");
        assert!(matches!(end.status, AckStatus::Rejected(_)), "{:?}", end.status);
    }
    drop(sender);
    recv.signal(Signal::TERM);
    until("the receiver's end", || (!recv.is_running()).then_some(()));
    let said = recv.stderr_text();
    // Eight of each kind in 10 s, and 32 of all kinds where another thread uses the counts just then.
    let lines = said.lines().filter(|line| line.contains("rejected: ")).count();
    // On a busy host more of the latter: a tenth of the messages is still few.
    assert!(lines > 0 && (lines as u64) < MESSAGES / 10, "{lines} lines: {said}");
    // What has no line is counted: by the receiver where several came at once, by its log where they came one
    // after the other.
    assert!(said.contains(" more messages, ") || said.contains(" more of this kind, left out"), "{said}");
    assert_eq!(recv.printed::<ReceiveReport>().received.rejected, MESSAGES);
    // The daemon says nothing of it: the messages are between the sender and its application.
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    assert!(!daemon.stderr_text().contains("reject"), "{}", daemon.stderr_text());
}
