//! The hands touch nothing outside the pool and escape memory, whatever they are asked.

use super::posting_tests::Pair;
use jet_core::pool::Run;
use jet_core::{Effects, ReadId};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn refused(what: &str, ask: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(ask)).expect_err(what);
    let said = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
    assert!(said.contains("neither in the pool nor in escape memory"), "{what}: {said}");
}

#[test]
fn what_leaves_the_pool_is_neither_read_nor_copied() {
    let Pair { mut hands, config, .. } = Pair::new();
    let last = config.pool_slabs - 1;
    let run = |first, count| Run { first, count };
    assert_eq!(hands.crc32c(0, last, 4096), Some(crc32c::crc32c(&[0; 4096])));
    assert_eq!(hands.crc32c(0, last - 1, 8192), Some(crc32c::crc32c(&[0; 8192])));
    // The first slab of each is there; the last is not.
    refused("two slabs from the last on", || {
        hands.crc32c(0, last, 4097);
    });
    refused("a READ of which the last slab is not there", || {
        hands.begin_check(ReadId(0), 3 * 4096, &[run(0, 1), run(last, 2)]);
    });
    refused("more bytes than the run has", || {
        hands.crc32c(0, last - 1, 3 * 4096);
    });
}
