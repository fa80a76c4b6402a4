//! Tests of runs in escape memory: placed there, moved there before they are taken, and named beyond its end.

use super::*;
use jet_fabric::memory::MapError;
use jet_wire::segment::RelocateError;
use std::os::fd::OwnedFd;

const ESCAPE_SLABS: usize = 4;

fn escaped(slab: u32) -> Place {
    Place { slab, escaped: true }
}

fn pooled(slab: u32) -> Place {
    Place { slab, escaped: false }
}

/// Overwrites slabs of the pool: the bytes that were moved away are no longer there.
fn scribble(daemon: &Daemon, slab: u32, slabs: usize) {
    // SAFETY: within the pool, and no slice of these slabs is held.
    unsafe { daemon.pool.base().add(slab as usize * SLAB_BYTES).write_bytes(0xee, slabs * SLAB_BYTES) };
}

impl Daemon {
    /// Copies a run from the pool to escape memory, and changes its slot so that readers find it there.
    fn move_out(&self, slot: u32, from: u32, to: u32, slabs: usize) -> Result<(), RelocateError> {
        let escape = self.escape.as_ref().unwrap();
        let at = |base: *mut u8, slab: u32| base.wrapping_add(slab as usize * SLAB_BYTES);
        assert!((to as usize + slabs) * SLAB_BYTES <= escape.bytes());
        // SAFETY: within the pool and, as just checked, escape memory, which do not overlap.
        unsafe {
            let (from, to) = (at(self.pool.base(), from), at(escape.base(), to));
            std::ptr::copy_nonoverlapping(from, to, slabs * SLAB_BYTES);
        }
        self.end.slot(slot).unwrap().relocate(slot_generation(slot), pooled(from), escaped(to))
    }
}

#[test]
fn a_run_that_moves_before_it_is_taken_is_read_at_its_new_place() {
    let (mut daemon, session) = pair_with_escape(Duration::ZERO, ESCAPE_SLABS);
    let bytes = 3 * SLAB_BYTES_U32 - 7;
    daemon.deliver(Run { slab: 8, ..small(0, 0, bytes) });
    // The delivery was read, and the run was not taken yet.
    let mut message = session.try_receive().unwrap();
    assert_eq!(daemon.move_out(0, 8, 1, 3), Ok(()));
    scribble(&daemon, 8, 3);
    let slice = message.next_timeout(LONG).unwrap().unwrap();
    assert_eq!((slice.len(), slice.slabs()), (bytes as usize, 3));
    check_slice(&slice, 0);
    // Slabs are given back in the same way in either memory.
    for piece in slice.into_slabs() {
        let piece = piece.detach();
        assert!(piece.as_ptr().addr().is_multiple_of(SLAB_BYTES), "fit for O_DIRECT");
        session.release(piece);
    }
    assert!(message.next_timeout(LONG).unwrap().is_none());
    drop(message);
    session.flush();
    assert_eq!(daemon.releases(), [slices_and_finish(0, 0, 3, 0)]);
}

#[test]
fn a_run_that_is_taken_stays_where_it_is() {
    let (mut daemon, session) = pair_with_escape(Duration::ZERO, ESCAPE_SLABS);
    daemon.deliver(small(0, 0, 100));
    let mut message = session.try_receive().unwrap();
    let slice = message.next_timeout(LONG).unwrap().unwrap();
    assert_eq!(daemon.move_out(0, 0, 0, 1), Err(RelocateError::Pinned));
    check_slice(&slice, 0);
}

#[test]
fn runs_of_one_message_lie_in_both_memories() {
    let (mut daemon, session) = pair_with_escape(Duration::ZERO, ESCAPE_SLABS);
    let total = u64::from(2 * SLAB_BYTES_U32);
    for slot in 0..2 {
        daemon.deliver(Run {
            offset: u64::from(slot * SLAB_BYTES_U32),
            message_bytes: total,
            flags: if slot == 0 { flags::FIRST } else { flags::LAST },
            ..small(slot, 0, SLAB_BYTES_U32)
        });
    }
    assert_eq!(daemon.move_out(1, 1, 3, 1), Ok(()));
    scribble(&daemon, 1, 1);
    let mut message = session.try_receive().unwrap();
    let first = message.next_timeout(LONG).unwrap().unwrap();
    let second = message.next_timeout(LONG).unwrap().unwrap();
    check_slice(&first, 0);
    check_slice(&second, 0);
    assert_eq!(second.offset(), u64::from(SLAB_BYTES_U32));
}

#[test]
fn a_place_beyond_its_memory_breaks_the_session_and_nothing_else() {
    let slabs = u32::try_from(ESCAPE_SLABS).unwrap();
    for (escape_slabs, bytes, place) in [
        (ESCAPE_SLABS, 10, escaped(slabs)),
        (ESCAPE_SLABS, SLAB_BYTES_U32 + 1, escaped(slabs - 1)),
        (ESCAPE_SLABS, 10, escaped(u32::MAX)),
        // Slabs that only the pool has.
        (ESCAPE_SLABS, 10, escaped(slabs + 1)),
        // No escape memory was handed over.
        (0, 10, escaped(0)),
    ] {
        let (mut daemon, session) = pair_with_escape(Duration::ZERO, escape_slabs);
        daemon.deliver(small(0, 0, bytes));
        daemon.end.slot(0).unwrap().publish(slot_generation(0), place);
        let mut message = session.try_receive().unwrap();
        let error = message.next_timeout(LONG).unwrap_err();
        let SliceError::Receive(ReceiveError::Broken(fault)) = error else { panic!("{error}") };
        assert!(
            matches!(fault, Fault::Place { slot: 0, slab, escaped: true, .. } if slab == place.slab),
            "{fault:?}"
        );
        assert!(fault.to_string().ends_with("beyond escape memory"), "{fault}");
    }
    // The last slab is still within escape memory.
    let (mut daemon, session) = pair_with_escape(Duration::ZERO, ESCAPE_SLABS);
    daemon.deliver(small(0, 0, 10));
    assert_eq!(daemon.move_out(0, 0, slabs - 1, 1), Ok(()));
    check_slice(&session.try_receive().unwrap().next_timeout(LONG).unwrap().unwrap(), 0);
}

#[test]
fn slices_in_escape_memory_stay_readable_after_the_daemon_is_gone() {
    let (mut daemon, session) = pair_with_escape(Duration::ZERO, ESCAPE_SLABS);
    daemon.deliver(small(0, 0, 10));
    assert_eq!(daemon.move_out(0, 0, 2, 1), Ok(()));
    let mut message = session.receive_timeout(LONG).unwrap();
    let slice = message.next_timeout(LONG).unwrap().unwrap();
    drop(daemon);
    assert!(matches!(session.receive_timeout(LONG), Err(ReceiveError::DaemonGone)));
    check_slice(&slice, 0);
}

#[test]
fn escape_memory_is_checked_as_the_pool_is() {
    let memory = |slabs: usize| SharedMemory::new("jet-test", slabs * SLAB_BYTES, false).unwrap();
    let owned = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
    let assemble = |escape: OwnedFd, escape_bytes: u64| {
        let shape = SegmentShape::new(SLOTS, MESSAGES);
        let (pool, segment) = (memory(2), memory(SegmentLayout::new(shape).total_bytes() / SLAB_BYTES + 1));
        let (bell, _) = Doorbell::pair().unwrap();
        let (near, _) = UnixStream::pair().unwrap();
        let parts = session::SessionParts {
            number: 1,
            pool: owned(&pool),
            pool_bytes: pool.bytes() as u64,
            pool_slabs: 2,
            segment: owned(&segment),
            doorbell: owned(&bell),
            escape: Some((escape, escape_bytes)),
        };
        Session::assemble(
            ControlConnection::from_stream(near, ANSWER_TIMEOUT).unwrap(),
            parts,
            Duration::ZERO,
        )
    };
    let four = 4 * SLAB_BYTES as u64;
    let refused = assemble(owned(&memory(4)), four + 1).map(drop);
    assert!(
        matches!(refused, Err(RegisterError::Segment(_))),
        "a part of a slab counts for none: {refused:?}"
    );
    let refused = assemble(owned(&memory(4)), four + SLAB_BYTES as u64).unwrap_err();
    assert!(refused.to_string().contains("its escape memory is smaller than it says"), "{refused}");
    let refused = assemble(owned(&memory(4)), u64::MAX).unwrap_err();
    assert!(matches!(refused, RegisterError::Answer(_)), "{refused}");
    let larger = memory(1 + (2 << 20) / SLAB_BYTES + 1);
    let refused = assemble(owned(&larger), SLAB_BYTES as u64).unwrap_err();
    assert!(matches!(refused, RegisterError::Map(MapError::Size { .. })), "{refused}");
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(folder.path().join("file")).unwrap();
    let refused = assemble(owned(&file), four).unwrap_err();
    assert!(matches!(refused, RegisterError::Map(MapError::NotSealed)), "{refused}");
}
