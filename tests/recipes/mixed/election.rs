//! Our election and another library's.

use lockkeeper::{Election, LeaderChange, Leadership};

use super::rwlock::queue_up;
use crate::common::*;
use crate::peer::{As, Contender, Process, enter, grants};

pub(crate) async fn election(world: &World) -> Election {
    Election::new(&world.client().await, LOCK).unwrap()
}

/// Does what only a leader may do, and resigns.
pub(crate) async fn lead(world: &World, leadership: Leadership) {
    let znode = leadership.path();
    let inside = enter(world, As::Only, znode, leadership.epoch()).await;
    inside.leave().await;
    leadership.resign().await.unwrap();
}

/// Candidates of both sides alternate and lead in order of arrival. An observer sees each of them.
pub(crate) async fn they_lead_in_order(world: &World, process: &Process, recipe: &str) {
    let first = election(world).await.campaign("ours-0").await.unwrap();
    let mut names = vec![first.path().name().to_owned()];
    let mut waiting = Vec::new();
    for turn in 1..3 {
        let name = format!("theirs-{turn}");
        // Curator's name for the candidate. kazoo uses its contender's name.
        let place = format!("{LOCK} {name}");
        let mut theirs = process.contender(&name, recipe, &place).await;
        names.push(theirs.queue_up_in(world, LOCK).await);
        let ours = election(world).await;
        let ours = queue_up(world, async move { ours.campaign("ours").await }).await;
        waiting.push((theirs, ours));
    }
    let mut changes = election(world).await.observe();
    let Some(Ok(LeaderChange::Elected(leader))) = changes.next().await else {
        panic!("ours leads");
    };
    assert_eq!(leader.data.as_deref(), Some("ours-0"));

    lead(world, first).await;
    for (turn, (mut theirs, ours)) in waiting.into_iter().enumerate() {
        let znode = theirs.until_held().await;
        assert_eq!(znode, names[turn + 1]);
        assert!(!ours.is_finished());
        let leader = changes
            .next()
            .await
            .unwrap()
            .unwrap()
            .into_leader()
            .unwrap();
        assert_eq!(leader.path.name(), znode);
        assert_eq!(leader.data, None);
        assert_eq!(leader.raw, format!("theirs-{}", turn + 1));
        theirs.release().await;
        let leadership = ours.await.unwrap().unwrap();
        let leader = changes
            .next()
            .await
            .unwrap()
            .unwrap()
            .into_leader()
            .unwrap();
        assert_eq!(leader.epoch, leadership.epoch());
        lead(world, leadership).await;
    }
    let grants = grants(world).await;
    assert_eq!(grants.len(), 5);
    assert!(grants.is_sorted_by_key(|(_, epoch)| *epoch));
}

/// All campaign and resign as fast as they can. No two lead together, and epochs only grow.
pub(crate) async fn there_is_never_a_second_leader(world: &World, theirs: [Contender; 2]) {
    const EACH: usize = 20;
    let ours = async || {
        let election = election(world).await;
        for _ in 0..EACH {
            lead(world, election.campaign("ours").await.unwrap()).await;
        }
    };
    let [mut one, mut two] = theirs;
    tokio::join!(ours(), ours(), one.cycles(EACH), two.cycles(EACH));
    let grants = grants(world).await;
    assert_eq!(grants.len(), 4 * EACH);
    assert!(grants.is_sorted_by_key(|(_, epoch)| *epoch), "{grants:?}");
    assert!(world.children().await.is_empty());
}
