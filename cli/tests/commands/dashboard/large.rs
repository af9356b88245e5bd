//! Very many locks, and a very long queue.

use lockkeeper_store::{CreateMode, Session, ZnodePath};

use super::*;

const MANY: usize = 10_000;

const AT_ONCE: usize = 256;

async fn enter(session: &Session, names: impl Iterator<Item = String>) -> Vec<ZnodePath> {
    let paths: Vec<ZnodePath> = names.map(|name| name.parse().unwrap()).collect();
    let mut entries = Vec::new();
    for paths in paths.chunks(AT_ONCE) {
        let created: Vec<_> = paths
            .iter()
            .map(|path| session.create(path, "", CreateMode::EphemeralSequential))
            .collect();
        for created in created {
            entries.push(created.await.unwrap().0);
        }
    }
    entries
}

#[test]
fn ten_thousand_locks_are_shown_a_window_at_a_time() {
    let store = StoreAt::served();
    block_on(async {
        let client = store.connect().await;
        let session = client.session().await.unwrap();
        for first in (0..MANY).step_by(AT_ONCE) {
            let parents: Vec<ZnodePath> = (first..MANY.min(first + AT_ONCE))
                .map(|index| format!("/l{index:05}").parse().unwrap())
                .collect();
            let created: Vec<_> = parents
                .iter()
                .map(|path| session.create(path, "", CreateMode::Persistent))
                .collect();
            for created in created {
                created.await.unwrap();
            }
        }
        let names = (0..MANY).map(|index| format!("/l{index:05}/_c_x-lock-"));
        let entries = enter(&session, names).await;
        let dashboard = Dashboard::start(&store, &[]);
        let mut list = Events::of(dashboard.at(), "/api/locks?offset=9000&limit=200");
        let seen = list.until("locks", |it| it["locks"] == MANY);
        let rows = seen["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["path"]), (200, &"/l09000".into()));
        assert_eq!(
            (&seen["held"], &seen["complete"]),
            (&MANY.into(), &true.into())
        );
        let mut found = Events::of(dashboard.at(), "/api/locks?filter=l0777&sort=held");
        let seen = found.until("locks", |it| it["locks"] == MANY);
        assert_eq!(
            (&seen["matching"], &seen["rows"][9]["path"]),
            (&10.into(), &"/l07779".into())
        );
        session.delete(&entries[7_771], None).await.unwrap();
        found.until("locks", |it| it["matching"] == 9);
        list.until("locks", |it| it["locks"] == MANY - 1);
    });
}

#[test]
fn a_queue_of_ten_thousand_is_shown_a_part_at_a_time() {
    let store = StoreAt::served();
    block_on(async {
        let client = store.connect().await;
        let session = client.session().await.unwrap();
        let lock = "/queue".parse().unwrap();
        session
            .create(&lock, "", CreateMode::Persistent)
            .await
            .unwrap();
        let names = (0..=MANY).map(|_| "/queue/_c_x-lock-".to_owned());
        let entries = enter(&session, names).await;
        let dashboard = Dashboard::start(&store, &[]);
        let path = "/api/lock?path=/queue&offset=5000&limit=200";
        let mut queue = Events::of(dashboard.at(), path);
        let seen = queue.until("lock", |it| it["waiters"] == MANY);
        assert_eq!(
            (&seen["holder_count"], &seen["offset"]),
            (&1.into(), &5_000.into())
        );
        let part = seen["queue"].as_array().unwrap();
        assert_eq!((part.len(), &part[0]["position"]), (200, &5_001.into()));
        assert_eq!(part[0]["entry"], entries[5_001].as_str());
        let mut end = Events::of(dashboard.at(), "/api/lock?path=/queue&offset=99999&limit=3");
        let seen = end.until("lock", |it| it["waiters"] == MANY);
        assert_eq!(
            (&seen["offset"], seen["queue"].as_array().unwrap().len()),
            (&9_997.into(), 3)
        );
        session.delete(&entries[0], None).await.unwrap();
        let seen = queue.until("lock", |it| it["waiters"] == MANY - 1);
        assert_eq!(seen["holders"][0]["entry"], entries[1].as_str());
        assert_eq!(seen["queue"][0]["entry"], entries[5_002].as_str());
    });
}
