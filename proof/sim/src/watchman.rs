//! [`Watchman`]: a warden on its own host that watches all locks of a run.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Client, FencingEnforced, Warden, WardenReport, WardenReports};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};

use crate::client_tasks::connect;
use crate::resource::Resource;
use crate::world::{Random, World, drifting};

pub(crate) struct Watchman {
    world: World,
    working: JoinHandle<()>,
    done: oneshot::Sender<()>,
}

impl Watchman {
    pub(crate) fn start(world: &World, resources: &[Rc<Resource>], random: Random) -> Self {
        let paths = resources.iter().map(|resource| resource.path.clone());
        let (done, is_done) = oneshot::channel();
        let working = work(world.clone(), paths.collect(), random, is_done);
        Self {
            world: world.clone(),
            working: spawn_local(working),
            done,
        }
    }

    /// Fails the run unless it notices in time that all locks are free.
    pub(crate) async fn check(self) {
        let _ = self.done.send(());
        let limit = Duration::from_secs(300);
        if tokio::time::timeout(limit, self.working).await.is_err() {
            self.world
                .violate("warden: it still sees holders long after all have gone");
        }
    }
}

async fn work(
    world: World,
    paths: Vec<String>,
    mut random: Random,
    mut is_done: oneshot::Receiver<()>,
) {
    let clock = drifting(&world, &mut random);
    let client = connect(&world, "warden", &clock, &mut random).await;
    let (warden, reports) = started(&world, &client, &paths, &mut random);
    let mut reporting = pin!(report(&world, reports));
    tokio::select! {
        biased;
        () = &mut reporting => {}
        _ = &mut is_done => {}
    }
    // The last releases must be reported like all others.
    while warden.stats().holders > 0 || !warden.overdue_all().is_empty() {
        clock.sleep(Duration::from_millis(100)).await;
    }
    drop(warden);
    let _ = client.close().await;
}

fn started(
    world: &World,
    client: &Client,
    paths: &[String],
    random: &mut Random,
) -> (Warden, WardenReports) {
    let mut builder = Warden::builder(client);
    match random.once_in(2) {
        true => builder = builder.watch_prefix("/").expect("a path"),
        false => {
            for path in paths {
                builder = builder.watch(path).expect("a path");
            }
        }
    }
    if world.holders_are_removed() {
        builder = builder.remove_overdue(FencingEnforced);
    }
    builder.start()
}

async fn report(world: &World, mut reports: WardenReports) {
    while let Some(report) = reports.next().await {
        match report {
            WardenReport::Overdue(_) => world.count("warden: overdue holders seen"),
            WardenReport::Removed { .. } => world.count("warden: overdue holders removed"),
            _ => world.count("warden: other reports"),
        }
    }
}
