//! The parameters of Algorithm 1, and how their defaults are derived.

use crate::pressure::{ThresholdError, Thresholds};

/// Parameters of the escape controller (Jet §4.3, Algorithm 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscapeConfig {
    /// Whether the escape acts. If `false`, the pressure is read and stragglers are counted, but nothing is
    /// done about them. That is for comparisons.
    pub enabled: bool,
    /// Pressure lines, CACHE_SAFE and CACHE_DANGER in Algorithm 1. [`Thresholds::default`] gives the reasons
    /// for 20 % and 5 %.
    pub thresholds: Thresholds,
    /// MEM_ESC: the most slabs that may stand in for replaced stragglers at once. With 0 nothing is replaced,
    /// and pressure leads to copying at once.
    ///
    /// The default is 256 slabs, 1 MiB: the paper's escape memory stayed below that (§6.3). Where 4 % of the
    /// traffic straggles (the paper's example, §4.3), 200 Gbps bring 1 GB of stragglers a second. Then 1 MiB
    /// lets each stay 1 ms beyond `straggler_ns`. It is a twelfth of a 12 MiB pool, so it is small beside
    /// what the cache is reserved for.
    pub replace_slabs_max: u32,
    /// CREDIT: a session releases slowly if stragglers are more than this share of what it holds. 0 to 1000
    /// thousandths; at 1000 no session ever does.
    ///
    /// The default is 500: Algorithm 1 asks whether "most" of its buffers are stragglers, and more than half
    /// are most.
    pub credit_permille: u32,
    /// The straggler's time in nanoseconds: a run held for as long is a straggler. Where twice the turn of
    /// the pool is longer, that counts instead, up to four times this value
    /// ([`Escape::straggler_ns`](crate::Escape::straggler_ns)). At least 1.
    ///
    /// The default is 2 ms, ten times the average time from the NIC to the release. That average is 200 us
    /// (§2.2: 5 MB are resident at 200 Gbps). In 2 ms 200 Gbps bring 50 MB and use each slab of a 12 MiB pool
    /// four times. An application that keeps a slab for that long does not take part in the recycling. But
    /// storage has a tail in its ordinary life, such as a write that meets an SSD's own erasing (1 ms and
    /// more). That is not yet called slow.
    pub straggler_ns: u64,
}

impl Default for EscapeConfig {
    /// Returns the paper's figures, or what follows from them; each field gives the reasons.
    fn default() -> Self {
        Self {
            enabled: true,
            thresholds: Thresholds::default(),
            replace_slabs_max: 256,
            credit_permille: 500,
            straggler_ns: 2_000_000,
        }
    }
}

/// Parameters that cannot work. The message says what must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapeConfigError {
    /// The pressure thresholds contradict each other.
    Thresholds(ThresholdError),
    /// CREDIT is above 1000 thousandths.
    Credit {
        /// CREDIT found, in thousandths.
        found: u32,
    },
    /// The straggler's time is 0.
    Straggler,
}

impl core::fmt::Display for EscapeConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Thresholds(error) => error.fmt(f),
            Self::Credit { found } => {
                write!(
                    f,
                    "escape: credit_permille is {found}, but must be 0 to 1000: it is a share of what \
                           is held"
                )
            }
            Self::Straggler => f.write_str(
                "escape: straggler_ns is 0, but must be at least 1: otherwise every message is a straggler \
                 on arrival",
            ),
        }
    }
}

impl core::error::Error for EscapeConfigError {}

impl EscapeConfig {
    /// Checks that the parameters fit each other. `replace_slabs_max` may be 0: then nothing is replaced.
    ///
    /// # Errors
    /// [`EscapeConfigError`] says what must hold.
    pub fn check(&self) -> Result<(), EscapeConfigError> {
        self.thresholds.check().map_err(EscapeConfigError::Thresholds)?;
        if self.credit_permille > 1000 {
            return Err(EscapeConfigError::Credit { found: self.credit_permille });
        }
        if self.straggler_ns == 0 {
            return Err(EscapeConfigError::Straggler);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn defaults_edges_and_no_replacing_are_legal() {
        let config = EscapeConfig::default();
        config.check().unwrap();
        EscapeConfig { replace_slabs_max: 0, ..config }.check().unwrap();
        EscapeConfig { credit_permille: 1000, ..config }.check().unwrap();
        EscapeConfig { credit_permille: 0, ..config }.check().unwrap();
        EscapeConfig { straggler_ns: 1, ..config }.check().unwrap();
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_value_and_what_must_hold() {
        let config = EscapeConfig::default();
        let refused = |config: EscapeConfig| config.check().unwrap_err().to_string();
        let credit = refused(EscapeConfig { credit_permille: 1001, ..config });
        assert!(credit.contains("credit_permille is 1001, but must be 0 to 1000"), "{credit}");
        let straggler = refused(EscapeConfig { straggler_ns: 0, ..config });
        assert!(straggler.contains("straggler_ns is 0, but must be at least 1"), "{straggler}");
        let crossed = Thresholds { danger_permille: 300, ..config.thresholds };
        let thresholds = refused(EscapeConfig { thresholds: crossed, ..config });
        assert!(thresholds.contains("danger_permille is 300 and safe_permille 200"), "{thresholds}");
        assert!(thresholds.contains("must lie below"), "{thresholds}");
    }
}
