//! State of a file as the system reports it. If two states are equal, nobody wrote to the file between them.
//!
//! Changes that two states do not show are listed in docs/files.md, "Files that change".

use rustix::fs::{AtFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use std::fs::File;
use std::time::Duration;

/// Host that is asked about a file on a network file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// This host, which may have kept an older answer.
    Here,
    /// The file system's server.
    Server,
}

/// Properties of a file, at least one of which a write to it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileState {
    device: (u32, u32),
    inode: u64,
    pub bytes: u64,
    pub mode: u16,
    modified_ns: i128,
    /// Time of the last change. This time changes even where a program sets the time of modification back.
    changed_ns: i128,
}

impl FileState {
    /// Asks for the state of a file. Also returns how many bytes of it lie on the disk.
    pub(super) fn of(file: &File, ask: Ask) -> Result<(Self, u64), Errno> {
        let sync = match ask {
            Ask::Here => AtFlags::STATX_SYNC_AS_STAT,
            Ask::Server => AtFlags::STATX_FORCE_SYNC,
        };
        let told: Statx = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | sync, StatxFlags::BASIC_STATS)?;
        let state = Self {
            device: (told.stx_dev_major, told.stx_dev_minor),
            inode: told.stx_ino,
            bytes: told.stx_size,
            mode: told.stx_mode,
            modified_ns: nanoseconds(told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec.into()),
            changed_ns: nanoseconds(told.stx_ctime.tv_sec, told.stx_ctime.tv_nsec.into()),
        };
        Ok((state, told.stx_blocks * 512))
    }

    /// Waits until a write to the file would give it a later time of change than it has.
    pub(super) fn wait_until_writes_show(&self) {
        let tick = clock_getres(ClockId::RealtimeCoarse);
        let tick = Duration::new(0, u32::try_from(tick.tv_nsec).unwrap_or(0));
        let now = || {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::RealtimeCoarse);
            nanoseconds(tv_sec, tv_nsec)
        };
        // A sleep is right here: the passing of time is waited for, and the clock notifies nobody when it
        // ticks.
        wait_past(self.changed_ns, tick, now, std::thread::sleep);
    }
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

/// Waits until a clock that ticks is past a time. Before that, a second write leaves the same time as the
/// first. Takes one tick, or two if the file has finer times than the clock.
fn wait_past(time_ns: i128, tick: Duration, now_ns: impl Fn() -> i128, mut sleep: impl FnMut(Duration)) {
    let near = 2 * i128::try_from(tick.as_nanos()).unwrap_or(0);
    for _ in 0..3 {
        let ahead = time_ns - now_ns();
        // A time that is far ahead is of another clock.
        if ahead < 0 || ahead > near {
            return;
        }
        sleep(tick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const TICK: Duration = Duration::from_millis(4);
    const TICK_NS: i128 = 4_000_000;

    /// Returns how often [`wait_past`] sleeps for a time that is this far ahead of a clock that shows whole
    /// ticks.
    fn sleeps(ahead_ns: i128) -> u32 {
        let (time, slept) = (Cell::new(1000 * TICK_NS + 1), Cell::new(0));
        let clock = || time.get() / TICK_NS * TICK_NS;
        wait_past(clock() + ahead_ns, TICK, clock, |tick| {
            assert_eq!(tick, TICK);
            slept.set(slept.get() + 1);
            time.set(time.get() + TICK_NS);
        });
        slept.get()
    }

    #[test]
    fn what_was_written_in_this_tick_of_the_clock_is_waited_for() {
        assert_eq!(sleeps(0), 1);
        // The file has finer times than the clock.
        assert_eq!((sleeps(1), sleeps(TICK_NS)), (1, 2));
        // The times are older, and of another clock.
        assert_eq!((sleeps(-1), sleeps(-TICK_NS), sleeps(1000 * TICK_NS)), (0, 0, 0));
    }
}
