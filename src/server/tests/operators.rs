//! Tests of drains, kicks, replaced users and the audit log.

use parking_lot::Mutex;

use super::turns::{DELETE, put_bytes, put_request, request};
use super::*;
use crate::model::acl::Acl;
use crate::model::error::Error;
use crate::model::identity::Identity;
use crate::model::types::{AclEntry, SessionId};
use crate::server::audit::Audit;

async fn serving(options: ServerOptions) -> (Server, Store) {
    let store = Store::memory();
    let options = options.listen(([127, 0, 0, 1], 0).into());
    (Server::bind(&store, options).await.unwrap(), store)
}

async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    let _ = end.expect("it is closed");
}

fn id_of(session: &[u8]) -> SessionId {
    SessionId(i64::from_be_bytes(session[..8].try_into().unwrap()))
}

const CREATE: i32 = 1;
const EPHEMERAL: i32 = 1;

async fn create(stream: &mut TcpStream, path: &str, flags: i32) -> [u8; 4] {
    let mut rest = vec![0, 0, 0, 0];
    rest.extend_from_slice(&1_i32.to_be_bytes());
    rest.extend_from_slice(&31_i32.to_be_bytes());
    for text in ["world", "anyone"] {
        put_bytes(&mut rest, text.as_bytes());
    }
    rest.extend_from_slice(&flags.to_be_bytes());
    ask(stream, &request(1, CREATE, path, &rest)).await
}

async fn delete(stream: &mut TcpStream, path: &str) -> [u8; 4] {
    ask(stream, &request(2, DELETE, path, &[0xff; 4])).await
}

async fn ask(stream: &mut TcpStream, frame: &[u8]) -> [u8; 4] {
    stream.write_all(frame).await.unwrap();
    let answered = tokio::time::timeout(PATIENCE, answer(stream)).await;
    answered.expect("it is answered")[12..16]
        .try_into()
        .unwrap()
}

#[tokio::test]
async fn a_drain_refuses_new_sessions_serves_old_ones_and_can_be_undone() {
    let (server, _store) = serving(ServerOptions::new()).await;
    let monitor = server.monitor();
    let (mut old, session) = taking_up(&server, &[0; 12]).await;
    assert!(server.drain());
    assert!(!server.drain(), "it drains already");
    assert_eq!(monitor.check_ready(), Err(NotReady::Draining));
    let mut refused = asking(&server, &[0; 12]).await;
    let end = tokio::time::timeout(PATIENCE, refused.read_u8()).await;
    assert!(
        end.expect("it is closed at once").is_err(),
        "no answer: it tries another server"
    );
    assert_eq!(create(&mut old, "/a", EPHEMERAL).await, [0; 4]);
    drop(old);
    let (mut old, _) = taking_up(&server, &session).await;
    assert_eq!(
        create(&mut old, "/b", EPHEMERAL).await,
        [0; 4],
        "the session is taken up again"
    );
    assert!(server.undrain());
    assert_eq!(monitor.check_ready(), Ok(()));
    let (_new, _) = taking_up(&server, &[0; 12]).await;
}

#[tokio::test]
async fn a_drained_server_has_no_session() {
    let (server, _store) = serving(ServerOptions::new()).await;
    let (mut old, _) = taking_up(&server, &[0; 12]).await;
    server.drain();
    let mut drained = std::pin::pin!(server.drained());
    assert!(!is_over(drained.as_mut()).await);
    // closeSession.
    let mut close = Vec::new();
    put_request(&mut close, 1, -11, |_| ());
    old.write_all(&close).await.unwrap();
    tokio::time::timeout(PATIENCE, drained).await.unwrap();
    assert_eq!(server.shared.store.counts().sessions, 0);
}

#[tokio::test]
async fn a_kicked_session_loses_its_znodes_and_its_connection() {
    let (server, store) = serving(ServerOptions::new()).await;
    let (mut holder, session) = taking_up(&server, &[0; 12]).await;
    let (mut other, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(create(&mut holder, "/lock", EPHEMERAL).await, [0; 4]);
    let listed = server.sessions();
    let listed = listed
        .iter()
        .find(|it| it.session == id_of(&session))
        .unwrap();
    assert_eq!(
        (listed.ephemerals, listed.watches, listed.is_local),
        (1, 0, false)
    );
    assert_eq!(listed.timeout, Some(Duration::from_secs(10)));
    assert_eq!(listed.identities, ["ip:127.0.0.1"]);
    assert_eq!(listed.peer, Some(holder.local_addr().unwrap().to_string()));

    assert_eq!(server.kick(id_of(&session)).await, Ok(KickOutcome::Ended));
    assert_eq!(
        create(&mut other, "/lock", EPHEMERAL).await,
        [0; 4],
        "it is free"
    );
    closed(&mut holder).await;
    let (_, again) = taking_up(&server, &session).await;
    assert_eq!(id_of(&again), SessionId(0), "its session is over");
    let gone = server.kick(id_of(&session)).await;
    assert!(
        matches!(gone, Err(Error::SessionExpired { .. })),
        "{gone:?}"
    );
    assert_eq!(store.counts().ended.kicked, 1);

    let local = store.connect().await.unwrap();
    let refused = server.kick(local.current_session().id()).await;
    assert!(
        matches!(refused, Err(Error::BadArguments(_))),
        "{refused:?}"
    );
}

/// The server removes the session's watches in pieces, and executes none of the session's requests meanwhile.
#[tokio::test]
async fn a_kicked_session_with_many_watches_is_refused_at_once() {
    let (server, store) = serving(ServerOptions::new()).await;
    let (mut client, session) = taking_up(&server, &[0; 12]).await;
    for number in 0..2_000 {
        let code = ask(&mut client, &request(1, 3, &format!("/{number}"), &[1])).await;
        assert_ne!(code, [0; 4], "it does not exist");
    }
    assert_eq!(server.kick(id_of(&session)).await, Ok(KickOutcome::Ending));
    closed(&mut client).await;
    let (_, again) = taking_up(&server, &session).await;
    assert_eq!(id_of(&again), SessionId(0));
    let over = async {
        while store.counts().sessions > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, over).await.unwrap();
}

#[tokio::test]
async fn a_disconnected_session_is_taken_up_again() {
    let (server, _store) = serving(ServerOptions::new()).await;
    let (mut client, session) = taking_up(&server, &[0; 12]).await;
    assert!(server.disconnect(id_of(&session)));
    closed(&mut client).await;
    let (_client, again) = taking_up(&server, &session).await;
    assert_eq!(id_of(&again), id_of(&session));
    assert!(!server.disconnect(SessionId(7)), "there is no such session");
}

fn users(secrets: &[&str]) -> AccessOptions {
    let digest = |secret: &&str| Identity::digest(secret.as_bytes()).id;
    secrets.iter().fold(AccessOptions::new(), |access, secret| {
        access.user(&digest(secret)).unwrap()
    })
}

async fn proved(stream: &mut TcpStream, secret: &str) -> [u8; 4] {
    send_proof(stream, secret).await;
    let answered = tokio::time::timeout(PATIENCE, answer(stream)).await;
    answered.expect("it is answered")[12..16]
        .try_into()
        .unwrap()
}

#[tokio::test]
async fn a_removed_user_is_cut_off_at_once_and_others_stay() {
    let (server, store) = serving(ServerOptions::new().require_auth(true)).await;
    server.reload_access(users(&["jane:a", "joe:b"]));
    let (mut jane, session) = taking_up(&server, &[0; 12]).await;
    assert_eq!(proved(&mut jane, "jane:a").await, [0; 4]);
    let (mut joe, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(proved(&mut joe, "joe:b").await, [0; 4]);
    assert_eq!(create(&mut jane, "/hers", EPHEMERAL).await, [0; 4]);

    server.reload_access(users(&["joe:b", "ann:c"]));
    let create_more = request(7, DELETE, "/hers", &[0xff; 4]);
    let _ = jane.write_all(&create_more).await;
    closed(&mut jane).await;
    assert_eq!(store.counts().ephemerals, 1);
    let (mut jane, again) = taking_up(&server, &session).await;
    assert_eq!(
        id_of(&again),
        id_of(&session),
        "her session waits for its timeout"
    );
    assert_ne!(proved(&mut jane, "jane:a").await, [0; 4]);
    assert_eq!(create(&mut joe, "/his", EPHEMERAL).await, [0; 4]);
    let (mut ann, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(proved(&mut ann, "ann:c").await, [0; 4]);
}

/// No time passes, so neither a ping nor a timeout wakes the connection's task.
#[tokio::test]
async fn an_idle_connection_of_a_removed_user_is_closed() {
    let (server, _clock) = timeless(ServerOptions::new().require_auth(true)).await;
    server.reload_access(users(&["jane:a"]));
    let (mut jane, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(proved(&mut jane, "jane:a").await, [0; 4]);
    server.reload_access(users(&["joe:b"]));
    closed(&mut jane).await;
}

/// The former super user is still accepted as a user, but must not keep its rights.
#[tokio::test]
async fn a_former_superuser_loses_its_rights() {
    let (server, store) = serving(ServerOptions::new()).await;
    let root = Identity::digest(b"root:master").id;
    server.reload_access(AccessOptions::new().super_digest(&root).unwrap());
    let owner = store.connect().await.unwrap().current_session();
    let nobody = Acl::new([AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }]);
    let path = "/closed".parse().unwrap();
    owner
        .create(&path, "", CreateMode::Persistent)
        .await
        .unwrap();
    owner
        .set_acl(&"/".parse().unwrap(), nobody, None)
        .await
        .unwrap();
    let (mut root, session) = taking_up(&server, &[0; 12]).await;
    assert_eq!(proved(&mut root, "root:master").await, [0; 4]);
    assert_eq!(create(&mut root, "/a", EPHEMERAL).await, [0; 4]);

    server.reload_access(AccessOptions::new());
    closed(&mut root).await;
    let (mut root, _) = taking_up(&server, &session).await;
    assert_eq!(
        proved(&mut root, "root:master").await,
        [0; 4],
        "any user is accepted"
    );
    assert_ne!(delete(&mut root, "/closed").await, [0; 4]);
}

#[tokio::test]
async fn words_are_for_the_clients_that_are_named() {
    let options = ServerOptions::new().four_letter_words("ruok").unwrap();
    let (server, _store) = serving(options.four_letter_words_from("10.0.0.0/8").unwrap()).await;
    let word = async || {
        let mut stream = TcpStream::connect(server.local_addr().unwrap())
            .await
            .unwrap();
        stream.write_all(b"ruok").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    assert!(word().await.contains("not in the whitelist"));
    let access = AccessOptions::new().four_letter_words("ruok").unwrap();
    server.reload_access(access.four_letter_words_from("unix, 127.0.0.1").unwrap());
    assert_eq!(word().await, "imok");
    for wrong in ["localhost", "10.0.0.0/33", "unix:/x", "1.2.3"] {
        assert!(
            AccessOptions::new().four_letter_words_from(wrong).is_err(),
            "{wrong}"
        );
    }
}

#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<Vec<AuditRecord>>>);

impl AuditSink for Recorded {
    fn record(&self, record: AuditRecord) {
        self.0.lock().push(record);
    }
}

impl Recorded {
    fn take(&self) -> Vec<AuditRecord> {
        std::mem::take(&mut self.0.lock())
    }
}

#[tokio::test]
async fn deletes_and_lists_are_recorded_with_the_client_and_own_locks_are_not() {
    let records = Recorded::default();
    let (server, store) = serving(ServerOptions::new().audit(records.clone())).await;
    let (mut one, first) = taking_up(&server, &[0; 12]).await;
    let (mut other, second) = taking_up(&server, &[0; 12]).await;
    assert_eq!(proved(&mut other, "jane:secret").await, [0; 4]);
    assert_eq!(
        proved(&mut other, "jane:secret").await,
        [0; 4],
        "again, and not recorded again"
    );
    let [proof] = &records.take()[..] else {
        panic!("one proof")
    };
    assert_eq!(proof.event, AuditEvent::Authenticate);
    assert_eq!(proof.identities, ["ip:127.0.0.1", "digest:jane"]);
    assert_eq!(proof.peer, Some(other.local_addr().unwrap().to_string()));

    create(&mut one, "/lock", EPHEMERAL).await;
    assert_eq!(delete(&mut one, "/lock").await, [0; 4]);
    create(&mut one, "/lock", EPHEMERAL).await;
    assert_eq!(delete(&mut other, "/lock").await, [0; 4]);
    create(&mut one, "/kept", 0).await;
    assert_eq!(delete(&mut one, "/kept").await, [0; 4]);
    assert_ne!(delete(&mut one, "/never").await, [0; 4]);
    let [taken, kept] = &records.take()[..] else {
        panic!("two deletes")
    };
    assert_eq!(taken.path.as_ref().unwrap().as_str(), "/lock");
    assert_eq!(
        (taken.owner, taken.session),
        (Some(id_of(&first)), Some(id_of(&second)))
    );
    assert_eq!(taken.identities, ["ip:127.0.0.1", "digest:jane"]);
    assert_eq!((kept.owner, kept.session), (None, Some(id_of(&first))));
    assert_eq!(kept.zxid, Some(store.counts().last_zxid));

    create(&mut one, "/list", 0).await;
    // setACL: digest:jane:HASH, read, at any version.
    let mut list = 1_i32.to_be_bytes().to_vec();
    list.extend_from_slice(&1_i32.to_be_bytes());
    put_bytes(&mut list, b"digest");
    put_bytes(&mut list, Identity::digest(b"jane:secret").id.as_bytes());
    list.extend_from_slice(&[0xff; 4]);
    assert_eq!(
        ask(&mut other, &request(3, 7, "/list", &list)).await,
        [0; 4]
    );
    assert_ne!(ask(&mut one, &request(3, 7, "/list", &list)).await, [0; 4]);
    let [set, denied] = &records.take()[..] else {
        panic!("two lists")
    };
    assert_eq!(
        (set.event, set.outcome),
        (AuditEvent::SetAcl, AuditOutcome::Success)
    );
    assert_eq!(set.acl, ["digest:jane:r"]);
    assert_eq!((denied.outcome, denied.zxid), (AuditOutcome::Failure, None));
}

#[tokio::test]
async fn a_failed_proof_is_recorded_with_the_user_and_without_the_secret() {
    let records = Recorded::default();
    let options = ServerOptions::new().audit(records.clone());
    let joe = Identity::digest(b"joe:right").id;
    let (server, _store) = serving(options.user(&joe).unwrap()).await;
    for secret in [
        "jane:hunter2",
        "hunter2",
        &format!("{}:hunter2", "x".repeat(10_000)),
    ] {
        let (mut client, _) = taking_up(&server, &[0; 12]).await;
        assert_ne!(proved(&mut client, secret).await, [0; 4]);
    }
    let records = records.take();
    let named: Vec<_> = records.iter().map(|it| it.user.as_deref()).collect();
    assert_eq!(named, [Some("jane"), None, Some(&*"x".repeat(128))]);
    assert!(!format!("{records:?}").contains("hunter2"));
}

#[tokio::test]
async fn many_failures_of_one_network_are_counted_in_one_record() {
    let clock = Clock::new_virtual();
    let records = Recorded::default();
    let sink: Arc<dyn AuditSink> = Arc::new(records.clone());
    let audit = Arc::new(Audit::new(Some(sink), clock.clone()));
    let summing = tokio::spawn(audit.clone().sum_up());
    let fail = |address: [u8; 4], times| {
        let peer = SocketAddr::from((address, 1)).into();
        (0..times).for_each(|_| audit.failure(AuditEvent::Authenticate, peer, |_| ()));
    };
    fail([10, 0, 0, 1], 100_000);
    fail([10, 0, 0, 2], 3);
    assert_eq!(records.take().len(), 20 + 3);
    while records.0.lock().is_empty() {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    let [rest] = &records.take()[..] else {
        panic!("one record")
    };
    assert_eq!(
        (rest.count, rest.peer.as_deref()),
        (100_000 - 20, Some("10.0.0.1"))
    );
    fail([10, 0, 0, 1], 1);
    assert_eq!(records.take().len(), 1);

    for network in 0..100_000_u32 {
        fail(network.to_be_bytes(), 1);
    }
    assert!(records.take().len() <= 1_024 + 20);
    fail([10, 0, 0, 1], 30);
    audit.finish();
    let counts = records.take().iter().map(|it| it.count).sum::<u64>();
    assert!(counts >= 100_000 - 2_000, "{counts}");
    summing.abort();
}
