//! Turning `tracing` events into records, which own their message and fields.

use super::ASKED_FOR;
use super::limit::{Kind, Place};
use super::writer::Writer;
use serde_json::Value;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::Context;

/// Name of the field that tells apart the kinds of lines which one place in the source logs.
const KIND: &str = "kind";

/// A log line before it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub time: SystemTime,
    pub level: Level,
    pub message: String,
    pub fields: Vec<(&'static str, Value)>,
    /// Number of lines of the same kind that were left out before this one.
    pub left_out: u64,
}

impl Record {
    /// Makes an error without fields, of this time.
    pub fn error(message: String) -> Self {
        let (level, time) = (Level::ERROR, SystemTime::now());
        Self { time, level, message, fields: Vec::new(), left_out: 0 }
    }
}

/// The layer of `tracing` that takes events, limits each kind of them, and gives records to the writer.
pub(super) struct Layer {
    writer: Writer,
}

impl Layer {
    pub fn new(writer: Writer) -> Self {
        Self { writer }
    }
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let is_asked_for = metadata.target() == ASKED_FOR;
        let mut left_out = 0;
        let mut parts = Parts::default();
        if is_asked_for {
            event.record(&mut parts);
        } else {
            let mut names = Names::default();
            event.record(&mut names);
            let kind = Kind {
                place: Place::Source(metadata.callsite(), names.kind),
                subject: names.user.or(names.application).or(names.peer).or(names.process),
            };
            match self.writer.admit(&kind) {
                Some(before) => left_out = before,
                None => return,
            }
            event.record(&mut parts);
            self.writer.limit().note(&kind, *metadata.level(), &parts.message);
        }
        let record = Record {
            time: SystemTime::now(),
            level: *metadata.level(),
            message: parts.message,
            fields: parts.fields,
            left_out,
        };
        if is_asked_for { self.writer.put_in_time(record) } else { self.writer.put(record) }
    }
}

/// Hashes of what an event names in its fields, by which its lines are limited.
#[derive(Default)]
struct Names {
    /// Kind of the line, where one place in the source logs several. Only the limits use this field.
    kind: Option<u64>,
    /// The application counts rather than the peer: its senders get a new number with each connection.
    application: Option<u64>,
    peer: Option<u64>,
    /// Process that is no application, or not yet.
    process: Option<u64>,
    /// User who did it, in a line of the audit. It counts before all others: whoever asks chooses the name of
    /// the application that it asks for.
    user: Option<u64>,
}

impl Names {
    fn named(&mut self, field: &Field) -> Option<&mut Option<u64>> {
        match field.name() {
            KIND => Some(&mut self.kind),
            "application" => Some(&mut self.application),
            "peer" => Some(&mut self.peer),
            "process" => Some(&mut self.process),
            "user" => Some(&mut self.user),
            _ => None,
        }
    }
}

impl Visit for Names {
    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(named) = self.named(field) {
            let mut hasher = DefaultHasher::new();
            value.hash(&mut hasher);
            *named = Some(hasher.finish());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if let Some(named) = self.named(field) {
            *named = Some(value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record_u64(field, value.cast_unsigned());
    }
}

#[derive(Default)]
struct Parts {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Parts {
    fn add(&mut self, field: &Field, value: Value) {
        if field.name() != KIND {
            self.fields.push((field.name(), value));
        }
    }
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.add(field, text.into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.add(field, value.into());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::form::Form;
    use super::*;
    use jet_test_support::pipe::pipe;
    use std::io::read_to_string;
    use std::os::fd::AsFd;
    use tracing_subscriber::layer::SubscriberExt;

    /// Returns the lines that are written of what `log` logs.
    fn lines(log: impl FnOnce()) -> Vec<String> {
        let (reader, to) = pipe();
        let (writer, stop) = Writer::start_on("jetd", Form::Json, move |write| write(to.as_fd()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Layer::new(writer)), log);
        drop(stop);
        let said = read_to_string(reader).unwrap();
        said.lines().filter(|line| !line.contains("left_out")).map(str::to_owned).collect()
    }

    #[test]
    fn lines_about_an_application_are_its_own_whichever_peer_they_name() {
        let come_again = |application, peers: u64| {
            for peer in 0..peers {
                tracing::warn!(peer, application, "a sender comes");
            }
        };
        let lines = lines(|| {
            come_again("store", 100);
            come_again("other", 3);
        });
        let about = |application| lines.iter().filter(|line| line.contains(application)).count();
        assert_eq!((about("store"), about("other")), (8, 3));
    }

    #[test]
    fn lines_about_a_user_are_its_own_whatever_names_it_asks_for() {
        let lines = lines(|| {
            for (user, names) in [(7_u32, 100), (8, 3)] {
                for name in 0..names {
                    let application = format!("invented-{name}");
                    tracing::warn!(user, application, "denied");
                }
            }
        });
        let of = |user| lines.iter().filter(|line| line.contains(user)).count();
        assert_eq!((of("\"user\":7"), of("\"user\":8")), (8, 3));
    }

    #[test]
    fn lines_about_a_process_are_its_own() {
        let lines = lines(|| {
            for (process, lines) in [(Some(7), 100), (Some(8), 3), (None, 2)] {
                (0..lines).for_each(|_| tracing::warn!(process, "it goes"));
            }
        });
        let about = |process| lines.iter().filter(|line| line.contains(process)).count();
        assert_eq!((about(":7"), about(":8"), lines.len()), (8, 3, 13));
    }

    #[test]
    fn kinds_of_one_place_are_limited_apart_and_are_no_field() {
        let lines = lines(|| {
            for kind in ["one", "two"] {
                for _ in 0..40 {
                    tracing::warn!(kind, "something of a kind");
                }
            }
        });
        assert_eq!(lines.len(), 64);
        assert!(!lines[0].contains("kind\":"), "{}", lines[0]);
    }
}
