//! Versions of the wire format that two ends speak, and the one that a connection has.
//!
//! `docs/wire.md` says what may change from one version to the next, and how the existing ones differ.

/// A range of versions of the wire format: those that one end speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    lowest: u8,
    highest: u8,
}

/// The first version. Its ends send no range, for they speak no other version.
pub const FIRST_VERSION: u8 = 1;
/// The newest version that this build speaks.
pub const WIRE_VERSION: u8 = 2;

impl Versions {
    /// Versions that this build speaks.
    pub const SUPPORTED: Self = Self { lowest: FIRST_VERSION, highest: WIRE_VERSION };
    /// Versions that the first builds speak.
    pub const FIRST: Self = Self { lowest: FIRST_VERSION, highest: FIRST_VERSION };

    /// Creates a range; `None` where it is empty, or has the version 0, which does not exist.
    pub const fn new(lowest: u8, highest: u8) -> Option<Self> {
        if lowest == 0 || highest < lowest { None } else { Some(Self { lowest, highest }) }
    }

    /// Returns the oldest version of the range.
    pub const fn lowest(self) -> u8 {
        self.lowest
    }

    /// Returns the newest version of the range.
    pub const fn highest(self) -> u8 {
        self.highest
    }

    /// Returns the version of a connection between ends that speak these ranges. It is the highest that both
    /// speak, which is the lower of the two highest. `None`: they have none in common. Both ends get the same
    /// result.
    pub fn agree(self, other: Self) -> Option<u8> {
        let agreed = self.highest.min(other.highest);
        (agreed >= self.lowest && agreed >= other.lowest).then_some(agreed)
    }

    /// Returns the range that this end sends to one that speaks `other`. Builds of the first version send no
    /// range and ignore the byte for it. They get the answer that they have always got.
    #[must_use]
    pub fn announced_to(self, other: Self) -> Self {
        if other.highest == FIRST_VERSION && self.lowest == FIRST_VERSION { Self::FIRST } else { self }
    }

    /// Decodes a range from its two bytes in a hello or a welcome. 0 for the highest stands for the lowest.
    pub(super) fn from_bytes(lowest: u8, highest: u8) -> Option<Self> {
        Self::new(lowest, if highest == 0 { lowest } else { highest })
    }

    /// Returns the byte for the highest version; 0 stands for the lowest.
    pub(super) fn highest_byte(self) -> u8 {
        if self.highest == self.lowest { 0 } else { self.highest }
    }
}

impl core::fmt::Display for Versions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.lowest == self.highest {
            write!(f, "{}", self.lowest)
        } else {
            write!(f, "{} to {}", self.lowest, self.highest)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::string::ToString;

    fn versions(lowest: u8, highest: u8) -> Versions {
        Versions::new(lowest, highest).unwrap()
    }

    #[test]
    fn the_lower_of_the_two_highest_wins_whoever_asks() {
        for (one, other, agreed) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 1), (1, 2), Some(1)),
            ((1, 2), (1, 2), Some(2)),
            ((1, 5), (2, 3), Some(3)),
            ((2, 3), (3, 200), Some(3)),
            ((1, 1), (2, 2), None),
            ((1, 2), (3, 5), None),
            ((255, 255), (1, 254), None),
        ] {
            let (one, other) = (versions(one.0, one.1), versions(other.0, other.1));
            assert_eq!(one.agree(other), agreed, "{one} and {other}");
            assert_eq!(other.agree(one), agreed, "{other} and {one}");
        }
    }

    /// Checks that the rule gives the same result as a look at each version.
    #[test]
    fn what_is_agreed_is_the_highest_that_both_speak() {
        let all = (1..=6).flat_map(|lowest| (lowest..=6).map(move |highest| versions(lowest, highest)));
        for one in all.clone() {
            for other in all.clone() {
                let both = |version: &u8| {
                    [one, other].iter().all(|end| (end.lowest..=end.highest).contains(version))
                };
                assert_eq!(one.agree(other), (1..=6).rev().find(both), "{one} and {other}");
            }
        }
    }

    #[test]
    fn a_range_that_is_none_is_none() {
        for (lowest, highest) in [(0, 0), (0, 1), (3, 2), (255, 1)] {
            assert_eq!(Versions::new(lowest, highest), None);
        }
        assert_eq!(Versions::from_bytes(0, 0), None);
        assert_eq!(Versions::from_bytes(7, 0), Some(versions(7, 7)));
        assert_eq!(Versions::from_bytes(7, 7), Some(versions(7, 7)));
        assert_eq!(Versions::from_bytes(7, 6), None);
        for range in [versions(1, 1), versions(1, 2), versions(9, 255)] {
            assert_eq!(Versions::from_bytes(range.lowest, range.highest_byte()), Some(range));
        }
    }

    #[test]
    fn the_first_builds_hear_what_they_always_heard() {
        let first = Versions::FIRST;
        assert_eq!(versions(1, 9).announced_to(first), first);
        assert_eq!(versions(2, 9).announced_to(first), versions(2, 9), "there is nothing in common to say");
        assert_eq!(versions(1, 9).announced_to(versions(1, 2)), versions(1, 9));
        assert_eq!(Versions::SUPPORTED.agree(first), Some(1), "this build speaks with them");
    }

    #[test]
    fn ranges_are_said_in_words() {
        assert_eq!(versions(3, 3).to_string(), "3");
        assert_eq!(versions(3, 5).to_string(), "3 to 5");
    }
}
