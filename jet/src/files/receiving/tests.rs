//! Tests of a receiver whose daemon is the test: how it ends each message, and when.

use super::*;
use crate::files::disk::Work;
use crate::files::disk::tests::{break_ring, has_io_uring};
use crate::files::header::{FileHeader, Kind, PathField, TAG};
use crate::files::path::RelativePath;
use crate::files::proof::{Hash, Proof, Sum};
use crate::files::test_session::{self, DaemonSide};
use jet_wire::SLAB_BYTES;
use jet_wire::segment::{
    DELIVERY_USER_HEADER_MAX, Delivery, Place, Release, delivery_flags, delivery_kind, release_kind,
};
use rustix::event::{EventfdFlags, eventfd};
use std::fs;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

const SLABS: u32 = 16;
/// File id of the test's file of several messages.
const FILE: u64 = 7;
const SENDER: u64 = 1;

const NOTHING: Delivery = Delivery { sender: SENDER, ..Delivery::ZERO };

/// Daemon's side of a session, and the number of slots it used. Every slice has a slot and a slab of its own.
struct Daemon {
    side: DaemonSide,
    delivered: u32,
}

impl Daemon {
    fn new() -> (Self, Session) {
        let (side, session) = test_session::session(SLABS);
        (Self { side, delivered: 0 }, session)
    }

    /// Delivers a message of at most a slab, or the beginning of a larger one.
    fn deliver(&mut self, kind: Kind, path: &str, bytes: &[u8], message_bytes: usize) {
        let slot = self.delivered;
        self.delivered += 1;
        self.fill(slot, bytes);
        let path = PathField::Here(RelativePath::new(path.as_bytes()).unwrap());
        let file_id = if matches!(kind, Kind::Whole { .. }) { 1000 + u64::from(slot) } else { FILE };
        let header = FileHeader { kind, file_id, path }.encode();
        let mut user_header = [0; DELIVERY_USER_HEADER_MAX];
        user_header[..header.as_ref().len()].copy_from_slice(header.as_ref());
        let last = if bytes.len() == message_bytes { delivery_flags::LAST } else { 0 };
        let delivery = Delivery {
            kind: delivery_kind::SLICES,
            flags: delivery_flags::FIRST | last,
            user_header_bytes: u16::try_from(header.as_ref().len()).unwrap(),
            slot,
            message: slot,
            generations: Delivery::pack_generations(1, 1),
            offset: 0,
            message_bytes: message_bytes as u64,
            bytes: u32::try_from(bytes.len()).unwrap(),
            slab: slot,
            tag: TAG,
            sequence: u64::from(slot) + 1,
            sender: SENDER,
            user_header,
        };
        self.side.end.deliveries.push(delivery).unwrap();
        self.side.end.deliveries.publish();
    }

    /// Delivers the last slab of a message of two slabs.
    fn deliver_rest(&mut self, message: u32, bytes: &[u8]) {
        let slot = self.delivered;
        self.delivered += 1;
        self.fill(slot, bytes);
        let delivery = Delivery {
            kind: delivery_kind::SLICES,
            flags: delivery_flags::LAST,
            slot,
            message,
            generations: Delivery::pack_generations(1, 1),
            offset: SLAB_BYTES as u64,
            message_bytes: 2 * SLAB_BYTES as u64,
            bytes: u32::try_from(bytes.len()).unwrap(),
            slab: slot,
            ..NOTHING
        };
        self.side.end.deliveries.push(delivery).unwrap();
        self.side.end.deliveries.publish();
    }

    fn fill(&mut self, slot: u32, bytes: &[u8]) {
        assert!(bytes.len() <= SLAB_BYTES && slot < SLABS);
        // SAFETY: the slab lies within the pool, and nobody reads it before it is delivered.
        unsafe {
            let slab = self.side.pool.base().add(slot as usize * SLAB_BYTES);
            slab.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        if !bytes.is_empty() {
            self.side.end.slot(slot).unwrap().publish(1, Place { slab: slot, escaped: false });
        }
    }

    fn whole(&mut self, path: &str, bytes: &[u8]) {
        let kind = Kind::Whole { mode: 0o600, proof: Some(proof(bytes)) };
        self.deliver(kind, path, bytes, bytes.len());
    }

    fn piece(&mut self, number: u64, bytes: &[u8]) {
        self.deliver(Kind::Piece { offset: number * SLAB_BYTES as u64 }, "file", bytes, bytes.len());
    }

    /// Withdraws the last message: its rest is not delivered.
    fn withdraw(&mut self) {
        let delivery = Delivery {
            kind: delivery_kind::WITHDRAWN,
            flags: delivery_flags::CORRUPT,
            message: self.delivered - 1,
            generations: Delivery::pack_generations(1, 1),
            ..NOTHING
        };
        self.side.end.deliveries.push(delivery).unwrap();
        self.side.end.deliveries.publish();
    }

    /// Returns how messages ended: their numbers and codes, in the order of their ends. Code 0 is consumed.
    fn ends(&mut self, session: &Session) -> Vec<(u32, u32)> {
        session.flush();
        let mut ends = Vec::new();
        while let Ok(Some(Release { index, kind, code, .. })) = self.side.end.releases.pop() {
            if kind != release_kind::SLICES {
                ends.push((index, code));
            }
        }
        ends
    }
}

fn options(out: &Path) -> Options {
    Options {
        out: out.to_owned(),
        fsync: false,
        direct: false,
        io_uring: false,
        depth: 16,
        files_max: None,
        until_idle: None,
        slow: Slow::default(),
    }
}

fn proof(bytes: &[u8]) -> Proof {
    let mut sum = Sum::new(Hash::Fast);
    sum.add(0, bytes);
    sum.proof(bytes.len() as u64)
}

fn slab(number: u8) -> Vec<u8> {
    vec![number + 1; SLAB_BYTES]
}

/// Waits until an operation of the disk has ended.
fn wait_ended(disk: &mut Disk) {
    while disk.ended() == 0 {
        disk.submit().unwrap();
        std::thread::yield_now();
    }
}

fn work_until_idle<'s>(receiving: &mut Receiving, session: &'s Session, jobs: &mut Jobs<'s>) {
    while receiving.work(session, jobs).unwrap() {}
}

#[test]
fn a_ring_that_fails_ends_no_message_as_consumed() {
    for fsync in [true, false] {
        let out = tempfile::tempdir().unwrap();
        let mut receiving = Receiving::new(Options { fsync, io_uring: true, ..options(out.path()) }).unwrap();
        if !has_io_uring(&receiving.disk) {
            return;
        }
        let (mut daemon, session) = Daemon::new();
        daemon.whole("a", &slab(1));
        let mut jobs = Jobs::new(JOBS_MAX);
        receiving.work(&session, &mut jobs).unwrap();
        wait_ended(&mut receiving.disk);
        if !fsync {
            // The second file is written in the same batch, by an operation that the ring never takes.
            daemon.whole("b", &slab(2));
            let message = session.try_receive().unwrap();
            receiving.take(&session, &mut jobs, OpenMessage::new(message)).unwrap();
        }
        break_ring(&mut receiving.disk);
        receiving.leave(&session, jobs).unwrap_err();
        assert_eq!(daemon.ends(&session), [], "fsync {fsync}");
        assert!(receiving.disk.is_idle() && !out.path().join("b").exists());
    }
}

#[test]
fn a_panic_leaves_nothing_in_flight_and_ends_no_message() {
    let out = tempfile::tempdir().unwrap();
    let mut receiving = Receiving::new(Options { fsync: true, ..options(out.path()) }).unwrap();
    let (mut daemon, session) = Daemon::new();
    daemon.whole("a", &slab(1));
    catch_unwind(AssertUnwindSafe(|| {
        let mut jobs = Jobs::new(JOBS_MAX);
        let message = session.try_receive().unwrap();
        receiving.take(&session, &mut jobs, OpenMessage::new(message)).unwrap();
        let written = receiving.disk.finished().unwrap();
        receiving.handle_finished(&session, &mut jobs, written).unwrap();
        // All slices were given back, and the file is not synced.
        panic!("a fault of the program");
    }))
    .unwrap_err();
    // No job waits for the sync any more. Its end causes the next panic, while another sync is in flight.
    let file = Rc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
    // SAFETY: a sync has no bytes.
    unsafe { receiving.disk.begin(100, &file, Work::Sync) }.unwrap();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    catch_unwind(AssertUnwindSafe(|| receiving.serve(&session, stop.as_fd(), |_| {}).map(drop))).unwrap_err();
    assert_eq!(daemon.ends(&session), []);
    assert!(receiving.disk.is_idle(), "the memory that is written from goes with the session");
}

#[test]
fn a_directory_that_is_moved_away_while_the_receiver_leaves_takes_no_file_with_it() {
    let (out, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut receiving = Receiving::new(options(out.path())).unwrap();
    let (mut daemon, session) = Daemon::new();
    fs::create_dir(out.path().join("d")).unwrap();
    fs::write(out.path().join("d/file"), "archived").unwrap();
    daemon.whole("d/file", b"x");
    let mut jobs = Jobs::new(JOBS_MAX);
    receiving.work(&session, &mut jobs).unwrap();
    fs::rename(out.path().join("d"), archive.path().join("d")).unwrap();
    receiving.leave(&session, jobs).unwrap();
    assert_eq!(daemon.ends(&session), [(0, 0)]);
    assert_eq!(fs::read(archive.path().join("d/file")).unwrap(), b"archived");
    assert_eq!(fs::read(out.path().join("d/file")).unwrap(), b"x");
}

#[test]
fn a_proof_without_io_uring_is_read_in_rounds() {
    let out = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..100).flat_map(slab).collect();
    let part = format!(".jet-part-{SENDER:016x}-{FILE:x}");
    fs::write(out.path().join(part), &content).unwrap();
    let mut receiving = Receiving::new(options(out.path())).unwrap();
    let (mut daemon, session) = Daemon::new();
    let complete = Kind::Complete { mode: 0o600, proof: Some(proof(&content)) };
    daemon.deliver(complete, "file", b"", 0);
    let mut jobs = Jobs::new(JOBS_MAX);
    receiving.work(&session, &mut jobs).unwrap();
    // The proof takes four reads of at most 128 KiB.
    receiving.work(&session, &mut jobs).unwrap();
    daemon.whole("small", b"x");
    receiving.work(&session, &mut jobs).unwrap();
    receiving.work(&session, &mut jobs).unwrap();
    assert_eq!(daemon.ends(&session), [(1, 0)], "the small one came when a part of the other was read");
    work_until_idle(&mut receiving, &session, &mut jobs);
    assert_eq!(daemon.ends(&session), [(0, 0)]);
    assert_eq!(fs::read(out.path().join("file")).unwrap(), content);
}

#[test]
fn a_stop_is_heard_while_a_file_is_proven_without_io_uring() {
    let out = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..100).flat_map(slab).collect();
    let part = format!(".jet-part-{SENDER:016x}-{FILE:x}");
    fs::write(out.path().join(&part), &content).unwrap();
    let mut receiving = Receiving::new(options(out.path())).unwrap();
    let (mut daemon, session) = Daemon::new();
    daemon.deliver(Kind::Complete { mode: 0o600, proof: Some(proof(&content)) }, "file", b"", 0);
    let mut jobs = Jobs::new(JOBS_MAX);
    receiving.work(&session, &mut jobs).unwrap();
    let stop = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
    let served = receiving.serve_jobs(&session, stop.as_fd(), &mut jobs, &mut |_| {}).unwrap();
    assert!(matches!(served, Served::Stopped), "{served:?}");
    receiving.leave(&session, jobs).unwrap();
    assert_eq!(daemon.ends(&session), [], "the whole file was read first");
    assert!(out.path().join(part).exists(), "the next receiver proves it");
}

/// Time at which the second receiver finds that it cannot write.
#[derive(Clone, Copy, Debug)]
enum Unwritable {
    /// The part cannot be made.
    Part,
    /// A write fails while more of the message is still to arrive.
    Bytes,
}

#[test]
fn a_file_that_was_named_and_not_said_so_is_consumed_where_nothing_can_be_written() {
    let content = [slab(1), slab(2)].concat();
    let other = [slab(1), slab(3)].concat();
    for (unwritable, fsync) in [
        (Unwritable::Part, false),
        (Unwritable::Part, true),
        (Unwritable::Bytes, false),
        (Unwritable::Bytes, true),
    ] {
        for (named, sent_proof, there) in [
            (&content[..], Some(proof(&content)), true),
            (&other[..], Some(proof(&content)), false),
            (&content[1..], Some(proof(&content)), false),
            (&content[..], None, false),
        ] {
            let out = tempfile::tempdir().unwrap();
            fs::write(out.path().join("file"), named).unwrap();
            let mut receiving = Receiving::new(Options { fsync, ..options(out.path()) }).unwrap();
            let (mut daemon, session) = Daemon::new();
            let part = out.path().join(format!(".jet-part-{SENDER:016x}-{:x}", 1000));
            if matches!(unwritable, Unwritable::Part) {
                fs::create_dir(&part).unwrap();
            }
            let mut jobs = Jobs::new(JOBS_MAX);
            let kind = Kind::Whole { mode: 0o640, proof: sent_proof };
            daemon.deliver(kind, "file", &content[..SLAB_BYTES], content.len());
            work_until_idle(&mut receiving, &session, &mut jobs);
            let errno = match unwritable {
                Unwritable::Part => libc::EISDIR,
                Unwritable::Bytes => {
                    let (index, _) = jobs.places.iter().next().unwrap();
                    jobs.get(index).failed = NonZeroU32::new(libc::ENOSPC.unsigned_abs());
                    receiving.advance(&mut jobs, index).unwrap();
                    libc::ENOSPC
                }
            };
            daemon.deliver_rest(0, &content[SLAB_BYTES..]);
            work_until_idle(&mut receiving, &session, &mut jobs);
            let code = if there { 0 } else { errno.unsigned_abs() };
            let about = format!("{unwritable:?}, fsync {fsync}, proof {sent_proof:?}");
            let codes: Vec<_> = daemon.ends(&session).into_iter().map(|(_, code)| code).collect();
            assert_eq!(codes, [code], "{about}");
            assert_eq!(fs::read(out.path().join("file")).unwrap(), named, "{about}");
            let mode = fs::metadata(out.path().join("file")).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode == 0o640, there, "{about}: {mode:o}");
            assert!(!part.is_file(), "{about}");
            receiving.leave(&session, jobs).unwrap();
        }
    }
}

#[test]
fn a_sync_that_fails_is_not_tried_again_on_the_file_that_has_the_name() {
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("file"), slab(1)).unwrap();
    let mut receiving = Receiving::new(Options { fsync: true, ..options(out.path()) }).unwrap();
    let (mut daemon, session) = Daemon::new();
    let mut jobs = Jobs::new(JOBS_MAX);
    daemon.whole("file", &slab(1));
    let message = session.try_receive().unwrap();
    receiving.take(&session, &mut jobs, OpenMessage::new(message)).unwrap();
    let written = receiving.disk.finished().unwrap();
    receiving.handle_finished(&session, &mut jobs, written).unwrap();
    let mut synced = receiving.disk.finished().unwrap();
    assert!(matches!(synced.work, Work::Sync));
    synced.error = Some(io::Error::from_raw_os_error(libc::EIO));
    receiving.handle_finished(&session, &mut jobs, synced).unwrap();
    work_until_idle(&mut receiving, &session, &mut jobs);
    assert_eq!(daemon.ends(&session), [(0, libc::EIO.unsigned_abs())]);
    receiving.leave(&session, jobs).unwrap();
}

/// Ways in which a piece is delivered twice, the second time damaged on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SecondDelivery {
    /// After the first delivery was accounted for.
    Later,
    /// While the first delivery is written.
    Beside,
    /// While the first delivery is written, or after it was. The rest of the second one is withdrawn.
    /// `first`: before the first delivery is accounted for.
    Withdrawn { first: bool },
}

#[test]
fn a_piece_that_comes_twice_does_not_damage_a_file() {
    for again in [
        SecondDelivery::Later,
        SecondDelivery::Beside,
        SecondDelivery::Withdrawn { first: true },
        SecondDelivery::Withdrawn { first: false },
    ] {
        let out = tempfile::tempdir().unwrap();
        let mut receiving = Receiving::new(options(out.path())).unwrap();
        let (mut daemon, session) = Daemon::new();
        let mut jobs = Jobs::new(JOBS_MAX);
        let content: Vec<u8> = (0..3).flat_map(slab).collect();
        let begin = Kind::Begin { file_bytes: content.len() as u64, hash: Some(Hash::Fast) };
        daemon.deliver(begin, "file", b"", 0);
        let damaged = slab(99);
        match again {
            SecondDelivery::Later => {
                daemon.piece(0, &slab(0));
                work_until_idle(&mut receiving, &session, &mut jobs);
                daemon.piece(0, &damaged);
            }
            SecondDelivery::Beside => {
                daemon.piece(0, &slab(0));
                daemon.piece(0, &damaged);
            }
            SecondDelivery::Withdrawn { first } => {
                let damage = |daemon: &mut Daemon| {
                    daemon.deliver(Kind::Piece { offset: 0 }, "file", &damaged, 2 * SLAB_BYTES);
                };
                if first {
                    let good = daemon.delivered;
                    daemon.deliver(Kind::Piece { offset: 0 }, "file", &slab(0), 2 * SLAB_BYTES);
                    damage(&mut daemon);
                    receiving.work(&session, &mut jobs).unwrap();
                    daemon.withdraw();
                    work_until_idle(&mut receiving, &session, &mut jobs);
                    daemon.deliver_rest(good, &slab(1));
                } else {
                    daemon.piece(0, &slab(0));
                    damage(&mut daemon);
                    receiving.work(&session, &mut jobs).unwrap();
                    daemon.withdraw();
                }
            }
        }
        work_until_idle(&mut receiving, &session, &mut jobs);
        if again != (SecondDelivery::Withdrawn { first: true }) {
            daemon.piece(1, &slab(1));
        }
        daemon.piece(2, &slab(2));
        work_until_idle(&mut receiving, &session, &mut jobs);
        daemon.deliver(Kind::Complete { mode: 0o600, proof: Some(proof(&content)) }, "file", b"", 0);
        work_until_idle(&mut receiving, &session, &mut jobs);
        let complete = daemon.delivered - 1;
        let code = daemon.ends(&session).into_iter().find(|&(message, _)| message == complete).unwrap().1;
        match fs::read(out.path().join("file")) {
            Ok(file) => assert!(code == 0 && file == content, "{again:?}: {code}, and another file"),
            // The sender sends the file again.
            Err(_) => assert!(code != 0 && again != SecondDelivery::Later, "{again:?}: {code}, and no file"),
        }
        receiving.leave(&session, jobs).unwrap();
    }
}

#[test]
fn a_piece_that_is_damaged_beside_one_when_the_receiver_leaves_is_not_believed_by_the_next_session() {
    let out = tempfile::tempdir().unwrap();
    let mut receiving = Receiving::new(options(out.path())).unwrap();
    let (mut daemon, session) = Daemon::new();
    let mut jobs = Jobs::new(JOBS_MAX);
    daemon.deliver(Kind::Begin { file_bytes: 8192, hash: Some(Hash::Fast) }, "file", b"", 0);
    daemon.piece(0, &slab(0));
    daemon.deliver(Kind::Piece { offset: 0 }, "file", &slab(99), 2 * SLAB_BYTES);
    receiving.work(&session, &mut jobs).unwrap();
    receiving.leave(&session, jobs).unwrap();
    assert_eq!(daemon.ends(&session), [(0, 0), (1, 0)]);
    let (mut daemon, session) = Daemon::new();
    let mut jobs = Jobs::new(JOBS_MAX);
    receiving.leaving = false;
    daemon.piece(1, &slab(1));
    work_until_idle(&mut receiving, &session, &mut jobs);
    let content = [slab(0), slab(1)].concat();
    daemon.deliver(Kind::Complete { mode: 0o600, proof: Some(proof(&content)) }, "file", b"", 0);
    work_until_idle(&mut receiving, &session, &mut jobs);
    let ends = daemon.ends(&session);
    assert!(ends[1].1 != 0 && !out.path().join("file").exists(), "{ends:?}");
    receiving.leave(&session, jobs).unwrap();
}

#[test]
fn no_more_is_open_than_descriptors_allow() {
    for descriptors in [100, 256, 300, 512, 1024, 20_000, usize::MAX] {
        let (jobs, parts) = bounds(descriptors);
        assert!(jobs < parts && parts <= PARTS_OPEN_MAX, "{descriptors}: {jobs} and {parts}");
        assert!(
            DESCRIPTORS_OTHERS + parts * DESCRIPTORS_PER_PART + jobs <= descriptors,
            "{descriptors}: {jobs} and {parts}"
        );
    }
    assert_eq!(bounds(1024), (JOBS_MAX, PARTS_OPEN_MAX), "what shells give is enough");
    assert_eq!(bounds(0), (1, 2));
}
