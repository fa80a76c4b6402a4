//! Clocks for whoever drives a NIC and has none.

use std::time::Instant;

/// Counts nanoseconds from when it was made, as [`crate::Nic`] wants to be told the time.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// What it says now. It never goes back.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Turns between two looks at the clock: reading it costs as much as a message does, and what a NIC does by
/// time is not that exact.
const TURNS: u32 = 64;

/// A clock for a busy loop: it is looked at once in many turns.
#[derive(Clone, Copy, Debug)]
pub struct CoarseClock {
    clock: Clock,
    now_ns: u64,
    turns: u32,
}

impl CoarseClock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self { clock: Clock::start(), now_ns: 0, turns: 0 }
    }

    /// What it said when it was looked at last.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// One more turn of the loop; what it says.
    #[inline]
    pub fn turn(&mut self) -> u64 {
        self.turns += 1;
        if self.turns >= TURNS { self.look() } else { self.now_ns }
    }

    /// Looks at the clock: where nothing is to be done, or after a sleep.
    #[inline]
    pub fn look(&mut self) -> u64 {
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
        let looked = clock.look();
        for _ in 1..TURNS {
            assert_eq!((clock.turn(), clock.now_ns()), (looked, looked));
        }
        assert_eq!(clock.turns, TURNS - 1);
        clock.turn();
        assert_eq!(clock.turns, 0, "this turn looked");
    }
}
