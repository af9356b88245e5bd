//! Locks in the session of the program's own ZooKeeper client, with a real ZooKeeper.
#![allow(missing_docs, reason = "tests")]

use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, Error, LockError, Mutex, SessionState};
use lockkeeper_store::CreateMode;
use lockkeeper_zookeeper_client::{LentClient, zookeeper_client as zk};
use testkit::{Proxy, unique, within_reason, zookeeper};

const LOCK: &str = "/locks/a";
const TIMEOUT: Duration = Duration::from_secs(15);
const OPEN: zk::Acls<'static> = zk::Acls::anyone_all();

async fn program(hosts: &str) -> zk::Client {
    let connector = zk::Client::connector().with_session_timeout(TIMEOUT);
    let client = testkit::lendable(connector, hosts).await.unwrap();
    let chroot = format!("/{}", unique("lent"));
    let persistent = zk::CreateMode::Persistent.with_acls(OPEN);
    client
        .mkdir(&format!("{chroot}{LOCK}"), &persistent)
        .await
        .unwrap();
    client.chroot(chroot).unwrap()
}

async fn lent(client: &zk::Client) -> Client {
    let lent = LentClient::new(client.clone(), TIMEOUT);
    lent.connect().await.unwrap()
}

async fn entries(client: &zk::Client, count: usize) -> Vec<String> {
    loop {
        let (names, watcher) = client.list_and_watch_children(LOCK).await.unwrap();
        if names.len() == count {
            return names;
        }
        watcher.changed().await;
    }
}

#[tokio::test]
async fn an_entry_belongs_to_the_programs_session() {
    within_reason(async {
        let program = program(&zookeeper().hosts()).await;
        let client = lent(&program).await;
        let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        let path = format!("{LOCK}/{}", entries(&program, 1).await[0]);
        let (_, stat) = program.get_data(&path).await.unwrap();
        assert_eq!(stat.ephemeral_owner, program.session_id().0);
        guard.release().await.unwrap();
        entries(&program, 0).await;
    })
    .await;
}

#[tokio::test]
async fn closing_deletes_the_entries_and_nothing_else_of_the_session() {
    within_reason(async {
        let program = program(&zookeeper().hosts()).await;
        let ephemeral = zk::CreateMode::Ephemeral.with_acls(OPEN);
        program.create("/own", b"", &ephemeral).await.unwrap();

        let (client, other) = (lent(&program).await, lent(&program).await);
        let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        let waiting = Mutex::new(&client, LOCK).unwrap();
        let waiting = tokio::spawn(async move { waiting.lock().await });
        entries(&program, 2).await;
        let mutex = Mutex::new(&other, LOCK).unwrap();
        let next = tokio::spawn(async move { mutex.lock().await });
        entries(&program, 3).await;

        client.close().await.unwrap();
        assert!(!guard.is_held());
        let ended = waiting.await.unwrap().unwrap_err();
        assert!(
            matches!(ended, LockError::Store(Error::SessionClosed { .. })),
            "{ended}"
        );
        let next = next.await.unwrap().unwrap();
        assert!(next.is_held());
        entries(&program, 1).await;
        assert!(program.check_stat("/own").await.unwrap().is_some());
        let third = lent(&program).await;
        assert!(
            Mutex::new(&third, LOCK)
                .unwrap()
                .try_lock()
                .await
                .unwrap()
                .is_none()
        );
    })
    .await;
}

#[tokio::test]
async fn dropping_the_last_handle_deletes_the_entries() {
    within_reason(async {
        let program = program(&zookeeper().hosts()).await;
        let client = lent(&program).await;
        let session = client.session().await.unwrap();
        let path = format!("{LOCK}/lock-").parse().unwrap();
        session
            .create(&path, "", CreateMode::EphemeralSequential)
            .await
            .unwrap();
        entries(&program, 1).await;
        drop((client, session));
        entries(&program, 0).await;
        assert!(!program.state().is_terminated());
    })
    .await;
}

#[tokio::test]
async fn an_entry_with_a_lost_reply_is_deleted_by_the_close() {
    within_reason(async {
        let server = zookeeper();
        let proxy = Proxy::to(server.address());
        let program = program(&proxy.hosts()).await;
        let observer = testkit::lendable(zk::Client::connector(), &server.hosts())
            .await
            .unwrap();
        let observer = observer.chroot(program.path().to_owned()).unwrap();
        let client = lent(&program).await;
        proxy.hold_replies();
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        entries(&observer, 1).await;
        // The call sends the close.
        let closing = client.current_session().close();
        proxy.break_off();
        proxy.mend();
        assert!(waiting.await.unwrap().is_err());
        closing.await.unwrap();
        entries(&observer, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_lock_outlives_a_reconnection_and_its_lease_is_extended() {
    within_reason(async {
        let proxy = Proxy::to(zookeeper().address());
        let program = program(&proxy.hosts()).await;
        let client = LentClient::new(program, Duration::from_secs(5))
            .connect()
            .await
            .unwrap();
        let session = client.session().await.unwrap();
        assert_eq!(session.timeout(), Some(Duration::from_secs(5)));
        let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        let mut states = session.states();
        proxy.break_off();
        assert_eq!(states.next().await, Some(SessionState::Suspended));
        assert_eq!(states.next().await, Some(SessionState::Reconnected));
        let before = session.held_until().unwrap().moment();
        while session.held_until().unwrap().moment() == before {
            session.exists(&LOCK.parse().unwrap()).await.unwrap();
        }
        assert!(guard.is_held());
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_session_that_has_ended_is_not_replaced() {
    within_reason(async {
        let program = program(&zookeeper().hosts()).await;
        let client = lent(&program).await;
        let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        let lost = guard.lost();
        testkit::end_session(&zookeeper().hosts(), program.session().clone())
            .await
            .unwrap();
        lost.await;
        let refused = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap_err();
        let LockError::Store(Error::BadArguments(why)) = refused else {
            panic!("{refused}");
        };
        assert!(why.contains("has ended (Expired)"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn options_of_a_connection_are_refused() {
    within_reason(async {
        let program = program(&zookeeper().hosts()).await;
        let refused = [
            ConnectOptions::new().session_timeout(TIMEOUT),
            ConnectOptions::new().auth("digest", "a:b"),
            ConnectOptions::new().create_chroot(),
        ];
        for options in refused {
            let lent = LentClient::new(program.clone(), TIMEOUT);
            let refused = lent.connect_with(options).await.unwrap_err();
            assert!(matches!(refused, Error::BadArguments(_)), "{refused}");
        }
        let never = LentClient::new(program, Duration::ZERO).connect().await;
        assert!(matches!(never, Err(Error::BadArguments(_))));
    })
    .await;
}
