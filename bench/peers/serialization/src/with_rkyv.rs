//! Encodes and decodes with rkyv's low-level calls. These calls do not support shared pointers, and are the
//! fastest of rkyv's calls that validate. The buffer is reused.

use crate::record::{Contender, Records, timed};
use crate::used;
use rkyv::api::low::{access, to_bytes_in_with_alloc};
use rkyv::rancor::Failure;
use rkyv::ser::allocator::SubAllocator;
use rkyv::ser::writer::Buffer;
use rkyv::util::Align;
use rkyv::{Archive, Serialize};
use std::hint::black_box;
use std::mem::MaybeUninit;

#[derive(Archive, Serialize)]
struct Fixed {
    volume: u64,
    offset: u64,
    bytes: u32,
    flags: u16,
    urgent: bool,
}

#[derive(Archive, Serialize)]
struct Extent {
    first_block: u64,
    blocks: u32,
}

#[derive(Archive, Serialize)]
struct Named {
    volume: u64,
    offset: u64,
    flags: u16,
    trace: u64,
    name: String,
    extents: Vec<Extent>,
}

#[derive(Archive, Serialize)]
struct Block {
    volume: u64,
    offset: u64,
    flags: u16,
    trace: u64,
    payload: Vec<u8>,
}

/// Returns rkyv as a contender for each of the three records. Inside, a macro takes the place of a generic
/// function, whose bounds would be longer than all of the code.
pub fn contenders(records: &Records) -> [Contender<'static>; 3] {
    macro_rules! contender {
        ($message:expr, $archived:ty, $using:expr, $right:expr) => {{
            let message = $message;
            let mut scratch = [MaybeUninit::<u8>::uninit(); 256];
            let mut place = Box::new(Align([0u8; 8192]));
            let length = to_bytes_in_with_alloc::<_, _, Failure>(
                &message,
                Buffer::from(&mut place[..]),
                SubAllocator::new(&mut scratch),
            )
            .expect("room")
            .len();
            let wire = place.clone();
            let right: fn(&$archived, &Records) -> bool = $right;
            assert!(right(access::<$archived, Failure>(&wire[..length]).expect("sound"), records));
            let using: fn(&$archived) = $using;
            let _ = using;
            Contender {
                name: "rkyv",
                bytes: length,
                encode: timed(move || {
                    let written = to_bytes_in_with_alloc::<_, _, Failure>(
                        black_box(&message),
                        Buffer::from(&mut place[..]),
                        SubAllocator::new(&mut scratch),
                    )
                    .expect("room");
                    black_box(&written[..]);
                }),
                decode: timed(move || {
                    let read = access::<$archived, Failure>(black_box(&wire[..length])).expect("sound");
                    ($using)(read)
                }),
            }
        }};
    }
    let Records { fixed, named, block } = records;
    let extents = named.extents.iter().map(|&(first_block, blocks)| Extent { first_block, blocks });
    [
        contender!(
            Fixed {
                volume: fixed.volume,
                offset: fixed.offset,
                bytes: fixed.bytes,
                flags: fixed.flags,
                urgent: fixed.urgent,
            },
            ArchivedFixed,
            |read: &ArchivedFixed| used!(
                read.volume.to_native(),
                read.offset.to_native(),
                read.bytes.to_native(),
                read.flags.to_native(),
                read.urgent
            ),
            |read, Records { fixed, .. }| {
                (read.volume, read.offset, read.bytes, read.flags, read.urgent)
                    == (
                        fixed.volume.into(),
                        fixed.offset.into(),
                        fixed.bytes.into(),
                        fixed.flags.into(),
                        fixed.urgent,
                    )
            }
        ),
        contender!(
            Named {
                volume: named.volume,
                offset: named.offset,
                flags: named.flags,
                trace: named.trace,
                name: named.name.clone(),
                extents: extents.collect(),
            },
            ArchivedNamed,
            |read: &ArchivedNamed| {
                used!(
                    read.volume.to_native(),
                    read.offset.to_native(),
                    read.flags.to_native(),
                    read.name.as_str(),
                    read.trace.to_native()
                );
                for extent in read.extents.iter() {
                    used!(extent.first_block.to_native(), extent.blocks.to_native());
                }
            },
            |read, Records { named, .. }| {
                read.name.as_str() == named.name
                    && (read.volume, read.offset, read.flags, read.trace)
                        == (named.volume.into(), named.offset.into(), named.flags.into(), named.trace.into())
                    && read
                        .extents
                        .iter()
                        .map(|one| (one.first_block.to_native(), one.blocks.to_native()))
                        .eq(named.extents.iter().copied())
            }
        ),
        contender!(
            Block {
                volume: block.volume,
                offset: block.offset,
                flags: block.flags,
                trace: block.trace,
                payload: block.payload.clone(),
            },
            ArchivedBlock,
            |read: &ArchivedBlock| used!(
                read.volume.to_native(),
                read.offset.to_native(),
                read.flags.to_native(),
                read.trace.to_native(),
                read.payload.as_slice()
            ),
            |read, Records { block, .. }| {
                read.payload.as_slice() == block.payload
                    && (read.volume, read.offset, read.flags, read.trace)
                        == (block.volume.into(), block.offset.into(), block.flags.into(), block.trace.into())
            }
        ),
    ]
}
