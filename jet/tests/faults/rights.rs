//! Tests of rights on this host: threads of other users and groups ask a real daemon.

use crate::rig::Rig;
use jet_control::connection::{ControlError, Look};
use jet_control::protocol::{Register, admin_socket_beside};
use jet_control::{ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use jet_test_support::daemon;
use jet_test_support::folder::Folder;
use jet_test_support::process::Process;
use jet_test_support::waiting::until;
use rustix::fs::Gid;
use rustix::process::Uid;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Users and groups of the tests. They need no names.
const STORAGE: u32 = 61_001;
const GUEST: u32 = 61_002;
const DISKS: u32 = 62_001;

/// What a stranger hears whose registration is denied.
const DENIED: &str = "denied; the operator of the daemon finds the reason in its log";

/// Runs `what` on a thread that is of this user and these groups, the first of which is its own.
fn as_user<T: Send>(user: u32, groups: &[u32], what: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
        let own = groups.first().copied().unwrap_or(Gid::from_raw(user));
        set_thread_groups(&groups).expect("root may");
        set_thread_res_gid(own, own, own).expect("root may");
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user).expect("root may");
        what()
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Starts a daemon whose sockets all users may reach, as far as the sockets' own modes let them.
fn start(settings: &[&str]) -> Rig {
    let rig = Rig::start_on_software(settings);
    let folder = rig.control().parent().expect("a folder").to_owned();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(rig.control(), fs::Permissions::from_mode(0o666)).unwrap();
    rig
}

/// Registers an application, and returns its connection, or the code and the words of the refusal.
fn register(control: &Path, app: &str, class: u8) -> Result<ControlConnection, (ErrorCode, String)> {
    let mut connection = ControlConnection::connect(control).expect("all may connect");
    let request = ControlRequest::Register(Register { class, ..Register::new(app) });
    match connection.request(&request).expect("an answer").0 {
        ControlResponse::Registered(_) => Ok(connection),
        ControlResponse::Error { code, message } => Err((code, message)),
        other => panic!("{other:?}"),
    }
}

/// Takes what is denied, and nothing else, and says nothing of why.
#[track_caller]
fn assert_denied(outcome: Result<ControlConnection, (ErrorCode, String)>) {
    assert_eq!(outcome.err(), Some((ErrorCode::Denied, DENIED.to_owned())));
}

#[test]
#[ignore = "becomes other users, which takes root: .ci/run has it apart"]
fn who_has_no_right_to_a_name_is_denied_and_the_log_says_why() {
    let exe = std::env::current_exe().unwrap();
    let rules = format!(
        "rights.register=[{{names=['store'],users=[{STORAGE}]}},\
         {{names=['disk-*'],groups=[{DISKS}],classes=[1]}},\
         {{names=['own'],executables=['{}']}},{{names=['other'],executables=['/bin/true']}}]",
        exe.display()
    );
    let mut rig = start(&[&rules]);
    let control = rig.control();
    let control = control.as_path();
    let _store = as_user(STORAGE, &[], || register(control, "store", 0)).unwrap();
    as_user(GUEST, &[GUEST, DISKS], || {
        assert_denied(register(control, "store", 0));
        assert_denied(register(control, "nobody", 0));
        assert_denied(register(control, "disk-1", 0));
        drop(register(control, "disk-1", 1).unwrap());
        // By the program that it runs, which is this test.
        drop(register(control, "own", 3).unwrap());
        assert_denied(register(control, "other", 3));
    });
    // It is of that group by its own group alone.
    as_user(GUEST, &[DISKS], || drop(register(control, "disk-2", 1).unwrap()));
    as_user(GUEST, &[GUEST], || assert_denied(register(control, "disk-2", 1)));
    // Not even root, which no entry names.
    assert_denied(register(control, "store", 0));
    rig.wait_status("the guest's to be over, and the store's not", |status| status.session_count == 1);
    let line = |what: &str, audit, name, user, class| {
        let process = std::process::id();
        let who = format!("application {name}, process {process}, user {user}, class {class}");
        format!("{what} (audit {audit}, {who})")
    };
    let without =
        |what| format!("a registration is denied: no entry of rights.register with this name{what}");
    let expected = [
        line("an application is registered", "registered", "store", STORAGE, 0),
        line(&without(" has this user, or one of its groups"), "denied", "store", GUEST, 0),
        line("no entry of rights.register has this name", "denied", "nobody", GUEST, 0),
        line(&without(", user and program has this class"), "denied", "disk-1", GUEST, 0),
        line("an application is registered", "registered", "disk-1", GUEST, 1),
        line(&without(" and user has this program"), "denied", "other", GUEST, 3),
        line(&without(" has this user, or one of its groups"), "denied", "store", 0, 0),
    ];
    let daemon = rig.daemon();
    for line in expected {
        until(&line, || daemon.stderr_text().contains(&line).then_some(()));
    }
}

#[test]
#[ignore = "becomes other users, which takes root: .ci/run has it apart"]
fn only_the_daemons_own_user_commands_it() {
    let rig = start(&[]);
    let control = rig.control();
    let admin = admin_socket_beside(&control);
    let modes = [&control, &admin].map(|path| fs::metadata(path).unwrap().mode() & 0o777);
    assert_eq!(modes, [0o666, 0o600]);
    let drain = ControlRequest::Drain { deadline_ms: Some(0) };
    let refused = as_user(GUEST, &[], || {
        let outcome = ControlConnection::connect(&admin);
        assert!(matches!(&outcome, Err(ControlError::Connect { .. })), "{outcome:?}");
        // Whoever may register may ask for the status, and for no more.
        let mut connection = ControlConnection::connect(&control).unwrap();
        assert!(matches!(connection.status(), Ok(status) if !status.draining));
        connection.request(&drain).unwrap().0
    });
    let ControlResponse::Error { code: ErrorCode::Denied, message } = refused else { panic!("{refused:?}") };
    assert!(message.contains(admin.to_str().unwrap()), "{message}");
    assert!(!rig.status().draining);
    let mut operator = ControlConnection::connect(&admin).unwrap();
    assert_eq!(operator.status().unwrap().session_count, 0);
    let answer = operator.request(&ControlRequest::Drain { deadline_ms: None }).unwrap().0;
    assert!(matches!(answer, ControlResponse::Draining { again: false, .. }), "{answer:?}");
}

#[test]
#[ignore = "becomes other users, which takes root: .ci/run has it apart"]
fn a_name_stays_its_users_while_its_application_is_started_again() {
    let rig = start(&["session.name_kept_ms=86400000", "session.quarantine_ms=0"]);
    let control = rig.control();
    let control = control.as_path();
    for _ in 0..3 {
        drop(as_user(STORAGE, &[], || register(control, "store", 0)).unwrap());
        rig.wait_status("the session to be over", |status| status.session_count == 0);
        for other in [GUEST, 0] {
            let (code, words) = as_user(other, &[], || register(control, "store", 0)).unwrap_err();
            assert!(code == ErrorCode::NameTaken && words.contains("session.name_kept_ms"), "{words}");
        }
    }
    // Where names are not kept, they are free as soon as the session is over.
    let rig = start(&["session.name_kept_ms=0", "session.quarantine_ms=0"]);
    let control = rig.control();
    let control = control.as_path();
    drop(as_user(STORAGE, &[], || register(control, "store", 0)).unwrap());
    rig.wait_status("the session to be over", |status| status.session_count == 0);
    drop(as_user(GUEST, &[], || register(control, "store", 0)).unwrap());
}

fn write_configuration(folder: &Folder, config: &str) {
    fs::write(folder.join("jetd.toml"), config).unwrap();
}

/// A daemon whose configuration and whose system's groups are files of the test's own.
struct Host {
    daemon: Process,
    folder: Folder,
}

impl Host {
    /// Starts a daemon with this configuration, on a host with a group [`DISKS`] that has these members.
    fn start(config: &str, members: &str) -> Self {
        let folder = Folder::new();
        let control = folder.join("jetd.sock");
        let jetd = daemon::command(
            env!("CARGO_BIN_EXE_jetd"),
            &["--config", folder.join("jetd.toml").to_str().unwrap()],
            &control,
            &["tcp:127.0.0.1:0"],
            &[] as &[&str],
        );
        // The files stand in for the system's in the daemon's own namespace of mounts.
        let script =
            "mount --bind \"$0/passwd\" /etc/passwd && mount --bind \"$0/group\" /etc/group && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(folder.join(""));
        command.arg(jetd.get_program()).args(jetd.get_args());
        let user = |name: &str, number: u32| format!("{name}:x:{number}:{number}::/:\n");
        let users = user("root", 0) + &user("storage", STORAGE) + &user("guest", GUEST);
        fs::write(folder.join("passwd"), users).unwrap();
        write_configuration(&folder, config);
        let groups = format!("root:x:0:\ndisks:x:{DISKS}:{members}\n");
        fs::write(folder.join("group"), groups).unwrap();
        let host = Self { daemon: folder.start("jetd", command), folder };
        daemon::wait_answer(&host.daemon, &control);
        fs::set_permissions(host.folder.join(""), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(control, fs::Permissions::from_mode(0o666)).unwrap();
        host
    }

    fn configure(&self, config: &str) {
        write_configuration(&self.folder, config);
    }

    fn control(&self) -> PathBuf {
        self.folder.join("jetd.sock")
    }

    fn reload(&self) -> ControlResponse {
        let mut operator = ControlConnection::connect(&admin_socket_beside(&self.control())).unwrap();
        operator.request(&ControlRequest::Reload).unwrap().0
    }

    fn sessions(&self) -> u32 {
        daemon::try_status(&self.control()).expect("the daemon answers").session_count
    }
}

/// Waits until the daemon has ended a session, and takes its last words.
#[track_caller]
fn assert_ended(mut connection: ControlConnection) {
    let said = until("the end of the session", || match connection.look() {
        Look::Alive => None,
        other => Some(other),
    });
    assert!(
        matches!(&said, Look::Ended { code: ErrorCode::Denied, message } if message == DENIED),
        "{said:?}"
    );
}

#[test]
#[ignore = "becomes other users, which takes root: .ci/run has it apart"]
fn who_has_lost_its_right_loses_its_session_at_the_next_reload() {
    let rule = |names: &str| format!("[[rights.register]]\nnames = [{names}]\nusers = ['storage']\n");
    let host = Host::start(&rule("'store', 'log'"), "");
    let control = host.control();
    let control = control.as_path();
    let of_storage = |name| as_user(STORAGE, &[], || register(control, name, 0));
    let (store, mut log) = (of_storage("store").unwrap(), of_storage("log").unwrap());
    // What is invalid changes nothing.
    for wrong in ["[rights]\nlook = 'nobody'", "[[rights.register]]\nnames = ['a']\nusers = ['gone']"] {
        host.configure(wrong);
        let answer = host.reload();
        let ControlResponse::Error { code: ErrorCode::BadRequest, message } = answer else {
            panic!("{answer:?}")
        };
        assert!(message.ends_with("the rights stay as they were"), "{message}");
    }
    assert_eq!(host.sessions(), 2);
    host.configure(&rule("'log', 'new'"));
    assert_eq!(host.reload(), ControlResponse::Reloaded {});
    assert_ended(store);
    // It was decided before the daemon answers anything else.
    assert_eq!(host.sessions(), 1);
    assert!(matches!(log.look(), Look::Alive));
    assert_denied(of_storage("store"));
    drop(of_storage("new").unwrap());
    until("the log", || {
        let text = host.daemon.stderr_text();
        let said = "it has no right to its name any more: no entry of rights.register has this name";
        (text.contains(said) && text.contains("audit ended") && text.contains("audit reload")).then_some(())
    });
}

#[test]
#[ignore = "becomes other users, which takes root: .ci/run has it apart"]
fn a_name_that_is_given_to_another_user_is_free_at_once() {
    let rule = |user: &str| format!("[[rights.register]]\nnames = ['store']\nusers = ['{user}']\n");
    let host = Host::start(&(rule("guest") + "[session]\nname_kept_ms = 86400000\n"), "");
    let control = host.control();
    let control = control.as_path();
    let guest = as_user(GUEST, &[], || register(control, "store", 0)).unwrap();
    assert_denied(as_user(STORAGE, &[], || register(control, "store", 0)));
    host.configure(&rule("storage"));
    assert_eq!(host.reload(), ControlResponse::Reloaded {});
    assert_ended(guest);
    drop(as_user(STORAGE, &[], || register(control, "store", 0)).unwrap());
    assert_denied(as_user(GUEST, &[], || register(control, "store", 0)));
}

#[test]
#[ignore = "becomes other users, which takes root: .ci/run has it apart"]
fn a_group_is_one_that_the_kernel_noted_at_the_connection() {
    let rule = "[[rights.register]]\nnames = ['*']\ngroups = ['disks']\n";
    let host = Host::start(rule, "storage");
    let control = host.control();
    let control = control.as_path();
    // The database has it as a member, and its process has not got the group.
    assert_denied(as_user(STORAGE, &[STORAGE], || register(control, "store", 0)));
    drop(as_user(GUEST, &[GUEST, DISKS], || register(control, "guest", 0)).unwrap());
    // What the process gives up after it has connected stays with the connection.
    let connected = as_user(0, &[DISKS], || {
        let mut connection = ControlConnection::connect(control).expect("all may connect");
        let root = Gid::from_raw(0);
        set_thread_groups(&[]).expect("root may");
        set_thread_res_gid(root, root, root).expect("root may");
        assert_denied(register(control, "root", 0));
        let request = ControlRequest::Register(Register::new("store"));
        connection.request(&request).expect("an answer").0
    });
    assert!(matches!(connected, ControlResponse::Registered(_)), "{connected:?}");
}
