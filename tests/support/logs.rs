//! A recorder of `tracing`: the spans and events of the libraries, with their fields.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The longest that a line or the end of a span is awaited.
const PATIENCE: Duration = Duration::from_secs(60);

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
        let mut line = Text(String::new());
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

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
        written.expect("a string takes all");
    }
}

/// A log up to a level.
pub(crate) struct Log {
    written: Arc<Written>,
    _default: Option<DefaultGuard>,
}

/// An event, or a span.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) level: Level,
    /// The event's message, or the span's name.
    pub(crate) message: String,
    pub(crate) fields: HashMap<&'static str, String>,
    /// The span that an event states as its parent.
    pub(crate) span: Option<u64>,
    is_open: bool,
}

#[derive(Default)]
struct Written {
    last_span: AtomicU64,
    spans: Mutex<HashMap<u64, (Line, usize)>>,
    events: Mutex<Vec<Line>>,
    is_written: Notify,
}

impl Log {
    /// Records what this process logs, in all of its threads. For a test that runs [`alone`](super::alone).
    pub(crate) fn of_process(level: Level) -> Self {
        let written = Arc::<Written>::default();
        let recorder = Recorder(written.clone(), level);
        tracing::subscriber::set_global_default(recorder).expect("it is asked for once");
        let _default = None;
        Self { written, _default }
    }

    /// Records what this thread logs, until this is dropped.
    pub(crate) fn of_thread(level: Level) -> Self {
        // With one subscriber alive, tracing asks that of the thread which reaches a line first, for all threads and for
        // good (tracing-core 0.1, `Rebuilder::JustOne`): another test's thread has none. With two it asks every one.
        static ANOTHER: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(Recorder(Arc::default(), Level::TRACE)));
        LazyLock::force(&ANOTHER);
        let written = Arc::<Written>::default();
        let recorder = Recorder(written.clone(), level);
        let _default = Some(tracing::subscriber::set_default(recorder));
        Self { written, _default }
    }

    /// Waits for the next event with this message, takes it and all before it.
    pub(crate) async fn next(&self, message: &str) -> Line {
        loop {
            let is_written = self.written.is_written.notified();
            {
                let mut events = self.written.events();
                if let Some(at) = events
                    .iter()
                    .position(|line| line.message.starts_with(message))
                {
                    return events.drain(..=at).next_back().unwrap();
                }
            }
            let written = tokio::time::timeout(PATIENCE, is_written).await;
            written.unwrap_or_else(|_| panic!("no {message:?} in {:#?}", self.written.events()));
        }
    }

    /// Returns the events so far that were not taken.
    pub(crate) fn rest(&self) -> Vec<Line> {
        self.written.events().clone()
    }

    /// Returns the span of an event, with what has been recorded in it by now.
    pub(crate) fn span_of(&self, event: &Line) -> Line {
        self.written.spans()[&event.span.expect("it is in a span")]
            .0
            .clone()
    }

    /// Waits until so many spans are open: a task of the library's own may drop its clone after the last event.
    pub(crate) async fn until_open(&self, count: usize) {
        loop {
            let is_written = self.written.is_written.notified();
            let open = self.open();
            if open.len() == count {
                return;
            }
            let written = tokio::time::timeout(PATIENCE, is_written).await;
            written.unwrap_or_else(|_| panic!("{count} spans are awaited, open are {open:#?}"));
        }
    }

    fn open(&self) -> Vec<Line> {
        let spans = self.written.spans();
        let open = spans
            .values()
            .map(|(line, _)| line)
            .filter(|line| line.is_open);
        open.cloned().collect()
    }
}

impl Line {
    pub(crate) fn field(&self, name: &str) -> &str {
        let value = self.fields.get(name);
        value.unwrap_or_else(|| panic!("{name} in {self:?}"))
    }
}

impl Written {
    fn spans(&self) -> MutexGuard<'_, HashMap<u64, (Line, usize)>> {
        self.spans
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn events(&self) -> MutexGuard<'_, Vec<Line>> {
        self.events
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

struct Recorder(Arc<Written>, Level);

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.1 && metadata.target().starts_with("lockkeeper")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = 1 + self.0.last_span.fetch_add(1, Ordering::Relaxed);
        let mut line = Line::of(span.metadata(), None);
        span.record(&mut line);
        line.message = span.metadata().name().to_owned();
        self.0.spans().insert(id, (line, 1));
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        if let Some((line, _)) = self.0.spans().get_mut(&span.into_u64()) {
            values.record(line);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::of(event.metadata(), event.parent().map(Id::into_u64));
        event.record(&mut line);
        self.0.events().push(line);
        self.0.is_written.notify_one();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn clone_span(&self, id: &Id) -> Id {
        if let Some((_, clones)) = self.0.spans().get_mut(&id.into_u64()) {
            *clones += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = self.0.spans();
        let Some((line, clones)) = spans.get_mut(&id.into_u64()) else {
            return false;
        };
        *clones -= 1;
        line.is_open = *clones > 0;
        self.0.is_written.notify_one();
        !line.is_open
    }
}

impl Line {
    fn of(metadata: &Metadata<'_>, span: Option<u64>) -> Self {
        Self {
            level: *metadata.level(),
            message: String::new(),
            fields: HashMap::new(),
            span,
            is_open: true,
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => {
                self.fields.insert(name, format!("{value:?}"));
            }
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}
