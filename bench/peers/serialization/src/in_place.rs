//! Jet's in-place messages, written into a slice.

use crate::record::{Contender, Records, timed};
use crate::used;
use jet_wire::in_place::InPlace;
use std::hint::black_box;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(InPlace)]
#[in_place(kind = 1, version = 1)]
struct Fixed {
    volume: u64,
    offset: u64,
    bytes: u32,
    flags: u16,
    urgent: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Extent {
    first_block: U64,
    blocks: U32,
}

#[derive(InPlace)]
#[in_place(kind = 2, version = 2)]
struct Named<'a> {
    volume: u64,
    offset: u64,
    flags: u16,
    name: &'a str,
    extents: &'a [Extent],
    #[in_place(since = 2)]
    trace: u64,
}

#[derive(InPlace)]
#[in_place(kind = 3, version = 1)]
struct Block<'a> {
    volume: u64,
    offset: u64,
    flags: u16,
    trace: u64,
    payload: &'a [u8],
}

/// Returns Jet's in-place messages as a contender for each of the three records.
pub fn contenders(records: &Records) -> [Contender<'_>; 3] {
    [fixed(records), named(records), block(records)]
}

fn fixed(records: &Records) -> Contender<'_> {
    let record = &records.fixed;
    let message = Fixed {
        volume: record.volume,
        offset: record.offset,
        bytes: record.bytes,
        flags: record.flags,
        urgent: record.urgent,
    };
    let mut buffer = vec![0; 256];
    let bytes = message.write_to(&mut buffer).expect("room");
    let wire = buffer[..bytes].to_vec();
    let read = Fixed::read(&wire).expect("sound");
    assert_eq!(
        *record,
        crate::record::Fixed {
            volume: read.volume,
            offset: read.offset,
            bytes: read.bytes,
            flags: read.flags,
            urgent: read.urgent
        }
    );
    Contender {
        name: "jet in-place",
        bytes,
        encode: timed(move || {
            let length = black_box(&message).write_to(&mut buffer).expect("room");
            black_box(&buffer[..length]);
        }),
        decode: timed(move || {
            let read = Fixed::read(black_box(&wire)).expect("sound");
            used!(read.volume, read.offset, read.bytes, read.flags, read.urgent);
        }),
    }
}

fn named(records: &Records) -> Contender<'_> {
    let record = &records.named;
    let extents = record.extents.iter();
    let extents = extents.map(|&(first, blocks)| Extent { first_block: first.into(), blocks: blocks.into() });
    let message = Named {
        volume: record.volume,
        offset: record.offset,
        flags: record.flags,
        name: &record.name,
        // The list lives as long as the program.
        extents: extents.collect::<Vec<_>>().leak(),
        trace: record.trace,
    };
    let mut buffer = vec![0; 256];
    let bytes = message.write_to(&mut buffer).expect("room");
    let wire = buffer[..bytes].to_vec();
    let read = Named::read(&wire).expect("sound");
    assert_eq!((read.volume, read.offset, read.flags), (record.volume, record.offset, record.flags));
    assert_eq!((read.name, read.trace), (&record.name[..], record.trace));
    assert!(
        read.extents.iter().map(|one| (one.first_block.get(), one.blocks.get())).eq(record.extents.clone())
    );
    Contender {
        name: "jet in-place",
        bytes,
        encode: timed(move || {
            let length = black_box(&message).write_to(&mut buffer).expect("room");
            black_box(&buffer[..length]);
        }),
        decode: timed(move || {
            let read = Named::read(black_box(&wire)).expect("sound");
            used!(read.volume, read.offset, read.flags, read.name, read.trace);
            for extent in read.extents {
                used!(extent.first_block.get(), extent.blocks.get());
            }
        }),
    }
}

fn block(records: &Records) -> Contender<'_> {
    let record = &records.block;
    let message = Block {
        volume: record.volume,
        offset: record.offset,
        flags: record.flags,
        trace: record.trace,
        payload: &record.payload,
    };
    let mut buffer = vec![0; 8192];
    let bytes = message.write_to(&mut buffer).expect("room");
    let wire = buffer[..bytes].to_vec();
    let read = Block::read(&wire).expect("sound");
    assert_eq!((read.volume, read.offset, read.flags), (record.volume, record.offset, record.flags));
    assert_eq!((read.trace, read.payload), (record.trace, &record.payload[..]));
    Contender {
        name: "jet in-place",
        bytes,
        encode: timed(move || {
            let length = black_box(&message).write_to(&mut buffer).expect("room");
            black_box(&buffer[..length]);
        }),
        decode: timed(move || {
            let read = Block::read(black_box(&wire)).expect("sound");
            used!(read.volume, read.offset, read.flags, read.trace, read.payload);
        }),
    }
}
