//! Pressure: how near the pool is to being used up, by two lines with hysteresis when the pressure falls.

/// Levels of pressure: how near the pool is to being used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// At least [`Thresholds::safe_permille`] of the pool is available.
    #[default]
    Ok,
    /// Less than the safe line is available: stragglers are to be replaced, slow applications' data to be
    /// copied.
    Unsafe,
    /// Less than the danger line is available: senders are to be slowed down.
    Danger,
}

/// The pressure lines, in thousandths of the pool that are available (Jet §4.3: CACHE_SAFE and CACHE_DANGER).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The safe line: if at least so much is available, there is no pressure.
    pub safe_permille: u32,
    /// The danger line: if less is available, the pool is in danger.
    pub danger_permille: u32,
    /// The hysteresis: when the pressure falls, a line counts as crossed only if this much more than the line
    /// is available.
    pub hysteresis_permille: u32,
}

impl Default for Thresholds {
    /// Returns a safe line of 20 % and a danger line of 5 %, with 2 % hysteresis. 20 % of 12 MiB are 2.4 MiB:
    /// 100 us at 200 Gbps, the time that an escape action has. 5 % are 25 us, about a round trip in a data
    /// centre, the time that a signal to the senders needs. 2 % are 10 us, or 61 slabs: about the largest run
    /// (64). So one run more or less does not cross a line twice.
    fn default() -> Self {
        Self { safe_permille: 200, danger_permille: 50, hysteresis_permille: 20 }
    }
}

/// Thresholds that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdError {
    safe_permille: u32,
    danger_permille: u32,
    hysteresis_permille: u32,
}

impl core::fmt::Display for ThresholdError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { safe_permille: safe, danger_permille: danger, hysteresis_permille: hysteresis } = self;
        if danger >= safe {
            write!(
                f,
                "escape: danger_permille is {danger} and safe_permille {safe}, \
                 but the danger line must lie below the safe one"
            )
        } else {
            write!(
                f,
                "escape: safe_permille is {safe} and hysteresis_permille {hysteresis}, \
                 but their sum must be at most 1000: otherwise the pool never counts as safe again"
            )
        }
    }
}

impl core::error::Error for ThresholdError {}

impl Thresholds {
    /// Checks that the danger line is below the safe line, and that the safe line with the hysteresis is at
    /// most 1000 thousandths.
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

    /// Returns the pressure now, given the pressure before. Lines are crossed downwards at once, upwards only
    /// with the hysteresis.
    #[inline]
    pub fn read(&self, before: Pressure, available_slabs: u32, total_slabs: u32) -> Pressure {
        let available = u64::from(available_slabs) * 1000;
        let total = u64::from(total_slabs.max(1));
        let below = |base: u32, was_below: bool| {
            let line = u64::from(base) + if was_below { u64::from(self.hysteresis_permille) } else { 0 };
            available < line.saturating_mul(total)
        };
        if below(self.danger_permille, before == Pressure::Danger) {
            Pressure::Danger
        } else if below(self.safe_permille, before >= Pressure::Unsafe) {
            Pressure::Unsafe
        } else {
            Pressure::Ok
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

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
    fn a_pool_of_any_size_and_a_share_larger_than_it_can_be_read() {
        let t = Thresholds::default();
        assert_eq!(t.read(Pressure::Ok, 0, 0), Pressure::Danger);
        assert_eq!(t.read(Pressure::Danger, u32::MAX, u32::MAX), Pressure::Ok);
        // 614.4 slabs are 20 %.
        assert_eq!(t.read(Pressure::Ok, 614, 3072), Pressure::Unsafe);
        assert_eq!(t.read(Pressure::Ok, 615, 3072), Pressure::Ok);
        // More is available than the pool has, as when stragglers have just released their slabs.
        assert_eq!(t.read(Pressure::Danger, 20, 10), Pressure::Ok);
    }

    #[test]
    fn lines_out_of_order_are_refused_and_the_message_says_which() {
        assert!(Thresholds::default().check().is_ok());
        let at_the_edge = Thresholds { safe_permille: 980, ..Thresholds::default() };
        assert!(at_the_edge.check().is_ok());
        let refused = |t: Thresholds| t.check().unwrap_err().to_string();
        let crossed = refused(Thresholds { danger_permille: 200, ..Thresholds::default() });
        assert!(crossed.contains("danger_permille is 200 and safe_permille 200"), "{crossed}");
        let too_high = refused(Thresholds { safe_permille: 981, ..Thresholds::default() });
        assert!(too_high.contains("safe_permille is 981 and hysteresis_permille 20"), "{too_high}");
        let huge = Thresholds { hysteresis_permille: u32::MAX, ..Thresholds::default() };
        assert!(huge.check().is_err());
    }
}
