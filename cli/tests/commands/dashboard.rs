//! `lockkeeper dashboard` and `serve --dashboard`.

mod access;
mod browser;
pub(crate) mod client;
mod hostile;
mod large;
mod revoking;
mod starts;

use std::time::Duration;

use lockkeeper::{LockOptions, Mutex, Semaphore};
use serde_json::Value;

use super::locks::{named, objects};
use super::stores::*;
use super::support::*;
use super::waiter::Waiter;
use client::*;

/// A label that a page must show as text and not interpret.
const LABEL: &str = "</pre><script>alert(1)</script>\"\u{2028}\n";

fn sum(handovers: &Value) -> u64 {
    let counts = handovers["counts"].as_array().unwrap();
    counts.iter().map(|it| it.as_u64().unwrap()).sum()
}

on_each_store! {
    async fn the_locks_are_shown_as_they_change(store: StoreAt) {
        let client = store.connect().await;
        let dashboard = Dashboard::start(&store, &[]);
        let at = dashboard.at();
        let about = parsed(&get(at, "/api/about", &[]));
        assert_eq!(about["store"], store.url);
        assert_eq!((&about["prefix"], &about["revoke"]), (&"/".into(), &false.into()));
        assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));

        // Wait until the dashboard has read the locks. If a lock exists at the first read, its grant time is unknown.
        Events::of(at, "/api/locks").until("store", |it| it["state"] == "connected");
        let mut list = Events::of(at, "/api/locks?limit=10");
        let empty = list.until("locks", |it| it["locks"] == 0);
        assert_eq!((&empty["rows"], &empty["complete"]), (&Value::Array(vec![]), &true.into()));
        let options = LockOptions::new().label(LABEL).expected_hold(Duration::from_millis(1));
        let guard = Mutex::new(&client, named("jobs/a")).unwrap().lock_with(options).await.unwrap();
        let seen = list.until("locks", |it| it["locks"] == 1 && it["overdue"] == 1);
        assert_eq!((&seen["held"], &seen["matching"], &seen["waiters"]), (&1.into(), &1.into(), &0.into()));
        // The row is equal to the output of `locks --json`, except for elapsed times and the grant time. A ZooKeeper
        // does not record the grant time, but the dashboard has observed it.
        let mut expected = objects(&success(&store.run(&["locks", "--json"]))).remove(0);
        let mut row = seen["rows"][0].clone();
        assert_eq!(row["holders"][0]["label"], LABEL);
        assert_eq!(row.as_object_mut().unwrap().remove("holder_count"), Some(1.into()));
        for lock in [&mut row, &mut expected] {
            for time in ["held_ms", "overdue_ms", "granted_ms", "due_ms"] {
                lock["holders"][0][time].take();
            }
        }
        assert_eq!(row, expected);

        let mut queue = Events::of(at, "/api/lock?path=%2Flocks%2Fjobs%252Fa");
        let alone = queue.until("lock", |it| it["exists"] == true);
        assert_eq!((&alone["waiters"], &alone["holder_count"]), (&0.into(), &1.into()));
        let second = Waiter::start(&store, named("jobs/a"));
        list.until("locks", |it| it["rows"][0]["waiters"] == 1);
        let seen = queue.until("lock", |it| it["waiters"] == 1);
        assert_eq!(seen["holders"][0]["token"], guard.fencing_token().to_string());
        let waiter = &seen["queue"][0];
        assert_eq!((&waiter["position"], &waiter["label"]), (&1.into(), &"second".into()));
        let due = seen["holders"][0]["granted_ms"].as_i64().unwrap() + 1;
        assert_eq!((&seen["holders"][0]["due_ms"], &waiter["due_ms"]), (&due.into(), &Value::Null));
        assert!(waiter["backtrace"].as_str().is_some_and(|it| it.contains("waiter.rs")), "{waiter}");
        guard.release().await.unwrap();
        list.until("handovers", |it| sum(it) == 1);
        let seen = queue.until("lock", |it| it["holders"][0]["label"] == "second");
        assert_eq!((&seen["waiters"], &seen["kind"]), (&0.into(), &"mutex".into()));
        second.release();
        queue.until("lock", |it| it["exists"] == false);
        list.until("locks", |it| it["locks"] == 0);
        // A later viewer also receives the earlier seconds of the plot.
        let plot = Events::of(at, "/api/locks").until("handovers", |_| true);
        assert_eq!((plot["counts"].as_array().unwrap().len(), sum(&plot)), (600, 1));
    }

    async fn a_prefix_hides_the_other_locks(store: StoreAt) {
        let client = store.connect().await;
        let _other = Mutex::new(&client, named("other")).unwrap().lock().await.unwrap();
        let _job = Mutex::new(&client, named("jobs/a")).unwrap().lock().await.unwrap();
        let dashboard = Dashboard::start(&store, &["jobs/"]);
        let at = dashboard.at();
        assert_eq!(parsed(&get(at, "/api/about", &[]))["prefix"], "jobs/");
        let seen = Events::of(at, "/api/locks").until("locks", |it| it["locks"] != 0);
        assert_eq!((&seen["locks"], &seen["rows"][0]["lock"]), (&1.into(), &"jobs/a".into()));
        let hidden = get(at, "/api/lock?path=/locks/other", &[]);
        assert_eq!(hidden.status, 404, "{hidden:?}");
    }

    async fn rows_are_sorted_filtered_and_cut_to_a_window(store: StoreAt) {
        let client = store.connect().await;
        let mut guards = Vec::new();
        for name in ["a", "b", "c", "d"] {
            let options = LockOptions::new().label(format!("{name}-LABEL"));
            let options = match name {
                "c" => options.expected_hold(Duration::from_millis(1)),
                _ => options,
            };
            guards.push(Mutex::new(&client, named(name)).unwrap().lock_with(options).await.unwrap());
        }
        let _permits = Semaphore::new(&client, "/app/quota", 9).unwrap().acquire_many(5).await.unwrap();
        let waiter = Waiter::start(&store, named("b"));
        let dashboard = Dashboard::start(&store, &[]);
        let rows = |query: &str| {
            let mut list = Events::of(dashboard.at(), &format!("/api/locks?{query}"));
            let seen = list.until("locks", |it| it["locks"] == 5 && it["waiters"] == 1 && it["overdue"] == 1);
            let rows = seen["rows"].as_array().unwrap().iter().map(|it| it["lock"].as_str().unwrap().to_owned());
            (rows.collect::<Vec<_>>().join(" "), seen["matching"].as_u64().unwrap(), seen["offset"].as_u64().unwrap())
        };
        assert_eq!(rows(""), ("/app/quota a b c d".into(), 5, 0));
        assert_eq!(rows("reverse=true&limit=2"), ("d c".into(), 5, 0));
        assert_eq!(rows("offset=1&limit=2"), ("a b".into(), 5, 1));
        assert_eq!(rows("offset=77&limit=2"), ("c d".into(), 5, 3));
        assert_eq!(rows("sort=waiters&limit=1"), ("b".into(), 5, 0));
        assert_eq!(rows("sort=overdue&limit=1"), ("c".into(), 5, 0));
        assert_eq!(rows("sort=held").0.split(' ').count(), 5);
        assert_eq!(rows("filter=-laBel&offset=1&limit=2"), ("b c".into(), 4, 1));
        assert_eq!(rows("filter=no+such"), ("".into(), 0, 0));
        let quota = Events::of(dashboard.at(), "/api/locks?filter=quota").until("locks", |it| it["matching"] == 1);
        let quota = &quota["rows"][0];
        assert_eq!((quota["holders"].as_array().unwrap().len(), &quota["holder_count"]), (3, &5.into()));
        drop(guards);
        waiter.release();
    }
}

on_stores! {
    [unix, mortal_zookeeper]
    fn a_store_that_goes_away_is_told_and_shown_again(store: StoreAt) {
        let mut store = store;
        let waiter = Waiter::start(&store, named("a"));
        let dashboard = Dashboard::start(&store, &["--session-timeout", "6s", "--connect-timeout", "1s"]);
        let mut list = Events::of(dashboard.at(), "/api/locks");
        list.until("locks", |it| it["held"] == 1);
        store.go_away();
        list.until("store", |it| it["state"] == "suspended" || it["state"] == "lost");
        // A new viewer is also informed of the loss, and sees the last known state.
        let mut late = Events::of(dashboard.at(), "/api/locks");
        let (name, state) = late.next().unwrap();
        assert_eq!(name, "store");
        assert_ne!(state["state"], "connected");
        store.come_back();
        list.until("store", |it| it["state"] == "connected");
        late.until("store", |it| it["state"] == "connected");
        drop(waiter);
    }
}
