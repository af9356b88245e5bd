//! Actions of the contenders that need a store [in memory](crate::memory).

use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Election, Guard, LockError, lock_each, try_lock_many};
use testkit::Random;
use testkit::recipe::{AcquireMode, Held, Recipe};

use crate::actor::{Actor, Grant};
use crate::resource::Resource;

/// Draws the recipes of a run's paths: one for all contenders, or several mutexes to lock together.
pub(crate) fn draw_recipes(random: &mut Random) -> Vec<Recipe> {
    match random.within(0..6) {
        0 => vec![Recipe::Mutex; 5],
        1 => vec![Recipe::Reentrant],
        _ => vec![Recipe::draw(random)],
    }
}

pub(crate) fn draw_way(random: &mut Random) -> AcquireMode {
    match random.once_in(9) {
        true => AcquireMode::Synced,
        false => AcquireMode::draw(random),
    }
}

impl Actor {
    /// Takes the free mutexes, or each mutex when it is granted. Returns the guards still held.
    pub(crate) async fn contend_for_each(
        &mut self,
        wanted: &[Rc<Resource>],
        paths: &[&str],
        way: AcquireMode,
    ) -> Result<Vec<Grant>, LockError> {
        let grant = |path: String, guard: Guard| {
            let resource = wanted.iter().find(|resource| resource.path == path);
            let resource = resource.expect("it was asked for").clone();
            (Rc::new(Held::Mutex(guard)), resource)
        };
        if let AcquireMode::Try | AcquireMode::Synced = way {
            let tried = try_lock_many(&self.client, paths).await?;
            self.world.count("mutexes tried one by one");
            let acquired = tried.acquired.into_iter();
            let acquired = acquired.map(|(path, guard)| grant(path.to_string(), guard));
            let acquired: Vec<_> = acquired.collect();
            acquired.iter().for_each(|(held, _)| self.check_grant(held));
            return Ok(acquired);
        }
        let (clock, since) = (self.clock.clone(), self.world.time().elapsed());
        let mut each = lock_each(&self.client, paths)?;
        let holding = async {
            while let Some(granted) = each.next().await {
                let (path, guard) = granted?;
                self.world.count("mutexes locked one by one");
                let granted = grant(path.to_string(), guard);
                self.check_grant(&granted.0);
                self.hold(vec![granted], since).await;
                if self.random.once_in(4) {
                    break;
                }
            }
            Ok(Some(()))
        };
        way.dropped(holding, &clock).await?;
        Ok(Vec::new())
    }

    /// Returns `true` if the next leader is a service that leads whenever it can.
    pub(crate) fn leads_by_run(&mut self, resource: &Resource) -> bool {
        let is_possible = self.world.memory().is_some() && resource.recipe == Recipe::Election;
        is_possible && self.random.once_in(3)
    }

    /// Leads whenever it can until its work is done.
    pub(crate) async fn lead(
        &mut self,
        resource: &Rc<Resource>,
        way: AcquireMode,
    ) -> Result<Vec<Grant>, LockError> {
        let election = Election::new(&self.client, &resource.path)?;
        let mut random = self.random.fork();
        let since = self.world.time().elapsed();
        let running = election.run("running", |leadership| {
            self.world.count("terms of a run");
            let held = Rc::new(Held::Leadership(leadership, election.clone()));
            self.check_grant(&held);
            let stay = resource.enter(&self.name, &held, (&self.clock, since));
            resource.write(&self.name, &held);
            let longest = if random.once_in(4) { 40_000 } else { 3_000 };
            let work = self.clock.sleep(random.below_ms(longest));
            async move {
                work.await;
                drop(stay);
            }
        });
        let running = async { running.await.map(Some) };
        way.dropped(running, &self.clock).await?;
        Ok(Vec::new())
    }

    /// Sometimes splits a permit in two.
    pub(crate) fn split(&mut self, grants: &mut Vec<Grant>) {
        if self.world.memory().is_none() || self.random.once_in(2) {
            return;
        }
        let (held, resource) = &mut grants[0];
        if let Some(Held::Permit(permit)) = Rc::get_mut(held)
            && let Some(part) = permit.split(1)
        {
            self.world.count("permits split");
            let part = (Rc::new(Held::Permit(part)), resource.clone());
            grants.push(part);
        }
    }

    /// Uses the guard itself, and sometimes re-enters a re-entrant mutex.
    pub(crate) async fn use_guard(&mut self, grants: &[Grant], since: Duration) {
        if self.world.memory().is_none() {
            return;
        }
        for (held, resource) in grants {
            resource.write(&self.name, held);
        }
        let (held, resource) = &grants[0];
        if self.random.once_in(4) {
            let _ = held.keep_alive().await;
        }
        if self.random.once_in(3) {
            let longest = if self.random.once_in(8) {
                40_000
            } else {
                1_500
            };
            let work = self.clock.sleep(self.random.below_ms(longest));
            held.protect(work).await;
        }
        match &**held {
            Held::Leadership(leadership, _) if self.random.once_in(2) => {
                // The result does not matter, because the term may be over.
                let data = format!("at work in {}", leadership.epoch());
                let _ = leadership.set_data(data).await;
            }
            Held::Entry(guard, _) if guard.entries() < 5 && self.random.once_in(2) => {
                let resource = resource.clone();
                match Box::pin(self.contend(&[resource])).await {
                    Ok(grants) if grants.is_empty() => {}
                    Ok(grants) => Box::pin(self.hold(grants, since)).await,
                    Err(error) => self.explain(&error),
                }
            }
            _ => {}
        }
    }
}
