//! Turning `tracing` events into records, which own their message and fields.

use super::ASKED_FOR;
use super::limit::{Decision, Limit};
use super::writer::Writer;
use serde_json::Value;
use std::fmt;
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
    limit: Limit,
}

impl Layer {
    pub fn new(writer: Writer) -> Self {
        Self { writer, limit: Limit::default() }
    }
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let decision = match metadata.target() {
            ASKED_FOR => Decision::Say { left_out: 0 },
            _ => self.limit.ask(metadata.callsite(), Instant::now()),
        };
        let Decision::Say { left_out } = decision else { return };
        let mut parts = Parts::default();
        event.record(&mut parts);
        self.writer.put(Record {
            time: SystemTime::now(),
            level: *metadata.level(),
            message: parts.message,
            fields: parts.fields,
            left_out,
        });
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
