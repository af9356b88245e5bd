//! What happens to everything one client holds and waits for, with all recipes, when it is closed or its session
//! expires.

use std::time::Duration;

use lockkeeper::{
    Client, Election, Error, FencingToken, Guard, LeaderChange, Leadership, LockEach, LockError,
    LockEvent, LockOptions, LostReason, MultiGuard, Mutex, Owner, Permit, ReadGuard,
    ReentrantGuard, ReentrantMutex, Role, RwLock, Semaphore, Warden, WardenReport, WriteGuard,
    lock_all, lock_each, lock_events, observe, try_lock_many,
};
use testkit::{Env, on_every_backend};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use crate::common::*;

const PERMITS: u32 = 2;
const HELD: &str = "/program/held";
const AWAITED: &str = "/program/awaited";
/// An election that the client serves with [`Election::run`].
const SERVED: &str = "/program/served";
/// A lock that a stream has yielded before it waits for more.
const YIELDED: &str = "/program/yielded";
/// A queue watched by a warden.
const WATCHED: &str = "/program/watched";

/// The paths of the recipes' znodes.
const QUEUES: [&str; 11] = [
    "mutex",
    "reentrant",
    "read",
    "write",
    "permits/locks",
    "permits/leases",
    "election",
    "all-1",
    "all-2",
    "each-1",
    "each-2",
];

/// Returns how many znodes one program holds there.
fn held_at(queue: &str) -> usize {
    match queue {
        "permits/locks" => 0,
        "permits/leases" => PERMITS as usize,
        _ => 1,
    }
}

/// Returns how many znodes one program waits with.
fn awaited_at(queue: &str) -> usize {
    usize::from(queue != "permits/leases")
}

#[derive(Clone)]
struct Recipes {
    client: Client,
    mutex: Mutex,
    owner: Owner,
    read: RwLock,
    write: RwLock,
    semaphore: Semaphore,
    election: Election,
    all: [String; 2],
    each: [String; 2],
}

impl Recipes {
    fn new(client: &Client, base: &str) -> Self {
        let at = |name: &str| format!("{base}/{name}");
        let reentrant = ReentrantMutex::new(client, at("reentrant").as_str()).unwrap();
        Self {
            client: client.clone(),
            mutex: Mutex::new(client, at("mutex").as_str()).unwrap(),
            owner: reentrant.owner(),
            read: RwLock::new(client, at("read").as_str()).unwrap(),
            write: RwLock::new(client, at("write").as_str()).unwrap(),
            semaphore: Semaphore::new(client, at("permits").as_str(), PERMITS).unwrap(),
            election: Election::new(client, at("election").as_str()).unwrap(),
            all: [at("all-1"), at("all-2")],
            each: [at("each-1"), at("each-2")],
        }
    }

    fn all(&self) -> [&str; 2] {
        [&self.all[0], &self.all[1]]
    }

    fn each(&self) -> [&str; 2] {
        [&self.each[0], &self.each[1]]
    }

    async fn hold(&self) -> Holdings {
        let tried = try_lock_many(&self.client, self.each()).await.unwrap();
        assert!(tried.contended.is_empty());
        Holdings {
            mutex: self.mutex.lock().await.unwrap(),
            entries: [
                self.owner.lock().await.unwrap(),
                self.owner.lock().await.unwrap(),
            ],
            read: self.read.read().await.unwrap(),
            write: self.write.write().await.unwrap(),
            permit: self.semaphore.acquire_many(PERMITS).await.unwrap(),
            leadership: self.election.campaign("me").await.unwrap(),
            all: lock_all(&self.client, self.all()).await.unwrap(),
            tried: tried.acquired.into_iter().map(|(_, guard)| guard).collect(),
        }
    }

    fn wait(&self) -> Vec<(&'static str, Wait)> {
        /// A wait whose outcome is dropped.
        macro_rules! wait {
            ($name:literal, |$recipes:ident| $wait:expr) => {{
                let $recipes = self.clone();
                ($name, tokio::spawn(async move { $wait.await.map(drop) }))
            }};
        }
        vec![
            wait!("mutex", |of| of.mutex.lock()),
            wait!("reentrant", |of| of.owner.lock()),
            wait!("write", |of| of.read.write()),
            wait!("read", |of| of.write.read()),
            wait!("semaphore", |of| of.semaphore.acquire()),
            wait!("election", |of| of.election.campaign("me too")),
            wait!("lock_all", |of| lock_all(&of.client, of.all())),
            wait!("lock_each", |of| async {
                let mut each = lock_each(&of.client, of.each())?;
                let first = each.next().await.expect("the first that is granted");
                assert!(
                    first.is_ok() || each.next().await.is_none(),
                    "an error ends it"
                );
                first
            }),
        ]
    }
}

type Wait = JoinHandle<Result<(), LockError>>;

struct Holdings {
    mutex: Guard,
    entries: [ReentrantGuard; 2],
    read: ReadGuard,
    write: WriteGuard,
    permit: Permit,
    leadership: Leadership,
    all: MultiGuard,
    tried: Vec<Guard>,
}

/// Asserts that a guard is lost for this reason, and that its release reports it.
macro_rules! lost {
    ($reason:expr, $($guard:expr => $release:ident),* $(,)?) => {$({
        let guard = $guard;
        assert_eq!(guard.lost().await, $reason);
        assert!(!guard.is_held());
        assert_eq!(guard.protect(std::future::pending::<()>()).await, Err($reason));
        assert_eq!(guard.$release().await, Err(LockError::Lost($reason)));
    })*};
}

impl Holdings {
    fn tokens(&self) -> Vec<FencingToken> {
        let mut tokens = vec![
            self.mutex.fencing_token(),
            self.entries[0].fencing_token(),
            self.read.fencing_token(),
            self.write.fencing_token(),
            self.permit.fencing_token(),
            self.leadership.epoch(),
            self.all.fencing_token(),
        ];
        tokens.extend(self.tried.iter().map(Guard::fencing_token));
        tokens
    }

    async fn are_lost(self, reason: LostReason) {
        let [outer, inner] = self.entries;
        lost!(reason,
            self.mutex => release,
            outer => release,
            inner => release,
            self.read => release,
            self.write => release,
            self.permit => release,
            self.leadership => resign,
            self.all => release,
        );
        for guard in self.tried {
            lost!(reason, guard => release);
        }
    }

    async fn are_held(self) {
        let [outer, inner] = self.entries;
        outer.release().await.unwrap();
        inner.release().await.unwrap();
        self.mutex.release().await.unwrap();
        self.read.release().await.unwrap();
        self.write.release().await.unwrap();
        self.permit.release().await.unwrap();
        self.leadership.resign().await.unwrap();
        self.all.release().await.unwrap();
        for guard in self.tried {
            guard.release().await.unwrap();
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Close,
    Expiry,
}

impl End {
    fn reason(self) -> LostReason {
        match self {
            Self::Close => LostReason::SessionClosed,
            Self::Expiry => LostReason::SessionExpired,
        }
    }

    fn is(self, error: &LockError) -> bool {
        match error {
            LockError::Store(Error::SessionClosed { .. }) => self == Self::Close,
            LockError::Store(Error::SessionExpired { .. }) => self == Self::Expiry,
            _ => false,
        }
    }
}

/// A program that uses all recipes through one client, and another client that holds whatever it waits for.
struct Program {
    world: World,
    client: Client,
    held: Recipes,
    awaited: Recipes,
    holdings: Holdings,
    others: Holdings,
    waits: Vec<(&'static str, Wait)>,
}

impl Program {
    async fn start(env: Env) -> Self {
        let world = World::new(env).await;
        let client = world.client().await;
        let held = Recipes::new(&client, HELD);
        let awaited = Recipes::new(&client, AWAITED);
        let others = Recipes::new(&world.observer, AWAITED).hold().await;
        let holdings = held.hold().await;
        let waits = awaited.wait();
        let program = Self {
            world,
            client,
            held,
            awaited,
            holdings,
            others,
            waits,
        };
        program
            .stand(AWAITED, |queue| held_at(queue) + awaited_at(queue))
            .await;
        program
    }

    /// Waits until each queue below a path has this many znodes.
    async fn stand(&self, base: &str, count: impl Fn(&str) -> usize) {
        stand(&self.world, base, count).await;
    }

    async fn end(&self, end: End) {
        match end {
            End::Close => self.client.close().await.unwrap(),
            End::Expiry => self.world.expire(&self.client).await.unwrap(),
        }
    }
}

async fn stand(world: &World, base: &str, count: impl Fn(&str) -> usize) {
    let session = world.observing().await;
    for queue in QUEUES {
        let count = count(queue);
        until(&session, &format!("{base}/{queue}"), |names| {
            names.len() == count
        })
        .await;
    }
}

/// Asserts that each guard and wait ends and leaves nothing in the store.
async fn all_ends(env: Env, end: End) {
    let program = Program::start(env).await;
    let tokens = program.holdings.tokens();
    program.end(end).await;
    let Program {
        world,
        held,
        awaited,
        holdings,
        others,
        waits,
        ..
    } = program;
    holdings.are_lost(end.reason()).await;
    for (name, wait) in waits {
        let refusal = wait.await.unwrap().unwrap_err();
        assert!(end.is(&refusal), "{name}: {refusal}");
    }
    stand(&world, HELD, |_| 0).await;
    stand(&world, AWAITED, held_at).await;
    others.are_held().await;
    stand(&world, AWAITED, |_| 0).await;
    match end {
        End::Expiry => {
            for recipes in [held, awaited] {
                let again = recipes.hold().await;
                for (new, old) in again.tokens().iter().zip(&tokens) {
                    assert!(new > old);
                }
                again.are_held().await;
            }
        }
        End::Close => {
            for (name, wait) in held.wait() {
                let refusal = wait.await.unwrap().unwrap_err();
                assert!(end.is(&refusal), "{name}: {refusal}");
            }
        }
    }
    stand(&world, HELD, |_| 0).await;
    stand(&world, AWAITED, |_| 0).await;
}

/// Serves as leader whenever possible, and reports the epochs.
fn serve(
    client: &Client,
) -> (
    JoinHandle<Result<(), LockError>>,
    UnboundedReceiver<FencingToken>,
) {
    let election = Election::new(client, SERVED).unwrap();
    let (terms, epochs) = unbounded_channel();
    let serving = tokio::spawn(async move {
        let work = |leadership: std::sync::Arc<Leadership>| {
            terms.send(leadership.epoch()).unwrap();
            std::future::pending()
        };
        election.run("me", work).await
    });
    (serving, epochs)
}

/// A stream of locks that has yielded one and waits for the other.
async fn half_yielded(program: &Program) -> (LockEach, Guard) {
    let client = &program.client;
    let taken = program.awaited.each[0].as_str();
    let mut each = lock_each(client, [YIELDED, taken]).unwrap();
    let (_, guard) = each.next().await.unwrap().unwrap();
    assert_eq!(guard.path().parent().unwrap(), path(YIELDED));
    (each, guard)
}

on_every_backend! {
    async fn when_the_client_is_closed_all_that_it_has_ends(env: Env) {
        all_ends(env, End::Close).await;
    }

    async fn when_the_session_expires_all_that_it_has_ends_and_can_be_had_again(env: Env) {
        all_ends(env, End::Expiry).await;
    }

    async fn the_streams_of_a_closed_client_end(env: Env) {
        streams(env, End::Close).await;
    }

    async fn the_streams_of_an_expired_session_go_on_where_they_can(env: Env) {
        streams(env, End::Expiry).await;
    }
}

async fn streams(env: Env, end: End) {
    let program = Program::start(env).await;
    let client = &program.client;
    let (sink, mut events) = lock_events();
    let watched = Mutex::new(client, WATCHED).unwrap();
    let guard = watched
        .lock_with(LockOptions::new().events(sink))
        .await
        .unwrap();
    let mut queues = observe(client, WATCHED).unwrap();
    assert_eq!(queues.next().await.unwrap().unwrap().len(), 1);
    let mut leaders = program.held.election.observe();
    let leader = leaders
        .next()
        .await
        .unwrap()
        .unwrap()
        .into_leader()
        .unwrap();
    assert_eq!(leader.epoch, program.holdings.leadership.epoch());
    let mut state = program.held.election.state();
    assert_eq!(
        state.current(),
        Role::Leader {
            epoch: leader.epoch
        }
    );
    let (mut each, yielded) = half_yielded(&program).await;
    let (serving, mut epochs) = serve(client);
    let first = epochs.recv().await.unwrap();
    let (_warden, mut reports) = Warden::builder(client).watch(WATCHED).unwrap().start();

    program.end(end).await;
    assert_eq!(guard.revocation_requested().await.err(), Some(end.reason()));
    let told = loop {
        if let LockEvent::Lost { reason } = events.next().await.expect("a loss is told") {
            break reason;
        }
    };
    assert_eq!(told, end.reason());
    lost!(end.reason(), guard => release, yielded => release);
    assert!(events.next().await.is_none());
    let refusal = each.next().await.unwrap().unwrap_err();
    assert!(end.is(&refusal), "{refusal}");
    assert!(each.next().await.is_none());
    assert_eq!(
        state.wait_for(|role| !role.is_leader()).await,
        Some(Role::Bystander)
    );

    match end {
        End::Close => {
            // Replies in flight may arrive first.
            let refusal = loop {
                if let Err(refusal) = queues.next().await.unwrap() {
                    break refusal;
                }
            };
            assert!(end.is(&refusal.into()));
            assert!(queues.next().await.is_none());
            let refusal = loop {
                if let Err(refusal) = leaders.next().await.unwrap() {
                    break refusal;
                }
            };
            assert!(end.is(&refusal));
            assert!(leaders.next().await.is_none());
            assert!(end.is(&serving.await.unwrap().unwrap_err()));
            while reports.next().await.is_some() {}
            until(&program.world.observing().await, SERVED, <[_]>::is_empty).await;
        }
        End::Expiry => {
            while !queues.next().await.unwrap().unwrap().is_empty() {}
            while leaders.next().await.unwrap().unwrap() != LeaderChange::Vacant {}
            assert!(epochs.recv().await.unwrap() > first, "it leads again");
            serving.abort();
            let alert = LockOptions::new().alert_after(Duration::from_millis(1));
            let late = watched.lock_with(alert).await.unwrap();
            loop {
                let report = reports.next().await.expect("the warden goes on");
                if let WardenReport::Overdue(overdue) = report {
                    assert_eq!(overdue.entry.path, *late.path());
                    break;
                }
            }
            assert_eq!(queues.next().await.unwrap().unwrap().len(), 1);
        }
    }
    let session = program.world.observing().await;
    until(&session, YIELDED, <[_]>::is_empty).await;
    until(&session, WATCHED, <[_]>::is_empty).await;
}
