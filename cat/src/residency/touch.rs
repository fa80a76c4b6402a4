//! One touch of a line and its time, and driving a line out of the caches: the only place that knows the
//! processor.
//!
//! x86_64 counts in ticks of the time-stamp counter, read between two LFENCEs: LFENCE waits until all loads
//! before it are done and lets nothing after it begin, on Intel always and on AMD as Linux sets it. aarch64
//! counts in ticks of the generic timer, which some machines run at 25 MHz: a calibration refuses where that
//! is too coarse.

use super::region::{PAGE_LINES, Region};

/// Whether touches can be timed and lines flushed on this processor.
pub(super) const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The lines of a page that are read to fill the TLB: one for each half of the page, 16 lines and more from
/// the lines of the other half. See [`anchor_of`].
const ANCHORS: [usize; 2] = [48, 16];

/// Which line of the page is read before another one is timed: the one that lies in the other half.
const fn anchor_of(page_line: usize) -> usize {
    ANCHORS[page_line / (PAGE_LINES / 2)]
}

/// Whether a line of the region is ever judged: anchors, and the other line of each anchor's pair of 128
/// bytes, are read so often that they say nothing of the rest.
#[inline]
pub(super) const fn is_judged(line: usize) -> bool {
    let pair = (line % PAGE_LINES) / 2;
    pair != ANCHORS[0] / 2 && pair != ANCHORS[1] / 2
}

/// Touches a line, with its translation at hand, and times that: ticks.
///
/// # Panics
/// Where the region has no such line.
#[inline]
pub(super) fn touch(region: &Region, line: usize) -> u32 {
    let page_line = line % PAGE_LINES;
    let anchor = region.line(line - page_line + anchor_of(page_line));
    let line = region.line(line);
    // SAFETY: both lie in the region, whose maker promised that it stays readable (`Region::new`). Others may
    // write the byte meanwhile; it is read volatile and its value is thrown away, so no decision hangs on it.
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

/// Drives a line, and the anchor that is read before it, out of every cache of the machine. Both are gone
/// after [`fence`].
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

/// Waits until everything before it is done: reads, writes, flushes.
#[inline]
pub(super) fn fence() {
    arch::fence();
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};

    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn timed_read(line: *const u8) -> u32 {
        let ticks: u32;
        // One block, so that nothing gets between. The low halves do: a touch takes less than 2^32 ticks.
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

    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn flush(line: *const u8) {
        // SAFETY: the caller vouches for the byte.
        unsafe { _mm_clflush(line) };
    }

    #[inline]
    pub(super) fn fence() {
        // SAFETY: every x86_64 has it.
        unsafe { _mm_mfence() };
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use std::arch::asm;

    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn timed_read(line: *const u8) -> u32 {
        let ticks: u64;
        // DSB waits for the loads before it, ISB keeps the counter from being read early.
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

    /// # Safety
    /// The byte must be readable.
    #[inline]
    pub(super) unsafe fn flush(line: *const u8) {
        // SAFETY: Linux lets user space clean and invalidate by address; the caller vouches for the byte.
        unsafe { asm!("dc civac, {line}", line = in(reg) line, options(nostack)) };
    }

    #[inline]
    pub(super) fn fence() {
        // SAFETY: a barrier.
        unsafe { asm!("dsb ish", "isb", options(nostack)) };
    }
}

/// Nothing here works; a calibration refuses before any of it is called.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod arch {
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn timed_read(_line: *const u8) -> u32 {
        0
    }

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
        // SAFETY: our own memory.
        unsafe { region.base().add(130).write_volatile(7) };
        flush_with_anchor(&region, 2);
        fence();
        let ticks: u32 = (0..100).map(|_| touch(&region, 2)).sum();
        assert!(ticks > 0 || !SUPPORTED);
        // SAFETY: our own memory.
        assert_eq!(unsafe { region.base().add(130).read_volatile() }, 7);
    }
}
