//! The contenders. Each tries to get locks in different ways until the faults have ended, and then once more.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Client, Clock, Error, LockError, Owner, Semaphore};
use lockkeeper_store::CreateMode;
use testkit::contender::is_out_of_reach;
use testkit::recipe::{AcquireMode, Held, Recipe, enter, now_or_never, wait_for_all};

use crate::filler::is_refusal;
use crate::history::History;
use crate::in_memory;
use crate::resource::Resource;
use crate::run::Sabotage;
use crate::world::{Random, World};

/// A guard and its resource, which is one of several for a guard of several mutexes.
pub(crate) type Grant = (Rc<Held>, Rc<Resource>);

/// Returns a guard that is no longer shared.
fn sole(held: Rc<Held>) -> Held {
    Rc::into_inner(held).expect("only its holder uses it")
}

pub(crate) struct Actor {
    pub(crate) world: World,
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) resources: Vec<Rc<Resource>>,
    pub(crate) place: usize,
    /// The semaphore of its last wait, if it keeps one.
    pub(crate) semaphore: Option<Semaphore>,
    /// The owner for which it enters a re-entrant mutex, with its number.
    pub(crate) owner: Option<(u64, Owner)>,
    pub(crate) history: Rc<History>,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Actor {
    /// Contends this many times, or more in a run that would be too short.
    pub(crate) async fn compete(mut self, turns: u64) {
        let mut turn = 0;
        // In a run in memory every contender must hold once in the end, because no session may end without a fault.
        let mut has_held = self.world.memory().is_none();
        while turn < turns || self.world.is_short() || !has_held {
            turn += 1;
            self.rest(2_000).await;
            self.change_permits().await;
            let wanted = self.wanted();
            let since = self.world.time().elapsed();
            match self.contend(&wanted).await {
                Ok(grants) if grants.is_empty() => self.world.count("waits given up"),
                Ok(grants) => {
                    has_held |= turn >= turns;
                    self.hold(grants, since).await;
                }
                Err(error) => self.explain(&error),
            }
            if self.world.violation().is_some() {
                return;
            }
        }
        self.world.tell(format_args!("{} is done", self.name));
    }

    /// Counts a failed wait, or fails the run if no fault explains it.
    pub(crate) fn explain(&self, error: &LockError) {
        match error {
            LockError::Timeout { .. } => self.world.count("waits given up"),
            // Leave out the error's text, which contains a random id.
            error if error.is_session_end() => {
                self.world.count("waits that ended with their session");
                self.world
                    .tell(format_args!("{} has lost its session", self.name));
            }
            error if self.is_out_of_reach(error) => {
                self.world.count("waits without a server");
                self.world.tell(format_args!("{} has no server", self.name));
            }
            LockError::EntryDeleted { .. } if self.world.holders_are_removed() => {
                self.world.count("waits whose entry was removed");
            }
            LockError::TooManyPermits { .. } => {
                self.world.count("waits for more permits than there are");
            }
            error if self.is_out_of_room(error) => self.world.count("waits without room"),
            LockError::Lost(_) if let Some((owner, _)) = &self.owner => {
                self.resources[self.place].check_refusal(*owner);
            }
            error => self
                .world
                .violate(format_args!("error: {} got {error:?}", self.name)),
        }
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = self.random.below_ms(longest_ms);
        self.clock.sleep(length).await;
    }

    /// Fails the run if a new grant is already lost although the session is alive, because a wait must end with part
    /// of the lease left (invariant 6).
    pub(crate) fn check_grant(&self, held: &Held) {
        if held.has_outlived_its_lease() {
            self.world.violate(format_args!(
                "grants: {} is granted a lock when its lease has ended",
                self.name
            ));
        }
    }

    /// Returns `true` for an error that an unreachable server explains.
    fn is_out_of_reach(&self, error: &LockError) -> bool {
        is_out_of_reach(error) && self.world.memory().is_none()
    }

    /// Returns `true` for the error of a full store or disk.
    fn is_out_of_room(&self, error: &LockError) -> bool {
        match error {
            LockError::Store(Error::DiskFull { .. }) => true,
            LockError::Store(error) => is_refusal(error) && self.world.can_run_out_of_room(),
            _ => false,
        }
    }

    /// Sometimes changes the number of permits, regardless of holders and waiters.
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
        let change = resource.change_permits(&self.client, number);
        let (change, timer) = (pin!(change), pin!(self.clock.sleep(limit)));
        let changed = tokio::select! {
            biased;
            changed = change => changed,
            () = timer => return,
        };
        match changed {
            Ok(()) => {}
            Err(error) if error.is_session_end() || self.is_out_of_reach(&error) => {
                self.world.count("semaphore: changes without a server");
            }
            Err(error) if self.is_out_of_room(&error) => {}
            Err(error) => self
                .world
                .violate(format_args!("error: {} changes {error:?}", self.name)),
        }
    }

    /// Returns the resources to contend for: its own, or sometimes several mutexes.
    fn wanted(&mut self) -> Vec<Rc<Resource>> {
        let own = &self.resources[self.place];
        let of_mutexes = self.resources.iter();
        let of_mutexes = of_mutexes.filter(|resource| resource.recipe == Recipe::Mutex);
        let all: Vec<_> = of_mutexes.cloned().collect();
        let is_batch = own.recipe == Recipe::Mutex && all.len() > 1 && self.sabotage.is_none();
        if is_batch && self.world.memory().is_some() {
            return self.some_of(all);
        }
        match is_batch && self.random.once_in(3) {
            true => all,
            false => vec![own.clone()],
        }
    }

    /// Returns a random selection of the resources in random order.
    fn some_of(&mut self, mut all: Vec<Rc<Resource>>) -> Vec<Rc<Resource>> {
        let count = self.random.within(1..all.len() as u64 + 1);
        let draw = |_| all.swap_remove(self.random.within(0..all.len() as u64) as usize);
        (0..count).map(draw).collect()
    }

    /// Tries once in a random way. Returns nothing if it gave up or no longer holds.
    pub(crate) async fn contend(
        &mut self,
        wanted: &[Rc<Resource>],
    ) -> Result<Vec<Grant>, LockError> {
        let mut paths: Vec<_> = wanted
            .iter()
            .map(|resource| resource.path.as_str())
            .collect();
        if self.sabotage == Some(Sabotage::WrongLock) {
            paths = vec!["/another-lock"];
        }
        let way = match self.world.memory() {
            Some(_) => in_memory::draw_way(&mut self.random),
            None => AcquireMode::draw(&mut self.random),
        };
        self.world.count("waits");
        self.world.tell(format_args!(
            "{} waits for {}, {way:?}",
            self.name,
            paths.join(" and ")
        ));
        let held = match paths[..] {
            [_] if let Some(owner) = &self.owner => enter(owner, way, &self.clock).await?,
            [_] if self.leads_by_run(&wanted[0]) => return self.lead(&wanted[0], way).await,
            [path] => {
                let lock = (&self.client, path, &mut self.semaphore);
                let recipe = wanted[0].recipe;
                recipe
                    .wait(lock, way, &mut self.random, &self.clock)
                    .await?
            }
            _ => {
                self.world.count("batches of locks");
                if self.world.memory().is_some() && self.random.once_in(2) {
                    return self.contend_for_each(wanted, &paths, way).await;
                }
                wait_for_all(&self.client, &paths, way, &self.clock).await?
            }
        };
        let held = held.map(Rc::new);
        held.iter().for_each(|held| self.check_grant(held));
        let grants = wanted.iter().zip(held.iter().cycle());
        Ok(grants
            .map(|(resource, held)| (held.clone(), resource.clone()))
            .collect())
    }

    /// Makes the mistakes of a run that must fail.
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

    /// Reads or writes znodes whose history is checked. A lost reply is not a failure.
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

    /// Uses the resources for a while, and releases the locks.
    pub(crate) async fn hold(&mut self, mut grants: Vec<Grant>, since: Duration) {
        self.split(&mut grants);
        self.work(&grants, since).await;
        let conversions = match self.world.memory() {
            Some(_) => self.random.within(0..3),
            None => 1,
        };
        for _ in 0..conversions {
            if !grants[0].0.is_convertible() || !self.random.once_in(2) {
                break;
            }
            let (held, resource) = grants.remove(0);
            let Some(held) = self.convert(sole(held)).await else {
                return;
            };
            grants.push((Rc::new(held), resource));
            self.work(&grants, since).await;
        }
        self.world
            .tell(format_args!("{} lets {} go", self.name, grants[0].1.path));
        for (held, _) in grants {
            // The last reference of a guard of several mutexes.
            if let Some(held) = Rc::into_inner(held) {
                self.let_go(held).await;
            }
        }
    }

    /// Converts a guard. Returns nothing if it is lost, or dropped midway in a run in memory.
    async fn convert(&mut self, held: Held) -> Option<Held> {
        let is_in_memory = self.world.memory().is_some();
        let way = match is_in_memory && self.random.once_in(6) {
            true => AcquireMode::Dropped(self.random.below_ms(500)),
            false => AcquireMode::Patient,
        };
        let converting = async { held.converted().await.map(Some) };
        match way.dropped(converting, &self.clock).await {
            Ok(Some((held, what))) => {
                self.world.count(what);
                if is_in_memory && matches!(held, Held::Write(_)) {
                    self.check_grant(&held);
                }
                return Some(held);
            }
            Ok(None) => self.world.count("conversions: dropped"),
            Err(error) => {
                self.world.count("conversions: lost");
                if is_in_memory && !matches!(error, LockError::Lost(_)) {
                    let what = format_args!("error: a conversion got {error:?}");
                    self.world.violate(what);
                }
            }
        }
        None
    }

    async fn work(&mut self, grants: &[Grant], since: Duration) {
        let enter =
            |(held, resource): &Grant| resource.enter(&self.name, held, (&self.clock, since));
        let stays: Vec<_> = grants.iter().map(enter).collect();
        self.make_a_mistake().await;
        self.use_guard(grants, since).await;
        let longest = match self.random.within(0..12) {
            0 => 30_000,
            _ => 800,
        };
        for _ in 0..self.random.within(1..4) {
            self.rest(longest).await;
            for (held, resource) in grants {
                resource.check();
                resource.write(&self.name, held);
            }
            if self.world.memory().is_none() || self.random.once_in(4) {
                self.use_znodes().await;
            }
        }
        drop(stays);
    }

    async fn let_go(&mut self, held: Held) {
        match self.random.within(0..3) {
            0 => drop(held),
            1 if self.world.memory().is_some() => drop(now_or_never(held.release())),
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
