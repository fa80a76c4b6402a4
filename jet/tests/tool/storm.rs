//! Test of a storm. Receivers, daemons and senders are killed in random order. Receivers sweep, get another
//! `--out`, are slow, or are stopped. Parts are removed, and disks are full for a while.
//!
//! Each file that `jet send` does not report as failed is there, byte for byte. Only a full disk makes it
//! report a file as failed. Such a file is missing in at least one directory that receivers had meanwhile. No
//! file under its final name is one that nobody sent.
//!
//! `JET_STORM_SEED` chooses another storm, and `JET_STORM_KILLS` a longer one. The seed is printed. A storm
//! of many kills is many short ones, each with the next number as its seed. So a failed one can be repeated
//! by its seed.

use crate::host::Host;
use crate::parts::{is_part, snapshot_named};
use jet::files::sending::{Failure, SendReport};
use jet_test_support::disk::TinyDisk;
use jet_test_support::process::Process;
use jet_test_support::random::Random;
use jet_test_support::tree::{Entry, snapshot, test_bytes};
use jet_test_support::waiting::WAIT_LIMIT;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of kills in one storm.
const KILLS: u64 = 30;
/// Most storms beyond those that were asked for, until every kind of event has happened.
const MORE_STORMS: u64 = 10;
/// Number of trees that are sent at once, each by a sender of its own.
const SENDERS: usize = 2;
const PIECES: &[&str] = &["--piece-bytes", "262144", "--retry-for", "240"];
/// Options of receivers. A killed receiver's application name stays taken until the last of its writes has
/// ended, which takes long on a busy disk. Senders try for longer than that.
const WAITS: &[&str] = &["--daemon-timeout", "120"];
/// Size of the tiny disk in MiB. It has room for what two senders send, and not for much more.
const DISK_MIB: u32 = 48;

/// Tree that is being sent, and its content.
struct Sending {
    name: String,
    tree: PathBuf,
    content: BTreeMap<Vec<u8>, Entry>,
    /// Directories that receivers had since sending began.
    outs: BTreeSet<PathBuf>,
    jet: Process,
}

#[derive(Debug, Default)]
struct Seen {
    kills: u64,
    sent: u64,
    sent_again: u64,
    failed: BTreeMap<String, u64>,
    /// Number of failed files that are in one directory that receivers had meanwhile, and not in another.
    elsewhere: u64,
    cleaned: u64,
    full: u64,
}

struct Storm {
    host: Host,
    outs: Vec<PathBuf>,
    /// Directory of the present receiver.
    out: PathBuf,
    disk: bool,
    random: Random,
    daemon: Process,
    recv: Process,
    sending: Vec<Sending>,
    trees: u64,
    /// Names of trees whose senders ended. Their files are there, and are replaced when the name is used
    /// again.
    names: Vec<String>,
    /// Everything that was ever sent under a path below `--out`. A file there must be one of these, whatever
    /// was killed.
    versions: BTreeMap<PathBuf, Vec<Entry>>,
    seen: Seen,
}

impl Storm {
    fn begin(seed: u64, disk: bool) -> (Self, Option<TinyDisk>) {
        let host = Host::new("shm");
        let disks = host.path("disks");
        fs::create_dir_all(&disks).unwrap();
        let mounted = disk.then(|| TinyDisk::mount(&disks, DISK_MIB << 10));
        let outs = vec![disks.join("out"), disks.join("other")];
        let daemon = host.daemon();
        let recv = host.recv_unwatched(&outs[0], WAITS, |_| {});
        let (random, sending, names) = (Random::seeded(seed), Vec::new(), Vec::new());
        let (versions, seen) = (BTreeMap::new(), Seen::default());
        let (trees, out) = (0, outs[0].clone());
        (Self { host, outs, out, disk, random, daemon, recv, sending, trees, names, versions, seen }, mounted)
    }

    fn run(&mut self, kills: u64) {
        while self.seen.kills < kills {
            while self.sending.len() < SENDERS {
                self.send();
            }
            std::thread::sleep(Duration::from_millis(1 + self.random.below(120)));
            self.check_progress();
            self.strike();
        }
        // From here on nothing is killed, removed or full.
        self.empty_disk();
        let deadline = Instant::now() + WAIT_LIMIT;
        while !self.sending.is_empty() {
            assert!(Instant::now() < deadline, "senders that do not end");
            std::thread::sleep(Duration::from_millis(5));
            self.check_progress();
        }
        self.host.wait_whole();
        self.check_named(Path::new(""));
    }

    fn send(&mut self) {
        self.trees += 1;
        let name = self.names.pop().unwrap_or_else(|| format!("tree-{}", self.trees));
        let tree = self.host.path("sent").join(&name);
        let _ = fs::remove_dir_all(&tree);
        // The bytes differ each time. The lengths and names are the same.
        let seed = self.trees * 100;
        let long = tree.join("x".repeat(120));
        fs::create_dir_all(&long).unwrap();
        fs::create_dir_all(tree.join("empty")).unwrap();
        let write =
            |path: PathBuf, number: u64, length| fs::write(path, test_bytes(seed + number, length)).unwrap();
        write(tree.join("large"), 1, 6_000_001);
        write(tree.join("one message"), 2, 200_000);
        write(tree.join("small"), 3, 1000);
        write(long.join("large"), 4, 2_000_000);
        write(long.join("small"), 5, 100);
        let sparse = fs::File::create(tree.join("sparse")).unwrap();
        sparse.set_len(5 << 20).unwrap();
        sparse.write_all_at(&test_bytes(seed + 6, 700_000), 1 << 20).unwrap();
        let jet = self.host.send(&[&tree], &[PIECES, &["-v"]].concat());
        let content = snapshot(&tree);
        for (path, &entry) in content.iter().filter(|(_, (_, hash))| hash.is_some()) {
            self.versions.entry(Path::new(&name).join(OsStr::from_bytes(path))).or_default().push(entry);
        }
        let outs = BTreeSet::from([self.out.clone()]);
        self.sending.push(Sending { name, tree, content, outs, jet });
    }

    /// Judges the senders that ended, and starts a new receiver if it ended without being killed.
    fn check_progress(&mut self) {
        if !self.recv.is_running() {
            let said = self.recv.stderr_text();
            // A killed receiver's locks end a moment after it. A full disk has no room for a directory.
            let passing = ["another receiver", "No space left"];
            assert!(passing.iter().any(|passing| said.contains(passing)), "the receiver ended: {said}");
            self.start_recv(&[]);
        }
        let (ended, going) =
            std::mem::take(&mut self.sending).into_iter().partition(|sending| !sending.jet.is_running());
        self.sending = going;
        let ended: Vec<Sending> = ended;
        for mut sending in ended {
            self.judge(&mut sending);
            self.names.push(sending.name.clone());
            // A tiny disk has no room for all of the trees. Elsewhere some are replaced, and some are new.
            if self.disk || self.random.below(2) == 0 {
                self.forget(&sending.name);
            }
            fs::remove_dir_all(&sending.tree).unwrap();
        }
    }

    fn judge(&mut self, sending: &mut Sending) {
        let code = sending.jet.wait().code();
        let said = sending.jet.stderr_text();
        assert!(matches!(code, Some(0 | 1)), "{code:?}: {said}");
        self.check_named(Path::new(&sending.name));
        let printed: SendReport = sending.jet.printed();
        let there: Vec<_> = sending.outs.iter().map(|out| there(out, sending)).collect();
        let everything = BTreeSet::from_iter(sending.content.keys().map(|name| name_of(name)));
        let anywhere: BTreeSet<_> = there.iter().flatten().cloned().collect();
        let failed = self.failed(sending, &printed.failures);
        let missing = everything.difference(&anywhere);
        let unexplained: Vec<_> = missing.filter(|path| !failed.contains(*path)).collect();
        let not_tried = printed.not_tried;
        assert!(
            unexplained.len() as u64 <= not_tried,
            "not called failed, and these differ: {unexplained:?}\n{said}"
        );
        assert_eq!(code == Some(0), failed.is_empty() && not_tried == 0, "{printed:?}");
        // A file that was named in one directory and had no room in another is rightly reported as failed,
        // and is there.
        let right: Vec<_> =
            failed.iter().filter(|path| there.iter().all(|there| there.contains(*path))).collect();
        assert!(right.is_empty(), "called failed, and these are there: {right:?}\n{said}");
        self.seen.elsewhere += failed.intersection(&anywhere).count() as u64;
        self.seen.sent += u64::from(code == Some(0));
        self.seen.sent_again += printed.sent_again;
    }

    /// Returns the files that a sender reported as failed, and checks that the storm explains each reason.
    fn failed(&mut self, sending: &Sending, failures: &[Failure]) -> BTreeSet<String> {
        let mut failed = BTreeSet::new();
        for failure in failures {
            let Failure { path, error } = failure;
            // A receiver is never away for as long as senders wait, so only a full disk explains a failure.
            assert!(
                self.disk && error.contains("ENOSPC"),
                "{path} was not sent, and nothing explains it: {error}"
            );
            *self.seen.failed.entry(error.to_owned()).or_default() += 1;
            let path = Path::new(path).strip_prefix(&sending.tree).expect("a path of the tree");
            failed.insert(path.to_str().unwrap().to_owned());
        }
        failed
    }

    /// Checks that every file under its final name was sent under that name, in each directory that receivers
    /// had.
    fn check_named(&self, below: &Path) {
        for out in self.outs.iter().filter(|out| out.join(below).is_dir()) {
            for (path, entry) in snapshot_named(&out.join(below)) {
                let path = below.join(OsStr::from_bytes(&path));
                let versions = self.versions.get(&path).map_or(&[][..], Vec::as_slice);
                assert!(
                    entry.1.is_none() || versions.contains(&entry),
                    "{path:?} in {out:?} was never sent so"
                );
            }
        }
    }

    fn forget(&self, name: &str) {
        for out in &self.outs {
            let _ = fs::remove_dir_all(out.join(name));
        }
    }

    fn strike(&mut self) {
        match self.random.below(12) {
            0..=3 => {
                self.recv.kill();
                self.seen.kills += 1;
                self.perhaps_fill_disk();
                let sweep: &[&str] = if self.random.below(2) == 0 { &["--sweep"] } else { &[] };
                self.start_recv(sweep);
            }
            4..=5 => {
                self.daemon.kill();
                self.seen.kills += 1;
                self.perhaps_fill_disk();
                self.daemon = self.host.daemon();
            }
            6 => {
                let at = usize::try_from(self.random.below(self.sending.len() as u64 + 1)).unwrap();
                if at < self.sending.len() {
                    let mut sending = self.sending.swap_remove(at);
                    sending.jet.kill();
                    self.seen.kills += 1;
                    // Messages of the killed sender may still arrive, so its name is not used again.
                    self.forget(&sending.name);
                    fs::remove_dir_all(&sending.tree).unwrap();
                }
            }
            7..=8 => self.clean(),
            9 => {
                self.recv.pause();
                std::thread::sleep(Duration::from_millis(self.random.below(60)));
                self.recv.signal(Signal::CONT);
            }
            10 if self.disk => self.fill_disk(),
            _ => self.empty_disk(),
        }
    }

    fn start_recv(&mut self, sweep: &[&str]) {
        let slow = self.random.pick::<[&str]>(&[&[], &["--slow", "2ms"], &["--slow", "5ms", "--depth", "2"]]);
        let how = self.random.pick::<[&str]>(&[&[], &["--fsync"], &["--no-io-uring", "--no-direct"]]);
        let out = self.random.pick::<PathBuf>(&[&self.outs[0], &self.outs[0], &self.outs[1]]);
        self.recv = self.host.recv_unwatched(out, &[WAITS, slow, how, sweep].concat(), |_| {});
        self.out.clone_from(out);
        for sending in &mut self.sending {
            sending.outs.insert(out.to_owned());
        }
    }

    /// Removes some parts or all of them, as a careless clean-up would.
    fn clean(&mut self) {
        let every = 1 + self.random.below(3);
        let mut pending = self.outs.clone();
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    pending.push(path);
                } else if is_part(&path) && self.random.below(every) == 0 {
                    self.seen.cleaned += u64::from(fs::remove_file(path).is_ok());
                }
            }
        }
    }

    fn filler(&self) -> PathBuf {
        self.outs[0].with_file_name("filler")
    }

    /// Fills the disk at times. A file that was named and not acknowledged is then sent again and finds no
    /// room.
    fn perhaps_fill_disk(&mut self) {
        if self.disk && self.random.below(3) == 0 {
            self.fill_disk();
        }
    }

    fn fill_disk(&mut self) {
        self.seen.full += 1;
        let filler = fs::File::create(self.filler()).unwrap();
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while let Ok(written @ 1..) = filler.write_at(&zeros, at) {
            at += written as u64;
        }
    }

    fn empty_disk(&mut self) {
        let _ = fs::remove_file(self.filler());
    }
}

/// Returns the entries of a tree that are in a receiver's directory as they were sent.
fn there(out: &Path, sending: &Sending) -> BTreeSet<String> {
    let tree = out.join(&sending.name);
    let entries = if tree.is_dir() { snapshot_named(&tree) } else { BTreeMap::new() };
    let there = sending.content.iter().filter(|(name, entry)| entries.get(*name) == Some(entry));
    there.map(|(name, _)| name_of(name)).collect()
}

fn name_of(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn storms(disk: bool) {
    let first = number("JET_STORM_SEED").unwrap_or(1);
    let kills = number("JET_STORM_KILLS").unwrap_or(KILLS);
    let mut all = Seen::default();
    for seed in first.. {
        let (mut storm, mounted) = Storm::begin(seed, disk);
        println!("JET_STORM_SEED={seed}");
        storm.run(match kills.saturating_sub(all.kills) {
            0 => KILLS,
            left => KILLS.min(left),
        });
        println!("{:?}", storm.seen);
        all.kills += storm.seen.kills;
        all.sent += storm.seen.sent;
        all.sent_again += storm.seen.sent_again;
        all.cleaned += storm.seen.cleaned;
        all.full += storm.seen.full;
        drop(storm);
        drop(mounted);
        // A storm in which, for example, no part was removed shows nothing about that. Another storm may.
        let showed = all.sent > 0 && all.sent_again > 0 && all.cleaned > 0 && (!disk || all.full > 0);
        if all.kills >= kills && (showed || all.kills >= kills + MORE_STORMS * KILLS) {
            break;
        }
    }
    assert!(all.sent > 0, "nothing was sent, so nothing was seen");
    assert!(all.sent_again > 0 && all.cleaned > 0, "no file was lost on its way: {all:?}");
    assert!(!disk || all.full > 0, "no disk was full: {all:?}");
}

#[test]
fn whatever_is_called_sent_in_a_storm_is_there() {
    storms(false);
}

#[test]
#[ignore = "mounts a file system, which takes root: .ci/run has it apart"]
fn whatever_is_called_sent_in_a_storm_of_full_disks_is_there() {
    storms(true);
}
