//! `lockkeeper locks`.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper::{
    Election, LockOptions, LockPath, Mutex, RevokeTarget, Revoker, RwLock, Semaphore, list_locks,
    observe_locks,
};
use lockkeeper_store::{CreateMode, Op};
use serde_json::Value;

use super::stores::*;
use super::support::*;

/// A name whose characters could break a table or a terminal.
const ODD: &str = "a b\n\u{1b}[31mred\u{202e}/ä";

pub(crate) fn named(name: &str) -> LockPath {
    LockPath::new("/locks").unwrap().key(name)
}

pub(crate) fn objects(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

on_each_store! {
    async fn every_lock_is_shown_with_its_holder(store: StoreAt) {
        let client = store.connect().await;
        assert_eq!(success(&store.run(&["locks", "--json"])), "");
        let options = LockOptions::new().label("night run").expected_hold(Duration::from_millis(1));
        let guard = Mutex::new(&client, named("jobs/a")).unwrap().lock_with(options).await.unwrap();
        let _odd = Mutex::new(&client, named(ODD)).unwrap().lock().await.unwrap();
        let _permits = Semaphore::new(&client, "/app/quota", 5).unwrap().acquire_many(2).await.unwrap();
        let _leader = Election::new(&client, "/app/leader").unwrap().campaign("me").await.unwrap();
        let _reader = RwLock::new(&client, "/app/rw").unwrap().read().await.unwrap();

        let seen = objects(&success(&store.run(&["locks", "--json"])));
        let names: Vec<_> = seen.iter().map(|it| (it["lock"].as_str().unwrap(), it["kind"].as_str().unwrap())).collect();
        assert_eq!(names, [
            ("/app/leader", "election"),
            ("/app/quota", "semaphore"),
            ("/app/rw", "rwlock"),
            (ODD, "mutex"),
            ("jobs/a", "mutex"),
        ]);
        let job = seen.last().unwrap();
        assert_eq!(job["path"], "/locks/jobs%2Fa");
        assert_eq!(job["waiters"], 0);
        let holder = &job["holders"][0];
        assert_eq!(holder["token"], guard.fencing_token().to_string());
        assert_eq!(holder["session"], guard.session().id().to_string());
        assert_eq!(holder["entry"], guard.path().as_str());
        assert_eq!(holder["label"], "night run");
        assert_eq!(holder["pid"], std::process::id());
        assert_eq!(holder["expected_ms"], 1);
        assert_eq!(seen[1]["holders"].as_array().unwrap().len(), 2);

        let table = success(&store.run(&["locks"]));
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 7, "one line for each holder: {table}");
        assert!(lines[0].starts_with("LOCK") && lines[0].ends_with("LABEL"), "{table}");
        assert!(lines[5].starts_with(r"a b\n\u{1b}[31mred\u{202e}/ä  mutex"), "{table}");
        assert!(lines[6].starts_with("jobs/a  ") && lines[6].ends_with("night run"), "{table}");
        assert!(!table.contains('\u{1b}'), "{table:?}");

        let some = |prefix| objects(&success(&store.run(&["locks", prefix, "--json"]))).len();
        assert_eq!([some("jobs/"), some("jobs/b"), some("/app"), some("/app/quota"), some("/")], [1, 0, 3, 1, 5]);
    }

    /// A terminal has at most 65,535 columns, so its widest table is not wider.
    async fn a_long_text_hides_no_other_lock(store: StoreAt) {
        let client = store.connect().await;
        let long = LockOptions::new().label("日".repeat(40_000)).reason("y".repeat(40_000));
        let _long = Mutex::new(&client, named("long")).unwrap().lock_with(long).await.unwrap();
        let short = LockOptions::new().label("short");
        let _short = Mutex::new(&client, named("other")).unwrap().lock_with(short).await.unwrap();
        let table = success(&store.run(&["locks"]));
        let lines: Vec<_> = table.lines().collect();
        assert!(lines.len() == 3 && lines[1].starts_with("long  ") && lines[1].ends_with('…'), "{table}");
        assert!(lines[2].starts_with("other  ") && lines[2].ends_with("short"), "{table}");
        let queue = success(&store.run(&["who", "long"]));
        for line in table.lines().chain(queue.lines()) {
            assert!(line.chars().count() < 2_000, "{line}");
        }
    }

    async fn the_data_of_a_leader_are_shown(store: StoreAt) {
        let client = store.connect().await;
        let election = Election::new(&client, named("leader")).unwrap();
        let _leader = election.campaign("me:8080\u{202e}").await.unwrap();
        let seen = objects(&success(&store.run(&["who", "leader", "--json"])));
        assert_eq!(seen[0]["data"], "me:8080\u{202e}");
        let seen = objects(&success(&store.run(&["locks", "--json"])));
        assert_eq!(seen[0]["holders"][0]["data"], "me:8080\u{202e}");
        for arguments in [&["who", "leader"][..], &["locks"]] {
            let shown = success(&store.run(arguments));
            assert!(shown.contains(r"me:8080\u{202e}"), "{shown}");
        }
    }

    async fn a_reader_that_has_gone_is_no_failure(store: StoreAt) {
        let client = store.connect().await;
        let _guard = Mutex::new(&client, named("a")).unwrap().lock().await.unwrap();
        for arguments in [&["locks"][..], &["locks", "--json"], &["who", "a"], &["who", "a", "--json"]] {
            let mut child = store.command(arguments);
            let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stdout.take());
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!((child.wait().unwrap().code(), &*said), (Some(0), ""));
        }
    }
}

on_each_znode_store! {
    async fn a_hold_counts_from_its_grant(store: StoreAt) {
        const WAIT: Duration = Duration::from_secs(1);
        let [first, second] = [store.connect().await, store.connect().await];
        let options = || LockOptions::new().expected_hold(Duration::from_millis(1));
        let (mutex, rw, permits, election) = (named("mutex"), named("rw"), named("permits"), named("election"));
        let held = (
            Mutex::new(&first, &mutex).unwrap().lock().await.unwrap(),
            RwLock::new(&first, &rw).unwrap().write().await.unwrap(),
            Semaphore::new(&first, &permits, 1).unwrap().acquire().await.unwrap(),
            Election::new(&first, &election).unwrap().campaign("me").await.unwrap(),
        );
        let wait = async move {
            let mutex = Mutex::new(&second, mutex).unwrap();
            let rw = RwLock::new(&second, rw).unwrap();
            let permits = Semaphore::new(&second, permits, 1).unwrap();
            let election = Election::new(&second, election).unwrap();
            tokio::try_join!(
                mutex.lock_with(options()),
                rw.read_with(options()),
                permits.acquire_with(1, options()),
                election.campaign_with("you", options()),
            )
        };
        let waiting = tokio::spawn(wait);
        let mut changes = observe_locks(&first, "/locks").unwrap();
        while list_locks(&first, "/locks").await.unwrap().locks.iter().map(|it| it.waiters).sum::<usize>() < 4 {
            changes.next().await.unwrap().unwrap();
        }
        let waited = Instant::now();
        while waited.elapsed() < WAIT {
            tokio::time::sleep(WAIT).await;
        }
        let granted = Instant::now();
        drop(held);
        let _holders = waiting.await.unwrap().unwrap();
        let seen = objects(&success(&store.run(&["locks", "--json"])));
        // Allow 10 ms more, because the clocks of two processes may differ by a tick.
        let most = granted.elapsed().as_millis() as u64 + 10;
        assert_eq!(seen.len(), 4, "{seen:?}");
        for lock in &seen {
            let holder = &lock["holders"][0];
            // The entry of a permit is created at its grant, so its grant time is known. ZooKeeper does not record the
            // grant times of other entries.
            if store.url.starts_with("zookeeper:") && lock["kind"] != "semaphore" {
                let unknown = ["held_ms", "due_ms", "overdue_ms", "granted_ms"];
                assert!(unknown.iter().all(|field| holder[field].is_null()), "{lock}");
            } else {
                let of = |field: &str| holder[field].as_u64().unwrap();
                assert!(of("held_ms") <= most && of("overdue_ms") <= most, "{most}: {lock}");
            }
        }
        let table = success(&store.run(&["locks", "mutex"]));
        let cells = table.lines().last().unwrap().split("  ").map(str::trim);
        let row: Vec<_> = cells.filter(|it| !it.is_empty()).collect();
        let who = success(&store.run(&["who", "mutex"]));
        if store.url.starts_with("zookeeper:") {
            assert!(row[3].starts_with("queued ") && row[5] == "-", "{table}");
            assert!(who.contains("  queued "), "{who}");
        } else {
            assert!(!table.contains("queued") && row[5] != "-", "{table}");
            assert!(!who.contains("queued"), "{who}");
        }
    }

    async fn a_chroot_is_created_when_it_is_asked_for(store: StoreAt) {
        let url = format!("{}/tenants/a", store.url);
        let output = store.run(&["locks", "--url", &url]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("--create-chroot") && !said.contains("ConnectOptions"), "{said}");
        success(&store.run(&["locks", "--url", &url, "--create-chroot"]));
        // The guardian process also uses the options of the command line.
        let url = format!("{url}/b");
        success(&store.run(&["run", "--url", &url, "--create-chroot", "a", "--", "true"]));
        success(&store.run(&["locks", "--url", &url]));
    }

    async fn ten_thousand_locks_are_listed(store: StoreAt) {
        const LOCKS: usize = 10_000;
        let client = store.connect().await;
        let session = client.session().await.unwrap();
        session.create_all(&"/locks".parse().unwrap(), CreateMode::Persistent).await.unwrap();
        for chunk in (0..LOCKS).collect::<Vec<_>>().chunks(1_000) {
            let create = |path, mode| Op::Create(lockkeeper_store::Create {
                path, data: "{\"v\":1}".into(), mode, acl: session.acl().clone(),
            });
            let ops = chunk.iter().flat_map(|number| {
                let lock = named(&number.to_string());
                let entry = lock.as_znode().join("_c_x-lock-").unwrap();
                [create(lock.as_znode().clone(), CreateMode::Persistent), create(entry, CreateMode::EphemeralSequential)]
            });
            session.multi(ops.collect::<Vec<_>>()).await.unwrap();
        }
        assert_eq!(success(&store.run(&["locks"])).lines().count(), LOCKS + 1);
        assert_eq!(success(&store.run(&["locks", "99", "--json"])).lines().count(), 111);
    }
}

#[test]
fn a_store_that_is_not_there_and_wrong_prefixes_have_statuses_of_their_own() {
    let store = StoreAt::served();
    for arguments in [
        &["locks", ""][..],
        &["locks", "/a//b"],
        &["who", ""],
        &["who", "/"],
        &["who"],
        &["locks", "--url", "x://y"],
    ] {
        let output = store.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {output:?}");
    }
    let url = store.url.clone();
    drop(store);
    for command in ["locks", "who"] {
        let mut arguments = vec![command, "--url", &url, "--connect-timeout", "200ms"];
        arguments.extend((command == "who").then_some("a"));
        let output = lockkeeper(&arguments.iter().map(|it| it as _).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

mod who {
    use super::*;

    on_each_store! {
        async fn a_queue_is_shown_in_full(store: StoreAt) {
            let client = store.connect().await;
            assert_eq!(success(&store.run(&["who", "a"])), "a: free, and nobody waits\n");
            assert_eq!(success(&store.run(&["who", "a", "--json"])), "");
            let mutex = Mutex::new(&client, named("a")).unwrap();
            let options = LockOptions::new().label("first").reason("rows\u{1b}[2J").backtrace();
            let guard = mutex.lock_with(options.auto_unlock_after(Duration::from_secs(65))).await.unwrap();
            let other = Mutex::new(&store.connect().await, named("a")).unwrap();
            let mut waits = Vec::new();
            for label in ["second", "third"] {
                let (other, path) = (other.clone(), named("a"));
                let options = LockOptions::new().label(label);
                let before = lockkeeper::queue(&client, &path).await.unwrap().len();
                waits.push(tokio::spawn(async move { other.lock_with(options).await }));
                let mut queue = lockkeeper::observe(&client, &path).unwrap();
                while queue.next().await.unwrap().unwrap().len() == before {}
            }
            let revoker = Revoker::new(&client).by("jane");
            revoker.request(&RevokeTarget::holder(named("a")).unwrap()).await.unwrap();

            let seen = objects(&success(&store.run(&["who", "a", "--json"])));
            let of = |field: &str| seen.iter().map(|it| it[field].clone()).collect::<Vec<_>>();
            assert_eq!(of("label"), ["first", "second", "third"]);
            assert_eq!(of("position"), [0, 1, 2]);
            assert_eq!(of("holds"), [true, false, false]);
            assert_eq!(seen[0]["token"], guard.fencing_token().to_string());
            assert_eq!(seen[0]["revocation"]["by"], "jane");
            assert_eq!(seen[0]["auto_unlock_ms"], 65_000);
            assert!(seen[0]["backtrace"].as_str().unwrap().contains("locks"), "{seen:?}");
            assert_eq!(seen[1]["held_ms"], Value::Null);

            let shown = success(&store.run(&["who", "/locks/a"]));
            let lines: Vec<_> = shown.lines().collect();
            assert_eq!(lines[0], "a: mutex, 1 holding, 2 waiting");
            assert!(lines[3].starts_with("holds  ") && lines[3].ends_with("first"), "{shown}");
            assert!(lines[4].starts_with("1  ") && lines[5].starts_with("2  "), "{shown}");
            for part in [" ago by jane, request number 1", "may be unlocked after: 1m 5s", r"reason: rows\u{1b}[2J", "acquired at:"] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
            assert!(!shown.contains('\u{1b}'), "{shown:?}");
            waits.iter().for_each(|wait| wait.abort());
        }

        async fn a_semaphores_permits_and_waiters_are_one_queue(store: StoreAt) {
            let client = store.connect().await;
            let quota = Semaphore::new(&client, named("quota"), 2).unwrap();
            let _permits = quota.acquire_many(2).await.unwrap();
            let waiting = quota.clone();
            let wait = tokio::spawn(async move { waiting.acquire().await });
            let mut queue = lockkeeper::observe(&client, named("quota").as_znode().join("locks").unwrap()).unwrap();
            while queue.next().await.unwrap().unwrap().is_empty() {}
            let seen = objects(&success(&store.run(&["who", "quota", "--json"])));
            let positions: Vec<_> = seen.iter().map(|it| it["position"].as_u64().unwrap()).collect();
            assert_eq!(positions, [0, 0, 1]);
            let shown = success(&store.run(&["who", "quota"]));
            assert!(shown.starts_with("quota: semaphore, 2 holding, 1 waiting\n"), "{shown}");
            wait.abort();
        }
    }
}

mod watch {
    use std::fs::File;
    use std::io::{BufRead, BufReader};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};
    use testkit::ChildProcess;

    use super::*;

    on_each_store! {
        async fn a_pipe_gets_a_line_for_each_change(store: StoreAt) {
            let client = store.connect().await;
            let mutex = Mutex::new(&client, named(ODD)).unwrap();
            let guard = mutex.lock().await.unwrap();
            let start = |arguments: &[&str]| {
                let mut child = ChildProcess::spawn(store.command(arguments).stdout(Stdio::piped()));
                let out = BufReader::new(child.stdout.take().unwrap());
                (child, out.lines().map(Result::unwrap))
            };
            let (_text, mut lines) = start(&["locks", "--watch"]);
            let (mut json, mut objects) = start(&["locks", "--watch", "--json"]);
            let line = lines.next().unwrap();
            assert!(line.starts_with(r"held   a b\n\u{1b}[31mred\u{202e}/ä  mutex  "), "{line}");
            let object: Value = serde_json::from_str(&objects.next().unwrap()).unwrap();
            assert_eq!((&object["event"], &object["lock"]), (&"held".into(), &ODD.into()));
            guard.release().await.unwrap();
            assert_eq!(lines.next().unwrap(), r"freed  a b\n\u{1b}[31mred\u{202e}/ä");
            let object: Value = serde_json::from_str(&objects.next().unwrap()).unwrap();
            assert_eq!((&object["event"], &object["lock"]), (&"freed".into(), &ODD.into()));
            drop(objects);
            let _guard = mutex.lock().await.unwrap();
            assert_eq!(json.wait().unwrap().code(), Some(0), "nobody reads it");
        }

        async fn a_terminal_shows_all_that_fits(store: StoreAt) {
            let client = store.connect().await;
            let mut guards = Vec::new();
            for name in ["a", "b", "c", "d"] {
                guards.push(Mutex::new(&client, named(name)).unwrap().lock().await.unwrap());
            }
            let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
            grantpt(&terminal).unwrap();
            unlockpt(&terminal).unwrap();
            let size = Winsize { ws_row: 5, ws_col: 20, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&terminal, size).unwrap();
            let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
            let side = File::options().read(true).write(true).open(name).unwrap();
            let mut command = store.command(&["locks", "--watch"]);
            let _watching = ChildProcess::spawn(command.stdout(side.try_clone().unwrap()));
            let mut shown = File::from(terminal);
            // Each screen starts by moving the cursor to the top. We read until this sequence, which ends the previous
            // screen.
            let mut screen = || {
                let mut text = Vec::new();
                while !text.ends_with(b"\x1b[H\x1b[J") {
                    let mut byte = [0];
                    shown.read_exact(&mut byte).unwrap();
                    text.extend(byte);
                }
                String::from_utf8(text).unwrap()
            };
            screen();
            let first = screen();
            let lines: Vec<_> = first.split("\r\n").collect();
            assert_eq!(lines.len(), 4, "{first:?}");
            assert!(lines[..3].iter().all(|line| line.chars().count() <= 20), "{first:?}");
            assert!(lines[0].starts_with("LOCK") && lines[1].starts_with("a "), "{first:?}");
            assert!(lines[3].starts_with("… 2 more"), "{first:?}");
            guards.clear();
            while screen().contains("mutex") {}
        }
    }
}
