//! Tests of the tool's advice when something is refused: it names what would help, and nothing else.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_client::send::{Sender, SenderOptions};
use jet_test_support::limits::limit;
use jet_test_support::tree::large_tree;
use rustix::process::{Resource, Signal};
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[test]
fn whoever_has_no_descriptors_left_is_told_to_raise_that_limit_and_nothing_else() {
    const OTHER: [&str; 4] = ["is jetd running", "name a directory", "ulimit -l", "jet daemon"];
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 1, 100);
    let _daemon = host.daemon();
    let mut told = [0; 2];
    // With fewer descriptors the program loader fails, which tests nothing of the tool. With the most
    // everything works.
    for most in 5..=20 {
        let options = ["--until-idle", "0", "--daemon-timeout", "0"];
        let recv = host.recv_unwatched(&out, &options, |command| limit(command, Resource::Nofile, most));
        let send =
            host.send_with(&[&tree], &["--retry-for", "0"], |command| limit(command, Resource::Nofile, most));
        for (mut tool, told) in [recv, send].into_iter().zip(&mut told) {
            tool.wait();
            let said = tool.stderr_text();
            if said.contains("Too many open files") || said.contains("descriptors were cut off") {
                assert!(OTHER.iter().all(|other| !said.contains(other)), "{most}: {said}");
                *told += u32::from(said.contains("ulimit -n"));
            }
        }
    }
    assert!(told.iter().all(|told| *told >= 3), "of recv and of send: {told:?}");
}

/// Makes file modes apply to the command, also where root runs it.
fn bound_by_modes(command: &mut Command) {
    const DAC_OVERRIDE: libc::c_ulong = 1;
    const DAC_READ_SEARCH: libc::c_ulong = 2;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // SAFETY: two system calls between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for capability in [DAC_OVERRIDE, DAC_READ_SEARCH] {
                if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

#[test]
fn whoever_may_not_use_a_socket_is_told_who_may_and_not_to_start_a_daemon() {
    const OTHER: [&str; 4] = ["is jetd running", "jet daemon", "ulimit", "stopped"];
    let (closed, open) = (Host::new("shm"), Host::new("shm"));
    let (tree, out) = (open.path("tree"), open.path("out"));
    large_tree(&tree, 1, 100);
    let _daemon = closed.daemon();
    let control = closed.control();
    let os = OsStr::new;
    let at_control = [os("--control-socket"), control.as_os_str()];
    let to = [os("--app"), os("store"), os("--retry-for"), os("0"), os("--to"), os(closed.address())];
    let (tree, out) = ([tree.as_os_str()], [os("--app"), os("store"), os("--out"), out.as_os_str()]);
    let mut refused = vec![
        [&[os("status")][..], &at_control].concat(),
        [&[os("recv"), os("--daemon-timeout"), os("0")][..], &out, &at_control].concat(),
    ];
    // On an RDMA device there is no such socket.
    if closed.address().starts_with("shm:") {
        refused.push([&[os("send")][..], &to, &tree].concat());
    }
    fs::set_permissions(closed.folder.path(), fs::Permissions::from_mode(0o000)).unwrap();
    let said: Vec<_> = refused
        .iter()
        .map(|arguments| {
            let mut tool = open.start_with(arguments, bound_by_modes);
            (tool.wait().code(), tool.stderr_text())
        })
        .collect();
    fs::set_permissions(closed.folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    for (code, said) in said {
        assert!(code == Some(1) && said.contains("Permission denied"), "{code:?}: {said}");
        assert!(said.contains("this user may not use it"), "{said}");
        assert!(OTHER.iter().all(|other| !said.contains(other)), "{said}");
    }
}

#[test]
fn a_class_that_there_is_not_is_a_mistake_of_the_command_line() {
    let host = Host::new("shm");
    let out = host.path("out");
    let mut recv = host.recv_unwatched(&out, &["--class", "255"], |_| {});
    let mut send = host.send(&[host.folder.path()], &["--class", "8"]);
    for tool in [&mut recv, &mut send] {
        assert_eq!(tool.wait().code(), Some(2));
        assert!(tool.stderr_text().contains("0, the most urgent, to 7"), "{}", tool.stderr_text());
    }
}

#[test]
fn no_attempt_to_connect_takes_longer_than_all_of_them_may() {
    let host = Host::new("shm");
    fs::write(host.path("file"), "x").unwrap();
    // The listener accepts every connection, and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp:{}", silent.local_addr().unwrap());
    let file = host.path("file");
    let os = OsStr::new;
    let arguments = ["send", "--app", "store", "--retry-for", "2", "--to", &to].map(os);
    let mut send = host.start(&[&arguments[..], &[file.as_os_str()]].concat());
    assert_eq!(send.wait().code(), Some(1));
    // An attempt may take 5 s where there is time for it.
    assert!(send.stderr_text().contains("did not answer within 2s"), "{}", send.stderr_text());
}

#[test]
fn the_last_word_of_a_sender_that_was_refused_is_the_refusal() {
    let host = Host::new("shm");
    fs::write(host.path("file"), "x").unwrap();
    let _daemon = host.daemon_with(&["limits.peers=1"]);
    let address = host.address().parse().unwrap();
    let _holder = Sender::connect(&SenderOptions::new(address, "store")).unwrap();
    let mut send = host.send(&[&host.path("file")], &["--retry-for", "0.3"]);
    assert_eq!(send.wait().code(), Some(1));
    let said = send.stderr_text();
    assert!(said.lines().next_back().unwrap().contains("as many peers as limits.peers"), "{said}");
    assert!(!said.contains("did not answer"), "{said}");
}

#[test]
fn one_signal_is_enough_for_a_sender_whose_application_stands_still() {
    let host = Host::new("shm");
    let (tree, out) = (host.path("tree"), host.path("out"));
    large_tree(&tree, 18, 1 << 20);
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    recv.pause();
    let mut send = host.send(&[&tree], &["--piece-bytes", "1048576"]);
    host.wait_held();
    send.signal(Signal::TERM);
    assert_eq!(send.wait().code(), Some(1));
    let sent: SendReport = send.printed();
    assert_eq!(sent.files, 0, "{sent:?}");
    assert_eq!(sent.failed + sent.not_tried, sent.total, "{sent:?}");
    assert_eq!(sent.stopped.as_deref(), Some("interrupted"));
    assert!(send.stderr_text().contains("at the latest"), "{}", send.stderr_text());
    recv.signal(Signal::CONT);
    host.wait_whole();
    recv.stop::<ReceiveReport>();
}

#[test]
fn a_path_that_is_not_there_is_named_before_any_daemon_is_looked_for() {
    let host = Host::new("shm");
    let nowhere = host.path("nowhere");
    let mut send = host.send(&[&nowhere], &["--retry-for", "100000"]);
    assert_eq!(send.wait().code(), Some(1));
    assert!(send.stderr_text().contains("nowhere: No such file or directory"), "{}", send.stderr_text());
}

#[test]
fn help_begins_with_what_the_program_is_for() {
    for (program, begins) in [
        (env!("CARGO_BIN_EXE_jet"), "Receives from remote hosts by RDMA"),
        (env!("CARGO_BIN_EXE_jetd"), "Jet's receiver on this host"),
    ] {
        let help = Command::new(program).arg("--help").output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(help.starts_with(begins), "{help}");
    }
}
