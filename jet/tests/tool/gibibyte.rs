//! Test of everything at once. Three senders send more than a gibibyte of files, and each of the three kinds
//! of process is killed once on the way. Everything arrives byte for byte.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_test_support::device::fabrics;
use jet_test_support::process::Process;
use jet_test_support::tree::{assert_same, large_tree, odd_tree};
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const SENDERS: u64 = 3;
const FILES: u64 = 22;
const FILE_BYTES: usize = (16 << 20) + 4097;
const GIBIBYTE: u64 = 1 << 30;

/// Runs one fabric after the other, so that the disk holds one tree and its copy at a time.
#[test]
fn a_gibibyte_survives_the_death_of_each() {
    fabrics().iter().for_each(|fabric| a_gibibyte_over(fabric));
}

fn a_gibibyte_over(fabric: &str) {
    let host = Host::new(fabric);
    let out = host.path("out");
    let trees: Vec<PathBuf> = (0..SENDERS).map(|n| host.path(&format!("tree-{n}"))).collect();
    for tree in &trees {
        large_tree(&tree.join("large"), FILES, FILE_BYTES);
        odd_tree(&tree.join("odd"));
    }
    assert!(SENDERS * FILES * FILE_BYTES as u64 >= GIBIBYTE);
    let written = |n: usize| {
        let files = |tree: &PathBuf| {
            let names = fs::read_dir(out.join(tree.file_name()?).join("large")).ok()?.flatten();
            // Hidden files are parts.
            Some(names.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")).count())
        };
        Some(trees.iter().filter_map(files).sum::<usize>()).filter(|files| *files >= n)
    };

    let mut daemon = host.daemon();
    let mut recv = host.recv(&out, &[]);
    let senders = trees.iter().map(|tree| host.send(&[tree], &[])).collect();
    let mut supply = Supply { host: &host, trees: &trees, senders };
    until("a file to be written", || written(1));
    supply.stop_midway(&recv);
    daemon.kill();
    let next = host.daemon();
    recv.signal(Signal::CONT);
    // A receiver that is stopped before it is registered with the next daemon would hold nothing.
    until("the receiver to be back", || host.status().filter(|status| status.session_count > 0));

    supply.stop_midway(&recv);
    recv.kill();
    let recv = host.recv(&out, &[]);

    supply.stop_midway(&recv);
    supply.senders[0].kill();
    supply.senders[0] = host.send(&[&trees[0]], &[]);
    recv.signal(Signal::CONT);
    supply.senders.into_iter().for_each(complete);
    host.wait_whole();
    recv.stop::<ReceiveReport>();
    // The killed sender's last pieces lie in parts that nobody will complete.
    host.recv(&out, &["--sweep"]).stop::<ReceiveReport>();
    for tree in &trees {
        assert_same(tree, &out.join(tree.file_name().expect("a name")));
    }
    drop(next);
}

/// Checks that a sender that ended has sent everything.
#[track_caller]
fn complete(sender: Process) {
    let sent: SendReport = sender.succeed();
    assert_eq!(sent.failed, 0, "{sent:?}");
}

/// One sender for each tree. On a busy machine all may have ended before the test looks, and then they send
/// again.
struct Supply<'a> {
    host: &'a Host,
    trees: &'a [PathBuf],
    senders: Vec<Process>,
}

impl Supply<'_> {
    /// Stops the receiver while it holds slabs of large messages, so that files are certain to be under way.
    #[track_caller]
    fn stop_midway(&mut self, recv: &Process) {
        until("the receiver to be stopped midway", || {
            for (sender, tree) in self.senders.iter_mut().zip(self.trees) {
                if !sender.is_running() {
                    complete(std::mem::replace(sender, self.host.send(&[tree], &[])));
                }
            }
            recv.pause();
            // Messages in flight arrive now. Of a file only the beginning is sent until that is acknowledged.
            // So where all of these are there, nothing more arrives.
            let held = self.host.holds_within(Duration::from_secs(2));
            if !held {
                recv.signal(Signal::CONT);
                std::thread::sleep(Duration::from_millis(20));
            }
            held.then_some(())
        });
    }
}
