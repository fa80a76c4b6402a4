//! Option that makes a receiver slow on purpose. The option serves to try what slow storage and a stopped
//! application do to other applications.

use crate::values::{self, SpanError};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// Longest span that the option accepts. Holding slabs for longer would be of no use in a test.
const SPAN_MAX: Duration = Duration::from_secs(3600);

/// Ways in which a receiver is slow on purpose. Written as a hold, a stop, or both with a comma between:
/// `20ms/10,stop:3s@10s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Hold of slices before they are written, if any.
    pub hold: Option<Hold>,
    /// Time span in which the receiver reads no messages, if any.
    pub stop: Option<Stop>,
}

/// Hold of slices before they are written, as if the storage took so long. Written `5ms`, or `20ms/10`.
///
/// A slice is one run of slabs as it was delivered, at most a fragment (256 KiB) long. A slice stays pinned
/// while it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Time for which a slice is held.
    pub span: Duration,
    /// Number of slices of which one is held; 1 holds every slice.
    pub one_in: NonZeroU32,
}

/// Single time span in which the receiver reads no messages, as if the application were stopped. Written
/// `stop:3s@10s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Length of the stop.
    pub span: Duration,
    /// Span from the first registration to the beginning of the stop.
    pub after: Duration,
}

/// Error in the text of a [`Slow`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlowError {
    /// The text of a span is no span, or no whole number of microseconds.
    #[error("{0}; write a number and its unit, as 5ms")]
    Span(SpanError),
    /// The span is zero or longer than 3600 s.
    #[error("a span of '{text}' is out of range; write 1us to 3600s")]
    SpanRange {
        /// Text of the span.
        text: String,
    },
    /// The text behind the slash is no share of the slices.
    #[error("'/{text}' is no share of the slices; write a whole number from 1, as 20ms/10 for one in ten")]
    Share {
        /// Text behind the slash.
        text: String,
    },
    /// The stop does not say when it begins.
    #[error("'stop:{text}' does not say when it begins; write stop:3s@10s for 3 s, beginning after 10 s")]
    StopWithoutBeginning {
        /// Text behind the colon.
        text: String,
    },
    /// There are two holds or two stops.
    #[error("there are two {kind}s; write at most one hold and one stop, as 20ms/10,stop:3s@10s")]
    Twice {
        /// Kind that is there twice: "hold" or "stop".
        kind: &'static str,
    },
}

impl FromStr for Slow {
    type Err = SlowError;

    fn from_str(text: &str) -> Result<Self, SlowError> {
        let mut slow = Self::default();
        for part in text.split(',') {
            let (twice, kind) = match part.strip_prefix("stop:") {
                Some(stop) => (slow.stop.replace(Stop::parse(stop)?).is_some(), "stop"),
                None => (slow.hold.replace(Hold::parse(part)?).is_some(), "hold"),
            };
            if twice {
                return Err(SlowError::Twice { kind });
            }
        }
        Ok(slow)
    }
}

impl Hold {
    fn parse(text: &str) -> Result<Self, SlowError> {
        let (span, one_in) = match text.split_once('/') {
            Some((span, share)) => {
                (span, share.parse().map_err(|_| SlowError::Share { text: share.to_owned() })?)
            }
            None => (text, NonZeroU32::MIN),
        };
        Ok(Self { span: parse_span(span, 1)?, one_in })
    }
}

impl Stop {
    fn parse(text: &str) -> Result<Self, SlowError> {
        let (span, after) =
            text.split_once('@').ok_or_else(|| SlowError::StopWithoutBeginning { text: text.to_owned() })?;
        Ok(Self { span: parse_span(span, 1)?, after: parse_span(after, 0)? })
    }
}

fn parse_span(text: &str, least_us: u64) -> Result<Duration, SlowError> {
    let out_of_range = || SlowError::SpanRange { text: text.to_owned() };
    let span_us = values::parse_microseconds(text).map_err(|error| match error {
        SpanError::TooLong(_) => out_of_range(),
        error => SlowError::Span(error),
    })?;
    let span = Duration::from_micros(span_us);
    if span_us >= least_us && span <= SPAN_MAX { Ok(span) } else { Err(out_of_range()) }
}

/// Writes the option in the form in which it is read.
impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Hold { span, one_in }) = self.hold {
            write!(f, "{}", Span(span))?;
            if one_in.get() > 1 {
                write!(f, "/{one_in}")?;
            }
        }
        if let Some(Stop { span, after }) = self.stop {
            let comma = if self.hold.is_some() { "," } else { "" };
            write!(f, "{comma}stop:{}@{}", Span(span), Span(after))?;
        }
        Ok(())
    }
}

impl Slow {
    /// Returns a sentence for people about what is slowed down.
    pub fn in_words(&self) -> String {
        let hold = self.hold.map(|Hold { span, one_in }| match one_in.get() {
            1 => format!("every slice is held {} before it is written", Span(span)),
            one_in => format!("one slice in {one_in} is held {} before it is written", Span(span)),
        });
        let stop = self.stop.map(|Stop { span, after }| {
            format!("{} after the registration nothing is read for {}", Span(after), Span(span))
        });
        [hold, stop].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// Span that is written as a whole number with the largest unit that leaves it whole.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span_us = self.0.as_micros();
        match span_us {
            _ if span_us.is_multiple_of(1_000_000) => write!(f, "{}s", span_us / 1_000_000),
            _ if span_us.is_multiple_of(1_000) => write!(f, "{}ms", span_us / 1_000),
            _ => write!(f, "{span_us}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(span_us: u64, one_in: u32) -> Hold {
        Hold { span: Duration::from_micros(span_us), one_in: NonZeroU32::new(one_in).unwrap() }
    }

    #[test]
    fn holds_and_stops_are_read_and_written_alike() {
        let stop = Stop { span: Duration::from_secs(3), after: Duration::from_secs(10) };
        let at_once = Stop { span: Duration::from_millis(1500), after: Duration::ZERO };
        for (text, slow) in [
            ("5ms", Slow { hold: Some(hold(5000, 1)), stop: None }),
            ("250us/3", Slow { hold: Some(hold(250, 3)), stop: None }),
            ("20ms/10", Slow { hold: Some(hold(20_000, 10)), stop: None }),
            ("stop:3s@10s", Slow { hold: None, stop: Some(stop) }),
            ("stop:1500ms@0s", Slow { hold: None, stop: Some(at_once) }),
            ("3600s,stop:3s@10s", Slow { hold: Some(hold(3_600_000_000, 1)), stop: Some(stop) }),
        ] {
            assert_eq!(text.parse(), Ok(slow), "{text}");
            assert_eq!(slow.to_string(), text);
        }
        let either_order = "stop:3s@10s,20ms/10".parse::<Slow>().unwrap();
        assert_eq!(either_order, "20ms/10,stop:3s@10s".parse().unwrap());
        // One slice in one is every slice.
        assert_eq!("5ms/1".parse::<Slow>().unwrap().to_string(), "5ms");
        for (text, written) in [
            ("1000us", "1ms"),
            ("5 ms", "5ms"),
            ("1.5s", "1500ms"),
            ("5m", "300s"),
            ("1500000ns/2,stop:1min 30s@0s", "1500us/2,stop:90s@0s"),
        ] {
            assert_eq!(text.parse::<Slow>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        let span = |text: &str| SlowError::Span(SpanError::NoSpan(text.into()));
        let range = |text: &str| SlowError::SpanRange { text: text.into() };
        let share = |text: &str| SlowError::Share { text: text.into() };
        for (text, error) in [
            ("", span("")),
            ("5", span("5")),
            ("ms", span("ms")),
            ("-1s", span("-1s")),
            ("2 parsecs", span("2 parsecs")),
            ("5M", SlowError::Span(SpanError::LongUnit("5M".into()))),
            ("1500ns", SlowError::Span(SpanError::NotWhole { text: "1500ns".into(), units: "microseconds" })),
            ("0ms", range("0ms")),
            ("3601s", range("3601s")),
            ("18446744073709551615s", range("18446744073709551615s")),
            ("99999999999999999999us", range("99999999999999999999us")),
            ("5ms/", share("")),
            ("5ms/0", share("0")),
            ("5ms/ten", share("ten")),
            ("5ms,", span("")),
            ("stop:3s", SlowError::StopWithoutBeginning { text: "3s".into() }),
            ("stop:@1s", span("")),
            ("stop:0s@1s", range("0s")),
            ("5ms,6ms", SlowError::Twice { kind: "hold" }),
            ("stop:1s@1s,stop:1s@9s", SlowError::Twice { kind: "stop" }),
        ] {
            let found = text.parse::<Slow>().unwrap_err();
            assert_eq!(found, error, "{text}");
            assert!(found.to_string().contains("; write "), "{found}");
        }
    }

    #[test]
    fn it_is_told_in_words() {
        let words = |text: &str| text.parse::<Slow>().unwrap().in_words();
        assert_eq!(words("5ms"), "every slice is held 5ms before it is written");
        assert_eq!(
            words("20ms/10,stop:3s@10s"),
            "one slice in 10 is held 20ms before it is written; 10s after the registration nothing is read \
             for 3s"
        );
    }
}
