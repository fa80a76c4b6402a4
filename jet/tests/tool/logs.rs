//! Standard error and standard output that take nothing: no line that cannot be written ends a process, holds it up, or
//! costs a transfer.

use crate::host::Host;
use jet_control::protocol::PROTOCOL_VERSION;
use jet_control::{ControlConnection, ControlRequest, ControlResponse};
use jet_test_support::limits::limit;
use jet_test_support::process::Process;
use jet_test_support::tree::{assert_same, large_tree};
use jet_test_support::waiting::until;
use rustix::process::{Resource, Signal};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{PipeReader, Write, pipe};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

/// A log that takes nothing.
enum Dead {
    /// Its reader is gone.
    NoReader,
    /// Its disk is full.
    FullDisk,
    /// Its reader lives and reads nothing, and it holds all that it can.
    Stopped,
    /// It is as long as files of the process may be.
    TooLong,
}

impl Dead {
    const ALL: [Self; 4] = [Self::NoReader, Self::FullDisk, Self::Stopped, Self::TooLong];
    /// Above what the daemon's memory takes.
    const FILE_BYTES_MAX: u64 = 1 << 30;

    fn name(&self) -> &'static str {
        match self {
            Self::NoReader => "no reader",
            Self::FullDisk => "full disk",
            Self::Stopped => "stopped reader",
            Self::TooLong => "file size limit",
        }
    }

    /// Makes it the command's standard error. What is given back is kept while the process runs.
    fn prepare(&self, host: &Host, command: &mut Command) -> Option<PipeReader> {
        let (reader, mut writer) = pipe().unwrap();
        match self {
            Self::NoReader => {
                command.stderr(writer);
                None
            }
            Self::FullDisk => {
                command.stderr(File::options().write(true).open("/dev/full").unwrap());
                None
            }
            Self::Stopped => {
                fill(&mut writer);
                command.stderr(writer);
                Some(reader)
            }
            Self::TooLong => {
                let path = host.path("long.log");
                let log = File::options().append(true).create(true).open(&path).unwrap();
                log.set_len(Self::FILE_BYTES_MAX).unwrap();
                command.stderr(log);
                limit(command, Resource::Fsize, Self::FILE_BYTES_MAX);
                None
            }
        }
    }
}

/// Leaves a pipe no room.
fn fill(writer: &mut std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
}

/// A daemon with that log.
fn daemon(host: &Host, log: &Dead) -> (Process, Option<PipeReader>) {
    let mut kept = None;
    let daemon = host.daemon_prepared(&[], |command| kept = log.prepare(host, command));
    (daemon, kept)
}

/// An application that does what ends its session. What is given back is its connection, which lives on.
fn speak_after_registering(host: &Host) -> ControlConnection {
    let sessions = || host.status().map(|status| status.rows.sessions.len());
    let before = until("the daemon to answer", sessions);
    let mut rude = ControlConnection::connect(&host.control()).unwrap();
    let register = ControlRequest::Register {
        protocol: PROTOCOL_VERSION,
        app: "rude".to_owned(),
        class: 0,
        memory_instead_of_waiting: false,
    };
    let (answer, _) = rude.request(&register).unwrap();
    assert!(matches!(answer, ControlResponse::Registered { .. }), "{answer:?}");
    until("its session", || sessions().filter(|&now| now > before));
    jet_fabric::unix::send_with_fds(rude.as_fd(), b"what?", &[]).unwrap();
    until("its session's end", || sessions().filter(|&now| now == before));
    rude
}

#[test]
fn a_daemon_whose_log_takes_nothing_starts_serves_and_drains() {
    for log in Dead::ALL {
        let host = Host::new("shm");
        let (tree, out) = (host.path("tree"), host.path("out"));
        large_tree(&tree, 2, 1 << 20);
        let (mut daemon, _log) = daemon(&host, &log);
        let recv = host.recv(&out, &[]);
        // In the midst of its service it says whose session it ended, and why.
        let rude = speak_after_registering(&host);
        host.send(&[&tree], &[]).succeed();
        assert_same(&tree, &out.join("tree"));
        recv.stop();
        drop(rude);
        let control = host.control();
        let os = OsStr::new;
        let drain = host.start(&[os("drain"), os("--control-socket"), control.as_os_str(), os("--json")]);
        assert_eq!(drain.succeed()["draining"], true, "{}", log.name());
        assert_eq!(daemon.wait().code(), Some(0), "{}", log.name());
        let (mut next, _log) = self::daemon(&host, &log);
        next.signal(Signal::TERM);
        assert_eq!(next.wait().code(), Some(0), "{}", log.name());
    }
}

#[test]
fn a_receiver_whose_log_takes_nothing_loses_no_transfer() {
    for log in Dead::ALL {
        let host = Host::new("shm");
        let (tree, out) = (host.path("tree"), host.path("out"));
        large_tree(&tree, 12, 1 << 20);
        // What cannot be written is complained about.
        fs::create_dir_all(out.join("tree/001")).unwrap();
        let mut daemon = host.daemon();
        let mut kept = None;
        let recv = host.recv_with(&out, &[], |command| kept = log.prepare(&host, command));
        recv.pause();
        let mut send = host.send(&[&tree], &["--piece-bytes", "1048576"]);
        host.wait_held();
        // That the daemon goes is said, and that the next is there.
        daemon.kill();
        recv.signal(Signal::CONT);
        let _next = host.daemon();
        assert_eq!(send.wait().code(), Some(1), "{}", log.name());
        let sent = send.printed();
        assert_eq!((&sent["files"], &sent["failed"]), (&11.into(), &1.into()), "{}: {sent}", log.name());
        assert_eq!(fs::read(tree.join("000")).unwrap(), fs::read(out.join("tree/000")).unwrap());
        assert!(recv.is_running(), "{}", log.name());
        recv.stop();
    }
}

#[test]
fn a_sender_whose_log_takes_nothing_sends_all_the_same() {
    for log in Dead::ALL {
        let host = Host::new("shm");
        let (tree, out) = (host.path("tree"), host.path("out"));
        large_tree(&tree, 20, 100_000);
        let mut kept = None;
        let send = host.send_with(&[&tree], &["-v", "--progress"], |command| {
            kept = log.prepare(&host, command);
        });
        // It said already that nobody is there.
        let _daemon = host.daemon();
        let recv = host.recv(&out, &[]);
        let sent = send.succeed();
        assert_eq!(sent["files"], 20, "{}: {sent}", log.name());
        assert_same(&tree, &out.join("tree"));
        recv.stop();
    }
}

#[test]
fn a_result_that_cannot_be_printed_is_an_error_unless_its_reader_left() {
    let host = Host::new("shm");
    let _daemon = host.daemon();
    let os = OsStr::new;
    let control = host.control();
    let control = [os("--control-socket"), control.as_os_str()];
    let status = [&[os("status")], &control[..]].concat();
    let status_json = [&status[..], &[os("--json")]].concat();
    for arguments in [
        &status[..],
        &status_json,
        &[os("daemon"), os("--print-config")],
        &[os("--help")],
        &[os("--version")],
        &[os("help"), os("send")],
    ] {
        let mut full = host.start_with(arguments, |command| {
            command.stdout(Stdio::from(File::options().write(true).open("/dev/full").unwrap()));
        });
        assert_eq!(full.wait().code(), Some(1), "{arguments:?}");
        assert!(full.said().contains("jet: cannot print to stdout"), "{arguments:?}: {}", full.said());
        let mut left = host.start_with(arguments, |command| {
            command.stdout(pipe().unwrap().1);
        });
        assert_eq!((left.wait().code(), left.said()), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn names_with_control_characters_reach_no_terminal_as_they_are() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    fs::create_dir_all(&tree).unwrap();
    fs::create_dir_all(out.join("tree/b\x1b[31m\nd")).unwrap();
    fs::write(tree.join("a\x1b[2Jc\njet: all is well"), "x").unwrap();
    fs::write(tree.join("b\x1b[31m\nd"), "x").unwrap();
    std::os::unix::fs::symlink("a", tree.join("l\x1b]0;title\x07")).unwrap();
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    let mut send = host.send(&[&tree], &["-v"]);
    assert_eq!(send.wait().code(), Some(1));
    until("the complaint", || recv.said().contains("rejected").then_some(()));
    let odd = host.path("n\x1b[5m\nowhere");
    let mut nowhere = host.send(&[&odd], &[]);
    assert_eq!(nowhere.wait().code(), Some(1));
    for (said, part) in
        [(send.said(), "\\u{1b}[2Jc"), (recv.said(), "\\u{1b}[31m"), (nowhere.said(), "\\u{1b}[5m")]
    {
        assert!(said.contains(part), "{said}");
        assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
        assert!(!said.contains("\njet: all is well"), "{said}");
    }
    assert!(send.said().contains("is left out"), "{}", send.said());
}
