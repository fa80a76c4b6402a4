//! Access to the CPUID instruction, by which a processor describes itself. No other module uses CPUID.

use std::arch::x86_64::{__cpuid_count, CpuidResult};

/// Reads one CPUID leaf, or one part (sub-leaf) of a leaf that has several.
///
/// This wrapper exists because the intrinsic is safe in newer toolchains, and `unsafe` in the oldest one that
/// the crate builds with.
#[allow(unused_unsafe)] // only for the older ones
pub fn leaf(leaf: u32, part: u32) -> CpuidResult {
    // SAFETY: every x86_64 processor has CPUID. The instruction reads no memory, and a leaf that does not
    // exist is answered with other values.
    unsafe { __cpuid_count(leaf, part) }
}
