//! The warnings that the libraries log, for tests.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Hands each warning to `tell`, as one line of text with its fields, from now on and for the whole process.
pub(crate) fn on_warning(tell: impl Fn(&str) + Send + Sync + 'static) {
    tracing::subscriber::set_global_default(Warnings(tell)).expect("it is asked for once");
}

struct Warnings<F>(F);

impl<F: Fn(&str) + Send + Sync + 'static> Subscriber for Warnings<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("lockkeeper")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        (self.0)(&line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
        written.expect("a string takes all");
    }
}
