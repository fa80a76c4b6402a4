//! Turning `tracing` events into records, which own their message and fields.

use super::ASKED_FOR;
use super::limit::{Decision, Kind};
use super::writer::Writer;
use serde_json::Value;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Instant, SystemTime};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::Context;

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
            let mut subject = Subject(None);
            event.record(&mut subject);
            let kind = Kind { place: metadata.callsite(), subject: subject.0 };
            let limit = self.writer.limit();
            match limit.ask(&kind, Instant::now()) {
                Decision::Say { left_out: before } => left_out = before,
                Decision::LeaveOut { first } => {
                    if first {
                        // The thread has to tell of it if no later line does.
                        self.writer.wake();
                    }
                    return;
                }
            }
            event.record(&mut parts);
            limit.note(&kind, *metadata.level(), &parts.message);
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

/// Hash of the application or the peer that an event names in its fields.
struct Subject(Option<u64>);

impl Subject {
    fn is_named(field: &Field) -> bool {
        ["application", "peer"].contains(&field.name())
    }
}

impl Visit for Subject {
    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        if Self::is_named(field) && self.0.is_none() {
            let mut hasher = DefaultHasher::new();
            value.hash(&mut hasher);
            self.0 = Some(hasher.finish());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if Self::is_named(field) && self.0.is_none() {
            self.0 = Some(value);
        }
    }
}

#[derive(Default)]
struct Parts {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Parts {
    fn add(&mut self, field: &Field, value: Value) {
        self.fields.push((field.name(), value));
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
