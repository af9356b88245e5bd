//! [`Observers`]: clients that follow the leaders of elections.

use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Client, Election, LeaderChange, LockError};
use testkit::recipe::Recipe;
use tokio::task::JoinSet;

use crate::client_tasks::connect;
use crate::resource::Resource;
use crate::world::{Random, World, drifting};

pub(crate) struct Observers {
    world: World,
    paths: Vec<String>,
    watching: JoinSet<()>,
}

/// Data of the leader that they must see last.
const LAST: &str = "the last";

impl Observers {
    pub(crate) fn start(world: &World, resources: &[Rc<Resource>], random: &mut Random) -> Self {
        let elections = resources.iter();
        let elections = elections.filter(|resource| resource.recipe == Recipe::Election);
        let paths: Vec<_> = elections.map(|resource| resource.path.clone()).collect();
        let mut watching = JoinSet::new();
        for path in paths.iter().flat_map(|path| [path, path]) {
            watching.spawn_local(watch(world.clone(), path.clone(), random.fork()));
        }
        Self {
            world: world.clone(),
            paths,
            watching,
        }
    }

    /// Fails the run unless all of them see the last leader within a time limit, because the newest state is never
    /// missed.
    pub(crate) async fn check(mut self, client: &Client) -> Result<(), LockError> {
        let mut leaderships = Vec::new();
        for path in &self.paths {
            leaderships.push(Election::new(client, path)?.campaign(LAST).await?);
        }
        let all = async { while self.watching.join_next().await.is_some() {} };
        let limit = Duration::from_secs(300);
        if tokio::time::timeout(limit, all).await.is_err() {
            self.world.violate("observers: the last leader is not seen");
        }
        for leadership in leaderships {
            leadership.resign().await?;
        }
        Ok(())
    }
}

/// Follows the leaders of an election, in the order of their epochs, until the last.
async fn watch(world: World, path: String, mut random: Random) {
    let clock = drifting(&world, &mut random);
    let client = connect(&world, "observer", &clock, &mut random).await;
    let mut changes = Election::new(&client, &path).expect("a path").observe();
    let (mut newest, mut was_vacant) = (None, false);
    while let Some(change) = changes.next().await {
        world.count("observers: changes seen");
        let epoch = change.as_ref().ok().and_then(LeaderChange::leader);
        let epoch = epoch.map(|leader| leader.epoch);
        let is_right = match &change {
            Ok(LeaderChange::Elected(_)) => newest < epoch,
            Ok(LeaderChange::DataChanged(_)) => newest == epoch,
            Ok(LeaderChange::Vacant) => !was_vacant,
            _ => false,
        };
        if !is_right {
            let what = format!("observers: {change:?} after {newest:?}, vacant: {was_vacant}");
            return world.violate(what);
        }
        was_vacant = epoch.is_none();
        newest = newest.max(epoch);
        let leader = change.ok().and_then(LeaderChange::into_leader);
        if leader.and_then(|leader| leader.data).as_deref() == Some(LAST) {
            return;
        }
    }
}
