//! The records that are written and read, and how an operation is timed.

use std::hint::black_box;
use std::time::Instant;

/// A small header of an RPC: 23 bytes of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    pub volume: u64,
    pub offset: u64,
    pub bytes: u32,
    pub flags: u16,
    pub urgent: bool,
}

/// A small header with a name and a list of (first block, blocks).
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    pub volume: u64,
    pub offset: u64,
    pub flags: u16,
    pub trace: u64,
    pub name: String,
    pub extents: Vec<(u64, u32)>,
}

/// A header and a payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub volume: u64,
    pub offset: u64,
    pub flags: u16,
    pub trace: u64,
    pub payload: Vec<u8>,
}

/// One value of each record, the same for all contenders.
pub struct Records {
    pub fixed: Fixed,
    pub named: Named,
    pub block: Block,
}

impl Records {
    pub fn new() -> Self {
        let (volume, offset, trace) = (0x0102_0304, 7 << 30, 0x9f3a_77c1_0044_beef);
        Self {
            fixed: Fixed { volume, offset, bytes: 65536, flags: 0x11, urgent: true },
            named: Named {
                volume,
                offset,
                flags: 0x11,
                trace,
                name: "vol-7/journal-03".to_owned(),
                extents: (0..4).map(|at| (1_000_000 + at * 4096, 256)).collect(),
            },
            block: Block {
                volume,
                offset,
                flags: 0x11,
                trace,
                payload: (0..4096u32).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect(),
            },
        }
    }
}

/// A loop over one operation. The function takes the number of calls and returns nanoseconds for each call.
pub type Timed<'r> = Box<dyn FnMut(u32) -> f64 + 'r>;

/// One library's encoding and decoding of one record.
pub struct Contender<'r> {
    pub name: &'static str,
    /// Length of the encoded record, in bytes.
    pub bytes: usize,
    pub encode: Timed<'r>,
    pub decode: Timed<'r>,
}

/// Makes a loop that times an operation. The compiler must take the operation's result as used.
pub fn timed<'r, T>(mut operation: impl FnMut() -> T + 'r) -> Timed<'r> {
    Box::new(move |times| {
        let began = Instant::now();
        for _ in 0..times {
            black_box(operation());
        }
        began.elapsed().as_secs_f64() * 1e9 / f64::from(times)
    })
}

/// Makes the compiler take every argument as used, so that it computes all of them.
#[macro_export]
macro_rules! used {
    ($($value:expr),+ $(,)?) => {{ $(::std::hint::black_box($value);)+ }};
}
