//! Inclusiveness of the last-level cache: whether it also holds what the cores' own caches hold. The kernel
//! does not report it, so the processor is asked (CPUID).

/// Relation between the last-level cache and the cores' own caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inclusion {
    /// The last-level cache holds everything that a core's cache holds. A line that leaves the last-level
    /// cache leaves the cores' caches, too.
    Inclusive,
    /// The last-level cache need not hold what a core's cache holds. Lines enter it when they leave a core's
    /// cache (Skylake-SP and later, AMD).
    NonInclusive,
    /// The processor does not say.
    Unknown,
}

impl Inclusion {
    /// Returns the inclusiveness of this processor's last-level cache.
    pub fn of_this_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        return x86::inclusion();
        #[cfg(not(target_arch = "x86_64"))]
        Self::Unknown
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Inclusion;
    use crate::cpuid;
    use std::arch::x86_64::CpuidResult;

    /// CPUID leaves for deterministic cache parameters: Intel's, and AMD's with the same layout.
    const INTEL: u32 = 4;
    const AMD: u32 = 0x8000_001d;
    /// Limit for the enumerated caches, more than any processor has.
    const LEVELS_MAX: u32 = 16;

    pub fn inclusion() -> Inclusion {
        for (leaf, family) in [(INTEL, 0), (AMD, 0x8000_0000)] {
            if cpuid::leaf(family, 0).eax < leaf {
                continue;
            }
            let caches = (0..LEVELS_MAX).map(|level| cpuid::leaf(leaf, level));
            if let Some(known) = caches.take_while(|cache| cache.eax & 0x1f != 0).find_map(third_level) {
                return known;
            }
        }
        Inclusion::Unknown
    }

    fn third_level(cache: CpuidResult) -> Option<Inclusion> {
        let level = cache.eax >> 5 & 7;
        let inclusive = cache.edx & 2 != 0;
        (level == 3).then_some(if inclusive { Inclusion::Inclusive } else { Inclusion::NonInclusive })
    }
}
