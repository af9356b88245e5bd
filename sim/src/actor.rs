//! The contenders: each client tries its locks in different ways, until the faults have ended, and then once more.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Client, Clock, Error, LockError, Semaphore};
use lockkeeper_store::CreateMode;

use crate::filler::is_refusal;
use crate::history::History;
use crate::recipe::{Held, Recipe, Way, wait_for_all};
use crate::resource::Resource;
use crate::run::Sabotage;
use crate::world::{Random, World};

/// A task of a client.
pub(crate) struct Actor {
    pub(crate) world: World,
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    /// All that the run has.
    pub(crate) resources: Vec<Rc<Resource>>,
    /// The one that this contends for.
    pub(crate) place: usize,
    /// The semaphore of its last wait, if that is its own.
    pub(crate) semaphore: Option<Semaphore>,
    pub(crate) history: Rc<History>,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Actor {
    /// Contends so many times, and more often in a run that would be too short.
    pub(crate) async fn compete(mut self, turns: u64) {
        let mut turn = 0;
        while turn < turns || self.world.is_short() {
            turn += 1;
            self.rest(2_000).await;
            self.change_permits().await;
            let wanted = self.wanted();
            let since = self.world.time().elapsed();
            match self.contend(&wanted).await {
                Ok(Some(held)) => {
                    self.check_grant(&held);
                    self.hold(held, &wanted, since).await;
                }
                Ok(None) | Err(LockError::Timeout { .. }) => self.world.count("waits given up"),
                // Without the error's text, which has a random id.
                Err(error) if error.is_session_end() => {
                    self.world.count("waits that ended with their session");
                    self.world
                        .tell(format_args!("{} has lost its session", self.name));
                }
                Err(error) if is_out_of_reach(&error) => {
                    self.world.count("waits without a server");
                    self.world.tell(format_args!("{} has no server", self.name));
                }
                Err(LockError::EntryDeleted { .. }) if self.world.holders_are_removed() => {
                    self.world.count("waits whose entry was removed");
                }
                Err(LockError::TooManyPermits { .. }) => {
                    self.world.count("waits for more permits than there are");
                }
                Err(error) if self.is_out_of_room(&error) => {
                    self.world.count("waits without room");
                }
                Err(error) => self
                    .world
                    .violate(format_args!("error: {} got {error:?}", self.name)),
            }
            if self.world.violation().is_some() {
                return;
            }
        }
        self.world.tell(format_args!("{} is done", self.name));
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = self.random.below_ms(longest_ms);
        self.clock.sleep(length).await;
    }

    /// Fails the run if a grant is lost as it comes, with the session alive: a wait ends with a part of the lease left
    /// (invariant 6).
    fn check_grant(&self, held: &Held) {
        if held.has_outlived_its_lease() {
            self.world.violate(format_args!(
                "grants: {} is granted a lock when its lease has ended",
                self.name
            ));
        }
    }

    /// Returns true for the error of a store that a client has filled, or of a disk without room.
    fn is_out_of_room(&self, error: &LockError) -> bool {
        match error {
            LockError::Store(Error::DiskFull { .. }) => true,
            LockError::Store(error) => is_refusal(error) && self.world.can_run_out_of_room(),
            _ => false,
        }
    }

    /// Changes the number of permits now and then, whoever holds and waits.
    async fn change_permits(&mut self) {
        let resource = self.resources[self.place].clone();
        let Recipe::Semaphore { permits } = resource.recipe else {
            return;
        };
        if !self.random.once_in(5) {
            return;
        }
        let number = self.random.within(0..u64::from(permits) + 2) as u32;
        let limit = self.random.below_ms(20_000);
        let change = resource
            .permits
            .change(&self.world, (&self.client, &resource.path), number);
        let (change, timer) = (pin!(change), pin!(self.clock.sleep(limit)));
        let changed = tokio::select! {
            biased;
            changed = change => changed,
            () = timer => return,
        };
        match changed {
            Ok(()) => {}
            Err(error) if error.is_session_end() || is_out_of_reach(&error) => {
                self.world.count("semaphore: changes without a server");
            }
            Err(error) if self.is_out_of_room(&error) => {}
            Err(error) => self
                .world
                .violate(format_args!("error: {} changes {error:?}", self.name)),
        }
    }

    /// Returns the resources to contend for: its own, or now and then all that mutexes guard.
    fn wanted(&mut self) -> Vec<Rc<Resource>> {
        let own = &self.resources[self.place];
        let of_mutexes = self.resources.iter();
        let of_mutexes = of_mutexes.filter(|resource| resource.recipe == Recipe::Mutex);
        let all: Vec<_> = of_mutexes.cloned().collect();
        let is_batch = own.recipe == Recipe::Mutex && all.len() > 1 && self.sabotage.is_none();
        match is_batch && self.random.once_in(3) {
            true => all,
            false => vec![own.clone()],
        }
    }

    /// Tries once, in a random way; `None` if it gave up.
    async fn contend(&mut self, wanted: &[Rc<Resource>]) -> Result<Option<Held>, LockError> {
        let mut paths: Vec<_> = wanted
            .iter()
            .map(|resource| resource.path.as_str())
            .collect();
        if self.sabotage == Some(Sabotage::WrongLock) {
            paths = vec!["/another-lock"];
        }
        let way = Way::draw(&mut self.random);
        self.world.count("waits");
        self.world.tell(format_args!(
            "{} waits for {}, {way:?}",
            self.name,
            paths.join(" and ")
        ));
        match paths[..] {
            [path] => {
                let lock = (&self.client, path, &mut self.semaphore);
                let recipe = wanted[0].recipe;
                recipe.wait(lock, way, &mut self.random, &self.clock).await
            }
            _ => {
                self.world.count("batches of locks");
                wait_for_all(&self.client, &paths, way, &self.clock).await
            }
        }
    }

    /// Makes the mistakes of a run that is meant to fail.
    async fn make_a_mistake(&mut self) {
        let resource = &self.resources[self.place];
        match self.sabotage {
            Some(Sabotage::LeavesAnEntry) => {
                let queue = resource.recipe.queues(&resource.path).remove(0);
                let entry = format!("{queue}/left-").parse().expect("a path");
                if let Ok(session) = self.client.session().await {
                    let _ = session
                        .create(&entry, "", CreateMode::PersistentSequential)
                        .await;
                }
            }
            Some(Sabotage::NeverLetsGo) => std::future::pending().await,
            Some(Sabotage::InventsAWrite) => resource.register.invent(),
            Some(Sabotage::WrongLock) | None => {}
        }
    }

    /// Reads or writes znodes whose history is checked. A lost reply is no failure.
    async fn use_znodes(&mut self) {
        let register = &self.resources[self.place].register;
        let used = match self.random.within(0..6) {
            0 => register.read(&self.client, false).await.map(drop),
            1 => register.read(&self.client, true).await.map(drop),
            2 | 3 => register.write(&self.name, &self.client).await,
            _ => {
                let (client, random) = (&self.client, &mut self.random);
                return self.history.call(client, random).await;
            }
        };
        if used.is_err() {
            self.world.count("register: errors");
        }
    }

    /// Uses the resources for a while, and lets the lock go.
    async fn hold(&mut self, held: Held, wanted: &[Rc<Resource>], since: Duration) {
        let held = self.work(held, wanted, since).await;
        let held = match held.is_convertible() && self.random.once_in(2) {
            true => match held.converted().await {
                Ok((held, what)) => {
                    self.world.count(what);
                    self.work(held, wanted, since).await
                }
                Err(_) => return self.world.count("conversions: lost"),
            },
            false => held,
        };
        self.world
            .tell(format_args!("{} lets {} go", self.name, wanted[0].path));
        self.let_go(held).await;
    }

    /// Works under a lock for a while.
    async fn work(&mut self, held: Held, wanted: &[Rc<Resource>], since: Duration) -> Held {
        let held = Rc::new(held);
        let enter =
            |resource: &Rc<Resource>| resource.enter(&self.name, &held, (&self.clock, since));
        let stays: Vec<_> = wanted.iter().map(enter).collect();
        self.make_a_mistake().await;
        let longest = match self.random.within(0..12) {
            0 => 30_000,
            _ => 800,
        };
        for _ in 0..self.random.within(1..4) {
            self.rest(longest).await;
            for resource in wanted {
                resource.check();
                resource.write(&self.name, &held);
            }
            self.use_znodes().await;
        }
        drop(stays);
        Rc::into_inner(held).expect("only its holder uses it")
    }

    /// Lets a lock go in one of three ways.
    async fn let_go(&mut self, held: Held) {
        match self.random.within(0..3) {
            0 => drop(held),
            1 => drop(held.release()),
            _ => {
                let limit = Duration::from_secs(600);
                let released = pin!(held.release());
                let timer = pin!(self.clock.sleep(limit));
                tokio::select! {
                    biased;
                    _ = released => {}
                    () = timer => self.world.violate(format_args!("progress: {} cannot release", self.name)),
                }
            }
        }
    }
}

/// Returns true for an error that a server out of reach explains.
fn is_out_of_reach(error: &LockError) -> bool {
    matches!(
        error,
        LockError::Store(Error::ConnectionLoss | Error::ConnectFailed { .. })
    )
}
