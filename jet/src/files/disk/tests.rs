//! Tests of a [`Disk`] whose ring fails while writes are in flight. The caller gets the failure only when
//! nothing is in flight any more.

use super::*;
use crate::files::test_session::{self, DaemonSide};
use jet_client::receive::Session;
use jet_wire::SLAB_BYTES;
use jet_wire::segment::{DELIVERY_USER_HEADER_MAX, Delivery, Place, delivery_flags, delivery_kind};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};
use std::sync::atomic::{AtomicBool, Ordering};

const SLABS: u32 = 4;

/// Makes a session, [`SLABS`] slices that it received, and the daemon's side of it.
fn session() -> (Session, Vec<DetachedSlice>, DaemonSide) {
    let (mut daemon, session) = test_session::session(SLABS);
    let end = &mut daemon.end;
    for slot in 0..SLABS {
        end.slot(slot).unwrap().publish(1, Place { slab: slot, escaped: false });
        let delivery = Delivery {
            kind: delivery_kind::SLICES,
            flags: delivery_flags::FIRST | delivery_flags::LAST,
            user_header_bytes: 0,
            slot,
            message: slot,
            generations: Delivery::pack_generations(1, 1),
            offset: 0,
            message_bytes: SLAB_BYTES as u64,
            bytes: 4096,
            slab: slot,
            tag: 0,
            sequence: 1,
            sender: 1,
            user_header: [0; DELIVERY_USER_HEADER_MAX],
        };
        end.deliveries.push(delivery).unwrap();
    }
    end.deliveries.publish();
    let mut slices = Vec::new();
    while let Ok(mut message) = session.try_receive() {
        slices.push(message.next().unwrap().unwrap().detach());
        let _ = message.detach();
    }
    assert_eq!(slices.len(), SLABS as usize);
    (session, slices, daemon)
}

fn write(slice: DetachedSlice) -> Work {
    Work::Write { slice, done: 0, offset: 0, direct: false }
}

/// Makes a pipe that is full: a write to it waits until somebody reads.
fn full_pipe() -> (OwnedFd, Rc<OwnedFd>) {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mut left = fcntl_getpipe_size(&writing).unwrap();
    while left > 0 {
        left -= rustix::io::write(&writing, &vec![0; left]).unwrap();
    }
    (reading, Rc::new(writing))
}

/// Makes every later call on the disk's ring fail. The kernel finishes the operations that it has taken.
pub(in crate::files) fn break_ring(disk: &mut Disk) {
    let Backend::Uring(uring) = &mut disk.backend else { panic!("no io_uring") };
    let other = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    // SAFETY: the ring's descriptor now leads to another file, and the ring does not know it: that is what is
    // tested. The descriptor is closed once.
    let result = unsafe { libc::dup3(other.as_raw_fd(), uring.ring.as_raw_fd(), libc::O_CLOEXEC) };
    assert!(result >= 0);
}

/// Returns whether the disk has a ring that can be broken. Where `JET_TEST_IO_URING=1` says that the kernel
/// has io_uring, there must be one.
pub(in crate::files) fn has_io_uring(disk: &Disk) -> bool {
    let has = disk.engine() == Engine::IoUring;
    if !has {
        let wanted = std::env::var_os("JET_TEST_IO_URING").is_some_and(|wanted| wanted == "1");
        assert!(!wanted, "JET_TEST_IO_URING=1, and the kernel gives no io_uring ({:?})", disk.refusal());
        #[allow(clippy::print_stderr)] // a test's own remark
        {
            eprintln!("nothing to see here: the kernel gives no io_uring ({:?})", disk.refusal());
        }
    }
    has
}

/// Returns whether a thread sleeps in `poll`, by the text of its `syscall` file in `/proc`. A thread that
/// runs has no number there.
fn polls(syscall: &str) -> bool {
    #[cfg(target_arch = "x86_64")]
    let numbers = [libc::SYS_poll, libc::SYS_ppoll];
    #[cfg(not(target_arch = "x86_64"))]
    let numbers = [libc::SYS_ppoll];
    let number = syscall.split(' ').next().and_then(|number| number.trim().parse().ok());
    number.is_some_and(|number: libc::c_long| numbers.contains(&number))
}

/// Breaks the ring while one write waits in the kernel and another was never taken, and checks how both end.
/// `how` makes the call that fails.
fn fails_under_a_write(how: impl FnOnce(&mut Disk) -> DiskError) {
    let mut disk = Disk::new(4, 1, true).unwrap();
    if !has_io_uring(&disk) {
        return;
    }
    let (session, mut slices, _daemon) = session();
    let (reading, pipe) = full_pipe();
    // SAFETY: the session outlives the disk's work, which is waited for below.
    unsafe { disk.begin(1, &pipe, write(slices.remove(0))) }.unwrap();
    disk.submit().unwrap();
    // SAFETY: as above.
    unsafe { disk.begin(2, &pipe, write(slices.remove(0))) }.unwrap();
    break_ring(&mut disk);
    let main = rustix::thread::gettid().as_raw_nonzero();
    let over = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The main thread waits for the write, or has returned without. The system call it sleeps in
            // tells that wait from every other sleep.
            let waits = format!("/proc/self/task/{main}/syscall");
            while !over.load(Ordering::Relaxed) && !polls(&std::fs::read_to_string(&waits).unwrap()) {
                std::thread::yield_now();
            }
            if !over.load(Ordering::Relaxed) {
                rustix::io::read(&reading, &mut vec![0; 1 << 20]).unwrap();
            }
        });
        let error = how(&mut disk);
        over.store(true, Ordering::Relaxed);
        error
    });
    assert!(error.to_string().contains("io_uring failed"), "{error}");
    let mut ends = Vec::new();
    while let Some(Finished { token, work, error, .. }) = disk.finished() {
        let Work::Write { slice, done, .. } = work else { panic!("only writes were begun") };
        ends.push((token, done, error.is_some()));
        session.release(slice);
    }
    assert_eq!(
        ends,
        [(1, SLAB_BYTES, false), (2, 0, true)],
        "what was in flight has ended before the failure was told"
    );
    assert!(disk.is_idle() && disk.room() == 4);
    // SAFETY: as above.
    let begun = unsafe { disk.begin(4, &pipe, Work::Sync) };
    assert!(begun.is_err() && disk.is_idle(), "a ring that failed is not used again");
    disk.wait_all(|finished| panic!("{finished:?}")).unwrap();
}

#[test]
fn a_failed_submit_is_told_when_nothing_is_in_flight() {
    fails_under_a_write(|disk| disk.submit().unwrap_err());
}

#[test]
fn a_failed_wait_is_told_when_nothing_is_in_flight() {
    fails_under_a_write(|disk| {
        // Waits on the ring itself. `wait_all` would take the operations that ended, and they are checked
        // below.
        let Backend::Uring(uring) = &mut disk.backend else { panic!("no io_uring") };
        DiskError::Ring(uring.submit(1).unwrap_err())
    });
}

#[test]
fn dropping_a_disk_whose_ring_fails_ends() {
    let mut disk = Disk::new(2, 1, true).unwrap();
    if !has_io_uring(&disk) {
        return;
    }
    let (_session, mut slices, _daemon) = session();
    let file = Rc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
    // SAFETY: the session outlives the disk.
    unsafe { disk.begin(1, &file, write(slices.remove(0))) }.unwrap();
    break_ring(&mut disk);
    // The kernel never took the write, so only the drop can end it.
    drop(disk);
}

#[test]
fn work_is_done_and_comes_back_with_either_engine() {
    for io_uring in [true, false] {
        let mut disk = Disk::new(4, 1, io_uring).unwrap();
        let (session, slices, _daemon) = session();
        let file = Rc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        for (token, slice) in slices.into_iter().enumerate() {
            // SAFETY: the session outlives the disk's work, which is waited for below.
            unsafe { disk.begin(token, &file, write(slice)) }.unwrap();
        }
        assert_eq!(disk.room(), 0);
        // SAFETY: as above.
        unsafe { disk.begin(9, &file, Work::Sync) }.unwrap();
        disk.submit().unwrap();
        let mut tokens = Vec::new();
        disk.wait_all(|Finished { token, work, error, .. }| {
            assert!(error.is_none(), "{error:?}");
            tokens.push(token);
            if let Work::Write { slice, done, .. } = work {
                assert_eq!(done, SLAB_BYTES);
                session.release(slice);
            }
        })
        .unwrap();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3, 9]);
        assert!(disk.is_idle() && disk.room() == 4);
    }
}

#[test]
fn what_was_interrupted_is_begun_again() {
    for (io_uring, errno) in [(true, libc::EINTR), (true, libc::EAGAIN), (false, libc::EINTR)] {
        let mut disk = Disk::new(4, 1, io_uring).unwrap();
        let (session, mut slices, _daemon) = session();
        let file = Rc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        // SAFETY: the session outlives the disk's work, which is waited for below.
        unsafe { disk.begin(1, &file, write(slices.remove(0))) }.unwrap();
        disk.submit().unwrap();
        // The system's real answer is replaced by an interruption.
        let interrupted = Err(io::Error::from_raw_os_error(errno));
        match &mut disk.backend {
            Backend::Plain { ended, .. } => ended.front_mut().unwrap().1 = interrupted,
            Backend::Uring(uring) => {
                let (index, _) = loop {
                    match uring.next_ended() {
                        Some(ended) => break ended,
                        None if uring.prepare_sleep() => uring.sleep(),
                        None => {}
                    }
                };
                uring.ended.push_back((index, interrupted));
            }
        }
        rustix::fs::ftruncate(&*file, 0).unwrap();
        let mut ends = Vec::new();
        disk.wait_all(|Finished { work, error, .. }| {
            let Work::Write { slice, done, .. } = work else { panic!("only a write was begun") };
            ends.push((done, error.is_some()));
            session.release(slice);
        })
        .unwrap();
        assert_eq!(ends, [(SLAB_BYTES, false)]);
        assert_eq!(
            rustix::fs::fstat(&*file).unwrap().st_size,
            i64::try_from(SLAB_BYTES).unwrap(),
            "written once more"
        );
        assert!(disk.is_idle() && disk.room() == 4);
    }
}
