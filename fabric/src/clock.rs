//! Clocks for callers that drive a NIC and have no clock of their own.

/// Clock that counts nanoseconds since it was made: the form of time that [`crate::Nic`] takes.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started_ns: u64,
}

impl Clock {
    /// Starts a clock at zero.
    pub fn start() -> Self {
        Self { started_ns: monotonic_ns() }
    }

    /// Returns the nanoseconds since the clock was started. The value never goes back.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.started_ns)
    }
}

/// Returns the nanoseconds of the system's monotonic clock. In 64 bits they last for 584 years of running.
///
/// `Instant` reads the same clock, and takes a little longer for its own arithmetic. rustix finds the
/// kernel's fast way to the clock by itself. valgrind hides that way, and ends the programs that search for
/// it.
#[inline]
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is this function's own. Linux has this clock, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Turns of a loop between two readings of the clock.
///
/// Reading the clock takes as long as handling a message, and the NIC's deadlines need no more precision.
const TURNS: u32 = 64;

/// Clock for a busy loop: the system's clock is read only once in `TURNS` turns.
#[derive(Clone, Copy, Debug)]
pub struct CoarseClock {
    clock: Clock,
    now_ns: u64,
    turns: u32,
}

impl CoarseClock {
    /// Starts a clock at zero.
    pub fn start() -> Self {
        Self { clock: Clock::start(), now_ns: 0, turns: 0 }
    }

    /// Returns the nanoseconds that the last reading of the clock gave.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Counts one more turn of the loop, and returns the time in nanoseconds.
    #[inline]
    pub fn turn(&mut self) -> u64 {
        self.turns += 1;
        if self.turns >= TURNS { self.read() } else { self.now_ns }
    }

    /// Reads the system's clock, and returns the time in nanoseconds. Meant for turns of the loop without
    /// work, and for the first turn after a sleep.
    #[inline]
    pub fn read(&mut self) -> u64 {
        (self.now_ns, self.turns) = (self.clock.now_ns(), 0);
        self.now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_loop_looks_once_in_many_turns() {
        let mut clock = CoarseClock::start();
        let looked = clock.read();
        for _ in 1..TURNS {
            assert_eq!((clock.turn(), clock.now_ns()), (looked, looked));
        }
        assert_eq!(clock.turns, TURNS - 1);
        clock.turn();
        assert_eq!(clock.turns, 0, "this turn looked");
    }
}
