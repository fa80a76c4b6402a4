//! Timed touches of lines, and flushes of lines out of the caches. This is the only module of the measurement
//! that depends on the processor's architecture.
//!
//! On x86_64 durations are in ticks of the time-stamp counter, read between two LFENCEs. LFENCE waits until
//! all loads before it are done, and lets nothing after it begin: on Intel always, on AMD as Linux configures
//! it. On aarch64 durations are in ticks of the generic timer. Some machines run that at 25 MHz, and a
//! calibration refuses where it is too coarse.

use super::region::{PAGE_LINES, Region};

/// Whether touches can be timed and lines flushed on this architecture.
pub(super) const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Anchors: lines of a page that are read to fill the TLB. There is one for each half of the page, at least
/// 16 lines away from that half's lines (see [`anchor_of`]).
const ANCHORS: [usize; 2] = [48, 16];

/// Returns the anchor that is read before another line of the page is timed: the one in the other half.
const fn anchor_of(page_line: usize) -> usize {
    ANCHORS[page_line / (PAGE_LINES / 2)]
}

/// Returns whether touches of a line of the region are judged. Anchors, and the other line of each anchor's
/// pair of 128 bytes, are not: they are read so often that they say nothing about the rest.
#[inline]
pub(super) const fn is_judged(line: usize) -> bool {
    let pair = (line % PAGE_LINES) / 2;
    pair != ANCHORS[0] / 2 && pair != ANCHORS[1] / 2
}

/// Touches a line after its address translation was brought into the TLB. Returns the duration in ticks.
///
/// # Panics
/// Where the region has no such line.
#[inline]
pub(super) fn touch(region: &Region, line: usize) -> u32 {
    let page_line = line % PAGE_LINES;
    let anchor = region.line(line - page_line + anchor_of(page_line));
    let line = region.line(line);
    // SAFETY: both addresses lie in the region, whose maker promised that it stays readable (`Region::new`).
    // Other code may write the byte meanwhile. The byte is read volatile and its value is thrown away, so no
    // decision depends on it.
    unsafe {
        anchor.read_volatile();
        arch::timed_read(line)
    }
}

/// Reads a line, untimed.
///
/// # Panics
/// Where the region has no such line.
#[inline]
pub(super) fn read(region: &Region, line: usize) {
    // SAFETY: as in `touch`.
    unsafe { region.line(line).read_volatile() };
}

/// Flushes a line, and the anchor that is read before it, from every cache of the machine. Both flushes are
/// complete after [`fence`].
///
/// # Panics
/// Where the region has no such line.
#[inline]
pub(super) fn flush_with_anchor(region: &Region, line: usize) {
    let page_line = line % PAGE_LINES;
    for line in [line, line - page_line + anchor_of(page_line)] {
        // SAFETY: the line lies in readable memory (`Region::new`); flushing changes no byte of it.
        unsafe { arch::flush(region.line(line)) };
    }
}

/// Waits until all earlier reads, writes and flushes are done.
#[inline]
pub(super) fn fence() {
    arch::fence();
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};

    /// Reads a byte and returns the duration in ticks.
    ///
    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn timed_read(line: *const u8) -> u32 {
        let ticks: u32;
        // A single block, so that the compiler puts nothing in between. The low halves of the counter
        // suffice: a touch takes less than 2^32 ticks.
        // SAFETY: reads one byte that the caller vouches for, and clobbers only what is declared.
        unsafe {
            asm!(
                "lfence",
                "rdtsc",
                "lfence",
                "mov {start:e}, eax",
                "movzx eax, byte ptr [{line}]",
                "lfence",
                "rdtsc",
                "sub eax, {start:e}",
                line = in(reg) line,
                start = out(reg) _,
                out("eax") ticks,
                out("edx") _,
                options(nostack),
            );
        }
        ticks
    }

    /// Flushes the line that contains a byte from all caches.
    ///
    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn flush(line: *const u8) {
        // SAFETY: the caller vouches for the byte.
        unsafe { _mm_clflush(line) };
    }

    #[inline]
    pub(super) fn fence() {
        // SAFETY: every x86_64 has this instruction, and it accesses no memory.
        unsafe { _mm_mfence() };
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use std::arch::asm;

    /// Reads a byte and returns the duration in ticks.
    ///
    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn timed_read(line: *const u8) -> u32 {
        let ticks: u64;
        // DSB waits for the loads before it; ISB keeps the counter from being read early.
        // SAFETY: reads one byte that the caller vouches for, and clobbers only what is declared.
        unsafe {
            asm!(
                "dsb ish",
                "isb",
                "mrs {start}, cntvct_el0",
                "isb",
                "ldrb {byte:w}, [{line}]",
                "dsb ish",
                "isb",
                "mrs {end}, cntvct_el0",
                "sub {end}, {end}, {start}",
                line = in(reg) line,
                start = out(reg) _,
                byte = out(reg) _,
                end = out(reg) ticks,
                options(nostack),
            );
        }
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// Flushes the line that contains a byte from all caches.
    ///
    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn flush(line: *const u8) {
        // SAFETY: Linux lets user space clean and invalidate by address; the caller vouches for the byte.
        unsafe { asm!("dc civac, {line}", line = in(reg) line, options(nostack)) };
    }

    #[inline]
    pub(super) fn fence() {
        // SAFETY: a barrier accesses no memory.
        unsafe { asm!("dsb ish", "isb", options(nostack)) };
    }
}

/// Placeholder for architectures without support. Nothing of it is called, since a calibration refuses
/// before.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod arch {
    /// Does nothing, and returns 0.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn timed_read(_line: *const u8) -> u32 {
        0
    }

    /// Does nothing.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn flush(_line: *const u8) {}

    pub(super) fn fence() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_far_from_what_they_serve_and_are_not_judged() {
        for line in 0..PAGE_LINES {
            assert!(line.abs_diff(anchor_of(line)) >= 16, "line {line}");
            assert!(!is_judged(anchor_of(line)));
        }
        assert_eq!((0..PAGE_LINES).filter(|line| !is_judged(*line)).count(), 4);
        assert!(!is_judged(PAGE_LINES + 17) && is_judged(PAGE_LINES + 18));
    }

    #[test]
    fn a_touch_takes_time_and_changes_nothing() {
        let region = Region::zeroed(4096).unwrap();
        // SAFETY: the byte is within this test's own memory.
        unsafe { region.base().add(130).write_volatile(7) };
        flush_with_anchor(&region, 2);
        fence();
        let ticks: u32 = (0..100).map(|_| touch(&region, 2)).sum();
        assert!(ticks > 0 || !SUPPORTED);
        // SAFETY: the byte is within this test's own memory.
        assert_eq!(unsafe { region.base().add(130).read_volatile() }, 7);
    }
}
