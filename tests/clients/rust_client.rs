//! Every kind of request that zookeeper-client can send. See checks.py for the output and its format.
#![allow(missing_docs, reason = "a script")]

use std::fmt::Debug;
use std::future::pending;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use async_executor::Executor;
use zookeeper_client::{
    Acl, Acls, AddWatchMode, AuthId, Client, CreateMode, CreateOptions, EnsembleUpdate, Error,
    EventType, LockOptions, LockPrefix, MultiReadResult, MultiWriteError, MultiWriteResult,
    OneshotWatcher, Permission, PersistentWatcher, SessionState, Stat, StateWatcher, WatchedEvent,
};

const PATIENCE: Duration = Duration::from_secs(30);
const OPEN: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
const NUMBERED: CreateOptions<'static> =
    CreateMode::PersistentSequential.with_acls(Acls::anyone_all());

type Tried = Result<(), Box<dyn std::error::Error>>;

static EXECUTOR: Executor<'static> = Executor::new();

struct Spawner;

impl spawns_core::Spawn for Spawner {
    fn spawn(&self, task: spawns_core::Task) {
        EXECUTOR.spawn(Box::into_pin(task.future)).detach();
    }
}

fn main() {
    std::thread::spawn(|| {
        let _spawner = spawns_core::enter(&Spawner);
        async_io::block_on(EXECUTOR.run(pending::<()>()));
    });
    let _spawner = spawns_core::enter(&Spawner);
    if let Err(error) = async_io::block_on(all()) {
        println!("DIFFERENT an error that nobody expected: {error:?}");
        std::process::exit(1);
    }
}

async fn all() -> Tried {
    let (client, other) = (connected(&hosts()).await?, connected(&hosts()).await?);
    creating(&client).await?;
    reading_and_writing(&client).await?;
    multis(&client).await?;
    watching(&client, &other).await?;
    rights(&client).await?;
    pipelining(&client).await?;
    locks(&client, &other).await?;
    sessions(&other).await?;
    restarts().await
}

fn known(name: &str) -> bool {
    std::env::var(format!("EXPECT_{name}")).is_ok_and(|value| value == "yes")
}

fn hosts() -> String {
    std::env::var("HOSTS").expect("run.py says where the server is")
}

fn wire() -> String {
    std::env::var("WIRE").expect("run.py says where the wire is")
}

fn check<T: Debug + PartialEq<U>, U: Debug>(name: &str, got: T, expected: U) {
    if got != expected {
        println!("DIFFERENT {name}: got {got:?}, expected {expected:?}");
        std::process::exit(1);
    }
    println!("{name}: {got:?}");
}

fn fails<T: Debug>(name: &str, got: Result<T, Error>, expected: Error) {
    check(name, got.map(drop), Err::<(), _>(expected));
}

/// Returns the parts of a Stat that are the same on every server and in every run.
fn shape(stat: &Stat) -> String {
    format!(
        "version {}, cversion {}, aversion {}, {} bytes, {} children",
        stat.version, stat.cversion, stat.aversion, stat.data_length, stat.num_children
    )
}

fn order(word: &str) -> Tried {
    let control: u16 = std::env::var("CONTROL")?.parse()?;
    let mut wire = TcpStream::connect(("127.0.0.1", control))?;
    writeln!(wire, "{word}")?;
    let mut answer = String::new();
    BufReader::new(wire).read_line(&mut answer)?;
    check(word, answer, "ok\n");
    Ok(())
}

async fn connected(hosts: &str) -> Result<Client, Error> {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(50));
    connector.connect(hosts).await
}

/// Ends the script when nothing comes.
async fn in_time<T>(name: &str, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut timer = std::pin::pin!(async_io::Timer::after(PATIENCE));
    std::future::poll_fn(|context| {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(context) {
            return std::task::Poll::Ready(done);
        }
        if timer.as_mut().poll(context).is_ready() {
            println!("DIFFERENT {name}: nothing comes");
            std::process::exit(1);
        }
        std::task::Poll::Pending
    })
    .await
}

async fn fires(name: &str, watcher: OneshotWatcher, expected: &str) -> WatchedEvent {
    let event = in_time(name, watcher.changed()).await;
    check(
        name,
        format!("{} {}", event.event_type, event.path),
        expected,
    );
    event
}

async fn tells(name: &str, watcher: &mut PersistentWatcher, expected: &[&str]) {
    let mut told = Vec::new();
    while told.len() < expected.len() {
        let event = in_time(name, watcher.changed()).await;
        // It receives the session's states, too.
        if event.event_type != EventType::Session {
            told.push(format!("{} {}", event.event_type, event.path));
        }
    }
    check(name, told, expected);
}

async fn creating(client: &Client) -> Tried {
    let (stat, _) = client.create("/c", b"data", &OPEN).await?;
    check(
        "create",
        shape(&stat),
        "version 0, cversion 0, aversion 0, 4 bytes, 0 children",
    );
    fails(
        "again",
        client.create("/c", b"", &OPEN).await,
        Error::NodeExists,
    );
    fails(
        "no parent",
        client.create("/no/x", b"", &OPEN).await,
        Error::NoNode,
    );
    let (_, number) = client.create("/c/n-", b"", &NUMBERED).await?;
    check("numbered", number.to_string(), "0000000000");
    let (stat, _) = client.create("/c/e", b"", &EPHEMERAL).await?;
    check(
        "its owner",
        stat.ephemeral_owner == client.session_id().0,
        true,
    );
    let below = client.create("/c/e/x", b"", &OPEN).await;
    fails("below it", below, Error::NoChildrenForEphemerals);
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    let (stat, _) = client.create("/c/container", b"", &container).await?;
    check("container", stat.ephemeral_owner, 0);
    let ttl = OPEN.with_ttl(Duration::from_secs(60));
    let (stat, _) = client.create("/c/ttl", b"x", &ttl).await?;
    check(
        "TTL",
        shape(&stat),
        "version 0, cversion 0, aversion 0, 1 bytes, 0 children",
    );
    client.mkdir("/c/m/k/dir", &OPEN).await?;
    check(
        "mkdir",
        client.check_stat("/c/m/k/dir").await?.is_some(),
        true,
    );
    let inner = client.clone().chroot("/c/m").map_err(|_| "a chroot")?;
    inner.create("/x", b"", &OPEN).await?;
    check(
        "in a chroot",
        client.check_stat("/c/m/x").await?.is_some(),
        true,
    );
    Ok(())
}

async fn reading_and_writing(client: &Client) -> Tried {
    client.create("/r", b"one", &OPEN).await?;
    let (data, _) = client.get_data("/r").await?;
    check("get", data, b"one");
    let stat = client.set_data("/r", b"second", Some(0)).await?;
    check(
        "set",
        shape(&stat),
        "version 1, cversion 0, aversion 0, 6 bytes, 0 children",
    );
    let late = client.set_data("/r", b"", Some(0)).await;
    fails("set of a wrong version", late, Error::BadVersion);
    fails(
        "get of nothing",
        client.get_data("/none").await,
        Error::NoNode,
    );
    check(
        "exists of nothing",
        client.check_stat("/none").await?.is_some(),
        false,
    );
    client.create("/r/x", b"", &EPHEMERAL).await?;
    check("list", client.list_children("/r").await?, vec!["x"]);
    let (children, stat) = client.get_children("/r").await?;
    check("children", children, vec!["x"]);
    check(
        "and stat",
        shape(&stat),
        "version 1, cversion 1, aversion 0, 6 bytes, 1 children",
    );
    check(
        "descendants",
        client.count_descendants_number("/r").await?,
        1,
    );
    check(
        "ephemerals",
        client.list_ephemerals("/r").await?,
        vec!["/r/x"],
    );
    fails(
        "delete with children",
        client.delete("/r", None).await,
        Error::NotEmpty,
    );
    client.delete("/r/x", Some(0)).await?;
    client.sync("/r").await?;
    check("config", client.get_config().await?.0.len(), 0);
    let ensemble = EnsembleUpdate::New {
        ensemble: ["server.1=localhost:1:2;3"].into_iter(),
    };
    let refused = client.update_ensemble(ensemble, None).await;
    fails("reconfig", refused, Error::Unimplemented);
    Ok(())
}

async fn multis(client: &Client) -> Tried {
    let mut writer = client.new_multi_writer();
    writer.add_create("/m", b"m", &OPEN)?;
    writer.add_create("/m/n-", b"", &NUMBERED)?;
    writer.add_check_version("/m", 0)?;
    writer.add_set_data("/m", b"more", Some(0))?;
    writer.add_delete("/m/n-0000000000", None)?;
    let results = writer.commit().await?;
    let [
        MultiWriteResult::Create { path, stat: first },
        MultiWriteResult::Create { path: numbered, .. },
        MultiWriteResult::Check,
        MultiWriteResult::SetData { stat },
        MultiWriteResult::Delete,
    ] = results.as_slice()
    else {
        return Err(format!("these results: {results:?}").into());
    };
    check(
        "made",
        (path.as_str(), numbered.as_str()),
        ("/m", "/m/n-0000000000"),
    );
    check(
        "set",
        shape(stat),
        "version 1, cversion 1, aversion 0, 4 bytes, 1 children",
    );
    let is_told = first.czxid == stat.mzxid;
    check(
        "~ create tells its stat",
        is_told,
        known("MULTI_CREATE2_TELLS_STAT"),
    );
    let mut writer = client.new_multi_writer();
    writer.add_create("/m/first", b"", &OPEN)?;
    writer.add_check_version("/m", 9)?;
    writer.add_delete("/m", None)?;
    let failure = MultiWriteError::OperationFailed {
        index: 1,
        source: Error::BadVersion,
    };
    check(
        "one that fails",
        writer.commit().await.map(drop),
        Err::<(), _>(failure),
    );
    check(
        "nothing came of it",
        client.check_stat("/m/first").await?.is_some(),
        false,
    );
    let mut reader = client.new_multi_reader();
    reader.add_get_data("/m")?;
    reader.add_get_children("/m")?;
    reader.add_get_data("/none")?;
    let results = reader.commit().await?;
    let [
        MultiReadResult::Data { data, .. },
        MultiReadResult::Children { children },
        MultiReadResult::Error { err },
    ] = results.as_slice()
    else {
        return Err(format!("these results: {results:?}").into());
    };
    check(
        "a multi of reads",
        (data.as_slice(), children.len()),
        (&b"more"[..], 0),
    );
    check("and its failure", err.clone(), Error::NoNode);
    Ok(())
}

async fn watching(client: &Client, other: &Client) -> Tried {
    client.create("/w", b"", &OPEN).await?;
    let (_, _, data) = client.get_and_watch_data("/w").await?;
    let (_, exists) = client.check_and_watch_stat("/w/x").await?;
    let (_, children) = client.list_and_watch_children("/w").await?;
    let stat = other.set_data("/w", b"1", None).await?;
    other.create("/w/x", b"", &OPEN).await?;
    let event = fires("data", data, "NodeDataChanged /w").await;
    check(
        "~ the event's zxid",
        event.zxid == stat.mzxid,
        known("EVENTS_TELL_ZXID"),
    );
    fires("exists", exists, "NodeCreated /w/x").await;
    fires("children", children, "NodeChildrenChanged /w").await;
    let (_, _, gone) = client.get_and_watch_data("/w/x").await?;
    let (_, _, listed) = client.get_and_watch_children("/w/x").await?;
    other.delete("/w/x", None).await?;
    fires("data of what goes", gone, "NodeDeleted /w/x").await;
    fires("children of what goes", listed, "NodeDeleted /w/x").await;
    let (_, _, removed) = client.get_and_watch_data("/w").await?;
    drop(removed);
    let mut flat = client.watch("/w", AddWatchMode::Persistent).await?;
    let mut tree = other.watch("/w", AddWatchMode::PersistentRecursive).await?;
    other.set_data("/w", b"2", None).await?;
    other.create("/w/y", b"", &OPEN).await?;
    client.create("/w/y/z", b"", &OPEN).await?;
    client.delete("/w/y/z", None).await?;
    let flat_told = ["NodeDataChanged /w", "NodeChildrenChanged /w"];
    tells("persistent", &mut flat, &flat_told).await;
    let told = [
        "NodeDataChanged /w",
        "NodeCreated /w/y",
        "NodeCreated /w/y/z",
        "NodeDeleted /w/y/z",
    ];
    tells("recursive", &mut tree, &told).await;
    drop(tree);
    other.delete("/w/y", None).await?;
    tells("the other stays", &mut flat, &["NodeChildrenChanged /w"]).await;
    drop(flat);
    Ok(())
}

async fn rights(client: &Client) -> Tried {
    let fred = connected(&hosts()).await?;
    fred.auth("digest", b"fred:secret").await?;
    let users: Vec<_> = fred.list_auth_users().await?;
    let users: Vec<_> = users
        .iter()
        .map(|one| format!("{}:{}", one.scheme(), one.user()))
        .collect();
    check("whoAmI", users, vec!["ip:127.0.0.1", "digest:fred"]);
    let own = CreateMode::Persistent.with_acls(Acls::creator_all());
    let refused = client.create("/a0", b"", &own).await;
    fails("not proven", refused, Error::InvalidAcl);
    fred.create("/a", b"a", &own).await?;
    let (list, _) = fred.get_acl("/a").await?;
    let expected = AuthId::new("digest", "fred:lVt6OABBJX49qC19kt5J5OU3Neo=");
    check("get_acl", list, vec![Acl::new(Permission::ALL, expected)]);
    fails("another's get", client.get_data("/a").await, Error::NoAuth);
    fails(
        "another's set",
        client.set_data("/a", b"", None).await,
        Error::NoAuth,
    );
    let readable = [Acl::new(Permission::READ, AuthId::anyone())];
    let stat = fred.set_acl("/a", &readable, Some(0)).await?;
    check(
        "set_acl",
        shape(&stat),
        "version 0, cversion 0, aversion 1, 1 bytes, 0 children",
    );
    check("another's get", client.get_data("/a").await?.0, b"a");
    let connector = Client::connector().with_auth("none", b"x");
    let failed = connector.connect(&hosts()).await.map(drop);
    check(
        "a scheme that is none",
        failed,
        Err::<(), _>(Error::AuthFailed),
    );
    Ok(())
}

async fn pipelining(client: &Client) -> Tried {
    client.create("/p", b"", &OPEN).await?;
    let paths: Vec<_> = (0..500_u32)
        .map(|number| (number, format!("/p/{number}")))
        .collect();
    // The client sends when it is called, not when it is awaited.
    let under_way: Vec<_> = paths
        .iter()
        .map(|(number, path)| {
            let made = client.create(path, path.as_bytes(), &OPEN);
            (number, made, client.get_data(path))
        })
        .collect();
    let mut right = 0;
    for (number, made, got) in under_way {
        made.await?;
        let (data, _) = got.await?;
        right += usize::from(data == format!("/p/{number}").as_bytes());
    }
    check("each is read behind its create", right, 500);
    Ok(())
}

async fn locks(client: &Client, other: &Client) -> Tried {
    let options = || LockOptions::from(Acls::anyone_all()).with_ancestor_options(OPEN);
    let prefix = || LockPrefix::new_curator("/lock", "lock-");
    let held = client.lock(prefix()?, b"", options()?).await?;
    let lock_path = held.lock_path().to_owned();
    check("a lock", lock_path.ends_with("lock-0000000000"), true);
    let waits = other.lock(prefix()?, b"", options()?);
    let mut waits = Box::pin(waits);
    until("the other is in the queue", 2, async || {
        let _ = futures_now(&mut waits).await;
        Ok(client.list_children("/lock").await?.len())
    })
    .await?;
    drop(held);
    let second = in_time("the other has it", waits).await?;
    check(
        "the other has it",
        second.lock_path().ends_with("lock-0000000001"),
        true,
    );
    Ok(())
}

/// One look at a future.
async fn futures_now<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready())
    })
    .await
}

/// Asks again and again, since no event announces this state.
async fn until<T: Debug + PartialEq>(
    name: &str,
    expected: T,
    mut get: impl AsyncFnMut() -> Result<T, Box<dyn std::error::Error>>,
) -> Tried {
    let start = Instant::now();
    let mut got = get().await?;
    while got != expected && start.elapsed() < PATIENCE {
        async_io::Timer::after(Duration::from_millis(20)).await;
        got = get().await?;
    }
    check(name, got, expected);
    Ok(())
}

async fn changes(name: &str, watcher: &mut StateWatcher, expected: SessionState) {
    while watcher.peek_state() != expected {
        in_time(name, watcher.changed()).await;
    }
    check(name, watcher.state(), expected);
}

async fn sessions(other: &Client) -> Tried {
    let client = connected(&wire()).await?;
    let mut states = client.state_watcher();
    check("timeout", client.session_timeout(), Duration::from_secs(50));
    client.create("/s", b"", &OPEN).await?;
    client.create("/s/e", b"", &EPHEMERAL).await?;
    client.create("/s/same", b"", &OPEN).await?;
    let (_, _, data) = client.get_and_watch_data("/s").await?;
    let (_, exists) = client.check_and_watch_stat("/s/new").await?;
    let (_, children) = client.list_and_watch_children("/s").await?;
    let (_, _, same) = client.get_and_watch_data("/s/same").await?;
    let mut flat = client.watch("/s/same", AddWatchMode::Persistent).await?;
    // A recursive one is told nothing more after a break, by no server: this client does not arm it again.
    order("cut")?;
    changes("it breaks", &mut states, SessionState::Disconnected).await;
    other.set_data("/s", b"1", None).await?;
    other.create("/s/new", b"", &OPEN).await?;
    order("heal")?;
    changes("it comes back", &mut states, SessionState::SyncConnected).await;
    fires("data", data, "NodeDataChanged /s").await;
    fires("exists", exists, "NodeCreated /s/new").await;
    fires("children", children, "NodeChildrenChanged /s").await;
    other.set_data("/s/same", b"1", None).await?;
    fires(
        "what was the same is armed again",
        same,
        "NodeDataChanged /s/same",
    )
    .await;
    tells("persistent", &mut flat, &["NodeDataChanged /s/same"]).await;
    drop(flat);
    // The session goes on in another client.
    let session = client.session().clone();
    let id = client.session_id();
    let connector = Client::connector().with_session_timeout(Duration::from_secs(50));
    // The first is cut off before, or the two would take the session from each other in turns, and
    // ZooKeeper may leave one of them without an answer.
    order("cut")?;
    changes("it breaks again", &mut states, SessionState::Disconnected).await;
    let second = connector.with_session(session).connect(&hosts()).await?;
    check("taken over", second.session_id() == id, true);
    let ephemeral = second.check_stat("/s/e").await?;
    check("the ephemeral is there", ephemeral.is_some(), true);
    let (_, gone) = other.check_and_watch_stat("/s/e").await?;
    drop(second);
    fires("closed by one", gone, "NodeDeleted /s/e").await;
    order("heal")?;
    changes("the other learns it", &mut states, SessionState::Expired).await;
    Ok(())
}

async fn restarts() -> Tried {
    let client = connected(&wire()).await?;
    let mut states = client.state_watcher();
    let id = client.session_id();
    for end in ["stop", "kill"] {
        let path = format!("/{end}");
        client.create(&path, b"before", &EPHEMERAL).await?;
        let (_, _, data) = client.get_and_watch_data(&path).await?;
        let mut flat = client.watch(&path, AddWatchMode::Persistent).await?;
        order(end)?;
        changes("it breaks", &mut states, SessionState::Disconnected).await;
        order("start")?;
        changes("it comes back", &mut states, SessionState::SyncConnected).await;
        let (before, stat) = client.get_data(&path).await?;
        check("what was acknowledged", before, b"before");
        check("its owner", stat.ephemeral_owner == id.0, true);
        let set = client.set_data(&path, b"after", None).await?;
        check("zxids grow", set.mzxid > stat.mzxid, true);
        let told = format!("NodeDataChanged {path}");
        fires("a watch", data, &told).await;
        tells("a persistent one", &mut flat, &[&told]).await;
    }
    Ok(())
}
