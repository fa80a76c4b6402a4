//! The forms in which log lines are written.

use super::record::Record;
use serde_json::{Map, Value};
use std::fmt::Write;
use std::os::fd::BorrowedFd;
use std::time::SystemTime;
use tracing::Level;

/// Form in which log lines are written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The journal's protocol if standard error is a stream of the journal (a service of systemd), else text
    /// for people.
    #[default]
    Auto,
    /// Text for people, on standard error. Each line begins with the time, unless standard error is a
    /// terminal or the journal's stream, which has its own.
    Human,
    /// A JSON object a line, on standard error.
    Json,
    /// The journal's own protocol, with levels and fields.
    Journald,
}

impl Form {
    /// Returns the form to use with this standard error. The result is never [`Form::Auto`].
    pub(super) fn found(self, stderr: BorrowedFd<'_>) -> Self {
        match self {
            Self::Auto if is_journal_stream(stderr) => Self::Journald,
            Self::Auto => Self::Human,
            chosen => chosen,
        }
    }
}

/// Whether lines for people begin with their time on this standard error. The journal notes the time itself,
/// and on a terminal people read along.
pub(super) fn needs_time(stderr: BorrowedFd<'_>) -> bool {
    !is_journal_stream(stderr) && !rustix::termios::isatty(stderr)
}

fn is_journal_stream(stderr: BorrowedFd<'_>) -> bool {
    is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), stderr)
}

/// Whether standard error is the stream that systemd gave this process for the journal. `stream` has the form
/// `DEVICE:INODE`.
fn is_journal(stream: Option<&str>, stderr: BorrowedFd<'_>) -> bool {
    let Ok(stat) = rustix::fs::fstat(stderr) else { return false };
    stream.is_some_and(|stream| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Writes a record as text for people: the time in UTC if `has_time`, the program, the level, the message,
/// and then the fields. Control characters are escaped. Further lines of a message are indented, so that no
/// text in it looks like another log line.
pub(super) fn human(program: &str, record: &Record, has_time: bool) -> String {
    let mut text = String::new();
    if has_time {
        // Writing to a String cannot fail, and `time_of` is no time that humantime cannot write.
        let _ = write!(text, "{} ", humantime::format_rfc3339_millis(time_of(record)));
    }
    let _ = write!(text, "{program}: ");
    text.push_str(match record.level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        Level::INFO => "",
        Level::DEBUG => "debug: ",
        Level::TRACE => "trace: ",
    });
    text.push_str(&record.message);
    for (number, (name, value)) in record.fields.iter().enumerate() {
        text.push_str(if number == 0 { " (" } else { ", " });
        // Writing to a String cannot fail.
        let _ = match value {
            Value::String(value) => write!(text, "{name} {value}"),
            value => write!(text, "{name} {value}"),
        };
    }
    if !record.fields.is_empty() {
        text.push(')');
    }
    if record.left_out > 0 {
        let _ = write!(text, " (and {} more of this kind, left out)", record.left_out);
    }
    let mut line = escaped(&text);
    line.push('\n');
    line
}

/// Writes a record as one line of JSON: `time`, `level`, `program`, `message`, and the fields under their own
/// names.
pub(super) fn json(program: &str, record: &Record) -> String {
    let mut object = Map::new();
    object.insert("time".to_owned(), humantime::format_rfc3339_micros(time_of(record)).to_string().into());
    object.insert("level".to_owned(), record.level.as_str().to_ascii_lowercase().into());
    object.insert("program".to_owned(), program.into());
    object.insert("message".to_owned(), record.message.as_str().into());
    for (name, value) in &record.fields {
        object.entry(*name).or_insert_with(|| value.clone());
    }
    if record.left_out > 0 {
        object.insert("left_out".to_owned(), record.left_out.into());
    }
    format!("{}\n", Value::Object(object))
}

/// Returns the time of a record. A clock that is set to a time before 1970 or after 9999, which humantime
/// cannot write, gives the beginning of 1970.
fn time_of(record: &Record) -> SystemTime {
    let since = record.time.duration_since(SystemTime::UNIX_EPOCH);
    match since {
        Ok(since) if since.as_secs() < YEAR_10000_S => record.time,
        _ => SystemTime::UNIX_EPOCH,
    }
}

/// Seconds from 1970 to the year 10000.
const YEAR_10000_S: u64 = 253_402_300_800;

pub(super) fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.trim_end_matches('\n').chars() {
        match character {
            '\n' => line.push_str("\n  "),
            _ if character.is_control() => line.extend(character.escape_default()),
            _ => line.push(character),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn record(level: Level, message: &str) -> Record {
        Record {
            time: SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_000_000_000_001),
            level,
            message: message.to_owned(),
            fields: vec![("application", "store\n".into()), ("peer", 7.into())],
            left_out: 0,
        }
    }

    #[test]
    fn people_read_the_message_its_fields_and_what_was_left_out() {
        assert_eq!(
            human("jetd", &record(Level::INFO, "well"), false),
            "jetd: well (application store\n  , peer 7)\n"
        );
        let bare = Record { fields: Vec::new(), left_out: 3, ..record(Level::WARN, "not well") };
        assert_eq!(
            human("jet", &bare, false),
            "jet: warning: not well (and 3 more of this kind, left out)\n"
        );
        assert!(human("jet", &record(Level::ERROR, "bad"), false).starts_with("jet: error: bad"));
    }

    #[test]
    fn people_read_the_time_in_utc_and_no_clock_ends_the_log() {
        let at = |time| Record { time, fields: Vec::new(), ..record(Level::INFO, "well") };
        let epoch = SystemTime::UNIX_EPOCH;
        for (time, text) in [
            (epoch + Duration::from_micros(1_500_000_000_123_999), "2017-07-14T02:40:00.123Z"),
            // The day after the 28th in a leap year, and the last second of a century.
            (epoch + Duration::from_secs(951_782_400), "2000-02-29T00:00:00.000Z"),
            (epoch + Duration::from_secs(YEAR_10000_S - 1), "9999-12-31T23:59:59.000Z"),
            (epoch + Duration::from_secs(YEAR_10000_S), "1970-01-01T00:00:00.000Z"),
            (epoch - Duration::from_secs(1), "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(human("jetd", &at(time), true), format!("{text} jetd: well\n"));
            json("jetd", &at(time));
        }
    }

    #[test]
    fn control_characters_are_escaped_and_further_lines_indented() {
        assert_eq!(escaped("a\x1b[31mb\r\u{9b}c\td\n"), "a\\u{1b}[31mb\\r\\u{9b}c\\td");
        assert_eq!(escaped("one\njetd: two\n\n"), "one\n  jetd: two");
    }

    #[test]
    fn programs_read_one_object_a_line() {
        let line = json("jetd", &Record { left_out: 2, ..record(Level::WARN, "two\nlines") });
        assert_eq!(line.matches('\n').count(), 1);
        let read: Value = serde_json::from_str(&line).unwrap();
        let wanted = serde_json::json!({
            "time": "2017-07-14T02:40:00.000001Z", "level": "warn", "program": "jetd",
            "message": "two\nlines", "application": "store\n", "peer": 7, "left_out": 2,
        });
        assert_eq!(read, wanted);
    }

    #[test]
    fn the_journal_is_known_by_its_stream() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let stream = format!("{}:{}", stat.st_dev, stat.st_ino);
        assert!(is_journal(Some(&stream), file.as_fd()));
        assert!(!is_journal(Some("1:1"), file.as_fd()) && !is_journal(None, file.as_fd()));
    }
}
