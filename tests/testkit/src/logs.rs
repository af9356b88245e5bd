//! Records the `tracing` spans and events of the libraries, with their fields.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

const PATIENCE: Duration = Duration::from_secs(60);

/// A recorder of events up to a level.
pub struct Log {
    written: Arc<Written>,
    _default: Option<DefaultGuard>,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub level: Level,
    /// The event's message, or the span's name.
    pub message: String,
    pub fields: HashMap<&'static str, String>,
    /// The parent span that an event names.
    pub span: Option<u64>,
    is_open: bool,
}

#[derive(Default)]
struct Written {
    spans: Mutex<HashMap<u64, Line>>,
    events: Mutex<Vec<Line>>,
    is_written: Notify,
}

impl Log {
    /// Records what all threads of this process log. For a test that runs [`alone`](super::alone).
    pub fn of_process(level: Level) -> Self {
        let written = Arc::<Written>::default();
        let recorder = Recorder(written.clone(), level).dispatch();
        tracing::dispatcher::set_global_default(recorder).expect("it is asked for once");
        let _default = None;
        Self { written, _default }
    }

    /// Records what this thread logs, until dropped.
    pub fn of_thread(level: Level) -> Self {
        // With a single live subscriber, tracing caches the decision of the first thread that reaches a line for all
        // threads, permanently (tracing-core 0.1, `Rebuilder::JustOne`). Another test's thread has no subscriber. A
        // second live subscriber makes tracing ask each thread.
        static ANOTHER: LazyLock<Dispatch> =
            LazyLock::new(|| Recorder(Arc::default(), Level::TRACE).dispatch());
        LazyLock::force(&ANOTHER);
        let written = Arc::<Written>::default();
        let recorder = Recorder(written.clone(), level).dispatch();
        let _default = Some(tracing::dispatcher::set_default(&recorder));
        Self { written, _default }
    }

    /// Waits for the next event with this message, and removes it and all before it.
    pub async fn next(&self, message: &str) -> Line {
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

    /// Returns the remaining events.
    pub fn rest(&self) -> Vec<Line> {
        self.written.events().clone()
    }

    /// Returns the span of an event, with everything recorded in it so far.
    pub fn span_of(&self, event: &Line) -> Line {
        self.written.spans()[&event.span.expect("it is in a span")].clone()
    }

    /// Waits until this many spans are open. A task of the library may drop its clone after the last event.
    pub async fn until_open(&self, count: usize) {
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
        let open = spans.values().filter(|line| line.is_open);
        open.cloned().collect()
    }
}

impl Line {
    pub fn field(&self, name: &str) -> &str {
        let value = self.fields.get(name);
        value.unwrap_or_else(|| panic!("{name} in {self:?}"))
    }
}

impl Written {
    fn spans(&self) -> MutexGuard<'_, HashMap<u64, Line>> {
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

impl Recorder {
    fn dispatch(self) -> Dispatch {
        Dispatch::new(Registry::default().with(self))
    }
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.1 && metadata.target().starts_with("lockkeeper")
    }

    fn on_new_span(&self, span: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut line = Line::of(span.metadata(), None);
        span.record(&mut line);
        line.message = span.metadata().name().to_owned();
        self.0.spans().insert(id.into_u64(), line);
    }

    fn on_record(&self, span: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(line) = self.0.spans().get_mut(&span.into_u64()) {
            values.record(line);
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::of(event.metadata(), event.parent().map(Id::into_u64));
        event.record(&mut line);
        self.0.events().push(line);
        self.0.is_written.notify_one();
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        if let Some(line) = self.0.spans().get_mut(&id.into_u64()) {
            line.is_open = false;
        }
        self.0.is_written.notify_one();
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
