//! The whole of it at once: more than a gibibyte of files from three senders, and each of the three kinds of process
//! killed once on the way. Everything arrives byte for byte.

use crate::host::Host;
use jet_test_support::device::fabrics;
use jet_test_support::tree::{assert_same, large_tree, odd_tree};
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;

const SENDERS: u64 = 3;
const FILES: u64 = 22;
const FILE_BYTES: usize = (16 << 20) + 4097;
const GIBIBYTE: u64 = 1 << 30;

/// One fabric after the other, so that the disk holds one tree and its copy at a time.
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
            // Parts are hidden.
            Some(names.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")).count())
        };
        Some(trees.iter().filter_map(files).sum::<usize>()).filter(|files| *files >= n)
    };

    // A receiver that is stopped while it holds slabs makes "on the way" certain. Of a file nothing but its beginning comes before that
    // is acknowledged, so some must have begun.
    let mut daemon = host.daemon();
    let mut recv = host.recv(&out, &[]);
    let mut senders: Vec<_> = trees.iter().map(|tree| host.send(&[tree], &[])).collect();
    until("a file to be written", || written(1));
    recv.pause();
    host.wait_held();
    daemon.kill();
    let next = host.daemon();
    recv.signal(Signal::CONT);
    // Stopped before it is registered with the next daemon, it would hold nothing.
    until("the receiver to be back", || host.status().filter(|status| status.session_count > 0));
    let before = written(0).unwrap_or_default();

    until("some more files to be written", || written(before + 6));
    recv.pause();
    host.wait_held();
    recv.kill();
    let recv = host.recv(&out, &[]);

    until("yet more files to be written", || written(before + 16));
    recv.pause();
    host.wait_held();
    senders[0].kill();
    senders[0] = host.send(&[&trees[0]], &[]);
    recv.signal(Signal::CONT);

    for sender in senders {
        let sent = sender.succeed();
        assert_eq!(sent["failed"].as_u64().unwrap_or(0), 0, "{sent}");
    }
    host.wait_whole();
    recv.stop();
    // The killed sender's last pieces are parts that nobody will complete.
    host.recv(&out, &["--sweep"]).stop();
    for tree in &trees {
        assert_same(tree, &out.join(tree.file_name().expect("a name")));
    }
    drop(next);
}
