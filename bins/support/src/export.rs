//! Log lines for a collector, in addition to those on stderr.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use tec_core::port::Clock as _;
use tec_services::telemetry::{Line, Severity};
use tokio::sync::mpsc;
use tokio::sync::mpsc::{Receiver, Sender};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::SystemClock;

/// Maximum number of lines that wait for a collector; further ones go only to stderr.
const WAITING: usize = 1024;

static QUEUE: OnceLock<Sender<Line>> = OnceLock::new();

/// Starts collecting log lines; `None` if they were taken before.
pub fn lines() -> Option<Receiver<Line>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    QUEUE.set(sender).ok().map(|()| receiver)
}

/// A layer that collects nothing until [`lines`] is called.
#[derive(Debug)]
pub(crate) struct Exported;

impl<S: Subscriber> Layer<S> for Exported {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(queue) = QUEUE.get() else { return };
        let metadata = event.metadata();
        let mut line = Line {
            at: SystemClock.now(),
            severity: severity(*metadata.level()),
            target: metadata.target().to_owned(),
            text: String::new(),
            fields: BTreeMap::new(),
        };
        event.record(&mut Read(&mut line));
        let _ = queue.try_send(line);
    }
}

fn severity(level: Level) -> Severity {
    match level {
        Level::TRACE => Severity::Trace,
        Level::DEBUG => Severity::Debug,
        Level::INFO => Severity::Info,
        Level::WARN => Severity::Warn,
        Level::ERROR => Severity::Error,
    }
}

struct Read<'a>(&'a mut Line);

impl Read<'_> {
    fn take(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.0.text = value,
            name => {
                self.0.fields.insert(name, value);
            }
        }
    }
}

impl Visit for Read<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}"));
    }
}
