//! Sizes and spans of time with units, as in `"12MiB"` or `"2ms"`, in the configuration and on command lines.
//! In the configuration a number without a unit is in the unit that its key's name says; on a command line
//! it is bytes or seconds.

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
/// Fails like [`bytes`](bytes()).
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

/// Parses a size that is written as in the configuration, in bytes.
///
/// # Errors
/// A message for the user, if the text is no size, no whole number of bytes, or too large.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit = if unit.is_empty() { "B" } else { unit };
    let parse =
        |number: &str| format!("{number}{unit}").parse::<ByteSize>().map_err(|_| Unit::Bytes.refusal(text));
    let bytes = parse(number)?.as_u64();
    // The parser returns the greatest number for sizes beyond it.
    if bytes == u64::MAX {
        return Err(format!("\"{text}\" is too large"));
    }
    let Some((whole, decimals)) = number.split_once('.') else { return Ok(bytes) };
    // The parser computes decimals in floating point, and cuts parts of a byte off.
    exact_product(whole, decimals, parse("1")?.as_u64())
        .ok_or_else(|| format!("\"{text}\" is no whole number of bytes"))
}

/// Multiplies the number `whole`.`decimals` by `factor`. Returns nothing if the product is no whole number.
fn exact_product(whole: &str, decimals: &str, factor: u64) -> Option<u64> {
    let decimals = decimals.trim_end_matches('0');
    let scale = 10u128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    // There may be no digit before the point.
    let digits: u128 = format!("0{whole}{decimals}").parse().ok()?;
    let product = digits.checked_mul(u128::from(factor))?;
    if product.is_multiple_of(scale) { u64::try_from(product / scale).ok() } else { None }
}

/// Error in the text of a span of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The text is no number with a unit of time.
    #[error("\"{0}\" is no span of time")]
    NoSpan(String),
    /// The unit is a month or a year, whose lengths vary. Most who write "2M" mean minutes.
    #[error("\"{0}\" has a unit longer than weeks (\"m\" is minutes)")]
    LongUnit(String),
    /// The span is not a whole number of the units in which it is kept.
    #[error("\"{text}\" is no whole number of {units}")]
    NotWhole {
        /// Text of the span.
        text: String,
        /// Units in which the span is kept.
        units: &'static str,
    },
    /// The span is longer than can be kept.
    #[error("\"{0}\" is too long")]
    TooLong(String),
}

/// Parses a span of time that is written as in the configuration, with a unit.
///
/// # Errors
/// The text is no span, has a unit longer than weeks, or is too long.
pub fn parse_span(text: &str) -> Result<Duration, SpanError> {
    let mut units = text.split(|c: char| !c.is_ascii_alphabetic());
    if units.any(|unit| unit == "M" || unit.starts_with("mon") || unit.starts_with('y')) {
        return Err(SpanError::LongUnit(text.to_owned()));
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::NumberOverflow => SpanError::TooLong(text.to_owned()),
        _ => SpanError::NoSpan(text.to_owned()),
    })
}

/// Parses a span of time like [`parse_span`], in whole microseconds.
///
/// # Errors
/// Fails like [`parse_span`], and if the span is no whole number of microseconds.
pub fn parse_microseconds(text: &str) -> Result<u64, SpanError> {
    whole(text, parse_span(text)?, 1_000, "microseconds")
}

/// Longest span that a command line accepts.
const COMMAND_LINE_SPAN_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Parses a span of time of a command line: a bare number is seconds and may have decimals, and a text with a
/// unit is read as in the configuration.
///
/// # Errors
/// A message for the user, if the text is no span, or a span of more than 366 days.
pub fn parse_span_or_seconds(text: &str) -> Result<Duration, String> {
    let span = match text.parse::<f64>() {
        Ok(seconds) if seconds >= 0.0 => {
            Duration::try_from_secs_f64(seconds).map_err(|_| SpanError::TooLong(text.to_owned()))
        }
        // A negative number, or none ("NaN").
        Ok(_) => Err(SpanError::NoSpan(text.to_owned())),
        Err(_) => parse_span(text),
    };
    match span {
        Ok(span) if span <= COMMAND_LINE_SPAN_MAX => Ok(span),
        Ok(_) | Err(SpanError::TooLong(_)) => Err(format!("\"{text}\" is longer than 366 days")),
        Err(error) => Err(format!("{error}; write seconds, as 30 or 0.5, or a unit, as 500ms or 2min")),
    }
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

    /// Returns the error message for a text that is no number of this unit.
    fn refusal(self, text: &str) -> String {
        format!("\"{text}\" is neither {}", self.wanted().replace(", or", " nor"))
    }

    /// Parses a text into a number of this unit, or returns an error message.
    fn parse(self, text: &str) -> Result<u64, String> {
        let number = match self {
            Self::Bytes => return parse_bytes(text),
            Self::Microseconds => parse_microseconds(text),
            Self::Milliseconds => {
                parse_span(text).and_then(|span| whole(text, span, 1_000_000, "milliseconds"))
            }
        };
        number.map_err(|error| match error {
            SpanError::NoSpan(_) => self.refusal(text),
            error => error.to_string(),
        })
    }
}

/// Returns the span as a whole number of units of `unit_ns` nanoseconds.
fn whole(text: &str, span: Duration, unit_ns: u128, units: &'static str) -> Result<u64, SpanError> {
    let span_ns = span.as_nanos();
    if !span_ns.is_multiple_of(unit_ns) {
        return Err(SpanError::NotWhole { text: text.to_owned(), units });
    }
    u64::try_from(span_ns / unit_ns).map_err(|_| SpanError::TooLong(text.to_owned()))
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
        // Such a number could not be printed, nor be written without a unit.
        if i64::try_from(number).is_err() {
            return Err(E::custom(format_args!(
                "\"{text}\" is too large: a number in TOML is at most {}",
                i64::MAX
            )));
        }
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
        for (text, size) in [
            ("1.5GiB", 3 << 29),
            ("0.5 KiB", 512),
            (".25KiB", 256),
            ("12.0", 12),
            // In floating point this is a little less than 1001.
            ("1.001kB", 1001),
            ("9223372036854775807", (1 << 63) - 1),
        ] {
            assert_eq!(read(&format!("size = \"{text}\"")).unwrap().size, size, "{text}");
        }
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
            ("size = \"8EiB\"", "\"8EiB\" is too large: a number in TOML is at most 9223372036854775807"),
            ("perhaps = \"9223372036854775808\"", "too large: a number in TOML"),
            ("long = \"9223372036854776s\"", "too large: a number in TOML"),
            ("size = 1.5", "invalid type: floating point `1.5`, expected a number of bytes"),
            ("size = \"1.5B\"", "no whole number of bytes"),
            ("size = \"1.5\"", "no whole number of bytes"),
            ("size = \"0.3KiB\"", "no whole number of bytes"),
            ("size = \"1.0005 kB\"", "no whole number of bytes"),
            ("size = \"20000000000.5 GiB\"", "too large"),
            ("long = \"2M\"", "longer than weeks (\"m\" is minutes)"),
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

    #[test]
    fn a_command_line_takes_seconds_and_what_the_configuration_takes() {
        let day = Duration::from_secs(86_400);
        for (text, span) in [
            ("0", Duration::ZERO),
            ("30", Duration::from_secs(30)),
            ("0.5", Duration::from_millis(500)),
            ("5s", Duration::from_secs(5)),
            ("500ms", Duration::from_millis(500)),
            ("1.5s", Duration::from_millis(1500)),
            ("1min 30s", Duration::from_secs(90)),
            ("366days", 366 * day),
        ] {
            assert_eq!(parse_span_or_seconds(text), Ok(span), "{text}");
        }
        for (text, part) in [
            ("", "is no span of time; write seconds, as 30 or 0.5"),
            ("2 parsecs", "is no span of time; write seconds, as 30 or 0.5"),
            ("-1", "is no span of time"),
            ("-1s", "is no span of time"),
            ("NaN", "is no span of time"),
            ("2M", "(\"m\" is minutes); write seconds"),
            ("1year", "longer than weeks"),
            ("inf", "longer than 366 days"),
            ("1e99", "longer than 366 days"),
            ("31622401", "longer than 366 days"),
            ("53weeks", "longer than 366 days"),
            ("99999999999999999999s", "longer than 366 days"),
        ] {
            let said = parse_span_or_seconds(text).unwrap_err();
            assert!(said.starts_with(&format!("\"{text}\" ")) && said.contains(part), "{text}: {said}");
        }
    }
}
