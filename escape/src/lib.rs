//! Escape from pressure (Jet §4.3, Algorithm 1): what the pool's state is, and later what to do about it.
//!
//! So far only the first line of the algorithm: reading the pressure from what is available, with hysteresis on the
//! way back. The actions (replace, copy, mark) come with the escape controller.
//!
//! What this crate does *not* do: it moves no byte and reads no clock; it is told and it answers.
#![no_std]
#![forbid(unsafe_code)]

/// How near the pool is to running dry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// At least [`Thresholds::safe_permille`] of the pool is available.
    #[default]
    Ok,
    /// Below the safe line: stragglers are to be replaced, slow applications' data to be copied.
    Unsafe,
    /// Below the danger line: senders are to be slowed down.
    Danger,
}

/// The lines, in thousandths of the pool that are available (Jet §4.3: CACHE_SAFE and CACHE_DANGER).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// At or above it all is well.
    pub safe_permille: u32,
    /// Below it there is danger.
    pub danger_permille: u32,
    /// On the way back a line counts as crossed only this much above itself.
    pub hysteresis_permille: u32,
}

impl Default for Thresholds {
    /// 20 % and 5 %, 2 % hysteresis. 20 % of 12 MiB are 2.4 MiB: 100 us at 200 Gbps, the time that an escape action
    /// has; 5 % are 25 us, about a round trip in a data centre, the time that a signal to the senders needs.
    fn default() -> Self {
        Self { safe_permille: 200, danger_permille: 50, hysteresis_permille: 20 }
    }
}

/// The lines contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdError {
    safe_permille: u32,
    danger_permille: u32,
    hysteresis_permille: u32,
}

impl core::fmt::Display for ThresholdError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "escape thresholds: danger ({}) must lie below safe ({}), and safe plus hysteresis ({}) at most at 1000",
            self.danger_permille, self.safe_permille, self.hysteresis_permille
        )
    }
}

impl core::error::Error for ThresholdError {}

impl Thresholds {
    /// Checks that the lines are in order.
    ///
    /// # Errors
    /// [`ThresholdError`] says what must hold.
    pub fn check(&self) -> Result<(), ThresholdError> {
        let Self { safe_permille, danger_permille, hysteresis_permille } = *self;
        let in_order =
            danger_permille < safe_permille && safe_permille.saturating_add(hysteresis_permille) <= 1000;
        if in_order {
            Ok(())
        } else {
            Err(ThresholdError { safe_permille, danger_permille, hysteresis_permille })
        }
    }

    /// The pressure now, given what it was: lines are crossed downwards at once, upwards only with the hysteresis.
    pub fn read(&self, before: Pressure, available_slabs: u32, total_slabs: u32) -> Pressure {
        let permille = u64::from(available_slabs) * 1000 / u64::from(total_slabs.max(1));
        let line = |base: u32, was_below: bool| {
            permille < u64::from(base) + if was_below { u64::from(self.hysteresis_permille) } else { 0 }
        };
        if line(self.danger_permille, before == Pressure::Danger) {
            Pressure::Danger
        } else if line(self.safe_permille, before >= Pressure::Unsafe) {
            Pressure::Unsafe
        } else {
            Pressure::Ok
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_crossed_down_at_once_and_up_with_hysteresis() {
        let t = Thresholds::default();
        assert_eq!(t.read(Pressure::Ok, 200, 1000), Pressure::Ok);
        assert_eq!(t.read(Pressure::Ok, 199, 1000), Pressure::Unsafe);
        assert_eq!(t.read(Pressure::Unsafe, 219, 1000), Pressure::Unsafe);
        assert_eq!(t.read(Pressure::Unsafe, 220, 1000), Pressure::Ok);
        assert_eq!(t.read(Pressure::Ok, 49, 1000), Pressure::Danger);
        assert_eq!(t.read(Pressure::Danger, 69, 1000), Pressure::Danger);
        assert_eq!(t.read(Pressure::Danger, 70, 1000), Pressure::Unsafe);
    }

    #[test]
    fn lines_out_of_order_are_refused() {
        assert!(Thresholds::default().check().is_ok());
        assert!(Thresholds { danger_permille: 200, ..Thresholds::default() }.check().is_err());
        assert!(Thresholds { safe_permille: 990, ..Thresholds::default() }.check().is_err());
    }
}
