//! All reports of the clients, in order, and waiting for further ones.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

use super::line::{Line, Name, Said, Told};
use super::writes::writers;

/// Longer than anything takes that is waited for, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of last lines that are shown when something does not come.
const SHOWN: usize = 30;

/// All lines so far.
#[derive(Clone)]
pub(crate) struct History {
    shared: Arc<Shared>,
    pipe: Arc<PipeWriter>,
    length: watch::Receiver<usize>,
}

struct Shared {
    lines: Mutex<Vec<Line>>,
    length: watch::Sender<usize>,
}

impl History {
    pub(crate) fn new() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let (sender, length) = watch::channel(0);
        let shared = Arc::new(Shared {
            lines: Mutex::default(),
            length: sender,
        });
        let told = shared.clone();
        thread::spawn(move || told.read(reader));
        let pipe = Arc::new(writer);
        Self {
            shared,
            pipe,
            length,
        }
    }

    /// Returns a pipe for a client to write into.
    pub(crate) fn pipe(&self) -> PipeWriter {
        self.pipe.try_clone().unwrap()
    }

    /// Appends an action of the test behind everything that was written before. Returns its index.
    pub(crate) async fn tell(&mut self, told: Told) -> usize {
        let from = self.len();
        self.pipe
            .as_ref()
            .write_all(format!("{told}\n").as_bytes())
            .unwrap();
        let mut at = from;
        self.until("the test's own line", from, |line| {
            at += 1;
            (*line == Line::Test(told.clone())).then_some(())
        })
        .await;
        at - 1
    }

    pub(crate) fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.shared.lines()
    }

    pub(crate) fn len(&self) -> usize {
        self.lines().len()
    }

    /// Waits until `search` returns a result for one of the lines, beginning with line `from`.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        from: usize,
        mut search: impl FnMut(&Line) -> Option<T>,
    ) -> T {
        let mut next = from;
        let mut look = |lines: &[Line]| {
            let failed = |line: &&Line| matches!(line, Line::Client(_, Said::Failed(_)));
            if let Some(failed) = lines[next..].iter().find(failed) {
                panic!("before {what}: {failed:?}");
            }
            let found = lines[next..].iter().find_map(&mut search);
            next = lines.len();
            found
        };
        let wait = async {
            loop {
                if let Some(found) = look(&self.shared.lines()) {
                    return found;
                }
                self.length.changed().await.expect("the history goes on");
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(found) => found,
            Err(_) => {
                // The reason may be a lost write; then its message is the more useful one.
                drop(writers(&self.lines()));
                panic!("{what} does not come. The last lines: {:#?}", self.last())
            }
        }
    }

    /// Waits until there are so many lines.
    pub(crate) async fn until_length(&mut self, length: usize) {
        let wait = self.length.wait_for(|there| *there >= length);
        let waited = tokio::time::timeout(PATIENCE, wait).await.map(drop);
        assert!(waited.is_ok(), "nothing more is said: {:#?}", self.last());
    }

    fn last(&self) -> Vec<Line> {
        let lines = self.lines();
        lines[lines.len().saturating_sub(SHOWN)..].to_vec()
    }

    /// Writes all lines to a file.
    pub(crate) fn write_to(&self, path: &Path) {
        let lines = self.lines();
        let text: Vec<_> = lines.iter().map(|line| format!("{line:?}\n")).collect();
        std::fs::write(path, text.concat()).unwrap();
    }
}

impl Shared {
    /// Also when a test has failed that had them.
    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, pipe: PipeReader) {
        for line in BufReader::new(pipe).lines() {
            let line = line.unwrap();
            self.add(Line::parse(&line).unwrap_or_else(|| {
                // What a program says that ends in an error.
                Line::Client(Name::from("somebody"), Said::Failed(line))
            }));
        }
    }

    fn add(&self, line: Line) {
        let mut lines = self.lines();
        lines.push(line);
        self.length.send_replace(lines.len());
    }
}
