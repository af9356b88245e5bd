//! Asking a holder of the other library to give up its lock.

use lockkeeper::{RevokeTarget, Revoker};

use super::curator;
use crate::common::*;
use crate::peer::{beside_others, work};

beside_others! {
    async fn curator_hears_ours(world: World) {
        let process = curator(&world);
        let mut theirs = process.contender("curator", "revocable", LOCK).await;
        let holder = theirs.acquire().await;
        let waiter = world.queue_up(&world.mutex().await).await;
        let whom = RevokeTarget::holder(LOCK).unwrap();
        let asked = Revoker::new(&world.observer).request(&whom).await.unwrap();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].name(), holder);
        assert_eq!(theirs.answer().await, "revocation");
        theirs.release().await;
        work(&world, granted(waiter).await).await;
    }

    async fn ours_hears_curator(world: World) {
        let process = curator(&world);
        let mut theirs = process.contender("curator", "mutex", LOCK).await;
        let guard = world.mutex().await.lock().await.unwrap();
        theirs.send(&format!("revoke {}", guard.path()));
        theirs.answer_of("asked").await;
        let request = guard.revocation_requested().await.unwrap();
        assert_eq!(request.by, None, "Curator does not say");
        assert_eq!(theirs.queue_up().await, guard.path().name());
        work(&world, guard).await;
        theirs.held_next().await;
        theirs.release().await;
    }
}
