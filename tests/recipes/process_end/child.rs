//! The processes that end.

use std::any::Any;
use std::cell::RefCell;
use std::env;
use std::future::poll_fn;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::exit;

use lockkeeper::{
    Client, ConnectOptions, Election, Mutex, RwLock, Semaphore, blocking, connect_with, lock_all,
};
use rustix::process::{Signal, getpid, kill_process};
use tokio::runtime::{Builder, Runtime};

use crate::common::*;

pub(super) const TEST: &str = "a_process_that_ends";

/// Environment variables that make the test binary a child of a kind.
const URL: &str = "LOCKKEEPER_END_URL";
const WAY: &str = "LOCKKEEPER_END_WAY";
const RECIPE: &str = "LOCKKEEPER_END_RECIPE";

pub(super) const HOLDS: &str = "child: holds";

/// Part of a child's warning when the library gave up waiting.
pub(super) const LATE: &str = "not written in time";

/// How a guard is dropped as the program ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// `main` returns, with a multi-threaded runtime.
    Return,
    /// `main` returns, with a single-threaded runtime.
    CurrentThread,
    /// `?` in `main`.
    Error,
    Panic,
    /// A spawned task owns the guard, and the runtime is dropped.
    Task,
    /// Like `Task`, with a single-threaded runtime.
    CurrentThreadTask,
    /// smol's executor.
    Smol,
    Blocking,
    /// A thread-local value owns the guard and is dropped with its thread.
    ThreadLocal,
    /// The guard is dropped, and the process is killed right after.
    Killed,
    /// The last handle is dropped too, after a wait that is given up before its entry is known to exist.
    LastClient,
}

pub(super) const WAYS: [Way; 11] = [
    Way::Return,
    Way::CurrentThread,
    Way::Error,
    Way::Panic,
    Way::Task,
    Way::CurrentThreadTask,
    Way::Smol,
    Way::Blocking,
    Way::ThreadLocal,
    Way::Killed,
    Way::LastClient,
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Recipe {
    Mutex,
    RwLock,
    Semaphore,
    Election,
    /// A leader's work under `run`.
    Term,
    Batch,
}

pub(super) const LOCKS: [Recipe; 6] = [
    Recipe::Mutex,
    Recipe::RwLock,
    Recipe::Semaphore,
    Recipe::Election,
    Recipe::Term,
    Recipe::Batch,
];

const KEYS: [&str; 2] = ["/lock/first", "/lock/second"];

type Held = Box<dyn Any + Send>;

impl Way {
    pub(super) fn code(self) -> i32 {
        match self {
            Self::Error => 1,
            Self::Panic => 101,
            _ => 0,
        }
    }
}

impl Recipe {
    pub(super) fn nodes(self) -> usize {
        match self {
            Self::Batch => KEYS.len(),
            _ => 1,
        }
    }

    pub(super) async fn take(self, client: &Client) -> Held {
        match self {
            Self::Mutex => Box::new(Mutex::new(client, LOCK).unwrap().lock().await.unwrap()),
            Self::RwLock => Box::new(RwLock::new(client, LOCK).unwrap().write().await.unwrap()),
            Self::Semaphore => {
                let semaphore = Semaphore::new(client, LOCK, 1).unwrap();
                Box::new(semaphore.acquire().await.unwrap())
            }
            Self::Election => {
                let election = Election::new(client, LOCK).unwrap();
                Box::new(election.campaign("").await.unwrap())
            }
            Self::Term => lead(client).await,
            Self::Batch => Box::new(lock_all(client, KEYS).await.unwrap()),
        }
    }

    /// Takes it with the blocking recipes, which lock a batch one by one and only campaign.
    fn take_blocking(self, client: &blocking::Client) -> Held {
        match self {
            Self::Mutex => Box::new(blocking::Mutex::new(client, LOCK).unwrap().lock().unwrap()),
            Self::Batch => Box::new(KEYS.map(|key| {
                let mutex = blocking::Mutex::new(client, key).unwrap();
                mutex.lock().unwrap()
            })),
            Self::RwLock => Box::new(
                blocking::RwLock::new(client, LOCK)
                    .unwrap()
                    .write()
                    .unwrap(),
            ),
            Self::Semaphore => {
                let semaphore = blocking::Semaphore::new(client, LOCK, 1).unwrap();
                Box::new(semaphore.acquire().unwrap())
            }
            Self::Election | Self::Term => {
                let election = blocking::Election::new(client, LOCK).unwrap();
                Box::new(election.campaign("").unwrap())
            }
        }
    }
}

/// Runs for an election until it leads. Dropping the work ends its term.
async fn lead(client: &Client) -> Held {
    let election = Election::new(client, LOCK).unwrap();
    let (leads, mut leading) = tokio::sync::oneshot::channel();
    let mut leads = Some(leads);
    let mut work = Box::pin(async move {
        let term = |_| {
            leads.take().unwrap().send(()).unwrap();
            std::future::pending::<()>()
        };
        election.run("", term).await
    });
    poll_fn(|context| {
        assert!(work.as_mut().poll(context).is_pending());
        Pin::new(&mut leading).poll(context)
    })
    .await
    .unwrap();
    Box::new(work)
}

pub(super) fn environment(url: &str, way: Way, recipe: Recipe) -> [(&'static str, String); 3] {
    [
        (URL, url.to_owned()),
        (WAY, format!("{way:?}")),
        (RECIPE, format!("{recipe:?}")),
    ]
}

fn options() -> ConnectOptions {
    ConnectOptions::new().create_chroot().session_timeout(LONG)
}

pub(super) async fn connect(url: &str) -> Client {
    connect_with(url, options()).await.unwrap()
}

pub(super) fn run() {
    let Ok(url) = env::var(URL) else { return };
    let chosen = |name: &str| env::var(name).expect("a child is told what it is");
    let (way, recipe) = (chosen(WAY), chosen(RECIPE));
    let way = WAYS.into_iter().find(|known| format!("{known:?}") == way);
    let recipe = LOCKS
        .into_iter()
        .find(|known| format!("{known:?}") == recipe);
    let (way, recipe) = (way.unwrap(), recipe.unwrap());
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .init();
    // Like a return of `main` or a panic in it, which ends the process without waiting for threads.
    exit(
        match catch_unwind(AssertUnwindSafe(|| main(&url, way, recipe))) {
            Ok(Ok(())) => 0,
            Ok(Err(_)) => 1,
            Err(_) => 101,
        },
    );
}

fn main(url: &str, way: Way, recipe: Recipe) -> Result<(), String> {
    match way {
        Way::Return => several_threads().block_on(hold(url, recipe)),
        Way::CurrentThread => one_thread().block_on(hold(url, recipe)),
        Way::Error => several_threads().block_on(async {
            let _held = hold_on(url, recipe).await;
            work()?;
            Ok::<_, String>(())
        })?,
        Way::Panic => several_threads().block_on(async {
            let _held = hold_on(url, recipe).await;
            panic!("nothing works");
        }),
        Way::Task => in_a_task(several_threads(), url, recipe),
        Way::CurrentThreadTask => in_a_task(one_thread(), url, recipe),
        Way::Smol => async_io::block_on(hold(url, recipe)),
        Way::Blocking => {
            let client = blocking::connect_with(url, options()).unwrap();
            std::mem::forget(client.clone());
            let _held = recipe.take_blocking(&client);
            until_told();
        }
        Way::ThreadLocal => in_a_thread_local(url, recipe),
        Way::Killed => several_threads().block_on(async {
            drop(hold_on(url, recipe).await);
            kill_process(getpid(), Signal::KILL).unwrap();
        }),
        Way::LastClient => several_threads().block_on(async {
            let client = connect(url).await;
            let _held = recipe.take(&client).await;
            let other = Mutex::new(&client, "/lock/other").unwrap();
            until_told();
            drop(polled(other.lock(), 1).await);
        }),
    }
    Ok(())
}

fn work() -> Result<(), String> {
    Err("nothing works".to_owned())
}

fn several_threads() -> Runtime {
    Builder::new_multi_thread().enable_all().build().unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn hold(url: &str, recipe: Recipe) {
    let _held = hold_on(url, recipe).await;
}

/// Takes the lock, and returns when the process is to end. The client lives on, like a static, so the guard must ensure
/// its release itself.
async fn hold_on(url: &str, recipe: Recipe) -> Held {
    let client = connect(url).await;
    std::mem::forget(client.clone());
    let held = recipe.take(&client).await;
    until_told();
    held
}

/// Reports that the lock is held, and waits until the process is to end.
fn until_told() {
    println!("\n{HOLDS}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn in_a_task(runtime: Runtime, url: &str, recipe: Recipe) {
    let url = url.to_owned();
    let (holds, held) = tokio::sync::oneshot::channel();
    runtime.block_on(async {
        tokio::spawn(async move {
            let _held = hold_on(&url, recipe).await;
            holds.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        held.await.unwrap();
    });
}

fn in_a_thread_local(url: &str, recipe: Recipe) {
    thread_local! {
        static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let held = async_io::block_on(hold_on(url, recipe));
            HELD.set(Some(held));
        });
        thread.join().unwrap();
    });
}
