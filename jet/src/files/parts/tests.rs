use super::*;
use crate::files::proof::Proof;
use std::fs;

const BLOCK: u64 = 4096;

fn path(text: &str) -> RelativePath<'_> {
    RelativePath::new(text.as_bytes()).unwrap()
}

fn parts(out: &Path, open_max: usize) -> Parts {
    Parts::new(out, PartsOptions { open_max, direct: false, fsync: false }).unwrap()
}

/// Guard that takes root's right to read and write everything from this thread, as most receivers do not have
/// it. Other threads keep it. Dropping the guard gives the right back.
pub(super) struct Unprivileged;

/// User that a thread without root's rights has: "nobody" on most systems. Any but 0 would do.
const OTHER_USER: u32 = 65534;

impl Unprivileged {
    /// Takes root's rights from this thread, and makes the directory belong to [`OTHER_USER`].
    pub(super) fn in_directory(directory: &Path) -> Self {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(directory, Some(OTHER_USER), None).unwrap();
            // SAFETY: the call only changes the user id by which this thread accesses files.
            unsafe { libc::setfsuid(OTHER_USER) };
        }
        let probe = directory.join("probe");
        fs::write(&probe, "").unwrap();
        let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o000);
        fs::set_permissions(&probe, mode).unwrap();
        assert!(fs::read(&probe).is_err(), "this user may still read everything");
        fs::remove_file(&probe).unwrap();
        Self
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if rustix::process::geteuid().is_root() {
            // SAFETY: the call only changes the user id by which this thread accesses files.
            unsafe { libc::setfsuid(0) };
        }
    }
}

/// Returns the bytes of a file's block, and its sum.
fn block(number: u64) -> (Vec<u8>, Sum) {
    let bytes = vec![u8::try_from(number).unwrap() + 1; 4096];
    let mut sum = Sum::new(Hash::Fast);
    sum.add(number * BLOCK, &bytes);
    (bytes, sum)
}

fn proof(blocks: u64) -> Option<Proof> {
    let mut all = Sum::new(Hash::Fast);
    (0..blocks).for_each(|number| all.merge(&block(number).1));
    Some(all.proof(blocks * BLOCK))
}

fn content(blocks: u64) -> Vec<u8> {
    (0..blocks).flat_map(|number| block(number).0).collect()
}

fn write(parts: &mut Parts, index: PartIndex, bytes: &[u8], offset: u64) {
    let (file, direct) = parts.file(index, false).unwrap();
    assert!(!direct);
    assert_eq!(rustix::io::pwrite(&*file, bytes, offset).unwrap(), bytes.len());
}

/// Writes a piece of one block, from its arrival to its end, in a round of its own.
fn piece(parts: &mut Parts, key: Key, name: &str, number: u64) -> Result<(), PartError> {
    parts.forget_directories();
    let index = parts.enter(key, path(name))?;
    let (bytes, sum) = block(number);
    write(parts, index, &bytes, number * BLOCK);
    let written = parts.written(index, number * BLOCK, BLOCK, Some(&sum));
    parts.leave(index);
    written
}

fn begin(parts: &mut Parts, key: Key, name: &str, blocks: u64) {
    parts.begin(key, path(name), blocks * BLOCK, Some(Hash::Fast)).unwrap();
}

fn is_gone(result: Result<(), PartError>) -> bool {
    matches!(result, Err(PartError::Gone))
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_part_takes_its_name_when_it_is_complete_and_not_before() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    let index = parts.create((1, 1), path("a/b/file"), 3).unwrap();
    write(&mut parts, index, b"abc", 0);
    assert!(!out.path().join("a/b/file").exists());
    set_mode(&parts.file(index, false).unwrap().0, 0o640).unwrap();
    assert!(parts.take_name(index).unwrap());
    parts.leave(index);
    let file = out.path().join("a/b/file");
    assert_eq!(fs::read(&file).unwrap(), b"abc");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(names(&out.path().join("a/b")), ["file"]);
}

#[test]
fn of_a_message_that_came_twice_the_second_one_makes_the_file() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    let first = parts.create((1, 1), path("file"), 1).unwrap();
    write(&mut parts, first, b"x", 0);
    let second = parts.create((1, 1), path("file"), 1).unwrap();
    assert!(is_gone(parts.take_name(first).map(drop)));
    write(&mut parts, second, b"y", 0);
    assert!(parts.take_name(second).unwrap());
    // The bytes that the first one still writes belong to no file.
    write(&mut parts, first, b"x", 0);
    parts.leave(first);
    parts.leave(second);
    assert_eq!(fs::read(out.path().join("file")).unwrap(), b"y");
    assert_eq!(names(out.path()), ["file"]);
}

#[test]
fn a_part_to_which_a_killed_receiver_may_still_write_is_not_gone_on_with() {
    let out = tempfile::tempdir().unwrap();
    let (key, name) = ((7, 1), "file");
    let mut first = parts(out.path(), 1);
    begin(&mut first, key, name, 2);
    // The open descriptor keeps the lock, as a write in flight does.
    let index = first.enter(key, path(name)).unwrap();
    let (open, _) = first.file(index, false).unwrap();
    drop(first);
    let mut second = parts(out.path(), 1);
    assert!(is_gone(piece(&mut second, key, name, 1)));
    assert_eq!(names(out.path()), [""; 0], "it takes room");
    drop(open);
    // A write that ends soon is waited for.
    begin(&mut second, key, name, 2);
    let index = second.enter(key, path(name)).unwrap();
    let (open, _) = second.file(index, false).unwrap();
    drop(second);
    let mut third = parts(out.path(), 1);
    // The lock belongs to the open file, whoever has a descriptor of it.
    let other = std::fs::File::from(rustix::io::dup(&*open).unwrap());
    drop(open);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(other);
        });
        piece(&mut third, key, name, 1).unwrap();
    });
}

#[test]
fn only_a_beginning_makes_a_part_and_what_is_gone_is_heard() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    let (key, name) = ((1, 1), "d/file");
    assert!(is_gone(piece(&mut parts, key, name, 0)));
    assert!(matches!(parts.find(key, path(name), proof(2)), Ok(Found::Gone)));
    assert_eq!(names(out.path()), [""; 0], "something was made");
    // The part is removed between two pieces while it is open, and while a piece is written.
    for removed_at in [0, 1] {
        begin(&mut parts, key, name, 2);
        piece(&mut parts, key, name, 0).unwrap();
        let part = out.path().join("d").join(part_name(key));
        if removed_at == 1 {
            let index = parts.enter(key, path(name)).unwrap();
            fs::remove_file(&part).unwrap();
            assert!(is_gone(piece(&mut parts, key, name, 1)));
            assert!(is_gone(parts.written(index, BLOCK, BLOCK, None)));
            parts.leave(index);
        } else {
            fs::remove_file(&part).unwrap();
        }
        assert!(is_gone(piece(&mut parts, key, name, 1)));
        assert!(matches!(parts.find(key, path(name), proof(2)), Ok(Found::Gone)));
        assert_eq!(names(&out.path().join("d")), [""; 0]);
    }
    // A part that was replaced by another file, or whose length was changed, is not the one that was begun.
    begin(&mut parts, key, name, 2);
    piece(&mut parts, key, name, 0).unwrap();
    let part = out.path().join("d").join(part_name(key));
    let other = out.path().join("other");
    fs::copy(&part, &other).unwrap();
    fs::rename(&other, &part).unwrap();
    assert!(is_gone(piece(&mut parts, key, name, 1)));
    begin(&mut parts, key, name, 2);
    fs::File::options().write(true).open(&part).unwrap().set_len(100).unwrap();
    assert!(is_gone(piece(&mut parts, key, name, 1)));
}

#[test]
fn what_was_consumed_and_discarded_is_not_made_of_the_rest() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    let (key, name) = ((1, 1), "file");
    begin(&mut parts, key, name, 2);
    piece(&mut parts, key, name, 0).unwrap();
    // A write fails: the disk is full.
    let index = parts.enter(key, path(name)).unwrap();
    parts.discard(index);
    parts.leave(index);
    // The pieces are sent again, and now they would fit.
    assert!(is_gone(piece(&mut parts, key, name, 1)));
    assert!(matches!(parts.find(key, path(name), proof(2)), Ok(Found::Gone)));
    assert_eq!(names(out.path()), [""; 0]);
}

#[test]
fn a_file_is_proven_by_what_was_accounted_for() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    for (file_id, pieces, blocks) in [(1, vec![1, 0], 2), (2, vec![0], 2), (3, vec![0, 1], 3)] {
        let (key, name) = ((1, file_id), "file");
        begin(&mut parts, key, name, 2);
        // A beginning that is delivered twice changes nothing.
        pieces.iter().for_each(|&number| piece(&mut parts, key, name, number).unwrap());
        begin(&mut parts, key, name, 2);
        match (file_id, parts.find(key, path(name), proof(blocks)).unwrap()) {
            (1, Found::Proven(index)) => {
                assert!(parts.take_name(index).unwrap());
                parts.leave(index);
                assert_eq!(fs::read(out.path().join(name)).unwrap(), content(2));
            }
            (2, Found::Incomplete) | (3, Found::Different) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(names(out.path()), ["file"], "{file_id}");
    }
}

#[test]
fn another_receiver_goes_on_with_a_part_and_does_not_know_what_is_in_it() {
    let out = tempfile::tempdir().unwrap();
    let (key, name) = ((7, 1), "file");
    let mut first = parts(out.path(), 1);
    begin(&mut first, key, name, 2);
    piece(&mut first, key, name, 0).unwrap();
    drop(first);
    let mut second = parts(out.path(), 1);
    piece(&mut second, key, name, 1).unwrap();
    let Found::Unproven(index) = second.find(key, path(name), proof(2)).unwrap() else { panic!("believed") };
    assert!(second.take_name(index).unwrap());
    second.leave(index);
    assert_eq!(fs::read(out.path().join(name)).unwrap(), content(2));
    // Without a proof nothing says that the file is whole.
    begin(&mut second, key, name, 2);
    drop(second);
    let mut third = parts(out.path(), 1);
    assert!(matches!(third.find(key, path(name), None).unwrap(), Found::Incomplete));
}

#[test]
fn more_parts_than_may_be_open_are_closed_and_opened_again() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    let names = ["d/0", "d/1", "d/2", "e/3"];
    for (number, name) in names.iter().enumerate() {
        begin(&mut parts, (1, number as u64), name, 2);
    }
    for round in 0..2 {
        for (number, name) in names.iter().enumerate() {
            piece(&mut parts, (1, number as u64), name, round).unwrap();
        }
    }
    for (number, name) in names.iter().enumerate() {
        let found = parts.find((1, number as u64), path(name), proof(2)).unwrap();
        let Found::Proven(index) = found else { panic!("{found:?}") };
        parts.take_name(index).unwrap();
        parts.leave(index);
        assert_eq!(fs::read(out.path().join(name)).unwrap(), content(2));
    }
}

#[test]
fn a_directory_that_is_moved_away_takes_no_file_with_it() {
    let (out, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/tmp").unwrap());
    let mut parts = parts(out.path(), 2);
    let archived = archive.path().join("d");
    fs::create_dir(out.path().join("d")).unwrap();
    fs::write(out.path().join("d/file"), "archived").unwrap();
    // The directory is moved between the pieces of one file, and in the middle of another.
    begin(&mut parts, (1, 1), "d/file", 2);
    piece(&mut parts, (1, 1), "d/file", 0).unwrap();
    let index = parts.create((1, 2), path("d/one"), 1).unwrap();
    write(&mut parts, index, b"x", 0);
    fs::rename(out.path().join("d"), &archived).unwrap();
    parts.forget_directories();
    assert!(is_gone(piece(&mut parts, (1, 1), "d/file", 1)));
    // Both lie on one file system: the file goes to where its path leads now.
    assert!(parts.take_name(index).unwrap());
    parts.leave(index);
    assert_eq!(fs::read(out.path().join("d/one")).unwrap(), b"x");
    begin(&mut parts, (1, 3), "d/file", 1);
    piece(&mut parts, (1, 3), "d/file", 0).unwrap();
    let found = parts.find((1, 3), path("d/file"), proof(1)).unwrap();
    let Found::Proven(index) = found else { panic!("{found:?}") };
    assert!(parts.take_name(index).unwrap());
    assert_eq!(fs::read(out.path().join("d/file")).unwrap(), content(1));
    assert_eq!(fs::read(archived.join("file")).unwrap(), b"archived");
    assert!(!archived.join("one").exists());
}

#[test]
fn a_directory_that_is_moved_away_in_a_long_round_takes_no_file_with_it() {
    let (out, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut parts = parts(out.path(), 2);
    let archived = archive.path().join("d");
    fs::create_dir(out.path().join("d")).unwrap();
    fs::write(out.path().join("d/file"), "archived").unwrap();
    let index = parts.create((1, 1), path("d/file"), 1).unwrap();
    write(&mut parts, index, b"x", 0);
    fs::rename(out.path().join("d"), &archived).unwrap();
    assert!(parts.take_name(index).unwrap());
    parts.leave(index);
    assert_eq!(fs::read(archived.join("file")).unwrap(), b"archived");
    assert_eq!(fs::read(out.path().join("d/file")).unwrap(), b"x");
}

#[test]
fn a_part_of_another_receiver_is_not_named() {
    let out = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (parts(out.path(), 2), parts(out.path(), 2));
    let stopped = first.create((1, 1), path("file"), 2).unwrap();
    write(&mut first, stopped, b"xx", 0);
    // The first receiver is stopped. Its daemon delivers the message to the second, which has written half of
    // it.
    let half = second.create((1, 1), path("file"), 2).unwrap();
    write(&mut second, half, b"x", 0);
    assert!(is_gone(first.take_name(stopped).map(drop)));
    assert!(!out.path().join("file").exists());
    write(&mut second, half, b"x", 1);
    assert!(second.take_name(half).unwrap());
    assert_eq!(fs::read(out.path().join("file")).unwrap(), b"xx");
}

#[test]
fn bytes_that_were_written_over_are_not_believed() {
    let (mut other, mut sum) = (block(0).0, Sum::new(Hash::Fast));
    other[100] ^= 1;
    sum.add(0, &other);
    // The second delivery is written at the same time as the first, or is withdrawn after it was written.
    for withdrawn in [false, true] {
        let out = tempfile::tempdir().unwrap();
        let mut parts = parts(out.path(), 2);
        let (key, name) = ((1, 1), "file");
        begin(&mut parts, key, name, 2);
        piece(&mut parts, key, name, 0).unwrap();
        let index = parts.enter_to_write(key, path(name)).unwrap();
        assert!(
            parts.has(index, 0, BLOCK) && !parts.has(index, BLOCK, BLOCK) && !parts.has(index, 0, 2 * BLOCK)
        );
        write(&mut parts, index, &other, 0);
        if withdrawn {
            parts.doubt(index, 0, BLOCK);
        } else {
            parts.written(index, 0, BLOCK, Some(&sum)).unwrap();
        }
        parts.leave(index);
        piece(&mut parts, key, name, 1).unwrap();
        let found = parts.find(key, path(name), proof(2)).unwrap();
        assert!(matches!(found, Found::Unproven(_)), "{found:?}");
    }
}

#[test]
fn nothing_is_written_to_a_file_that_takes_its_name() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    let (key, name) = ((1, 1), "file");
    begin(&mut parts, key, name, 1);
    piece(&mut parts, key, name, 0).unwrap();
    let Found::Proven(index) = parts.find(key, path(name), proof(1)).unwrap() else { panic!("all is there") };
    assert!(matches!(parts.enter_to_write(key, path(name)), Err(PartError::Gone)));
    // A file that is asked for twice takes its name once.
    let Found::Proven(again) = parts.find(key, path(name), proof(1)).unwrap() else { panic!("all is there") };
    assert!(parts.take_name(index).unwrap() && !parts.take_name(again).unwrap());
    parts.leave(index);
    parts.leave(again);
    // A message that did not reach its end does not keep the part from the next one.
    begin(&mut parts, key, name, 1);
    piece(&mut parts, key, name, 0).unwrap();
    let Found::Proven(index) = parts.find(key, path(name), proof(1)).unwrap() else { panic!("all is there") };
    parts.leave(index);
    let writes = parts.enter_to_write(key, path(name)).unwrap();
    assert!(matches!(parts.find(key, path(name), proof(1)), Ok(Found::Incomplete)), "it is still written to");
    parts.leave(writes);
    assert_eq!(names(out.path()), ["file"]);
}

#[test]
fn a_part_whose_length_was_changed_is_removed_and_another_file_in_its_place_is_not() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 2);
    let (key, name, part) = ((1, 1), "file", out.path().join(part_name((1, 1))));
    for other in [false, true] {
        begin(&mut parts, key, name, 2);
        piece(&mut parts, key, name, 0).unwrap();
        if other {
            fs::remove_file(&part).unwrap();
            fs::write(&part, "another").unwrap();
        } else {
            fs::File::options().write(true).open(&part).unwrap().set_len(100).unwrap();
        }
        assert!(is_gone(piece(&mut parts, key, name, 1)));
        assert_eq!(part.exists(), other);
    }
}

#[test]
fn links_are_not_followed() {
    let (out, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(elsewhere.path(), out.path().join("link")).unwrap();
    let mut parts = parts(out.path(), 2);
    for name in ["link/file", "link/deep/file"] {
        for error in [
            parts.create((1, 1), path(name), 1).map(drop).unwrap_err(),
            parts.begin((1, 1), path(name), 8192, None).unwrap_err(),
        ] {
            assert!(matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)), "{error}");
        }
    }
    assert!(parts.make_directory(path("link"), 0o700).is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    // A link in the file's own place is replaced and not followed. Nor does it count as a file that has its
    // name.
    std::os::unix::fs::symlink(elsewhere.path().join("target"), out.path().join("file")).unwrap();
    assert!(parts.named_file(path("file")).unwrap().is_none());
    let index = parts.create((1, 2), path("file"), 1).unwrap();
    write(&mut parts, index, b"x", 0);
    parts.take_name(index).unwrap();
    parts.leave(index);
    assert!(!elsewhere.path().join("target").exists());
    assert_eq!(fs::read(out.path().join("file")).unwrap(), b"x");
}

#[test]
fn what_is_given_up_is_removed_and_what_was_left_is_swept() {
    let out = tempfile::tempdir().unwrap();
    let mut parts = parts(out.path(), 4);
    begin(&mut parts, (1, 1), "a/file", 2);
    parts.abandon((1, 1), path("a/file")).unwrap();
    parts.abandon((1, 1), path("a/file")).unwrap();
    assert_eq!(names(&out.path().join("a")), [""; 0]);
    for (number, name) in ["x", "a/y", "a/b/z"].into_iter().enumerate() {
        begin(&mut parts, (2, number as u64), name, 2);
    }
    drop(parts);
    let parts = self::parts(out.path(), 4);
    assert_eq!(parts.sweep().unwrap().parts, 3);
    assert_eq!(parts.sweep().unwrap(), Swept::default());
}

#[test]
fn a_directory_that_cannot_be_written_to_is_refused_at_the_start() {
    let error =
        Parts::new(Path::new("/proc/self"), PartsOptions { open_max: 1, direct: false, fsync: false })
            .unwrap_err();
    assert!(matches!(error, OutError::Open { .. }), "{error}");
}

/// Covers a receiver that was killed after it set a file's mode and before it named the file, or after it
/// named the file and before it told the sender.
#[test]
fn a_file_that_its_owner_may_not_read_or_write_is_sent_again_after_a_kill() {
    let out = tempfile::tempdir().unwrap();
    let _user = Unprivileged::in_directory(out.path());
    for (number, mode) in (0..).zip([0o444, 0o200, 0o000]) {
        let (key, name) = ((1, number), "file");
        let complete = || {
            let mut parts = parts(out.path(), 2);
            begin(&mut parts, key, name, 2);
            (0..2).for_each(|block| piece(&mut parts, key, name, block).unwrap());
            let Found::Proven(index) = parts.find(key, path(name), proof(2)).unwrap() else { panic!() };
            set_mode(&parts.file(index, false).unwrap().0, mode).unwrap();
            (parts, index)
        };
        drop(complete());
        let mut next = parts(out.path(), 2);
        assert!(matches!(next.find(key, path(name), proof(2)), Ok(Found::Gone)), "{mode:o}");
        assert_eq!(names(out.path()), [""; 0], "it takes room");
        drop(next);
        let (mut named, index) = complete();
        assert!(named.take_name(index).unwrap());
        drop(named);
        let mut next = parts(out.path(), 2);
        assert!(matches!(next.find(key, path(name), proof(2)), Ok(Found::Gone)));
        assert_eq!(next.named_file(path(name)).unwrap().is_some(), mode == 0o444, "{mode:o}");
        // The file can be replaced.
        begin(&mut next, key, name, 2);
        (0..2).for_each(|block| piece(&mut next, key, name, block).unwrap());
        let Found::Proven(index) = next.find(key, path(name), proof(2)).unwrap() else { panic!() };
        assert!(next.take_name(index).unwrap());
        assert_eq!(fs::read(out.path().join(name)).unwrap(), content(2));
        fs::remove_file(out.path().join(name)).unwrap();
    }
}

#[test]
fn a_directory_that_its_owner_may_not_read_is_synced_all_the_same() {
    let out = tempfile::tempdir().unwrap();
    let _user = Unprivileged::in_directory(out.path());
    let mut parts = parts(out.path(), 2);
    let directory = parts.make_directory(path("a/b"), 0o300).unwrap();
    let mut unsynced = parts.unsynced_made(path("a/b"), directory).unwrap();
    assert_eq!(unsynced.len(), 3);
    while let Some(next) = unsynced.pop() {
        let opened = parts.open_unsynced(Some(path("a/b")), &next).unwrap();
        rustix::fs::fsync(&*opened.expect("nothing was moved")).unwrap();
        parts.synced(next);
    }
}
