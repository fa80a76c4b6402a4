//! Tests of trees that are sent through daemon, receiver and sender as separate processes.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_test_support::tree::{assert_same, odd_tree};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fs;
use std::os::unix::process::CommandExt;

fn round_trip(fabric: &str, recv_options: &[&str], send_options: &[&str]) -> (SendReport, ReceiveReport) {
    let host = Host::new(fabric);
    let (tree, out) = (host.path("tree"), host.path("out"));
    odd_tree(&tree);
    let _daemon = host.daemon();
    let recv = host.recv(&out, recv_options);
    let sent: SendReport = host.send(&[&tree], send_options).succeed();
    assert_eq!(sent.failed, 0, "{sent:?}");
    assert_eq!(sent.skipped, 1, "{sent:?}");
    assert_same(&tree, &out.join("tree"));
    host.wait_whole();
    let received: ReceiveReport = recv.stop();
    assert_eq!(received.received.bytes, sent.bytes, "{received:?}");
    assert_eq!(received.received.files, sent.files, "{received:?}");
    assert_eq!(received.received.directories, sent.directories, "{received:?}");
    assert_eq!(received.received.rejected, 0, "{received:?}");
    let all = received.received.bytes_direct + received.received.bytes_buffered;
    assert_eq!(received.received.bytes, all, "{received:?}");
    (sent, received)
}

#[test]
fn an_odd_tree_arrives_over_shm() {
    round_trip("shm", &[], &[]);
}

#[test]
fn an_odd_tree_arrives_over_tcp() {
    round_trip("tcp", &[], &["--crc"]);
}

#[test]
fn small_pieces_and_one_at_a_time_make_the_same_tree() {
    let (sent, _) = round_trip("shm", &["--depth", "2"], &["--piece-bytes", "65536", "--in-flight", "1"]);
    assert!(sent.messages > 300, "{sent:?}");
}

#[test]
fn as_many_pieces_as_may_be_in_flight_make_the_same_tree() {
    round_trip("shm", &[], &["--piece-bytes", "5000", "--in-flight", "200", "--crc"]);
}

#[test]
fn what_is_synced_is_the_same_tree() {
    let (_, received) = round_trip("tcp", &["--fsync"], &["--piece-bytes", "1000000"]);
    assert!(received.fsync);
}

#[test]
fn without_io_uring_and_o_direct_it_is_the_same_tree() {
    let (_, received) = round_trip("shm", &["--no-io-uring", "--no-direct"], &["--piece-bytes", "100000"]);
    assert_eq!(received.engine, "pwrite");
    assert_eq!(received.received.bytes_direct, 0);
}

/// Makes io_uring_setup fail with EPERM in this process, as containers do.
fn forbid_io_uring() -> std::io::Result<()> {
    let io_uring_setup = u32::try_from(libc::SYS_io_uring_setup).expect("a system call's number");
    let code = |parts: [u32; 3]| u16::try_from(parts[0] | parts[1] | parts[2]).expect("BPF codes are short");
    let load = code([libc::BPF_LD, libc::BPF_W, libc::BPF_ABS]);
    let jump = code([libc::BPF_JMP, libc::BPF_JEQ, libc::BPF_K]);
    let ret = code([libc::BPF_RET, libc::BPF_K, 0]);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut filter = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: jump, jt: 0, jf: 1, k: io_uring_setup },
        libc::sock_filter { code: ret, jt: 0, jf: 0, k: refuse },
        libc::sock_filter { code: ret, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live through the call. Both calls change this process alone.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    if results == [0, 0] { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn where_io_uring_is_forbidden_pwrite_takes_its_place_and_it_is_said() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    odd_tree(&tree);
    let _daemon = host.daemon();
    let recv = host.recv_with(&out, &[], |command| {
        // SAFETY: two system calls between fork and exec, no allocation.
        unsafe { command.pre_exec(forbid_io_uring) };
    });
    host.send(&[&tree], &[]).succeed::<SendReport>();
    assert_same(&tree, &out.join("tree"));
    assert!(recv.stderr_text().contains("no io_uring"), "{}", recv.stderr_text());
    let received: ReceiveReport = recv.stop();
    assert_eq!(received.engine, "pwrite");
    assert!(received.io_uring_refused.is_some(), "{received:?}");
}

#[test]
fn a_receiver_leaves_after_the_files_that_were_asked_for() {
    let host = Host::new("shm");
    let tree = host.path("tree");
    fs::create_dir_all(&tree).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(tree.join(name), name).unwrap();
    }
    let _daemon = host.daemon();
    let recv = host.recv(&host.path("out"), &["--count", "3"]);
    host.send(&[&tree.join("a"), &tree.join("b"), &tree.join("c")], &[]).succeed::<SendReport>();
    let received: ReceiveReport = recv.succeed();
    assert_eq!((received.received.files, received.ended.as_str()), (3, "count"));
    assert_same(&tree, &host.path("out"));
    let idle: ReceiveReport =
        host.recv_unwatched(&host.path("out"), &["--until-idle", "0.05"], |_| {}).succeed();
    assert_eq!((idle.received.files, idle.ended.as_str()), (0, "idle"));
}

#[test]
fn files_that_cannot_be_sent_are_named_and_the_others_go_on() {
    let host = Host::new("shm");
    let tree = host.path("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("good"), "good").unwrap();
    fs::write(tree.join(".jet-part-x"), "reserved").unwrap();
    let _daemon = host.daemon();
    let _recv = host.recv(&host.path("out"), &[]);
    let mut send = host.send(&[&tree], &[]);
    assert_eq!(send.wait().code(), Some(1));
    let sent: SendReport = send.printed();
    assert_eq!((sent.files, sent.failed), (1, 1), "{sent:?}");
    assert!(send.stderr_text().contains("rename the file"), "{}", send.stderr_text());
    assert_eq!(fs::read(host.path("out/tree/good")).unwrap(), b"good");
}

/// What `jet demo --json` prints, as far as it is looked at here.
#[derive(Debug, Deserialize)]
struct Shown {
    ok: bool,
    runs: Vec<IgnoredAny>,
}

#[test]
fn the_demo_checks_itself_and_cleans_up() {
    let host = Host::new("shm");
    let work = host.path("work");
    fs::create_dir_all(&work).unwrap();
    let os = std::ffi::OsStr::new;
    let demo = host.start(&[
        os("demo"),
        os("--bytes"),
        os("96MiB"),
        os("--work-dir"),
        work.as_os_str(),
        os("--json"),
    ]);
    let shown: Shown = demo.succeed();
    assert!(shown.ok && shown.runs.len() == 2, "{shown:?}");
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
}
