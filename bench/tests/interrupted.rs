//! An interrupted benchmark leaves no folder and no process behind.

use jet_test_support::folder::Folder;
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

#[test]
fn its_folders_and_processes_are_gone() {
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2)] {
        let (folder, place) = (Folder::new(), tempfile::tempdir().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_jet-bench"));
        command.args(["e2e", "--fabric", "shm"]).env("TMPDIR", place.path());
        let mut bench = folder.start("e2e", command);
        let socket = |folder: std::fs::DirEntry| folder.path().join("jetd.sock").exists();
        until("a daemon to come up", || {
            assert!(bench.is_running(), "it ended: {}", bench.stderr_text());
            place.path().read_dir().unwrap().any(|folder| folder.is_ok_and(socket)).then_some(())
        });
        bench.signal(signal);
        let status = bench.wait();
        assert_eq!((status.code(), status.signal()), (Some(128 + number), None));
        assert_eq!(place.path().read_dir().unwrap().count(), 0, "a folder is left");
        // Its processes name the folder in their arguments.
        let name = place.path().to_str().unwrap().as_bytes().to_owned();
        until("its processes to end", || {
            let left = std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
                std::fs::read(process.path().join("cmdline"))
                    .is_ok_and(|line| line.windows(name.len()).any(|part| part == name))
            });
            (!left).then_some(())
        });
    }
}
