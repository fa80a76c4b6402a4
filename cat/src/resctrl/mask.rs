//! Sets of a cache's ways as bit masks: bit 0 is the lowest way.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};
use std::str::FromStr;

/// Set of ways of a cache, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WayMask(pub u64);

/// Error of parsing a [`WayMask`]: the text is no hexadecimal mask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no mask of ways: hexadecimal digits are expected, at most 16")]
pub struct WayMaskError {
    /// Text that was refused.
    pub text: String,
}

impl WayMask {
    /// The empty set of ways.
    pub const EMPTY: Self = Self(0);

    /// Returns `count` consecutive ways that begin at `first`. Ways beyond the 64th are left out.
    pub fn run(first: u32, count: u32) -> Self {
        let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        Self(if first >= 64 { 0 } else { ones << first })
    }

    /// Returns the number of ways in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether some way is in both sets.
    pub fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether all ways of the other set are in this one.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the ways of this set that are not in the other one.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether the ways lie side by side, as most processors require. The empty set counts as
    /// contiguous.
    pub fn is_contiguous(self) -> bool {
        let shifted = if self.0 == 0 { 0 } else { self.0 >> self.0.trailing_zeros() };
        shifted & shifted.wrapping_add(1) == 0
    }
}

impl BitAnd for WayMask {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for WayMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Not for WayMask {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Display for WayMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl FromStr for WayMask {
    type Err = WayMaskError;

    fn from_str(text: &str) -> Result<Self, WayMaskError> {
        let digits = text.trim();
        // `from_str_radix` alone would accept a sign.
        let all_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mask = u64::from_str_radix(digits, 16).ok().filter(|_| all_hex);
        mask.map(Self).ok_or_else(|| WayMaskError { text: digits.to_owned() })
    }
}

/// Serializes the mask as hexadecimal text, which an operator can compare with the kernel's files.
impl serde::Serialize for WayMask {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for WayMask {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_contiguous_and_gaps_are_not() {
        assert_eq!(WayMask::run(2, 3), WayMask(0b11100));
        assert_eq!(WayMask::run(60, 10), WayMask(0xf << 60));
        assert_eq!(WayMask::run(0, 64), WayMask(u64::MAX));
        for contiguous in [0, 1, 0b110, 0xf_ffff, u64::MAX, 1 << 63] {
            assert!(WayMask(contiguous).is_contiguous(), "{contiguous:b}");
        }
        for gaps in [0b101, 0b1101, 1 << 63 | 1] {
            assert!(!WayMask(gaps).is_contiguous(), "{gaps:b}");
        }
    }

    #[test]
    fn masks_are_hexadecimal() {
        assert_eq!(" 00ff\n".parse(), Ok(WayMask(255)));
        assert_eq!(WayMask(0xfffff).to_string(), "fffff");
        for bad in ["", "+f", "-1", "g", "0x", "11111111111111111"] {
            assert!(bad.parse::<WayMask>().is_err(), "{bad:?}");
        }
    }
}
