//! Contenders named by other libraries, created by hand: which of them block ours and which do not.

use lockkeeper::{
    LockError, LockEvent, LockEvents, LockOptions, RwLock, WriteGuard, lock_events, queue,
};
use lockkeeper_store::{CreateMode, Session, ZnodePath};
use testkit::on_every_backend;
use tokio::task::JoinHandle;

use crate::common::*;

/// A contender of go-zookeeper's Lock: 32 hexadecimal digits without dashes.
async fn go_zookeeper(session: &Session, guid: &str) -> ZnodePath {
    let name = path(&format!("{LOCK}/_c_{guid}-lock-"));
    let made = session
        .create(&name, "", CreateMode::EphemeralSequential)
        .await;
    made.unwrap().0
}

/// The number that go-zookeeper's `parseSeq` (lock.go) finds. It refuses a queue in which a name has none.
fn number_in_go(name: &str) -> Option<i64> {
    let last = match name.rsplit_once("lock-") {
        Some((_, number)) => number,
        None => name.rsplit("__").next()?,
    };
    last.parse().ok()
}

on_every_backend! {
    async fn a_contender_of_go_zookeepers_is_waited_for(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let session = world.observing().await;
        let holder = go_zookeeper(&session, "00112233445566778899aabbccddeeff").await;
        let mutex = world.mutex().await;
        assert!(mutex.try_lock().await.unwrap().is_none());
        let ours = world.queue_up(&mutex).await;
        let behind = go_zookeeper(&session, "ffeeddccbbaa99887766554433221100").await;

        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(entries[0].path, holder);
        assert_eq!(entries[2].path, behind);
        assert!(entries[0].metadata.is_none() && entries[0].data.is_empty());
        assert!(!ours.is_finished());
        session.delete(&holder, None).await.unwrap();
        let guard = granted(ours).await;
        assert_eq!(guard.path(), &entries[1].path);
        guard.release().await.unwrap();
        assert_eq!(world.children().await, [behind.name()]);
    }

    async fn go_zookeeper_finds_our_numbers(env: Env) {
        let world = World::new(env).await;
        let _holder = world.mutex().await.lock().await.unwrap();
        let _waiter = world.queue_up(&world.mutex().await).await;
        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(entries.len(), 2);
        for entry in entries {
            assert_eq!(number_in_go(entry.path.name()), Some(entry.sequence));
        }
    }
}

async fn curator(session: &Session, name: &str, mode: CreateMode) -> ZnodePath {
    let name = path(&format!("{LOCK}/_c_{name}"));
    session.create(&name, "127.0.0.1", mode).await.unwrap().0
}

/// Becomes a reader like Curator since 5.5: a new znode with the writer's number and any name.
async fn downgrade(session: &Session, writer: ZnodePath) -> ZnodePath {
    let number = &writer.name()[writer.name().len() - 10..];
    let name = format!("ffeeddcc-bbaa-4988-9766-554433221100-__READ__{number}");
    let reader = curator(session, &name, CreateMode::Ephemeral).await;
    session.delete(&writer, None).await.unwrap();
    reader
}

const WRITER: &str = "00112233-4455-4677-8899-aabbccddeeff-__WRIT__";
const READER: &str = "01234567-89ab-4cde-8f01-23456789abcd-__READ__";

type Writer = JoinHandle<Result<WriteGuard, LockError>>;

/// Returns our waiting writer, after its first event.
async fn waiting_writer(world: &World) -> (Writer, LockEvents) {
    let lock = RwLock::new(&world.client().await, LOCK).unwrap();
    let (sink, mut events) = lock_events();
    let options = LockOptions::new().events(sink);
    let waiter = tokio::spawn(async move { lock.write_with(options).await });
    let event = events.next().await;
    assert!(matches!(event, Some(LockEvent::Queued { .. })), "{event:?}");
    (waiter, events)
}

/// Asserts that it has looked again and still waits for one.
async fn still_waits(events: &mut LockEvents) {
    let event = events.next().await;
    let advanced = matches!(event, Some(LockEvent::Advanced { position: 1 }));
    assert!(advanced, "{event:?}");
}

on_every_backend! {
    async fn a_writer_becomes_a_reader_under_another_name(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let session = world.observing().await;
        // Gives the waiter a step to report.
        let step = curator(&session, READER, CreateMode::EphemeralSequential).await;
        let writer = curator(&session, WRITER, CreateMode::EphemeralSequential).await;
        let (waiter, mut events) = waiting_writer(&world).await;
        session.delete(&step, None).await.unwrap();
        let reader = downgrade(&session, writer).await;
        still_waits(&mut events).await;
        session.delete(&reader, None).await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }

    async fn the_same_while_another_was_watched(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let session = world.observing().await;
        let writer = curator(&session, WRITER, CreateMode::EphemeralSequential).await;
        let (first, _) = waiting_writer(&world).await;
        let (second, mut events) = waiting_writer(&world).await;
        let reader = downgrade(&session, writer).await;
        first.abort();
        still_waits(&mut events).await;
        session.delete(&reader, None).await.unwrap();
        second.await.unwrap().unwrap().release().await.unwrap();
    }
}
