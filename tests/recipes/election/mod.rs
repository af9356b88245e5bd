//! Elections.

mod costs;
mod expiry;
mod known_bugs;
mod model;
mod observing;
mod running;
mod state;
mod succession;

use lockkeeper::{
    Client, Election, Error, LeaderChange, LeaderChanges, Leadership, LockError, LockOptions,
};
use tokio::task::JoinHandle;

use crate::common::*;

/// A short session timeout.
const BRIEF: std::time::Duration = std::time::Duration::from_secs(2);

type Campaign = JoinHandle<Result<Leadership, LockError>>;

async fn election(world: &World) -> Election {
    Election::new(&world.client().await, LOCK).unwrap()
}

async fn stand(world: &World, election: &Election, data: &str) -> Campaign {
    let (election, data) = (election.clone(), data.to_owned());
    let options = LockOptions::new();
    let campaign = async move { election.campaign_with(data, options).await };
    world.queue_up_at(LOCK, campaign).await
}

async fn elected(campaign: Campaign) -> Leadership {
    campaign.await.unwrap().unwrap()
}

/// Waits until this client has nothing in the line or on its way there.
async fn until_swept(world: &World, client: &Client) {
    until_carried_out(client, &path(LOCK)).await;
    world.until_count(0).await;
}

async fn next(changes: &mut LeaderChanges) -> LeaderChange {
    changes.next().await.expect("the stream goes on").unwrap()
}

/// Reads changes until one shows a leader with this data, or none.
async fn until_shown(changes: &mut LeaderChanges, wanted: Option<&str>) -> LeaderChange {
    loop {
        let change = next(changes).await;
        let shown = change.leader().map(|leader| leader.data.as_deref());
        if shown == wanted.map(Some) {
            return change;
        }
    }
}
