//! [`Workers`]: the worker processes, and the checker of their reports.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::ChildProcess;

use crate::checks::{Belief, Checker, WorkerId};
use crate::report::Report;

struct Worker {
    id: WorkerId,
    process: ChildProcess,
    stdin: Arc<Mutex<ChildStdin>>,
    heard: Arc<Heard>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Heard {
    is_ready: AtomicBool,
    /// Number of completed tasks.
    done: AtomicUsize,
    /// Its end is expected.
    may_end: AtomicBool,
}

pub(crate) struct Kind {
    pub(crate) belief: Belief,
    pub(crate) tasks: usize,
    /// Returns the command of a worker with a number and a restart count.
    pub(crate) command: Box<dyn Fn(usize, u32) -> Command>,
}

pub(crate) struct Workers {
    kinds: Vec<Kind>,
    workers: Vec<Worker>,
    checker: Arc<Mutex<Checker>>,
}

impl Workers {
    /// Starts a worker of each kind. A worker's number is its position.
    pub(crate) fn start(kinds: Vec<Kind>, checker: Arc<Mutex<Checker>>) -> Self {
        let mut workers = Self {
            kinds,
            workers: Vec::new(),
            checker,
        };
        for number in 0..workers.kinds.len() {
            workers.workers.push(workers.spawn(number, 0));
        }
        workers
    }

    fn spawn(&self, number: usize, life: u32) -> Worker {
        let kind = &self.kinds[number];
        let id = WorkerId {
            number,
            life,
            belief: kind.belief,
        };
        let mut command = (kind.command)(number, life);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut command);
        let stdin = process.stdin.take().expect("it is piped");
        let stdin = Arc::new(Mutex::new(stdin));
        let stdout = process.stdout.take().expect("it is piped");
        let heard = Arc::<Heard>::default();
        let hearing = (self.checker.clone(), stdin.clone(), heard.clone());
        let reader = std::thread::spawn(move || {
            let (checker, stdin, heard) = hearing;
            hear(id, stdout, &checker, &stdin, &heard);
        });
        Worker {
            id,
            process,
            stdin,
            heard,
            reader: Some(reader),
        }
    }

    /// Waits until all workers are connected. Returns `false` if one is not.
    pub(crate) fn are_ready_within(&self, limit: Duration) -> bool {
        let is_ready = |worker: &Worker| worker.heard.is_ready.load(Ordering::Relaxed);
        waited(limit, || self.workers.iter().all(is_ready))
    }

    pub(crate) fn count(&self) -> usize {
        self.workers.len()
    }

    pub(crate) fn stop(&self, number: usize) {
        self.workers[number].process.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self, number: usize) {
        self.workers[number].process.signal(Signal::CONT);
    }

    pub(crate) fn kill(&mut self, number: usize) {
        end(&mut self.workers[number]);
    }

    pub(crate) fn restart(&mut self, number: usize) {
        let life = self.workers[number].id.life + 1;
        self.workers[number] = self.spawn(number, life);
    }

    /// Lets each task do a last turn, and waits for all. Returns the workers that do not finish.
    pub(crate) fn finish_within(&self, limit: Duration) -> Vec<String> {
        for worker in &self.workers {
            tell(&worker.stdin, "finish");
        }
        let open = |worker: &&Worker| {
            let tasks = self.kinds[worker.id.number].tasks;
            worker.heard.done.load(Ordering::Relaxed) < tasks
        };
        waited(limit, || self.workers.iter().find(open).is_none());
        let late = self.workers.iter().filter(open);
        late.map(|worker| worker.id.to_string()).collect()
    }

    /// Ends all workers, and processes their remaining reports.
    pub(crate) fn end(&mut self) {
        self.workers.iter_mut().for_each(end);
    }
}

fn end(worker: &mut Worker) {
    worker.heard.may_end.store(true, Ordering::Relaxed);
    worker.process.end();
    if let Some(reader) = worker.reader.take() {
        let _ = reader.join();
    }
}

/// Waits for a condition. Returns `false` at the time limit.
pub(crate) fn waited(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes a worker's reports until it ends.
fn hear(
    id: WorkerId,
    stdout: impl Read,
    checker: &Mutex<Checker>,
    stdin: &Mutex<ChildStdin>,
    heard: &Heard,
) {
    let mut lines = BufReader::new(stdout);
    let mut line = String::new();
    // The last line of a killed worker may be incomplete.
    while lines
        .read_line(&mut line)
        .is_ok_and(|_| line.ends_with('\n'))
    {
        match Report::of_line(&line) {
            Ok(report) => take(id, report, checker, stdin, heard),
            Err(why) => locked(checker).violate(format!("error: {id} says {line:?}: {why}")),
        }
        line.clear();
    }
    if !heard.may_end.load(Ordering::Relaxed) {
        locked(checker).violate(format!("error: {id} has ended"));
    }
}

fn take(
    id: WorkerId,
    report: Report,
    checker: &Mutex<Checker>,
    stdin: &Mutex<ChildStdin>,
    heard: &Heard,
) {
    match &report {
        Report::Ready => heard.is_ready.store(true, Ordering::Relaxed),
        Report::Done => {
            heard.done.fetch_add(1, Ordering::Relaxed);
        }
        _ => {}
    }
    let grant = match &report {
        Report::Use { grant } => *grant,
        _ => 0,
    };
    let answer = locked(checker).hear(id, report);
    match answer {
        Some(true) => tell(stdin, &format!("used {grant} admitted")),
        Some(false) => tell(stdin, &format!("used {grant} refused")),
        None => {}
    }
}

fn tell(stdin: &Mutex<ChildStdin>, words: &str) {
    let line = format!("{words}\n");
    // Ignore an error, because the worker may have been killed.
    let _ = stdin.lock().unwrap().write_all(line.as_bytes());
}

pub(crate) fn locked(checker: &Mutex<Checker>) -> MutexGuard<'_, Checker> {
    checker.lock().unwrap()
}
