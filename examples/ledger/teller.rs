//! [`Teller`]: prints the locks' events while they happen.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper::{EventSink, LockEvent, lock_events};
use lockkeeper_store::sequence_of;

/// Number of grants whose events are printed in full, unless all are.
const FULL_GRANTS: usize = 40;
const BETWEEN_LINES: Duration = Duration::from_secs(1);

enum News {
    Event { worker: usize, event: LockEvent },
    Remark { worker: usize, text: String },
    Died { worker: usize, text: String },
    Posted,
    End,
}

/// Receiver of what happens to the workers. Clones share one output.
#[derive(Clone)]
pub(crate) struct Teller {
    /// `None` prints nothing.
    news: Option<mpsc::Sender<News>>,
}

impl Teller {
    /// Returns a teller that prints nothing.
    pub(crate) fn quiet() -> Self {
        Self { news: None }
    }

    /// Starts to print the events of a run.
    pub(crate) fn start(all: bool, transfers: usize, posted: usize) -> (Self, JoinHandle<()>) {
        let (news, told) = mpsc::channel();
        let screen = Screen {
            all,
            began: Instant::now(),
            transfers,
            posted,
            grants: 0,
            holder: None,
            early: VecDeque::new(),
        };
        let printing = std::thread::spawn(move || screen.run(&told));
        (Self { news: Some(news) }, printing)
    }

    /// Returns a sink for the events of a worker's lock.
    pub(crate) fn sink(&self, worker: usize) -> Option<EventSink> {
        let news = self.news.clone()?;
        let (sink, mut events) = lock_events();
        // Runs in the thread in which the event happens, so that the order is kept.
        lockkeeper_store::spawn_detached(async move {
            while let Some(event) = events.next().await {
                let _ = news.send(News::Event { worker, event });
            }
        });
        Some(sink)
    }

    /// Prints a remark that is no lock event.
    pub(crate) fn remark(&self, worker: usize, text: String) {
        self.send(News::Remark { worker, text });
    }

    /// Prints that a worker was cut off.
    pub(crate) fn died(&self, worker: usize, text: String) {
        self.send(News::Died { worker, text });
    }

    /// Counts another transfer in the ledger.
    pub(crate) fn posted(&self) {
        self.send(News::Posted);
    }

    /// Ends the printing.
    pub(crate) fn end(&self) {
        self.send(News::End);
    }

    fn send(&self, news: News) {
        if let Some(sender) = &self.news {
            // The printing may have ended.
            let _ = sender.send(news);
        }
    }
}

struct Screen {
    all: bool,
    began: Instant,
    transfers: usize,
    posted: usize,
    grants: usize,
    holder: Option<usize>,
    /// Events of a hand-over that came before the release that led to them.
    early: VecDeque<(usize, LockEvent)>,
}

impl Screen {
    fn run(mut self, told: &mpsc::Receiver<News>) {
        let mut next_line = self.began + BETWEEN_LINES;
        loop {
            match told.recv_timeout(next_line.saturating_duration_since(Instant::now())) {
                Ok(News::Event { worker, event }) => self.event(worker, event),
                Ok(News::Remark { worker, text }) => self.print(worker, &text),
                Ok(News::Died { worker, text }) => {
                    self.print(worker, &text);
                    self.left(worker);
                }
                Ok(News::Posted) => self.posted += 1,
                Ok(News::End) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= next_line {
                next_line += BETWEEN_LINES;
                self.print_line(&format!("{} of {} posted", self.posted, self.transfers));
            }
        }
        for (worker, event) in std::mem::take(&mut self.early) {
            self.print_event(worker, &event);
        }
    }

    /// Takes an event. A release and the grant that follows happen in two threads, and the grant may
    /// come first: it is kept until the release has been printed.
    fn event(&mut self, worker: usize, event: LockEvent) {
        let early = matches!(event, LockEvent::Acquired { .. })
            && self.holder.is_some_and(|holder| holder != worker)
            || self.early.iter().any(|(other, _)| *other == worker);
        if early {
            self.early.push_back((worker, event));
            return;
        }
        self.print_event(worker, &event);
        match event {
            LockEvent::Acquired { .. } => self.holder = Some(worker),
            LockEvent::Released | LockEvent::Lost { .. } => self.left(worker),
            _ => {}
        }
    }

    fn left(&mut self, worker: usize) {
        if self.holder == Some(worker) {
            self.holder = None;
            for (worker, event) in std::mem::take(&mut self.early) {
                self.event(worker, event);
            }
        }
    }

    fn print_event(&mut self, worker: usize, event: &LockEvent) {
        let is_grant = matches!(event, LockEvent::Acquired { .. });
        self.grants += usize::from(is_grant);
        if self.all || self.grants <= FULL_GRANTS {
            self.print(worker, &in_words(event));
        } else if self.grants == FULL_GRANTS + 1 && is_grant {
            self.print_line("from here on one line a second; --all-events prints all");
        }
    }

    fn print(&self, worker: usize, text: &str) {
        self.print_line(&format!("{:<4} {text}", format!("w{worker}")));
    }

    fn print_line(&self, text: &str) {
        let at = self.began.elapsed().as_secs_f64();
        // A reader that has gone away is no reason to stop.
        let _ = writeln!(io::stdout(), "{at:9.4} s  {text}");
    }
}

/// Describes an event; of the long name of the entry ahead, only the number.
fn in_words(event: &LockEvent) -> String {
    match event {
        LockEvent::Queued { position, ahead } => {
            let number = sequence_of(ahead.name()).unwrap_or_default();
            format!("queued behind {position}, waits for number {number} to leave")
        }
        event => event.to_string(),
    }
}
