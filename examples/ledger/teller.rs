//! Tells what happens while it happens: events on stdout, a progress bar on stderr.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper::{EventSink, LockEvent, lock_events};
use lockkeeper_store::sequence_of;

use crate::args::Telling;

/// So many grants are told in full, where not all are.
const FULL_GRANTS: usize = 40;
const BETWEEN_LINES: Duration = Duration::from_secs(1);
const BETWEEN_BARS: Duration = Duration::from_millis(100);

enum News {
    Event { worker: usize, event: LockEvent },
    Remark { worker: usize, text: String },
    Died { worker: usize, text: String },
    Posted,
    End,
}

/// Where workers say what happens to them. A clone tells the same.
#[derive(Clone)]
pub(crate) struct Teller {
    news: mpsc::Sender<News>,
    telling: Telling,
}

impl Teller {
    /// Starts telling of a run of so many transfers.
    pub(crate) fn start(
        telling: Telling,
        transfers: usize,
        posted: usize,
    ) -> (Self, JoinHandle<()>) {
        let (news, told) = mpsc::channel();
        let screen = Screen::new(telling, transfers, posted);
        let teller = std::thread::spawn(move || screen.run(&told));
        (Self { news, telling }, teller)
    }

    /// Where a worker's locks put their events; nowhere if nobody wants to read them.
    pub(crate) fn sink(&self, worker: usize) -> Option<EventSink> {
        if self.telling == Telling::Nothing {
            return None;
        }
        let (sink, mut events) = lock_events();
        let news = self.news.clone();
        // Runs in whatever thread the event happens in, so that the order is kept.
        lockkeeper_store::spawn_detached(async move {
            while let Some(event) = events.next().await {
                let _ = news.send(News::Event { worker, event });
            }
        });
        Some(sink)
    }

    /// Tells something that is no lock event.
    pub(crate) fn remark(&self, worker: usize, text: impl Into<String>) {
        let text = text.into();
        self.send(News::Remark { worker, text });
    }

    /// Tells that a worker was cut off.
    pub(crate) fn died(&self, worker: usize, text: impl Into<String>) {
        let text = text.into();
        self.send(News::Died { worker, text });
    }

    /// Tells that one more transfer is in the ledger.
    pub(crate) fn posted(&self) {
        self.send(News::Posted);
    }

    /// Ends the telling.
    pub(crate) fn end(&self) {
        self.send(News::End);
    }

    fn send(&self, news: News) {
        // The telling may have ended.
        let _ = self.news.send(news);
    }
}

struct Screen {
    telling: Telling,
    began: Instant,
    transfers: usize,
    posted: usize,
    grants: usize,
    holder: Option<usize>,
    /// The last one that died, until another holds the lock.
    dead: Option<usize>,
    /// Events of a hand-over that came before the release that led to them.
    early: VecDeque<(usize, LockEvent)>,
    /// Whether anything was told since the last line of the clock.
    spoke: bool,
    bar: bool,
    bar_drawn: Option<Instant>,
}

impl Screen {
    fn new(telling: Telling, transfers: usize, posted: usize) -> Self {
        Self {
            telling,
            began: Instant::now(),
            transfers,
            posted,
            grants: 0,
            holder: None,
            dead: None,
            early: VecDeque::new(),
            spoke: false,
            bar: io::stderr().is_terminal(),
            bar_drawn: None,
        }
    }

    fn run(mut self, told: &mpsc::Receiver<News>) {
        let mut next_line = self.began + BETWEEN_LINES;
        loop {
            let now = Instant::now();
            if now >= next_line {
                self.line_of_the_clock();
                next_line += BETWEEN_LINES;
            }
            match told.recv_timeout(next_line.saturating_duration_since(now)) {
                Ok(News::End) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(news) => self.take(news),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        for (worker, event) in std::mem::take(&mut self.early) {
            self.tell_event(worker, &event);
        }
        self.wipe_bar();
    }

    fn take(&mut self, news: News) {
        match news {
            News::Event { worker, event } => self.event(worker, event),
            News::Remark { worker, text } => self.tell(worker, &text),
            News::Died { worker, text } => {
                self.tell(worker, &text);
                self.dead = Some(worker);
                self.left(worker);
            }
            News::Posted => {
                self.posted += 1;
                self.draw_bar();
            }
            News::End => {}
        }
    }

    /// A release and the grant that follows happen in two threads, and the grant may be told first:
    /// it is kept until the release has been told.
    fn event(&mut self, worker: usize, event: LockEvent) {
        let early = matches!(event, LockEvent::Acquired { .. })
            && self.holder.is_some_and(|holder| holder != worker)
            || self.early.iter().any(|(other, _)| *other == worker);
        if early {
            self.early.push_back((worker, event));
            return;
        }
        self.tell_event(worker, &event);
        match event {
            LockEvent::Acquired { .. } => {
                self.holder = Some(worker);
                self.dead = None;
            }
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

    fn tell_event(&mut self, worker: usize, event: &LockEvent) {
        self.grants += usize::from(matches!(event, LockEvent::Acquired { .. }));
        if self.telling == Telling::All || self.grants <= FULL_GRANTS {
            self.tell(worker, &in_words(event));
        } else if self.grants == FULL_GRANTS + 1 && matches!(event, LockEvent::Acquired { .. }) {
            self.print("… from here on one line a second; --events all tells everything");
        }
    }

    fn line_of_the_clock(&mut self) {
        let full = self.telling == Telling::All || self.grants <= FULL_GRANTS;
        if !(full && self.spoke) {
            let held = match (self.holder, self.dead) {
                (Some(holder), _) => format!("w{holder} holds the lock"),
                (None, Some(dead)) => {
                    format!("the session of w{dead}, who is dead, holds the lock")
                }
                (None, None) => "nobody holds the lock".to_owned(),
            };
            let (posted, transfers) = (self.posted, self.transfers);
            self.print(&format!(
                "{:9.4} s       {posted} of {transfers} posted, {held}",
                self.began.elapsed().as_secs_f64()
            ));
        }
        self.spoke = false;
    }

    fn tell(&mut self, worker: usize, text: &str) {
        let at = self.began.elapsed().as_secs_f64();
        self.print(&format!("{at:9.4} s  {:<4} {text}", format!("w{worker}")));
        self.spoke = true;
    }

    fn print(&mut self, line: &str) {
        if self.telling == Telling::Nothing {
            return;
        }
        self.wipe_bar();
        // A reader that has gone away is no reason to stop.
        let _ = writeln!(io::stdout(), "{line}");
    }

    fn draw_bar(&mut self) {
        let due = self.bar_drawn.is_none_or(|at| at.elapsed() >= BETWEEN_BARS);
        if !self.bar || !due {
            return;
        }
        const WIDTH: usize = 40;
        let done = self.posted * WIDTH / self.transfers.max(1);
        let (done, left) = ("#".repeat(done), ".".repeat(WIDTH - done.min(WIDTH)));
        let _ = write!(
            io::stderr(),
            "\r[{done}{left}] {}/{}",
            self.posted,
            self.transfers
        );
        self.bar_drawn = Some(Instant::now());
    }

    fn wipe_bar(&mut self) {
        if self.bar_drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// As the event shows itself, but for the long name of the one ahead: its number will do.
fn in_words(event: &LockEvent) -> String {
    match event {
        LockEvent::Queued { position, ahead } => {
            let number = sequence_of(ahead.name()).unwrap_or_default();
            format!("queued behind {position}, waits for number {number} to leave")
        }
        event => event.to_string(),
    }
}
