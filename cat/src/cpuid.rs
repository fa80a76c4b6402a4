//! What the processor says of itself: the one place that asks CPUID.

use std::arch::x86_64::{__cpuid_count, CpuidResult};

/// A leaf, and a part of it where it has several.
///
/// A function of its own, since the intrinsic is safe in newer toolchains and `unsafe` in the oldest that
/// this builds with.
#[allow(unused_unsafe)] // only for the older ones
pub fn leaf(leaf: u32, part: u32) -> CpuidResult {
    // SAFETY: every x86_64 has CPUID; it reads no memory, and a leaf that is not there is answered with other
    // values.
    unsafe { __cpuid_count(leaf, part) }
}
