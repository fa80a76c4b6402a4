//! Points in time of lists and certificates: seconds, as in RFC 3339.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(u64);

/// The text is no point in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no point in time; write one as 2027-01-31T00:00:00Z")]
pub struct TimestampError(String);

impl Timestamp {
    /// The last second that can be written: the end of the year 9999.
    pub const MAX: Self = Self(253_402_300_799);

    /// Makes one of seconds. Those after [`Self::MAX`] become it.
    pub fn from_seconds(seconds: u64) -> Self {
        Self(seconds).min(Self::MAX)
    }

    /// Returns the seconds since 1970-01-01 00:00:00 UTC.
    pub fn seconds(self) -> u64 {
        self.0
    }

    /// Returns the point in time that is so much later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self::from_seconds(self.0.saturating_add(span.as_secs()))
    }

    /// Returns the point in time that is so much earlier.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.as_secs()))
    }
}

impl From<SystemTime> for Timestamp {
    /// Times before 1970 become 1970.
    fn from(time: SystemTime) -> Self {
        Self::from_seconds(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(self.0)).fmt(f)
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let error = || TimestampError(text.to_owned());
        let time = humantime::parse_rfc3339(text).map_err(|_| error())?;
        let since = time.duration_since(UNIX_EPOCH).map_err(|_| error())?;
        Ok(Self::from_seconds(since.as_secs()))
    }
}

impl TryFrom<String> for Timestamp {
    type Error = TimestampError;

    fn try_from(text: String) -> Result<Self, TimestampError> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0..=Timestamp::MAX.seconds()) {
            let time = Timestamp::from_seconds(seconds);
            prop_assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn the_ends_of_time_hold() {
        assert_eq!(Timestamp::from_seconds(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59Z");
        assert_eq!(Timestamp::MAX.plus(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_seconds(5).minus(Duration::from_secs(6)).seconds(), 0);
        for text in ["", "tomorrow", "2027-01-31", "1969-12-31T23:59:59Z"] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }
}
