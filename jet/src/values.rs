//! Sizes and spans of time with units, as in `"12MiB"` or `"2ms"`. A number without a unit is in the unit
//! that its key's name says.

use bytesize::ByteSize;
use serde::Deserializer;
use serde::de::{Error, Visitor};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// Reads a size: a number of bytes, or a text with a unit.
///
/// # Errors
/// Fails if the value is no size, or too large.
pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Quantity::new(Unit::Bytes))
}

/// Reads a size in bytes for a key that may be left out.
///
/// # Errors
/// Fails like [`bytes`].
pub fn bytes_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    bytes(from).map(Some)
}

/// Reads a span of time: a number of microseconds, or a text with a unit.
///
/// # Errors
/// Fails if the value is no span, no whole number of microseconds, or too long.
pub fn microseconds<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    from.deserialize_any(Quantity::new(Unit::Microseconds))
}

/// Reads a span of time: a number of milliseconds, or a text with a unit.
///
/// # Errors
/// Fails if the value is no span, no whole number of milliseconds, or too long.
pub fn milliseconds<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    from.deserialize_any(Quantity::new(Unit::Milliseconds))
}

/// First letters of the units of sizes beyond the byte.
const BINARY_OR_SI: [char; 12] = ['k', 'K', 'm', 'M', 'g', 'G', 't', 'T', 'p', 'P', 'e', 'E'];

/// Parses a size that is written as in the configuration, in bytes.
///
/// # Errors
/// A message for the user, if the text is no size or too large.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    Unit::Bytes.parse(text)
}

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Microseconds,
    Milliseconds,
}

impl Unit {
    const fn wanted(self) -> &'static str {
        match self {
            Self::Bytes => "a number of bytes, or a text with a unit as \"12MiB\"",
            Self::Microseconds => "a number of microseconds, or a text with a unit as \"2ms\"",
            Self::Milliseconds => "a number of milliseconds, or a text with a unit as \"10s\"",
        }
    }

    /// Parses a text into a number of this unit, or returns an error message.
    fn parse(self, text: &str) -> Result<u64, String> {
        let none = || format!("\"{text}\" is neither {}", self.wanted().replace(", or", " nor"));
        let span = || {
            // "2M" would be two months, and nobody means that here: "2m" is two minutes.
            let mut units = text.split(|c: char| !c.is_ascii_alphabetic());
            if units.any(|unit| unit == "M" || unit.starts_with("mon") || unit.starts_with('y')) {
                return Err(format!("\"{text}\" has a unit longer than weeks; write \"m\" for minutes"));
            }
            humantime::parse_duration(text).map_err(|error| match error {
                humantime::DurationError::NumberOverflow => format!("\"{text}\" is too long"),
                _ => none(),
            })
        };
        match self {
            // The parser cuts parts of a byte off.
            Self::Bytes
                if text.trim_end_matches(['b', 'B', ' ']).contains('.') && !text.contains(BINARY_OR_SI) =>
            {
                Err(format!("\"{text}\" is no whole number of bytes"))
            }
            Self::Bytes => match text.parse::<ByteSize>().map_err(|_| none())?.as_u64() {
                // The parser returns the greatest number for sizes beyond it.
                u64::MAX => Err(format!("\"{text}\" is too large")),
                bytes => Ok(bytes),
            },
            Self::Microseconds => whole(text, span()?, 1_000, "microseconds"),
            Self::Milliseconds => whole(text, span()?, 1_000_000, "milliseconds"),
        }
    }
}

/// Returns the span as a whole number of units of `unit_ns` nanoseconds, or an error message.
fn whole(text: &str, span: Duration, unit_ns: u128, units: &str) -> Result<u64, String> {
    let span_ns = span.as_nanos();
    if !span_ns.is_multiple_of(unit_ns) {
        return Err(format!("\"{text}\" is no whole number of {units}"));
    }
    u64::try_from(span_ns / unit_ns).map_err(|_| format!("\"{text}\" is too long"))
}

struct Quantity<T> {
    unit: Unit,
    of: PhantomData<T>,
}

impl<T: TryFrom<u64>> Quantity<T> {
    const fn new(unit: Unit) -> Self {
        Self { unit, of: PhantomData }
    }

    fn fit<E: Error>(&self, number: u64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::custom(format_args!("{number} is too large")))
    }
}

impl<T: TryFrom<u64>> Visitor<'_> for Quantity<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.unit.wanted())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.fit(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        let number = u64::try_from(number).map_err(|_| E::custom(format_args!("{number} is negative")))?;
        self.fit(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let number = self.unit.parse(text).map_err(E::custom)?;
        self.fit(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Values {
        #[serde(deserialize_with = "bytes")]
        size: u64,
        #[serde(deserialize_with = "bytes_if_any")]
        perhaps: Option<u64>,
        #[serde(deserialize_with = "microseconds")]
        short: u32,
        #[serde(deserialize_with = "milliseconds")]
        long: u64,
    }

    fn read(text: &str) -> Result<Values, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn a_unit_may_be_written_and_a_bare_number_has_that_of_its_key() {
        let bare = read("size = 12582912\nperhaps = 4096\nshort = 2000\nlong = 10000").unwrap();
        let with_units = "size = \"12MiB\"\nperhaps = \"4 KiB\"\nshort = \"2ms\"\nlong = \"10s\"";
        assert_eq!(read(with_units), Ok(bare));
        assert_eq!(read("size = \"1.5GiB\"").unwrap().size, 3 << 29);
        assert_eq!(read("long = \"1min 30s\"").unwrap().long, 90_000);
        assert_eq!(read("").unwrap(), Values::default());
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let cases = [
            (
                "size = \"2 parsecs\"",
                "\"2 parsecs\" is neither a number of bytes nor a text with a unit as \"12MiB\"",
            ),
            ("size = \"\"", "neither"),
            ("size = -1", "-1 is negative"),
            ("size = \"-1KiB\"", "neither"),
            ("size = \"99999999999 GiB\"", "too large"),
            ("size = 1.5", "invalid type: floating point `1.5`, expected a number of bytes"),
            ("size = \"1.5B\"", "no whole number of bytes"),
            ("size = \"1.5\"", "no whole number of bytes"),
            ("long = \"2M\"", "write \"m\" for minutes"),
            ("long = \"1year\"", "longer than weeks"),
            ("perhaps = \"2ms\"", "neither"),
            ("short = \"2 parsecs\"", "neither a number of microseconds"),
            ("short = \"1500ns\"", "no whole number of microseconds"),
            ("short = \"5000s\"", "5000000000 is too large"),
            ("long = \"1500us\"", "no whole number of milliseconds"),
            ("long = \"12MiB\"", "neither"),
            ("long = \"-2ms\"", "neither"),
            ("long = \"99999999999999999999s\"", "too long"),
            ("long = \"18446744073709551615s\"", "too long"),
        ];
        for (text, part) in cases {
            let said = read(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
    }
}
