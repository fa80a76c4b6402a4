//! Encodes and decodes with prost. The messages are declared by attributes, written into a `Vec` that is
//! reused, and read from `Bytes`, so that a payload is not copied.

use crate::record::{Contender, Records, timed};
use crate::used;
use bytes::Bytes;
use prost::Message;
use std::hint::black_box;

#[derive(Clone, PartialEq, Message)]
struct Fixed {
    #[prost(fixed64, tag = "1")]
    volume: u64,
    #[prost(fixed64, tag = "2")]
    offset: u64,
    #[prost(fixed32, tag = "3")]
    bytes: u32,
    #[prost(uint32, tag = "4")]
    flags: u32,
    #[prost(bool, tag = "5")]
    urgent: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Extent {
    #[prost(fixed64, tag = "1")]
    first_block: u64,
    #[prost(fixed32, tag = "2")]
    blocks: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(fixed64, tag = "1")]
    volume: u64,
    #[prost(fixed64, tag = "2")]
    offset: u64,
    #[prost(uint32, tag = "3")]
    flags: u32,
    #[prost(fixed64, tag = "4")]
    trace: u64,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(message, repeated, tag = "6")]
    extents: Vec<Extent>,
}

#[derive(Clone, PartialEq, Message)]
struct Block {
    #[prost(fixed64, tag = "1")]
    volume: u64,
    #[prost(fixed64, tag = "2")]
    offset: u64,
    #[prost(uint32, tag = "3")]
    flags: u32,
    #[prost(fixed64, tag = "4")]
    trace: u64,
    #[prost(bytes = "bytes", tag = "5")]
    payload: Bytes,
}

/// Returns prost as a contender for each of the three records.
pub fn contenders(records: &Records) -> [Contender<'static>; 3] {
    let Records { fixed, named, block } = records;
    let extents = named.extents.iter().map(|&(first_block, blocks)| Extent { first_block, blocks });
    [
        contender(
            Fixed {
                volume: fixed.volume,
                offset: fixed.offset,
                bytes: fixed.bytes,
                flags: fixed.flags.into(),
                urgent: fixed.urgent,
            },
            |read| used!(read.volume, read.offset, read.bytes, read.flags, read.urgent),
        ),
        contender(
            Named {
                volume: named.volume,
                offset: named.offset,
                flags: named.flags.into(),
                trace: named.trace,
                name: named.name.clone(),
                extents: extents.collect(),
            },
            |read| {
                used!(read.volume, read.offset, read.flags, &read.name[..], read.trace);
                for extent in &read.extents {
                    used!(extent.first_block, extent.blocks);
                }
            },
        ),
        contender(
            Block {
                volume: block.volume,
                offset: block.offset,
                flags: block.flags.into(),
                trace: block.trace,
                payload: block.payload.clone().into(),
            },
            |read| used!(read.volume, read.offset, read.flags, read.trace, &read.payload[..]),
        ),
    ]
}

fn contender<M: Message + Default + PartialEq + 'static>(
    message: M,
    using: impl Fn(&M) + 'static,
) -> Contender<'static> {
    let wire = Bytes::from(message.encode_to_vec());
    assert!(M::decode(wire.clone()).expect("sound") == message);
    let mut buffer = Vec::with_capacity(8192);
    Contender {
        name: "prost",
        bytes: wire.len(),
        encode: timed(move || {
            buffer.clear();
            black_box(&message).encode(&mut buffer).expect("room");
            black_box(&buffer[..]);
        }),
        decode: timed(move || using(&M::decode(black_box(&wire).clone()).expect("sound"))),
    }
}
