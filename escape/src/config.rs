//! The parameters of Algorithm 1, and where the defaults come from.

use crate::pressure::{ThresholdError, Thresholds};

/// What the escape controller is made with (Jet §4.3, Algorithm 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscapeConfig {
    /// `false`: the pressure is read and stragglers are counted, but nothing is ever done about them: to
    /// compare with.
    pub enabled: bool,
    /// CACHE_SAFE and CACHE_DANGER. See [`Thresholds::default`] for 20 % and 5 %.
    pub thresholds: Thresholds,
    /// MEM_ESC: the most slabs that may stand in for replaced stragglers at once. 0: replace is off, pressure
    /// leads to copying at once.
    ///
    /// 256 slabs, 1 MiB: the paper's escape memory stayed below that (§6.3). Where 4 % of the traffic
    /// straggle (the paper's example, §4.3), 200 Gbps bring 1 GB of stragglers a second: 1 MiB lets each stay
    /// 1 ms beyond `straggler_ns`. And it is a twelfth of a 12 MiB pool: small beside what the cache is
    /// reserved for.
    pub replace_slabs_max: u32,
    /// CREDIT: a session with a larger share of stragglers among what it holds releases slowly. 0 to 1000
    /// thousandths; at 1000 no session ever does.
    ///
    /// 500: Algorithm 1 asks whether "most" of its buffers are stragglers. More than half are most.
    pub credit_permille: u32,
    /// A run held for as long is a straggler, nanoseconds; or for twice what the pool takes to be used once
    /// where that is longer, up to four times what stands here
    /// ([`Escape::straggler_ns`](crate::Escape::straggler_ns)). At least 1.
    ///
    /// 2 ms: ten times the average time from the NIC to the release, 200 us (§2.2: 5 MB are resident at 200
    /// Gbps). In 2 ms 200 Gbps bring 50 MB and use each slab of a 12 MiB pool four times; who keeps one for
    /// that long does not take part in the recycling. And a tail that storage has in its ordinary life, a
    /// write that meets an SSD's own erasing (1 ms and more), is not yet called slow.
    pub straggler_ns: u64,
}

impl Default for EscapeConfig {
    /// The paper's figures, or what follows from them; each field says how.
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
    /// The lines contradict each other.
    Thresholds(ThresholdError),
    /// CREDIT is a share, and larger than all.
    Credit {
        /// What it is, in thousandths.
        found: u32,
    },
    /// The straggler threshold is 0.
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
    /// Checks that the parameters make sense together. `replace_slabs_max` 0 does: replace is off.
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
