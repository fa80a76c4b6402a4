//! Tests of where files are put: where their paths lead at that moment, below the directory that `--out` is
//! then. Also tests of the room that they take on the disk.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_test_support::process::Process;
use jet_test_support::tree::{assert_same, large_tree, snapshot, test_bytes};
use jet_test_support::waiting::until;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Makes a tree of a small and a large file and of empty directories. All bytes follow from the seed.
fn tree(at: &Path, seed: u64) {
    fs::create_dir_all(at.join("empty/of/everything")).unwrap();
    fs::create_dir_all(at.join("d")).unwrap();
    fs::write(at.join("d/small"), test_bytes(seed, 3000)).unwrap();
    fs::write(at.join("d/large"), test_bytes(seed + 1, 3 << 20)).unwrap();
}

#[test]
fn a_directory_that_was_moved_away_receives_nothing_and_its_place_does() {
    let host = Host::new("shm");
    let (sent, out, archive) = (host.path("tree"), host.path("out"), host.path("archive"));
    tree(&sent, 10);
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    let pieces = ["--piece-bytes", "1048576"];
    host.send(&[&sent], &pieces).succeed::<SendReport>();
    fs::rename(out.join("tree"), &archive).unwrap();
    let archived = snapshot(&archive);
    for made_anew in [true, false] {
        fs::remove_dir_all(&sent).unwrap();
        tree(&sent, 20);
        let _ = fs::remove_dir_all(out.join("tree"));
        if made_anew {
            fs::create_dir_all(out.join("tree/d")).unwrap();
        }
        host.send(&[&sent], &pieces).succeed::<SendReport>();
        assert_same(&sent, &out.join("tree"));
        assert!(snapshot(&archive) == archived, "what was archived was written to");
    }
    recv.stop::<ReceiveReport>();
}

#[test]
fn an_out_that_is_removed_and_made_again_goes_on_receiving() {
    let host = Host::new("shm");
    let (sent, out) = (host.path("tree"), host.path("out"));
    tree(&sent, 10);
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    host.send(&[&sent], &[]).succeed::<SendReport>();
    for made_anew in [true, false] {
        fs::remove_dir_all(&out).unwrap();
        if made_anew {
            fs::create_dir(&out).unwrap();
        }
        host.send(&[&sent], &[]).succeed::<SendReport>();
        assert_same(&sent, &out.join("tree"));
    }
    // The receiver logs the new directory when it has nothing else to do.
    until("the receiver to say so", || {
        recv.stderr_text().contains("--out leads to another directory").then_some(())
    });
    // The new directory is kept from other receivers' sweeps, too.
    let mut sweep = host.recv_unwatched(&out, &["--sweep"], |_| {});
    assert_eq!(sweep.wait().code(), Some(1));
    recv.stop::<ReceiveReport>();
}

#[test]
fn a_tree_of_empty_directories_that_was_removed_is_there_when_it_is_sent_again() {
    let host = Host::new("shm");
    let (sent, out) = (host.path("tree"), host.path("out"));
    fs::create_dir_all(sent.join("a/b")).unwrap();
    fs::create_dir_all(sent.join("c")).unwrap();
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    for _ in 0..2 {
        host.send(&[&sent], &[]).succeed::<SendReport>();
        assert_same(&sent, &out.join("tree"));
        fs::remove_dir_all(out.join("tree")).unwrap();
    }
    recv.stop::<ReceiveReport>();
}

/// Length of the shortest hole that stays a hole, in bytes. Shorter ones are sent as zeros.
const HOLE_BYTES_MIN: u64 = 64 << 10;

/// Returns the holes of a file, as (from, to).
fn holes_of(path: &Path) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let file = fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let (mut holes, mut at) = (Vec::new(), 0);
    while at < length {
        let hole = seek(&file, SeekFrom::Hole(at)).unwrap();
        if hole >= length {
            break;
        }
        // Where no data follows, the rest of the file is a hole.
        at = seek(&file, SeekFrom::Data(hole)).unwrap_or(length);
        holes.push((hole, at));
    }
    holes
}

#[test]
fn holes_stay_holes() {
    let host = Host::new("shm");
    let (sent, out) = (host.path("tree"), host.path("out"));
    fs::create_dir_all(&sent).unwrap();
    let sparse = |name: &str, length: u64, data: &[(u64, usize)]| {
        let file = fs::File::create(sent.join(name)).unwrap();
        file.set_len(length).unwrap();
        for &(at, length) in data {
            file.write_all_at(&test_bytes(at, length), at).unwrap();
        }
    };
    sparse("all a hole", 1 << 40, &[]);
    sparse("small", 1 << 20, &[(300_000, 10)]);
    sparse("image", (200 << 20) + 5, &[(0, 4096), (64 << 20, 1_000_001), (150 << 20, 3 << 20)]);
    sparse("tail", 50 << 20, &[((50 << 20) - 100, 100)]);
    // These are the shortest holes that are kept, and some that are a little longer.
    sparse("short", 1 << 20, &[(0, 65_536), (131_072, 65_536), (327_680, 65_536), (655_360, 65_536)]);
    let short = holes_of(&sent.join("short"));
    assert_eq!(short[..2], [(65_536, 131_072), (196_608, 327_680)], "this file system has other holes");
    let _daemon = host.daemon();
    for options in [&[][..], &["--no-direct", "--no-io-uring"]] {
        let recv = host.recv(&out, options);
        let sent_back: SendReport = host.send(&[&sent], &["--piece-bytes", "1048576"]).succeed();
        let holes = sent_back.hole_bytes;
        assert!(holes > (1 << 40) + (240 << 20), "{sent_back:?}");
        for entry in fs::read_dir(&sent).unwrap() {
            let (before, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
            let after = out.join("tree").join(&name);
            let (before_is, after_is) = (fs::metadata(&before).unwrap(), fs::metadata(&after).unwrap());
            assert_eq!(before_is.len(), after_is.len(), "{name:?}");
            for (from, to) in holes_of(&before) {
                let is_hole = holes_of(&after).iter().any(|&(start, end)| start <= from && to <= end);
                assert!(
                    is_hole || to - from < HOLE_BYTES_MIN,
                    "{name:?}: {from} to {to} is no hole any more"
                );
            }
            if before_is.len() < 1 << 30 {
                assert!(fs::read(&before).unwrap() == fs::read(&after).unwrap(), "{name:?} differs");
            }
        }
        recv.stop::<ReceiveReport>();
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_receiver_of_short_messages_is_sent_short_pieces() {
    let host = Host::new("shm");
    let (sent, out) = (host.path("tree"), host.path("out"));
    large_tree(&sent, 3, 300_000);
    fs::write(sent.join("small"), test_bytes(5, 100)).unwrap();
    for max in [100_000u64, 4096] {
        let mut daemon = host.daemon_with(&[&format!("read.message_bytes_max={max}")]);
        let recv = host.recv(&out, &[]);
        let send = host.send(&[&sent], &[]);
        until_said(&send, &format!("at most {max} bytes"));
        let sent_back: SendReport = send.succeed();
        assert_eq!((sent_back.files, sent_back.failed), (4, 0), "{sent_back:?}");
        assert_same(&sent, &out.join("tree"));
        recv.stop::<ReceiveReport>();
        daemon.kill();
        fs::remove_dir_all(&out).unwrap();
    }
    // With a limit shorter than a block, the files that fit are sent. The errors of the others name both
    // settings.
    let _daemon = host.daemon_with(&["read.message_bytes_max=1000"]);
    let recv = host.recv(&out, &[]);
    let mut send = host.send(&[&sent], &[]);
    assert_eq!(send.wait().code(), Some(1));
    let (said, sent_back) = (send.stderr_text(), send.printed::<SendReport>());
    assert_eq!((sent_back.files, sent_back.failed), (1, 3), "{sent_back:?}");
    assert!(said.contains("read.message_bytes_max") && said.contains("--piece-bytes"), "{said}");
    recv.stop::<ReceiveReport>();
}

fn until_said(jet: &Process, what: &str) {
    until(what, || jet.stderr_text().contains(what).then_some(()));
}
