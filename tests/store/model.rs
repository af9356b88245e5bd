//! Compares the embedded store with a naive model in virtual time.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Backend, Clock, ConnectOptions, Connector, Request, Store, StoreOptions, ZnodePath,
};
use proptest::prelude::*;
use testkit::TempFolder;

use crate::naive::{Naive, TICK_MS};
use crate::program::{self, Outcome, Seen, Sessions, Step};

const TIMEOUTS: [Option<Duration>; 4] = [
    None,
    Some(Duration::from_secs(4)),
    Some(Duration::from_secs(5)),
    Some(Duration::from_secs(12)),
];

/// The store, its clock and its sessions' backends. A `Session` would keep them alive.
struct Embedded {
    options: StoreOptions,
    /// Directory of the store, unless it is in memory.
    folder: Option<TempFolder>,
    clock: Clock,
    connector: Option<Arc<dyn Connector>>,
    sessions: Sessions,
}

impl Embedded {
    async fn start(folder: Option<TempFolder>) -> Self {
        let clock = Clock::new_virtual();
        let options = StoreOptions::new()
            .clock(clock.clone())
            .tick(Duration::from_millis(TICK_MS));
        let mut embedded = Self {
            options,
            folder,
            clock,
            connector: None,
            sessions: Sessions::new(Vec::new()),
        };
        embedded.open().await;
        embedded
    }

    async fn open(&mut self) {
        let store = match &self.folder {
            None => Store::memory_with(self.options.clone()),
            Some(folder) => {
                let options = self.options.clone().segment_bytes(1 << 16, 1 << 17);
                Store::file_with(folder.path(), options).unwrap()
            }
        };
        let connector = store.connector();
        let mut open = Vec::new();
        for timeout in TIMEOUTS {
            open.push(open_session(&connector, timeout).await);
        }
        self.connector = Some(connector);
        self.sessions.resume(open);
    }

    fn connector(&self) -> &Arc<dyn Connector> {
        self.connector.as_ref().expect("it is open")
    }

    async fn run(&mut self, step: Step) -> Seen {
        let outcome = match step {
            Step::Ask { session, request } => self.sessions.ask(session, request).await,
            Step::Reopen { session } => {
                let new = open_session(self.connector(), TIMEOUTS[session]).await;
                self.sessions.replace(session, new).await
            }
            Step::DropWatcher { nth } => self.sessions.drop_watcher(nth),
            Step::Advance { by } => {
                self.clock.advance(by);
                Outcome::Nothing
            }
            Step::Restart => {
                self.sessions.abandon();
                self.connector = None;
                self.open().await;
                Outcome::Nothing
            }
        };
        if self.folder.is_some() {
            // Once this is answered, the step's changes are on disk and its events delivered. This session has no
            // timeout, so the request changes nothing.
            let path = ZnodePath::root();
            let synced = self.sessions.ask(0, Request::Sync { path }).await;
            assert_eq!(synced, Outcome::Done);
        }
        Seen {
            outcome,
            fired: self.sessions.drain(),
        }
    }
}

async fn open_session(
    connector: &Arc<dyn Connector>,
    timeout: Option<Duration>,
) -> Arc<dyn Backend> {
    let options = ConnectOptions::new();
    let options = match timeout {
        Some(timeout) => options.session_timeout(timeout),
        None => options,
    };
    connector.open(&options).await.unwrap()
}

fn run_naive(naive: &mut Naive, step: Step) -> Seen {
    match step {
        Step::Ask { session, request } => naive.ask(session, request),
        Step::Reopen { session } => naive.reopen(session, TIMEOUTS[session]),
        Step::DropWatcher { nth } => naive.drop_watcher(nth),
        Step::Advance { by } => naive.advance(by),
        Step::Restart => naive.restart(&TIMEOUTS),
    }
}

async fn look_around(embedded: &mut Embedded, naive: &mut Naive) -> (Vec<Seen>, Vec<Seen>) {
    let (mut real, mut model) = (Vec::new(), Vec::new());
    let mut paths = vec!["/t".parse::<ZnodePath>().unwrap()];
    while let Some(path) = paths.pop() {
        for request in program::look_at(&path) {
            let step = Step::Ask {
                session: 0,
                request,
            };
            real.push(embedded.run(step.clone()).await);
            model.push(run_naive(naive, step));
        }
        paths.extend(program::below(&path, &model.last().unwrap().outcome));
    }
    (real, model)
}

async fn compare(folder: Option<TempFolder>, program: Vec<Step>) -> Result<(), TestCaseError> {
    let mut embedded = Embedded::start(folder).await;
    let clock = &embedded.clock;
    let mut naive = Naive::new(&TIMEOUTS, clock.now().as_millis(), clock.unix_ms());
    let prelude = program::prelude().map(|request| Step::Ask {
        session: 0,
        request,
    });
    let steps: Vec<Step> = prelude.chain(program).collect();
    let (mut real, mut model) = (Vec::new(), Vec::new());
    for step in &steps {
        let (mut seen, mut expected) = (
            embedded.run(step.clone()).await,
            run_naive(&mut naive, step.clone()),
        );
        if matches!(step, Step::Reopen { .. } | Step::Advance { .. }) {
            program::sort_events(&mut seen);
            program::sort_events(&mut expected);
        }
        real.push(seen);
        model.push(expected);
        for (seat, _) in TIMEOUTS.iter().enumerate() {
            prop_assert_eq!(
                embedded.sessions.living(seat),
                naive.living(seat),
                "session {} after {:?}",
                seat,
                step
            );
        }
    }
    let (last_real, last_model) = look_around(&mut embedded, &mut naive).await;
    real.extend(last_real);
    model.extend(last_model);
    program::normalise(&mut real, &embedded.sessions.ids);
    program::normalise(&mut model, &naive.ids());
    for (number, (seen, expected)) in real.iter().zip(&model).enumerate() {
        prop_assert_eq!(
            seen,
            expected,
            "at step {}: {:?}",
            number,
            steps.get(number)
        );
    }
    Ok(())
}

#[test]
fn the_embedded_store_does_what_the_naive_model_does() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    program::for_programs(
        "model",
        "tests/store/regressions/model.txt",
        3_000,
        program::timed_programs(TIMEOUTS.len(), 60),
        |program| runtime.block_on(compare(None, program)),
    );
}

/// Programs with restarts. The model forgets sessions and ephemeral znodes, including their trace in the parents'
/// counters.
#[test]
fn the_store_in_a_folder_does_what_the_naive_model_does_over_restarts() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    program::for_programs(
        "model-file",
        "tests/store/regressions/model-file.txt",
        150,
        program::with_restarts(program::timed_programs(TIMEOUTS.len(), 60)),
        |program| {
            let folder = TempFolder::new("model");
            runtime.block_on(compare(Some(folder), program))
        },
    );
}
