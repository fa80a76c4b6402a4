//! Tests of panics in processes whose log is started: each is a log line, and its standard error holds up
//! nothing.

use crate::host::Host;
use crate::logs::{Dead, objects};
use jet::log::{self, Form, LogConfig};
use jet_test_support::process::Process;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Variable of the environment that names what the process of a test does.
const CHILD: &str = "JET_TEST_PANICS";

/// Runs this test's program again, as a process that panics.
fn process(host: &Host, what: &str, prepare: impl FnOnce(&mut Command)) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["panics::a_process_that_panics", "--exact", "--nocapture"]);
    command.env(CHILD, what).env("RUST_BACKTRACE", "0");
    host.folder.start_with(what, command, prepare)
}

/// Panics while it is dropped.
struct PanicsToo;

impl Drop for PanicsToo {
    fn drop(&mut self) {
        panic!("the second");
    }
}

/// Does nothing, except in the processes that the other tests start.
#[test]
fn a_process_that_panics() {
    let Ok(what) = std::env::var(CHILD) else { return };
    jet::commands::ignore_file_size_signal();
    let _log = log::start("jetd");
    log::configure(&LogConfig { form: Form::Json, ..LogConfig::default() });
    match what.as_str() {
        "thread" => {
            let thread = std::thread::Builder::new().name("worker-7".to_owned());
            let ended = thread.spawn(|| panic!("on purpose\nin two lines")).unwrap().join();
            ended.unwrap_err();
        }
        "often" => {
            for _ in 0..1000 {
                std::thread::spawn(|| panic!("again")).join().unwrap_err();
            }
        }
        "end" => panic!("at the end"),
        "twice" => {
            let _panics_too = PanicsToo;
            panic!("the first");
        }
        other => unreachable!("{other}"),
    }
}

fn messages(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["message"].as_str().expect("text")).collect()
}

#[test]
fn a_panic_is_an_error_with_its_thread_and_place() {
    let host = Host::new("shm");
    let mut process = process(&host, "thread", |_| {});
    assert!(process.wait().success());
    let lines = objects(&process.stderr_text());
    assert_eq!(messages(&lines), ["panicked: on purpose\nin two lines"]);
    let line = &lines[0];
    assert_eq!((&line["level"], &line["thread"]), (&"error".into(), &"worker-7".into()), "{line}");
    let place = line["place"].as_str().expect("text");
    assert!(place.contains("tests/tool/panics.rs:"), "{line}");
}

#[test]
fn a_panic_that_ends_the_process_is_seen() {
    let host = Host::new("shm");
    let mut end = process(&host, "end", |_| {});
    assert_eq!(end.wait().code(), Some(101));
    assert_eq!(messages(&objects(&end.stderr_text())), ["panicked: at the end"]);
    // A panic within a panic: the process ends by SIGABRT, without unwinding. Rust itself says so at last.
    let mut twice = process(&host, "twice", |_| {});
    assert_eq!(twice.wait().signal(), Some(libc::SIGABRT));
    let said = twice.stderr_text();
    let whole: Vec<&str> = said.lines().filter(|line| line.starts_with('{')).collect();
    let lines = objects(&whole.join("\n"));
    assert_eq!(messages(&lines)[..2], ["panicked: the first", "panicked: the second"], "{said}");
}

#[test]
fn panics_are_limited_like_other_lines() {
    let host = Host::new("shm");
    let mut process = process(&host, "often", |_| {});
    assert!(process.wait().success());
    let lines = objects(&process.stderr_text());
    let left_out: u64 = lines.iter().filter_map(|line| line["left_out"].as_u64()).sum();
    assert!(lines.len() < 200, "{} lines", lines.len());
    // Each line but the last, which repeats one, tells of a panic of its own.
    assert_eq!(lines.len() as u64 - 1 + left_out, 1000);
}

#[test]
fn a_panic_holds_up_no_process_whose_log_takes_nothing() {
    for dead in Dead::ALL {
        for (what, code) in [("thread", Some(0)), ("end", Some(101)), ("twice", None)] {
            let host = Host::new("shm");
            let mut kept = None;
            let mut process = process(&host, what, |command| kept = dead.prepare(&host, command));
            assert_eq!(process.wait().code(), code, "{}, {what}", dead.name());
        }
    }
}
