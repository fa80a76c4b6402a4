//! Encodes and decodes with flatbuffers. The accessors are written by hand on the crate's public interface,
//! as flatbuffers' compiler would make them. The builder is reused, and the verifier runs before reading.

use crate::record::{self, Contender, Records, timed};
use crate::used;
use flatbuffers::{
    FlatBufferBuilder, Follow, ForwardsUOffset, InvalidFlatbuffer, Push, PushAlignment,
    SimpleToVerifyInSlice, Table, VOffsetT, Vector, Verifiable, Verifier, WIPOffset, root,
};
use std::hint::black_box;

const fn slot(field: VOffsetT) -> VOffsetT {
    4 + 2 * field
}

/// An extent as a struct of 16 bytes: 8 of the first block, 4 of the number of blocks, 4 unused.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Extent([u8; 16]);

impl Extent {
    fn new((first_block, blocks): (u64, u32)) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first_block.to_le_bytes());
        bytes[8..12].copy_from_slice(&blocks.to_le_bytes());
        Self(bytes)
    }

    fn first_block(&self) -> u64 {
        u64::from_le_bytes(*self.0.first_chunk().expect("16 bytes"))
    }

    fn blocks(&self) -> u32 {
        u32::from_le_bytes(*self.0[8..].first_chunk().expect("16 bytes"))
    }
}

impl<'a> Follow<'a> for Extent {
    type Inner = &'a Extent;
    unsafe fn follow(buf: &'a [u8], loc: usize) -> Self::Inner {
        // SAFETY: the verifier has found 16 bytes there, and every value of 16 bytes is an `Extent`.
        unsafe { flatbuffers::follow_cast_ref::<Extent>(buf, loc) }
    }
}

impl Push for Extent {
    type Output = Extent;
    unsafe fn push(&self, dst: &mut [u8], _written_len: usize) {
        dst[..16].copy_from_slice(&self.0);
    }
    fn alignment() -> PushAlignment {
        PushAlignment::new(8)
    }
}

impl SimpleToVerifyInSlice for Extent {}

impl Verifiable for Extent {
    fn run_verifier(v: &mut Verifier, pos: usize) -> Result<(), InvalidFlatbuffer> {
        v.in_buffer::<Extent>(pos)
    }
}

/// Defines a flatbuffers table. Each field has its name, its number, its type, the type that a reader gets,
/// and whether the field is required.
macro_rules! table {
    ($name:ident { $($field:ident: $number:literal, $ty:ty, $read:ty, $required:literal;)+ }) => {
        #[derive(Clone, Copy)]
        struct $name<'a>(Table<'a>);

        impl<'a> $name<'a> {
            $(
                #[inline]
                fn $field(&self) -> Option<$read> {
                    // SAFETY: the verifier ran before this table was made.
                    unsafe { self.0.get::<$ty>(slot($number), None) }
                }
            )+
        }

        impl<'a> Follow<'a> for $name<'a> {
            type Inner = $name<'a>;
            #[inline]
            unsafe fn follow(buf: &'a [u8], loc: usize) -> Self::Inner {
                // SAFETY: the verifier ran, or a caller that left it out has checked.
                Self(unsafe { Table::new(buf, loc) })
            }
        }

        impl Verifiable for $name<'_> {
            #[inline]
            fn run_verifier(v: &mut Verifier, pos: usize) -> Result<(), InvalidFlatbuffer> {
                v.visit_table(pos)?
                    $(.visit_field::<$ty>(stringify!($field), slot($number), $required)?)+
                    .finish();
                Ok(())
            }
        }
    };
}

table!(Fixed {
    volume: 0, u64, u64, false;
    offset: 1, u64, u64, false;
    bytes: 2, u32, u32, false;
    flags: 3, u16, u16, false;
    urgent: 4, bool, bool, false;
});

table!(Named {
    volume: 0, u64, u64, false;
    offset: 1, u64, u64, false;
    flags: 2, u16, u16, false;
    trace: 3, u64, u64, false;
    name: 4, ForwardsUOffset<&str>, &'a str, true;
    extents: 5, ForwardsUOffset<Vector<'_, Extent>>, Vector<'a, Extent>, true;
});

table!(Block {
    volume: 0, u64, u64, false;
    offset: 1, u64, u64, false;
    flags: 2, u16, u16, false;
    trace: 3, u64, u64, false;
    payload: 4, ForwardsUOffset<Vector<'_, u8>>, Vector<'a, u8>, true;
});

/// Returns flatbuffers as a contender for each of the three records.
pub fn contenders(records: &Records) -> [Contender<'_>; 3] {
    [fixed(&records.fixed), named(&records.named), block(&records.block)]
}

fn build_fixed<'b>(builder: &mut FlatBufferBuilder<'b>, record: &record::Fixed) {
    builder.reset();
    let table = builder.start_table();
    builder.push_slot(slot(0), record.volume, 0);
    builder.push_slot(slot(1), record.offset, 0);
    builder.push_slot(slot(2), record.bytes, 0);
    builder.push_slot(slot(3), record.flags, 0);
    builder.push_slot(slot(4), record.urgent, false);
    let table = builder.end_table(table);
    builder.finish_minimal(WIPOffset::<Fixed>::new(table.value()));
}

fn fixed(record: &record::Fixed) -> Contender<'_> {
    let mut builder = FlatBufferBuilder::with_capacity(8192);
    build_fixed(&mut builder, record);
    let wire = builder.finished_data().to_vec();
    let read = root::<Fixed>(&wire).expect("sound");
    assert_eq!((read.volume(), read.offset()), (Some(record.volume), Some(record.offset)));
    assert_eq!((read.bytes(), read.flags()), (Some(record.bytes), Some(record.flags)));
    assert_eq!(read.urgent(), Some(record.urgent));
    Contender {
        name: "flatbuffers",
        bytes: wire.len(),
        encode: timed(move || {
            build_fixed(&mut builder, black_box(record));
            black_box(builder.finished_data());
        }),
        decode: timed(move || {
            let read = root::<Fixed>(black_box(&wire)).expect("sound");
            used!(read.volume(), read.offset(), read.bytes(), read.flags(), read.urgent());
        }),
    }
}

fn build_named<'b>(builder: &mut FlatBufferBuilder<'b>, record: &record::Named, extents: &[Extent]) {
    builder.reset();
    let name = builder.create_string(&record.name);
    let extents = builder.create_vector(extents);
    let table = builder.start_table();
    builder.push_slot(slot(0), record.volume, 0);
    builder.push_slot(slot(1), record.offset, 0);
    builder.push_slot(slot(3), record.trace, 0);
    builder.push_slot_always(slot(4), name);
    builder.push_slot_always(slot(5), extents);
    builder.push_slot(slot(2), record.flags, 0);
    let table = builder.end_table(table);
    builder.finish_minimal(WIPOffset::<Named>::new(table.value()));
}

fn named(record: &record::Named) -> Contender<'_> {
    let extents: Vec<Extent> = record.extents.iter().copied().map(Extent::new).collect();
    let mut builder = FlatBufferBuilder::with_capacity(8192);
    build_named(&mut builder, record, &extents);
    let wire = builder.finished_data().to_vec();
    let read = root::<Named>(&wire).expect("sound");
    assert_eq!((read.volume(), read.offset()), (Some(record.volume), Some(record.offset)));
    assert_eq!((read.flags(), read.trace()), (Some(record.flags), Some(record.trace)));
    assert_eq!(read.name(), Some(&record.name[..]));
    let read = read.extents().expect("required");
    assert!(read.iter().map(|one| (one.first_block(), one.blocks())).eq(record.extents.iter().copied()));
    Contender {
        name: "flatbuffers",
        bytes: wire.len(),
        encode: timed(move || {
            build_named(&mut builder, black_box(record), black_box(&extents));
            black_box(builder.finished_data());
        }),
        decode: timed(move || {
            let read = root::<Named>(black_box(&wire)).expect("sound");
            used!(read.volume(), read.offset(), read.flags(), read.name(), read.trace());
            for extent in read.extents().expect("required") {
                used!(extent.first_block(), extent.blocks());
            }
        }),
    }
}

fn build_block<'b>(builder: &mut FlatBufferBuilder<'b>, record: &record::Block) {
    builder.reset();
    let payload = builder.create_vector(&record.payload);
    let table = builder.start_table();
    builder.push_slot(slot(0), record.volume, 0);
    builder.push_slot(slot(1), record.offset, 0);
    builder.push_slot(slot(3), record.trace, 0);
    builder.push_slot_always(slot(4), payload);
    builder.push_slot(slot(2), record.flags, 0);
    let table = builder.end_table(table);
    builder.finish_minimal(WIPOffset::<Block>::new(table.value()));
}

fn block(record: &record::Block) -> Contender<'_> {
    let mut builder = FlatBufferBuilder::with_capacity(8192);
    build_block(&mut builder, record);
    let wire = builder.finished_data().to_vec();
    let read = root::<Block>(&wire).expect("sound");
    assert_eq!((read.volume(), read.offset()), (Some(record.volume), Some(record.offset)));
    assert_eq!((read.flags(), read.trace()), (Some(record.flags), Some(record.trace)));
    assert_eq!(read.payload().expect("required").bytes(), record.payload);
    Contender {
        name: "flatbuffers",
        bytes: wire.len(),
        encode: timed(move || {
            build_block(&mut builder, black_box(record));
            black_box(builder.finished_data());
        }),
        decode: timed(move || {
            let read = root::<Block>(black_box(&wire)).expect("sound");
            used!(read.volume(), read.offset(), read.flags(), read.trace());
            used!(read.payload().expect("required").bytes());
        }),
    }
}
