//! Our election and kazoo's.

use super::kazoo;
use crate::common::*;
use crate::mixed::election::*;
use crate::peer::beside_others;

/// kazoo's election with a lock configured with our names, and one under Curator's names.
const ELECTIONS: [&str; 2] = ["election", "curator-election"];

beside_others! {
    async fn they_lead_in_the_order_in_which_they_came(world: World, recipe in ELECTIONS) {
        they_lead_in_order(&world, &kazoo(&world), recipe).await;
    }

    async fn there_is_only_one_leader(world: World, recipe in ELECTIONS) {
        world.make(LOCK).await;
        let process = kazoo(&world);
        let one = process.contender("one", recipe, LOCK).await;
        let two = process.contender("two", recipe, LOCK).await;
        there_is_never_a_second_leader(&world, [one, two]).await;
    }
}
