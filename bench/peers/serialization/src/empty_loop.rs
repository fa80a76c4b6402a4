//! Measures the cost of the timing itself: uses the fields of a struct without encoding or decoding it.

use crate::record::{Contender, Records, timed};
use crate::used;
use std::hint::black_box;

/// Returns the empty loop as a contender for each of the three records.
pub fn contenders(records: &Records) -> [Contender<'_>; 3] {
    let Records { fixed, named, block } = records;
    let contender = |decode| {
        let buffer = vec![0u8; 256];
        Contender {
            name: "(the loop)",
            bytes: 0,
            encode: timed(move || {
                black_box(records);
                black_box(&buffer[..]);
            }),
            decode,
        }
    };
    [
        contender(timed(move || {
            let read = black_box(fixed);
            used!(read.volume, read.offset, read.bytes, read.flags, read.urgent);
        })),
        contender(timed(move || {
            let read = black_box(named);
            used!(read.volume, read.offset, read.flags, &read.name[..], read.trace);
            for &(first_block, blocks) in &read.extents {
                used!(first_block, blocks);
            }
        })),
        contender(timed(move || {
            let read = black_box(block);
            used!(read.volume, read.offset, read.flags, read.trace, &read.payload[..]);
        })),
    ]
}
