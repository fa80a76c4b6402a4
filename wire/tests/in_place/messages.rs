//! The messages of these tests: every form of a field is in one of them.

use jet_wire::in_place::InPlace;
use proptest::prelude::*;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Extent {
    pub first_block: U64,
    pub blocks: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(u8)]
pub enum Mode {
    Read = 1,
    Write = 2,
}

/// A type for which not all bytes are valid: in a list of them each is checked.
#[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Step {
    pub mode: Mode,
    pub last: bool,
    pub blocks: U16,
}

/// A message of fixed fields only, without a lifetime.
#[derive(Clone, Copy, Debug, PartialEq, InPlace)]
#[in_place(kind = 1, version = 1)]
pub struct Numbers {
    pub a: u8,
    pub b: u16,
    pub c: u32,
    pub d: u64,
    pub e: u128,
    pub f: i8,
    pub g: i16,
    pub h: i32,
    pub i: i64,
    pub j: i128,
    pub k: bool,
    pub l: [u8; 5],
    pub m: Mode,
    pub n: Option<u32>,
    pub o: Option<Mode>,
    pub p: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, InPlace)]
#[in_place(kind = 2, version = 2)]
pub struct WriteRequest<'a> {
    pub volume: u64,
    pub offset: u64,
    pub flags: u16,
    pub extents: &'a [Extent],
    pub name: &'a str,
    pub payload: &'a [u8],
    #[in_place(since = 2)]
    pub trace: u64,
    #[in_place(since = 2)]
    pub tenant: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, InPlace)]
#[in_place(kind = 3, version = 1)]
pub struct Batch<'a> {
    pub digest: &'a [u8; 4],
    #[in_place(nested)]
    pub first: WriteRequest<'a>,
    pub steps: &'a [Step],
    #[in_place(nested)]
    pub second: Option<WriteRequest<'a>>,
    pub comment: Option<&'a [u8]>,
    pub more: Option<&'a [Step]>,
}

#[derive(Clone, Copy, Debug, PartialEq, InPlace)]
#[in_place(kind = 255, version = 255)]
pub struct Nothing {}

pub fn written<'a>(message: &impl InPlace<'a>) -> Vec<u8> {
    let mut bytes = vec![0xaa; message.encoded_len()];
    assert_eq!(message.write_to(&mut bytes), Ok(bytes.len()));
    bytes
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Read), Just(Mode::Write)]
}

prop_compose! {
    pub fn numbers()(
        (a, b, c, d, e) in any::<(u8, u16, u32, u64, u128)>(),
        (f, g, h, i, j) in any::<(i8, i16, i32, i64, i128)>(),
        (k, l, n) in any::<(bool, [u8; 5], Option<u32>)>(),
        (m, o) in (mode(), proptest::option::of(mode())),
        (first_block, blocks) in any::<(u64, u32)>(),
    ) -> Numbers {
        let p = Extent { first_block: first_block.into(), blocks: blocks.into() };
        Numbers { a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p }
    }
}

/// The data that a request borrows.
#[derive(Clone, Debug)]
pub struct Owned {
    pub fixed: (u64, u64, u16, u64),
    pub extents: Vec<Extent>,
    pub name: String,
    pub payload: Vec<u8>,
    pub tenant: Option<String>,
}

impl Owned {
    pub fn request(&self) -> WriteRequest<'_> {
        let (volume, offset, flags, trace) = self.fixed;
        let Self { extents, name, payload, tenant, .. } = self;
        WriteRequest { volume, offset, flags, extents, name, payload, trace, tenant: tenant.as_deref() }
    }
}

prop_compose! {
    pub fn owned()(
        fixed in any::<(u64, u64, u16, u64)>(),
        extents in proptest::collection::vec(any::<(u64, u32)>(), 0..5),
        name in ".{0,8}",
        payload in proptest::collection::vec(any::<u8>(), 0..64),
        tenant in proptest::option::of(".{0,4}"),
    ) -> Owned {
        let extents = extents
            .into_iter()
            .map(|(first, blocks)| Extent { first_block: first.into(), blocks: blocks.into() })
            .collect();
        Owned { fixed, extents, name, payload, tenant }
    }
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (mode(), any::<bool>(), any::<u16>());
    let step = step.prop_map(|(mode, last, blocks)| Step { mode, last, blocks: blocks.into() });
    proptest::collection::vec(step, 0..4)
}
