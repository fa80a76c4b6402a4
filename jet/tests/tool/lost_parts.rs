//! Tests of a file whose part is lost, or is another file's, in the middle of its transfer. The file is sent
//! again, and never made of the rest.

use crate::host::Host;
use crate::parts::is_part;
use jet::files::header::{FileHeader, Kind, PathField, TAG};
use jet::files::path::RelativePath;
use jet::files::proof::{Hash, Proof, Sum};
use jet::files::receiving::ReceiveReport;
use jet::files::reject;
use jet::files::sending::SendReport;
use jet_client::send::{AckStatus, Envelope, Sender, SenderOptions};
use jet_test_support::process::Process;
use jet_test_support::tree::{assert_same, odd_tree, test_bytes};
use jet_test_support::waiting::{WAIT_LIMIT, until};
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PIECES: &[&str] = &["--piece-bytes", "1048576"];
/// Options that make the receiver take a few seconds for the file.
const SLOWLY: &[&str] = &["--slow", "20ms", "--depth", "2"];
const FILE_BYTES: usize = 40 << 20;

fn parts_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| is_part(path)).collect()
}

/// Waits until a few MiB of the file were written.
fn wait_begun(out: &Path) {
    until("a part with some MiB", || {
        let written = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
        parts_below(out).iter().any(|part| written(part) > 4 << 20).then_some(())
    });
}

/// Starts sending a file to a receiver, which is killed in the middle. Returns the sender.
fn killed_in_the_middle(host: &Host, proof: &str) -> Process {
    let (file, out) = (host.path("file"), host.path("out"));
    fs::write(&file, test_bytes(1, FILE_BYTES)).unwrap();
    let mut recv = host.recv(&out, SLOWLY);
    let send = host.send(&[&file], &[PIECES, &["--proof", proof, "-v"]].concat());
    wait_begun(&out);
    recv.kill();
    assert!(!out.join("file").exists(), "it was not in the middle");
    // The kernel closes the killed receiver's files a moment later.
    for part in parts_below(&out) {
        let part = fs::File::open(part).unwrap();
        until("the killed one's writes to end", || {
            flock(&part, FlockOperation::NonBlockingLockExclusive).ok()
        });
    }
    send
}

fn arrives(host: &Host, send: Process, out: &Path, again: bool) {
    let sent: SendReport = send.succeed();
    assert!(fs::read(out.join("file")).unwrap() == test_bytes(1, FILE_BYTES), "called sent, and differs");
    assert_eq!(sent.sent_again > 0, again, "{sent:?}");
    host.wait_whole();
    assert_eq!(parts_below(out), Vec::<PathBuf>::new());
}

#[test]
fn a_receiver_that_sweeps_in_the_middle_of_a_file_gets_all_of_it_again() {
    for proof in ["fast", "blake3", "off"] {
        let host = Host::new("shm");
        let _daemon = host.daemon();
        let send = killed_in_the_middle(&host, proof);
        let recv = host.recv(&host.path("out"), &["--sweep"]);
        arrives(&host, send, &host.path("out"), true);
        recv.stop::<ReceiveReport>();
    }
}

#[test]
fn a_receiver_with_another_out_in_the_middle_of_a_file_gets_all_of_it() {
    let host = Host::new("shm");
    let _daemon = host.daemon();
    let send = killed_in_the_middle(&host, "fast");
    let recv = host.recv(&host.path("other"), &[]);
    arrives(&host, send, &host.path("other"), true);
    recv.stop::<ReceiveReport>();
}

#[test]
fn a_part_that_was_removed_while_nobody_ran_is_sent_again() {
    let host = Host::new("tcp");
    let _daemon = host.daemon();
    let send = killed_in_the_middle(&host, "fast");
    parts_below(&host.path("out")).iter().for_each(|part| fs::remove_file(part).unwrap());
    let recv = host.recv(&host.path("out"), &[]);
    arrives(&host, send, &host.path("out"), true);
    recv.stop::<ReceiveReport>();
}

#[test]
fn a_part_that_is_removed_under_a_receiver_is_sent_again() {
    let host = Host::new("shm");
    let (file, out) = (host.path("file"), host.path("out"));
    fs::write(&file, test_bytes(1, FILE_BYTES)).unwrap();
    let _daemon = host.daemon();
    let recv = host.recv(&out, SLOWLY);
    let send = host.send(&[&file], PIECES);
    wait_begun(&out);
    parts_below(&out).iter().for_each(|part| fs::remove_file(part).unwrap());
    arrives(&host, send, &out, true);
    let received: ReceiveReport = recv.stop();
    assert!(received.received.lost > 0, "{received:?}");
}

#[test]
fn what_a_killed_receiver_wrote_is_read_again_before_it_is_believed() {
    for (proof, damaged) in [("fast", false), ("blake3", false), ("fast", true), ("off", false)] {
        let host = Host::new("shm");
        let _daemon = host.daemon();
        let send = killed_in_the_middle(&host, proof);
        if damaged {
            use std::os::unix::fs::FileExt;
            let part = &parts_below(&host.path("out"))[0];
            fs::File::options().write(true).open(part).unwrap().write_all_at(b"not sent", 12_345).unwrap();
        }
        let recv = host.recv(&host.path("out"), &[]);
        // Without a proof nobody can know what is in the part.
        arrives(&host, send, &host.path("out"), damaged || proof == "off");
        let received: ReceiveReport = recv.stop();
        assert_eq!(received.received.proven, u64::from(!damaged && proof != "off"), "{received:?}");
    }
}

/// Returns the paths that a process's descriptors lead to.
fn opened(jet: &Process) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", jet.id())).unwrap();
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.unwrap().path()).ok()).collect()
}

#[test]
fn a_part_whose_sender_is_dead_is_not_kept_open() {
    let host = Host::new("shm");
    let (file, out) = (host.path("file"), host.path("out"));
    fs::create_dir_all(host.path("d")).unwrap();
    fs::write(&file, test_bytes(1, FILE_BYTES)).unwrap();
    fs::rename(&file, host.path("d/file")).unwrap();
    let _daemon = host.daemon();
    let recv = host.recv(&out, SLOWLY);
    let mut send = host.send(&[&host.path("d")], PIECES);
    wait_begun(&out.join("d"));
    send.kill();
    host.wait_whole();
    parts_below(&out.join("d")).iter().for_each(|part| fs::remove_file(part).unwrap());
    let root = fs::canonicalize(&out).unwrap();
    until("the receiver to let go of the part and of its directory", || {
        let below = |path: &PathBuf| path.starts_with(&root) && *path != root;
        (!opened(&recv).iter().any(below)).then_some(())
    });
    recv.stop::<ReceiveReport>();
}

fn proof_of(content: &[u8]) -> Option<Proof> {
    let mut sum = Sum::new(Hash::Fast);
    sum.add(0, content);
    Some(sum.proof(content.len() as u64))
}

fn end(sender: &mut Sender, header: FileHeader<'_>, payload: &[u8]) -> AckStatus {
    let ticket =
        sender.send_small(Envelope::new(TAG).user_header(header.encode().as_ref()), payload).unwrap();
    let completion = sender.wait_timeout(WAIT_LIMIT).unwrap().expect("an end");
    assert_eq!(completion.ticket, ticket);
    completion.status
}

/// Covers a receiver that was killed after it named a file and before it told the sender. The sender asks the
/// next receiver again. Where the path had to be sent first, that is by a different message.
#[test]
fn a_file_that_has_its_name_already_is_proven_and_no_other_is_taken_for_it() {
    let host = Host::new("shm");
    let out = host.path("out");
    let _daemon = host.daemon();
    for options in [&[][..], &["--fsync"]] {
        let _ = fs::remove_dir_all(&out);
        let recv = host.recv(&out, options);
        let mut sender =
            Sender::connect(&SenderOptions::new(host.address().parse().unwrap(), "store")).unwrap();
        let name = "n".repeat(100);
        let content = test_bytes(3, 10_000);
        fs::write(out.join(&name), &content).unwrap();
        let path = PathField::Here(RelativePath::new(b"file").unwrap());
        let header = |kind, path| FileHeader { kind, file_id: 9, path };
        let complete = |content: &[u8]| Kind::Complete { mode: 0o640, proof: proof_of(content) };
        let long = header(complete(&content), PathField::Elsewhere);
        let unknown = AckStatus::Rejected(reject::PATH_UNKNOWN.get());
        assert_eq!(end(&mut sender, long, b""), unknown);
        let said = header(Kind::Path, PathField::Elsewhere);
        assert_eq!(end(&mut sender, said, name.as_bytes()), AckStatus::Consumed);
        assert_eq!(end(&mut sender, long, b""), AckStatus::Consumed);
        assert_eq!(fs::metadata(out.join(&name)).unwrap().mode() & 0o777, 0o640);
        // These do not count as the file: an older one of the same length, a directory, a link, and nothing.
        let gone = AckStatus::Rejected(reject::PART_GONE.get());
        let other = test_bytes(4, 10_000);
        assert_eq!(end(&mut sender, header(complete(&other), PathField::Elsewhere), b""), unknown);
        fs::write(out.join("file"), &content).unwrap();
        assert_eq!(end(&mut sender, header(complete(&other), path), b""), gone);
        let unproven = Kind::Complete { mode: 0o640, proof: None };
        assert_eq!(end(&mut sender, header(unproven, path), b""), gone);
        fs::remove_file(out.join("file")).unwrap();
        assert_eq!(end(&mut sender, header(complete(&other), path), b""), gone);
        std::os::unix::fs::symlink(&name, out.join("file")).unwrap();
        assert_eq!(end(&mut sender, header(complete(&content), path), b""), gone);
        fs::remove_file(out.join("file")).unwrap();
        fs::create_dir(out.join("file")).unwrap();
        assert_eq!(end(&mut sender, header(complete(&content), path), b""), gone);
        drop(sender);
        host.wait_whole();
        recv.stop::<ReceiveReport>();
    }
}

#[test]
fn a_file_that_is_written_while_it_is_sent_is_sent_again_and_refused_when_that_goes_on() {
    let host = Host::new("shm");
    let (file, out) = (host.path("file"), host.path("out"));
    fs::write(&file, test_bytes(1, FILE_BYTES)).unwrap();
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    // The time of modification is put back, as some editors and all tools do that restore times.
    let write = |at: u64| {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(&file).unwrap();
        file.write_all_at(&at.to_le_bytes(), at).unwrap();
        file.set_modified(modified).unwrap();
    };
    let _daemon = host.daemon();
    let recv = host.recv(&out, SLOWLY);
    let send = host.send(&[&file], &[PIECES, &["-v"]].concat());
    wait_begun(&out);
    write(1 << 20);
    write(FILE_BYTES as u64 - 4096);
    let sent: SendReport = send.succeed();
    assert_eq!(sent.sent_again, 1, "{sent:?}");
    assert!(fs::read(&file).unwrap() == fs::read(out.join("file")).unwrap(), "torn");
    assert_eq!(parts_below(&out), Vec::<PathBuf>::new());
    // A file that is written to without end is refused, and nothing of it is left.
    fs::remove_file(out.join("file")).unwrap();
    let mut send = host.send(&[&file], &[PIECES, &["-v"]].concat());
    let status = until("the sender to give it up", || {
        write(1 << 20);
        if send.is_running() { None } else { Some(send.wait()) }
    });
    assert_eq!(status.code(), Some(1));
    assert!(send.stderr_text().contains("stop what writes to it"), "{}", send.stderr_text());
    assert!(!out.join("file").exists());
    assert_eq!(parts_below(&out), Vec::<PathBuf>::new());
    host.wait_whole();
    recv.stop::<ReceiveReport>();
}

#[test]
fn a_file_of_a_long_path_that_changes_while_its_receiver_is_away_is_sent_again_and_leaves_no_part() {
    let host = Host::new("shm");
    let (file, out) = (host.path(&"n".repeat(100)), host.path("out"));
    fs::write(&file, test_bytes(1, FILE_BYTES)).unwrap();
    let _daemon = host.daemon();
    let mut recv = host.recv(&out, SLOWLY);
    let send = host.send(&[&file], PIECES);
    wait_begun(&out);
    recv.kill();
    fs::write(&file, test_bytes(2, FILE_BYTES)).unwrap();
    let recv = host.recv(&out, &[]);
    let sent: SendReport = send.succeed();
    assert!(sent.sent_again > 0, "{sent:?}");
    assert!(fs::read(out.join("n".repeat(100))).unwrap() == test_bytes(2, FILE_BYTES), "torn");
    assert_eq!(parts_below(&out), Vec::<PathBuf>::new());
    host.wait_whole();
    recv.stop::<ReceiveReport>();
}

#[test]
fn files_and_trees_arrive_with_every_proof() {
    for proof in ["fast", "blake3", "off"] {
        let host = Host::new("shm");
        let (tree, out) = (host.path("tree"), host.path("out"));
        odd_tree(&tree);
        let _daemon = host.daemon();
        let recv = host.recv(&out, &[]);
        let send = host.send(&[&tree], &["--proof", proof, "--piece-bytes", "65536"]);
        assert_eq!(send.succeed::<SendReport>().proof, proof);
        assert_same(&tree, &out.join("tree"));
        host.wait_whole();
        recv.stop::<ReceiveReport>();
    }
}
