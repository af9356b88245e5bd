//! Our election and kazoo's.

use super::kazoo;
use crate::common::*;
use crate::mixed::election::*;
use crate::peer::world;
use crate::support::within_reason;

/// kazoo's election with a lock that is told of our names, and with one under Curator's names.
const ELECTIONS: [&str; 2] = ["election", "curator-election"];

#[tokio::test]
async fn they_lead_in_the_order_in_which_they_came() {
    within_reason(async {
        for recipe in ELECTIONS {
            let world = world().await;
            they_lead_in_order(&world, &kazoo(&world), recipe).await;
        }
    })
    .await;
}

#[tokio::test]
async fn there_is_only_one_leader() {
    within_reason(async {
        for recipe in ELECTIONS {
            let world = world().await;
            world.make(LOCK).await;
            let process = kazoo(&world);
            let one = process.contender("one", recipe, LOCK).await;
            let two = process.contender("two", recipe, LOCK).await;
            there_is_never_a_second_leader(&world, [one, two]).await;
        }
    })
    .await;
}
