//! Sets of processors in the kernel's notation: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Limit for processor numbers in a parsed list, higher than any kernel's. It bounds the memory that a
/// malformed list takes.
const CPUS_MAX: u32 = 1 << 16;

/// Set of processors, by the numbers that the kernel gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet(BTreeSet<u32>);

/// Error of parsing a [`CpuSet`]: the text is no list of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no list of processors, as in 0-3,8")]
pub struct CpuSetError {
    /// Text that could not be parsed, without surrounding blanks.
    pub text: String,
}

impl CpuSet {
    /// Returns whether the set contains the processor.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns whether the set contains no processor.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of processors in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the processors' numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Returns whether some processor is in both sets.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|cpu| other.0.contains(cpu))
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Parses a list such as `0-3,8`. Empty text is the empty set, which the kernel writes as an empty line.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let refused = || CpuSetError { text: text.trim().to_owned() };
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|cpu| *cpu < CPUS_MAX);
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = number(first).zip(number(last)).ok_or_else(refused)?;
            if first > last {
                return Err(refused());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        let set: CpuSet = "0-3,8,10-11\n".parse().unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(set.to_string(), "0-3,8,10-11");
        assert!("\n".parse::<CpuSet>().unwrap().is_empty());
        for bad in ["a", "1-", "3-1", "1,,2", "0-4000000000", "-1", "1;2"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_again(cpus in proptest::collection::btree_set(0u32..300, 0..40)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn no_text_does_harm(text in "\\PC{0,40}") {
            let _ = text.parse::<CpuSet>();
        }
    }
}
