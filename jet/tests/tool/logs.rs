//! Tests of a standard error or output that takes nothing. A line that cannot be written never ends a
//! process, delays it, or costs a transfer.

use crate::host::Host;
use jet::commands::DrainReport;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_control::protocol::Register;
use jet_control::{ControlConnection, ControlRequest, ControlResponse};
use jet_test_support::limits::limit;
use jet_test_support::pipe::pipe;
use jet_test_support::process::Process;
use jet_test_support::tree::{assert_same, large_tree};
use jet_test_support::waiting::until;
use rustix::process::{Resource, Signal};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// Log that takes nothing.
pub enum Dead {
    /// The log's reader is gone.
    NoReader,
    /// The log's disk is full.
    FullDisk,
    /// The log is full, and its reader lives and reads nothing.
    Stopped,
    /// The log is as long as the process may make a file.
    TooLong,
}

impl Dead {
    pub const ALL: [Self; 4] = [Self::NoReader, Self::FullDisk, Self::Stopped, Self::TooLong];
    /// Limit of a file's length in bytes. It is larger than the daemon's memory files.
    const FILE_BYTES_MAX: u64 = 1 << 30;

    pub fn name(&self) -> &'static str {
        match self {
            Self::NoReader => "no reader",
            Self::FullDisk => "full disk",
            Self::Stopped => "stopped reader",
            Self::TooLong => "file size limit",
        }
    }

    /// Makes the log the command's standard error. The caller keeps the returned reader while the process
    /// runs.
    pub fn prepare(&self, host: &Host, command: &mut Command) -> Option<File> {
        let (reader, mut writer) = pipe();
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

/// Fills a pipe until it takes no more.
fn fill(writer: &mut File) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
}

/// Starts a daemon with that log.
fn daemon(host: &Host, log: &Dead) -> (Process, Option<File>) {
    let mut kept = None;
    let daemon = host.daemon_prepared(&[], |command| kept = log.prepare(host, command));
    (daemon, kept)
}

/// Registers an application and sends what ends its session. Returns its connection, which stays open.
fn speak_after_registering(host: &Host) -> ControlConnection {
    let sessions = || host.status().map(|status| status.rows.sessions.len());
    let before = until("the daemon to answer", sessions);
    let mut rude = ControlConnection::connect(&host.control()).unwrap();
    let register = ControlRequest::Register(Register::new("rude"));
    let (answer, _) = rude.request(&register).unwrap();
    assert!(matches!(answer, ControlResponse::Registered(_)), "{answer:?}");
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
        // While it serves, the daemon logs whose session it ended, and why.
        let rude = speak_after_registering(&host);
        host.send(&[&tree], &[]).succeed::<SendReport>();
        assert_same(&tree, &out.join("tree"));
        recv.stop::<ReceiveReport>();
        drop(rude);
        let control = host.control();
        let os = OsStr::new;
        let drain = host.start(&[os("drain"), os("--control-socket"), control.as_os_str(), os("--json")]);
        assert!(drain.succeed::<DrainReport>().draining, "{}", log.name());
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
        // A file that cannot be written makes the receiver log a complaint.
        fs::create_dir_all(out.join("tree/001")).unwrap();
        let mut daemon = host.daemon();
        let mut kept = None;
        let recv = host.recv_with(&out, &[], |command| kept = log.prepare(&host, command));
        recv.pause();
        let mut send = host.send(&[&tree], &["--piece-bytes", "1048576"]);
        host.wait_held();
        // The receiver logs that the daemon is gone, and that the next one is there.
        daemon.kill();
        recv.signal(Signal::CONT);
        let _next = host.daemon();
        assert_eq!(send.wait().code(), Some(1), "{}", log.name());
        let sent: SendReport = send.printed();
        assert_eq!((sent.files, sent.failed), (11, 1), "{}: {sent:?}", log.name());
        assert_eq!(fs::read(tree.join("000")).unwrap(), fs::read(out.join("tree/000")).unwrap());
        assert!(recv.is_running(), "{}", log.name());
        recv.stop::<ReceiveReport>();
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
        // The sender has already logged that there is no daemon.
        let _daemon = host.daemon();
        let recv = host.recv(&out, &[]);
        let sent: SendReport = send.succeed();
        assert_eq!(sent.files, 20, "{}: {sent:?}", log.name());
        assert_same(&tree, &out.join("tree"));
        recv.stop::<ReceiveReport>();
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
        assert!(
            full.stderr_text().contains("error: cannot print to stdout"),
            "{arguments:?}: {}",
            full.stderr_text()
        );
        let mut left = host.start_with(arguments, |command| {
            command.stdout(pipe().1);
        });
        assert_eq!((left.wait().code(), left.stderr_text()), (Some(0), String::new()), "{arguments:?}");
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
    until("the complaint", || recv.stderr_text().contains("rejected").then_some(()));
    let odd = host.path("n\x1b[5m\nowhere");
    let mut nowhere = host.send(&[&odd], &[]);
    assert_eq!(nowhere.wait().code(), Some(1));
    for (said, part) in [
        (send.stderr_text(), "\\u{1b}[2Jc"),
        (recv.stderr_text(), "\\u{1b}[31m"),
        (nowhere.stderr_text(), "\\u{1b}[5m"),
    ] {
        assert!(said.contains(part), "{said}");
        assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
        assert!(!said.contains("\njet: all is well"), "{said}");
    }
    assert!(send.stderr_text().contains("is left out"), "{}", send.stderr_text());
}

/// Parses a daemon's log lines as JSON objects.
pub fn objects(said: &str) -> Vec<Value> {
    said.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn lines_are_objects_with_levels_and_fields_where_that_is_asked_for() {
    let host = Host::new("shm");
    let daemon = host.daemon_with(&["log.form=json"]);
    let _rude = speak_after_registering(&host);
    let lines = until("the line about it", || {
        let lines = objects(&daemon.stderr_text());
        lines.iter().any(|line| line["audit"] == "ended").then_some(lines)
    });
    let about = lines.iter().find(|line| line["audit"] == "ended").expect("it is there");
    assert_eq!(about["application"], "rude", "{about}");
    assert_eq!((&about["level"], &about["program"]), (&"warn".into(), &"jetd".into()), "{about}");
    assert_eq!(about["process"], std::process::id(), "{about}");
    assert!(about["message"].as_str().expect("text").contains("a session is ended"), "{about}");
    let listening = lines
        .iter()
        .filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with("listening")));
    assert_eq!(listening.map(|line| line["level"].clone()).collect::<Vec<_>>(), ["info"]);
}

#[test]
fn the_tool_writes_lines_of_the_level_and_in_the_form_that_are_asked_for() {
    let host = Host::new("shm");
    let _daemon = host.daemon();
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 1, 1 << 16);
    let recv = host.recv(&out, &["--log-form", "json", "--slow", "1us"]);
    let mut quiet = host.send(&[&tree], &["--verbose", "--log-level", "warn"]);
    assert!(quiet.wait().success());
    assert_eq!(quiet.stderr_text(), "");
    let mut plain = host.send(&[&tree], &["--verbose", "--log-form", "human"]);
    assert!(plain.wait().success());
    // The log is a file, which notes no times by itself.
    let said = plain.stderr_text();
    let (time, text) = said.split_once(' ').expect("a time, and a text");
    assert!(text.starts_with("jet: "), "{said}");
    let time = humantime::parse_rfc3339(time).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(time.elapsed().is_ok_and(|elapsed| elapsed.as_secs() < 600), "{said}");
    // Slow on purpose: the receiver says so at its start.
    let lines = objects(&recv.stderr_text());
    assert!(lines.iter().any(|line| line["level"] == "info" && line["program"] == "jet"), "{lines:?}");
}

#[test]
fn who_connects_and_leaves_is_logged_with_its_fields_at_the_level_debug() {
    let host = Host::new("shm");
    let daemon = host.daemon_with(&["log.level=debug", "log.form=json"]);
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 1, 1 << 16);
    let _recv = host.recv(&out, &[]);
    host.send(&[&tree], &[]).succeed::<SendReport>();
    let lines = until("the line about the end", || {
        let lines = objects(&daemon.stderr_text());
        lines.iter().any(|line| line["message"] == "a sender's connection ended").then_some(lines)
    });
    let connects = lines.iter().find(|line| line["message"] == "a sender connects").expect("it came before");
    assert_eq!((&connects["level"], &connects["application"]), (&"debug".into(), &"store".into()));
    assert!(connects["peer"].is_u64(), "{connects}");
}

#[test]
fn less_important_lines_are_left_out_where_that_is_asked_for() {
    let host = Host::new("shm");
    let daemon = host.daemon_with(&["log.level=warn"]);
    let _rude = speak_after_registering(&host);
    let said = until("the line about it", || {
        Some(daemon.stderr_text()).filter(|said| said.contains("(audit ended, application rude"))
    });
    assert!(!said.contains("listening on") && !said.contains("audit registered"), "{said}");
}

/// Checks that a daemon tells why it does not start where no thread can be started: not even the log's.
#[test]
fn a_daemon_that_can_start_no_thread_says_so() {
    let host = Host::new("shm");
    let os = OsStr::new;
    let control = host.control();
    let arguments =
        [os("daemon"), os("--listen"), os(host.address()), os("--control-socket"), control.as_os_str()];
    // Each thread wants a stack that no machine has.
    let mut daemon =
        host.start_with(&arguments, |command| _ = command.env("RUST_MIN_STACK", (1u64 << 60).to_string()));
    assert_eq!(daemon.wait().code(), Some(1));
    let said = daemon.stderr_text();
    let mut lines = said.lines();
    let first = lines.next().unwrap_or_default();
    assert!(
        first.contains("jetd: error: the log's thread cannot be started (Resource temporarily"),
        "{said}"
    );
    assert!(lines.next().is_some_and(|line| line.contains("jetd: error: cannot start")), "{said}");
}

/// Checks that the log limits a line which everybody who may connect can cause again and again.
#[test]
fn a_line_that_a_stranger_brings_about_again_and_again_is_limited() {
    let host = Host::new("shm");
    let mut daemon = host.daemon_with(&["limits.sessions=1"]);
    // These are 200 more connections than a process may have: half of the 256 places.
    let mut crowd: Vec<_> = (0..328).map(|_| UnixStream::connect(host.control()).unwrap()).collect();
    // The daemon says why, and hangs up, as soon as it needs the place of each of these.
    for sent_away in &mut crowd[..200] {
        assert!(sent_away.read_to_end(&mut Vec::new()).unwrap() > 0);
    }
    drop(crowd);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    let said = daemon.stderr_text();
    // The last of these lines comes at the end, and tells how many did not.
    let written = said.matches("another needs its place").count() as u64 - 1;
    let told = said.split("half of them (and ").nth(1).and_then(|rest| rest.split(' ').next());
    let left_out = told.expect("the last tells how many were left out").parse::<u64>().unwrap();
    // Another thread may use the counts just then, or be preempted while it does. 32 lines of all kinds may
    // be written without them, and what comes on top is told as lost.
    assert!((8..=8 + 32).contains(&written) && left_out > 0, "{written} and {left_out}: {said}");
    let lost = said.lines().filter_map(|line| line.split_once(" line(s) left out, because they came faster"));
    let lost = lost.map(|(before, _)| before.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert!(written + left_out + lost.sum::<u64>() >= 200, "{written} and {left_out}: {said}");
}
