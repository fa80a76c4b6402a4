//! Tests of what a malicious or foreign sender can send to `jet recv`. Nothing is written outside `--out`,
//! and every message is answered.

use crate::host::Host;
use jet::files::header::{FileHeader, Kind, PathField, TAG};
use jet::files::path::RelativePath;
use jet::files::proof::{Hash, Sum};
use jet::files::receiving::ReceiveReport;
use jet::files::reject;
use jet_client::send::{AckStatus, Envelope, Sender, SenderOptions};
use jet_test_support::waiting::WAIT_LIMIT;
use std::fs;

/// Makes a header with any bytes as its path. The meaning of the last two fields depends on the kind.
fn header(kind: u8, path: &[u8], first: u64, second: u64) -> Vec<u8> {
    let mode = if [1, 4, 8].contains(&kind) { 0o644u16 } else { 0 };
    let mut bytes = vec![2, kind];
    bytes.extend(mode.to_le_bytes());
    bytes.extend(u16::try_from(path.len()).unwrap().to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(5u64.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    bytes.extend(second.to_le_bytes());
    bytes.extend(path);
    bytes
}

fn end(sender: &mut Sender, tag: u64, header: &[u8], payload: &[u8]) -> AckStatus {
    let ticket = sender.send_small(Envelope::new(tag).user_header(header), payload).unwrap();
    let completion = sender.wait_timeout(WAIT_LIMIT).unwrap().expect("an end");
    assert_eq!(completion.ticket, ticket);
    completion.status
}

#[test]
fn a_hand_written_sender_gets_nothing_outside_and_an_answer_to_everything() {
    let host = Host::new("shm");
    let out = host.path("out");
    let _daemon = host.daemon();
    let recv = host.recv(&out, &[]);
    std::os::unix::fs::symlink(host.folder.path(), out.join("link")).unwrap();
    let before = fs::read_dir(host.folder.path()).unwrap().count();
    let mut sender = Sender::connect(&SenderOptions::new(host.address().parse().unwrap(), "store")).unwrap();
    let absolute = host.path("absolute").into_os_string().into_encoded_bytes();
    let refused = AckStatus::Rejected(reject::PATH_REFUSED.get());
    for path in [
        &b"../outside"[..],
        b"a/../../outside",
        b"..",
        b"a//b",
        b"./a",
        b".jet-part-1",
        &absolute[..64.min(absolute.len())],
    ] {
        for kind in [1, 2, 4, 5, 6, 7, 8] {
            let payload: &[u8] = if [2, 8].contains(&kind) { b"xyz" } else { b"" };
            let status = end(&mut sender, TAG, &header(kind, path, 0, 0), payload);
            assert_eq!(status, refused, "kind {kind} {path:?}");
        }
        assert_eq!(end(&mut sender, TAG, &header(3, b"", 0, 0), path), refused, "path message {path:?}");
    }
    // These paths lead through a link that lies below `--out`.
    for (kind, path) in [
        (1u8, &b"link/made"[..]),
        (8, b"link/file"),
        (8, b"link/deep/file"),
        (6, b"link/file"),
        (2, b"link/file"),
        (4, b"link/file"),
    ] {
        let payload: &[u8] = if [2, 8].contains(&kind) { b"xyz" } else { b"" };
        match end(&mut sender, TAG, &header(kind, path, 0, 0), payload) {
            AckStatus::Rejected(code) => {
                let text = reject::explain(code);
                assert!(text.contains("ELOOP") || text.contains("ENOTDIR"), "{text}");
            }
            other => panic!("{path:?}: {other:?}"),
        }
    }
    let bad = AckStatus::Rejected(reject::HEADER_REFUSED.get());
    let good = header(8, b"file", 0, 0);
    assert_eq!(end(&mut sender, 1, &good, b"xyz"), bad, "another tag");
    assert_eq!(end(&mut sender, TAG, &[], b"xyz"), bad, "no header");
    assert_eq!(end(&mut sender, TAG, &good[..20], b"xyz"), bad, "half a header");
    assert_eq!(end(&mut sender, TAG, &header(9, b"file", 3, 0), b"xyz"), bad, "an unknown kind");
    assert_eq!(end(&mut sender, TAG, &header(1, b"dir", 0, 0), b"xyz"), bad, "a directory with bytes");
    assert_eq!(end(&mut sender, TAG, &header(6, b"file", 8192, 0), b"xyz"), bad, "a beginning with bytes");
    assert_eq!(end(&mut sender, TAG, &header(6, b"begun", 8192, 0), b""), AckStatus::Consumed);
    let piece = |offset: u64| header(2, b"begun", offset, 0);
    assert_eq!(end(&mut sender, TAG, &piece(8192), b"xyz"), bad, "beyond the file");
    assert_eq!(end(&mut sender, TAG, &piece(u64::MAX - 4095), b"xyz"), bad, "an offset that wraps");
    assert_eq!(end(&mut sender, TAG, &piece(1), b"xyz"), bad, "no beginning of a block");
    assert_eq!(end(&mut sender, TAG, &piece(0), b"xyz"), bad, "no end of a block");
    let hole = header(7, b"begun", 4096, u64::MAX);
    assert_eq!(end(&mut sender, TAG, &hole, b""), bad, "a hole beyond the file");
    assert_eq!(end(&mut sender, TAG, &header(5, b"begun", 0, 0), b""), AckStatus::Consumed);
    let unknown = AckStatus::Rejected(reject::PATH_UNKNOWN.get());
    assert_eq!(end(&mut sender, TAG, &header(2, b"", 0, 0), b"xyz"), unknown);
    let gone = AckStatus::Rejected(reject::PART_GONE.get());
    assert_eq!(end(&mut sender, TAG, &header(4, b"never", 0, 0), b""), gone);
    assert_eq!(end(&mut sender, TAG, &header(2, b"never", 0, 0), b"xyz"), gone);
    assert_eq!(end(&mut sender, TAG, &header(7, b"never", 0, 0), b""), gone);
    // The part is incomplete, and then the bytes differ from those that were hashed.
    assert_eq!(end(&mut sender, TAG, &header(6, b"begun", 8192, 0), b""), AckStatus::Consumed);
    assert_eq!(end(&mut sender, TAG, &piece(0), &[1; 4096]), AckStatus::Consumed);
    let incomplete = AckStatus::Rejected(reject::INCOMPLETE.get());
    assert_eq!(end(&mut sender, TAG, &header(4, b"begun", 0, 0), b""), incomplete);
    assert_eq!(end(&mut sender, TAG, &piece(4096), &[1; 4096]), gone);
    let mut forged = header(8, b"file", 1, 2);
    forged[6] = 1;
    let different = AckStatus::Rejected(reject::DIFFERENT.get());
    assert_eq!(end(&mut sender, TAG, &forged, b"xyz"), different);
    let left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["link"], "something was left");
    // After all that the receiver still takes a good file.
    let path = PathField::Here(RelativePath::new(b"file").unwrap());
    let mut sum = Sum::new(Hash::Fast);
    sum.add(0, b"xyz");
    let kind = Kind::Whole { mode: 0o640, proof: Some(sum.proof(3)) };
    let encoded = FileHeader { kind, file_id: 6, path }.encode();
    assert_eq!(end(&mut sender, TAG, encoded.as_ref(), b"xyz"), AckStatus::Consumed);
    assert_eq!(fs::read(out.join("file")).unwrap(), b"xyz");
    assert_eq!(fs::read_dir(host.folder.path()).unwrap().count(), before, "something was made outside");
    drop(sender);
    host.wait_whole();
    recv.stop::<ReceiveReport>();
}

#[test]
fn an_application_that_is_not_there_is_named() {
    let host = Host::new("shm");
    fs::write(host.path("file"), "x").unwrap();
    let _daemon = host.daemon();
    let mut send = host.send(&[&host.path("file")], &["--retry-for", "0.2"]);
    assert_eq!(send.wait().code(), Some(1));
    assert!(send.stderr_text().contains("no application of that name"), "{}", send.stderr_text());
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    let host = Host::new("shm");
    fs::write(host.path("file"), "x").unwrap();
    let mut send = host.send(&[&host.path("file")], &["--retry-for", "0.1"]);
    assert_eq!(send.wait().code(), Some(1));
    assert!(send.stderr_text().contains("jet daemon"), "{}", send.stderr_text());
    let control = host.control();
    for command in ["status", "drain"] {
        let os = std::ffi::OsStr::new;
        let mut asked = host.start(&[os(command), os("--control-socket"), control.as_os_str(), os("--json")]);
        assert_eq!(asked.wait().code(), Some(1), "{command}");
        assert!(asked.stderr_text().contains("is jetd running?"), "{}", asked.stderr_text());
    }
}
