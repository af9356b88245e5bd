//! `lockkeeper permits`.

use lockkeeper::{Mutex, Semaphore};

use super::locks::named;
use super::stores::*;
use super::support::*;

on_each_store! {
    async fn the_size_of_a_semaphore_is_shown_and_changed(store: StoreAt) {
        let client = store.connect().await;
        let missing = store.run(&["permits", "quota"]);
        let said = "lockkeeper: there is no semaphore quota: `lockkeeper run quota --permits N/M` creates one\n";
        assert_eq!(failure(&missing), said);
        assert_eq!(failure(&store.run(&["permits", "quota", "3"])), said);
        assert_eq!(store.run(&["permits", "quota", "0"]).status.code(), Some(2));

        let quota = Semaphore::new(&client, named("quota"), 3).unwrap();
        let both = quota.acquire_many(2).await.unwrap();
        let shown = success(&store.run(&["permits", "quota"]));
        assert_eq!(shown, "quota: 3 permits, 2 taken, 1 free, 0 waiting\n");

        let changed = success(&store.run(&["permits", "quota", "5"]));
        assert_eq!(changed, "quota: 5 permits, 2 taken, 3 free, 0 waiting\n");
        let below = store.run(&["permits", "quota", "1"]);
        let said = "lockkeeper: 2 permits of quota are taken, more than 1: --force sets the number anyway, and no permit \
                    is granted until enough are released\n";
        assert_eq!(failure(&below), said);
        assert_eq!(quota.permits().await.unwrap(), 5);
        let forced = success(&store.run(&["permits", "quota", "1", "--force"]));
        assert_eq!(forced, "quota: 1 permit, 2 taken, 0 free, 0 waiting\n");
        both.release().await.unwrap();
        let refused = store.run(&["run", "quota", "--permits", "1/5", "--", "true"]);
        let said = failure(&refused);
        assert!(said.contains("`lockkeeper permits quota 5`"), "{said}");
    }

    async fn a_lock_of_another_kind_has_no_permits(store: StoreAt) {
        let client = store.connect().await;
        let guard = Mutex::new(&client, named("a")).unwrap().lock().await.unwrap();
        for arguments in [&["permits", "a"][..], &["permits", "a", "3"]] {
            let said = failure(&store.run(arguments));
            assert_eq!(said, "lockkeeper: a is in use as a mutex, which has no permits\n");
        }
        guard.release().await.unwrap();
    }
}
