//! A cached report: many read it at a time, and now and then somebody makes a new edition of it.
//!
//! ```text
//! cargo run --release --example report_cache
//! cargo run --release --example report_cache -- --url zookeeper://127.0.0.1:2181
//! cargo run --release --example report_cache -- --without-lock      # goes wrong
//! ```
//!
//! Each reader has a client, and so a session, of its own. The report is written page by page, with
//! pauses in between, so that who reads it meanwhile sees half of one edition and half of the next.
//! The writer then downgrades: it reads what it has written, together with everybody who was waiting
//! to, and no other writer can have come in between.
//!
//! The program checks that nobody has seen half a report, that each edition was read as it was
//! written, and that no reader was let in before a writer that had come earlier; it exits with 1 when
//! that is not so.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lexopt::prelude::*;
use lockkeeper::{
    ConnectOptions, FencingGate, FencingToken, RwLock, Target, WriteGuard, connect_with,
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PAGES: usize = 16;

/// How many reads are told of in full.
const TOLD: u64 = 12;

struct Args {
    target: Target,
    readers: u64,
    editions: u64,
    without_lock: bool,
    help: bool,
}

const HELP: &str = "\
A cached report: many read it at a time, and now and then somebody makes a new edition of it.

  cargo run --release --example report_cache -- [OPTIONS]

  --url URL       where the lock is: memory: (default), file:PATH (with --features file),
                  or zookeeper://host:port[/chroot];
                  a chroot that is missing is made
  --readers N     how many readers, each with a session of its own (default 8)
  --editions N    how many editions are written (default 20)
  --without-lock  no lock and no token check: see what goes wrong then
  --help          this text

Exit status: 0 when all is right, 1 when anything is wrong, 2 for a bad command line.
";

fn main() -> ExitCode {
    let args = match args() {
        Ok(args) => args,
        Err(error) => {
            eprintln!("report_cache: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    if args.help {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("report_cache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn args() -> Result<Args, lexopt::Error> {
    let mut args = Args {
        target: Target::memory(),
        readers: 8,
        editions: 20,
        without_lock: false,
        help: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(option) = parser.next()? {
        match option {
            Long("url") => args.target = parser.value()?.parse()?,
            Long("readers") => args.readers = parser.value()?.parse()?,
            Long("editions") => args.editions = parser.value()?.parse()?,
            Long("without-lock") => args.without_lock = true,
            Short('h') | Long("help") => args.help = true,
            other => return Err(other.unexpected()),
        }
    }
    if args.readers == 0 || args.editions == 0 {
        return Err("--readers and --editions are at least 1".into());
    }
    Ok(args)
}

#[tokio::main]
async fn run(args: Args) -> Outcome {
    let desk = Arc::new(Desk::default());
    let lock = lock(&args).await?;
    let mut readers = Vec::new();
    for number in 1..=args.readers {
        let (lock, desk) = (self::lock(&args).await?, desk.clone());
        readers.push(tokio::spawn(read_on(number, lock, desk)));
    }
    for edition in 1..=args.editions {
        refresh(lock.as_ref(), &desk, edition).await?;
        desk.until_all_have_read(args.readers * edition).await;
    }
    desk.closed.store(true, SeqCst);
    for reader in readers {
        reader.await??;
    }
    desk.summary()
}

/// The lock, through a client of its own; `None` to see what comes of it without one.
async fn lock(args: &Args) -> Outcome<Option<RwLock>> {
    if args.without_lock {
        return Ok(None);
    }
    let client = connect_with(args.target.clone(), ConnectOptions::new().create_chroot()).await?;
    // A lock of this run's own.
    let path = format!("/report_cache-{}", std::process::id());
    Ok(Some(RwLock::new(&client, path)?))
}

/// Serves the report again and again, until the desk is closed; closes it, if it cannot.
async fn read_on(number: u64, lock: Option<RwLock>, desk: Arc<Desk>) -> Outcome {
    let outcome = serve(number, lock, &desk).await;
    desk.closed.store(true, SeqCst);
    desk.read.notify_one();
    outcome
}

async fn serve(number: u64, lock: Option<RwLock>, desk: &Desk) -> Outcome {
    while !desk.closed.load(SeqCst) {
        let guard = match &lock {
            Some(lock) => Some(lock.read().await?),
            None => None,
        };
        let token = guard.as_deref().map(|guard| guard.fencing_token());
        let edition = desk.report.read(token).await?;
        desk.served(number, edition, token);
        if let Some(guard) = guard {
            guard.release().await?;
        }
    }
    Ok(())
}

/// Makes a new edition, and reads it over before anybody can make another.
async fn refresh(lock: Option<&RwLock>, desk: &Desk, edition: u64) -> Outcome {
    let guard = match lock {
        Some(lock) => Some(lock.write().await?),
        None => None,
    };
    let token = guard.as_deref().map(|guard| guard.fencing_token());
    desk.check_order(token);
    println!("edition {edition} is written, {}", with(token));
    desk.report.write(token, edition).await?;
    match guard {
        Some(guard) => verify(guard, desk, edition).await,
        None => Ok(()),
    }
}

async fn verify(guard: WriteGuard, desk: &Desk, edition: u64) -> Outcome {
    let guard = guard.downgrade().await?;
    let token = guard.fencing_token();
    let found = desk.report.read(Some(token)).await?;
    println!("edition {edition} is read over by its writer, with the same token, beside others");
    if found != Some(edition) {
        desk.changed.fetch_add(1, SeqCst);
        println!("  but it finds {found:?}");
    }
    guard.release().await?;
    Ok(())
}

fn with(token: Option<FencingToken>) -> String {
    token.map_or("without a lock".into(), |token| {
        format!("with token {token}")
    })
}

/// What the lock protects. It checks tokens.
#[derive(Default)]
struct Report {
    /// Of which edition each page is.
    pages: [AtomicU64; PAGES],
    gate: Mutex<FencingGate>,
}

impl Report {
    /// Which edition it is; `None` if it is half of one and half of another.
    async fn read(&self, token: Option<FencingToken>) -> Outcome<Option<u64>> {
        if let Some(token) = token {
            self.gate.lock().expect("no panic").admit_shared(token)?;
        }
        let edition = self.pages[0].load(SeqCst);
        let mut is_whole = true;
        for page in &self.pages {
            is_whole &= page.load(SeqCst) == edition;
            tokio::task::yield_now().await;
        }
        Ok(is_whole.then_some(edition))
    }

    async fn write(&self, token: Option<FencingToken>, edition: u64) -> Outcome {
        for page in &self.pages {
            if let Some(token) = token {
                self.gate.lock().expect("no panic").admit(token)?;
            }
            page.store(edition, SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// The report, and what has become of it.
#[derive(Default)]
struct Desk {
    report: Report,
    closed: AtomicBool,
    reads: AtomicU64,
    /// How many have seen half a report.
    halves: AtomicU64,
    /// How many editions were not read as they were written.
    changed: AtomicU64,
    /// How many readers got in before a writer that had come earlier.
    overtaken: AtomicU64,
    /// The newest token of a reader so far.
    newest_reader: AtomicI64,
    read: tokio::sync::Notify,
}

impl Desk {
    fn served(&self, reader: u64, edition: Option<u64>, token: Option<FencingToken>) {
        if let Some(token) = token {
            self.newest_reader.fetch_max(token.as_i64(), SeqCst);
        }
        let reads = 1 + self.reads.fetch_add(1, SeqCst);
        match edition {
            None => {
                if self.halves.fetch_add(1, SeqCst) < TOLD {
                    println!("reader {reader} has seen HALF A REPORT, {}", with(token));
                }
            }
            Some(edition) if reads <= TOLD => {
                println!(
                    "reader {reader} has read edition {edition}, {}",
                    with(token)
                );
            }
            Some(_) if reads == TOLD + 1 => println!("(and so on)"),
            Some(_) => {}
        }
        self.read.notify_one();
    }

    /// A token is the order of arrival: no reader that came later was let in before this writer.
    fn check_order(&self, writer: Option<FencingToken>) {
        if let Some(writer) = writer
            && self.newest_reader.load(SeqCst) > writer.as_i64()
        {
            self.overtaken.fetch_add(1, SeqCst);
            println!("  it came BEFORE a reader that has read already");
        }
    }

    async fn until_all_have_read(&self, reads: u64) {
        while self.reads.load(SeqCst) < reads && !self.closed.load(SeqCst) {
            self.read.notified().await;
        }
    }

    fn summary(&self) -> Outcome {
        let count = |what: &AtomicU64| what.load(SeqCst);
        println!(
            "{} reads; {} saw half a report; {} editions were changed under their writer; \
             {} writers were overtaken",
            count(&self.reads),
            count(&self.halves),
            count(&self.changed),
            count(&self.overtaken)
        );
        let wrong = count(&self.halves) + count(&self.changed) + count(&self.overtaken);
        if wrong > 0 {
            return Err("the report was not protected".into());
        }
        println!("Every report was whole, and nobody had to wait out of turn.");
        Ok(())
    }
}
