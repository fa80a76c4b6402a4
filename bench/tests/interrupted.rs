//! A benchmark that is interrupted leaves no folder and no process behind.

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn its_folders_and_processes_are_gone() {
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2)] {
        let place = tempfile::tempdir().unwrap();
        let mut bench = Command::new(env!("CARGO_BIN_EXE_jet-bench"))
            .args(["e2e", "--fabric", "shm"])
            .env("TMPDIR", place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let socket = |folder: std::fs::DirEntry| folder.path().join("jetd.sock").exists();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !place.path().read_dir().unwrap().any(|folder| folder.is_ok_and(socket)) {
            assert!(Instant::now() < deadline && bench.try_wait().unwrap().is_none(), "no daemon came up");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&bench), signal).unwrap();
        let status = bench.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(128 + number), None));
        assert_eq!(place.path().read_dir().unwrap().count(), 0, "a folder is left");
        // Its processes name the folder in their arguments.
        let name = place.path().to_str().unwrap().as_bytes().to_owned();
        let left = || {
            std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
                std::fs::read(process.path().join("cmdline"))
                    .is_ok_and(|line| line.windows(name.len()).any(|part| part == name))
            })
        };
        while left() {
            assert!(Instant::now() < deadline, "a process is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
