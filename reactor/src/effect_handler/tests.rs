//! Tests of the effect handler's bounds: it touches nothing outside the pool and escape memory, whatever the
//! receiver asks for. Of a lost page it names only slabs that exist.

use super::EffectHandler;
use crate::application::NewSession;
use crate::pair::{Pair, Silent};
use crate::poison::{self, Poisoned, TAKES_NOTES};
use jet_core::pool::Run;
use jet_core::{
    Commands, Config, CopyFailed, CopyId, CopyRefused, EscapeCopy, ReadId, Registration, SessionId, Sums,
};
use jet_escape::EscapeConfig;
use jet_fabric::memory::SharedMemory;
use jet_fabric::soft::SoftNic;
use jet_wire::SLAB_BYTES;
use jet_wire::message::hello::AppName;
use jet_wire::segment::{Place, SegmentLayout, SegmentShape, daemon_end};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Slabs of the pool: 13 MiB, in a mapping of 14 MiB.
const POOL_SLABS: u32 = 3328;
const POOL_BYTES: usize = 7 * HUGE_PAGE_BYTES;
/// Slabs of escape memory: 3 MiB, in a mapping of 4 MiB.
const ESCAPE_SLABS: u32 = 768;
const ESCAPE_BYTES: usize = 2 * HUGE_PAGE_BYTES;

/// Returns an effect handler whose pool and escape memory end in the middle of their last huge pages.
fn cut_short() -> EffectHandler<SoftNic, Silent> {
    let escape = EscapeConfig { replace_slabs_max: 256, ..EscapeConfig::default() };
    let config = Config {
        pool_slabs: POOL_SLABS,
        peers_max: 4,
        sessions_max: 1,
        escape,
        memory_slabs: ESCAPE_SLABS - 256,
        ..Config::default()
    };
    Pair::with(config, POOL_BYTES, Some(ESCAPE_BYTES)).handler
}

fn run(first: u32, count: u32) -> Run {
    Run { first, count }
}

fn turn() -> MutexGuard<'static, ()> {
    TAKES_NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[track_caller]
fn refused(what: &str, ask: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(ask)).expect_err(what);
    let said = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
    assert!(said.contains("neither in the pool nor in escape memory"), "{what}: {said}");
}

/// Attaches an application to which one run was delivered, in its slot 0.
fn attach(handler: &mut EffectHandler<SoftNic, Silent>, generation: u16) {
    let shape = SegmentShape::new(4, 4);
    let bytes = SegmentLayout::new(shape).total_bytes();
    let memory = Arc::new(SharedMemory::new("test-session", bytes, false).unwrap());
    // SAFETY: the mapping is zeroed and page-aligned, and the session keeps it as long as its end; this is
    // the only end.
    let segment = unsafe { daemon_end(memory.base(), memory.bytes(), shape) }.unwrap();
    segment.slot(0).unwrap().publish(generation, Place { slab: 0, escaped: false });
    let new = NewSession {
        registration: Registration::new(AppName::new("disk").unwrap()),
        segment,
        memory,
        application: Silent,
    };
    handler.sessions.attach(SessionId(0), new);
}

#[test]
fn what_leaves_either_memory_is_neither_read_nor_copied() {
    let _turn = turn();
    let mut handler = cut_short();
    attach(&mut handler, 1);
    let memories = [("the pool", 0, POOL_SLABS), ("escape memory", POOL_SLABS, POOL_SLABS + ESCAPE_SLABS)];
    for (which, first, end) in memories {
        let last = end - 1;
        assert_eq!(handler.crc32c(0, last, 4096), Some(crc32c::crc32c(&[0; 4096])), "{which}");
        assert_eq!(handler.crc32c(0, last - 1, 8192), Some(crc32c::crc32c(&[0; 8192])), "{which}");
        assert_eq!(handler.copy_slab(last, first, 4096), Ok(()));
        // The first slab of each memory exists. The slab behind the last one does not, though its bytes are
        // mapped.
        refused("two slabs from the last on", || {
            handler.crc32c(0, last, 4097);
        });
        refused("a READ of which the last slab is not there", || {
            handler.begin_check(ReadId(0), 3 * 4096, &[run(first, 1), run(last, 2)]);
        });
        refused("more bytes than the run has", || {
            handler.crc32c(0, last - 1, 3 * 4096);
        });
        refused("a run from one memory on into the next", || {
            handler.begin_check(ReadId(0), 2 * 4096, &[run(last, 2)]);
        });
        for (from, to) in [(run(last, 2), run(first, 2)), (run(first, 2), run(last, 2))] {
            refused("a copy of which one place is not there", || {
                let copy =
                    EscapeCopy { id: CopyId(0), session: SessionId(0), slot: 0, generation: 1, from, to };
                let _ = handler.begin_copy(&copy);
            });
        }
        let (from, to) = (run(last - 1, 2), run(first, 2));
        let copy = EscapeCopy { id: CopyId(0), session: SessionId(0), slot: 0, generation: 1, from, to };
        assert_eq!(
            handler.begin_copy(&copy),
            Err(CopyRefused::NoRoom),
            "there are no workers, and both are there"
        );
    }
    let beyond = POOL_SLABS + ESCAPE_SLABS;
    for slab in [beyond, u32::MAX] {
        refused("a slab behind all memory", || {
            handler.crc32c(0, slab, 1);
        });
        refused("a copy from behind all memory", || {
            let _ = handler.copy_slab(slab, 0, 4096);
        });
        refused("a copy to behind all memory", || {
            let _ = handler.copy_slab(0, slab, 4096);
        });
    }
}

#[test]
fn a_lost_page_is_the_slabs_that_lie_on_it_and_no_others() {
    let mut handler = cut_short();
    let [(pool, pool_bytes), (escape, escape_bytes)] = handler.memory.mappings();
    assert_eq!((pool_bytes, escape_bytes), (POOL_BYTES, ESCAPE_BYTES));
    let mut slabs = |start: usize, bytes: usize| {
        handler.memory.note_poisoned(Poisoned { start, bytes });
        let noted: Vec<Run> = std::iter::from_fn(|| handler.memory.take_poisoned()).collect();
        noted
    };
    const SMALL: usize = SLAB_BYTES;
    const HUGE: usize = HUGE_PAGE_BYTES;
    assert_eq!(slabs(pool, SMALL), [run(0, 1)]);
    assert_eq!(slabs(pool + 3327 * SMALL, SMALL), [run(3327, 1)]);
    assert_eq!(slabs(pool + 5 * HUGE, HUGE), [run(2560, 512)]);
    assert_eq!(slabs(pool + 6 * HUGE, HUGE), [run(3072, 256)], "it reaches beyond the pool");
    assert_eq!(slabs(pool + 3328 * SMALL, SMALL), [], "mapped, and no slab");
    assert_eq!(slabs(escape, SMALL), [run(POOL_SLABS, 1)]);
    assert_eq!(slabs(escape + 7 * SMALL, SMALL), [run(POOL_SLABS + 7, 1)]);
    assert_eq!(slabs(escape + HUGE, HUGE), [run(POOL_SLABS + 512, 256)], "it reaches beyond escape memory");
    assert_eq!(slabs(escape + 768 * SMALL, SMALL), []);
    // A slab that the lost page covers only in part is lost, too. A page that begins before the memory takes
    // no slab of another memory.
    assert_eq!(slabs(pool - SMALL, 2 * SMALL + 1), [run(0, 2)]);
    assert_eq!(slabs(pool + SMALL - 1, SMALL), [run(0, 2)]);
    assert_eq!(slabs(usize::MAX - SMALL, HUGE), []);
}

#[test]
fn a_slab_that_was_lost_before_it_was_copied_is_not_believed() {
    let _turn = turn();
    let mut handler = cut_short();
    let [(pool, _), (escape, _)] = handler.memory.mappings();
    let (source, target) = (9, POOL_SLABS + 5);
    assert_eq!(handler.copy_slab(source, target, 4096), Ok(()));
    // Lost pages beside the source do not matter.
    for slab in [8, 10] {
        handler.memory.note_poisoned(Poisoned { start: pool + slab * SLAB_BYTES, bytes: SLAB_BYTES });
    }
    assert_eq!(handler.copy_slab(source, target, 4096), Ok(()));
    handler.memory.note_poisoned(Poisoned { start: escape + 5 * SLAB_BYTES, bytes: SLAB_BYTES });
    assert_eq!(handler.copy_slab(source, target, 4096), Err(CopyFailed::Target));
    handler.memory.note_poisoned(Poisoned { start: pool + 9 * SLAB_BYTES, bytes: SLAB_BYTES });
    assert_eq!(handler.copy_slab(source, target, 4096), Err(CopyFailed::Source), "it can be had nowhere");
    // Another thread noted a loss a moment ago, and the handler has not taken the note.
    poison::note(Poisoned { start: pool + 11 * SLAB_BYTES, bytes: SLAB_BYTES }).unwrap();
    assert_eq!(handler.copy_slab(11, target + 1, 4096), Err(CopyFailed::Source));
}
