//! Our locks on etcd: beside the Python program in `docs/protocol.md`, which joins the queue by the keys, at the limit of
//! a transaction, and on a cluster of three members, whose leader is stopped.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    Acl, ConnectOptions, Error, Guard, LockError, LockEvent, LockOptions, LostReason, Mutex,
    PreviousHolder, Semaphore, Session, SessionState, connect, connect_with, list_locks, lock_all,
    lock_events, queue,
};
use lockkeeper_store::{Create, CreateMode, Op};
use testkit::{
    ChildProcess, Env, Etcd, Lines, Proxy, TempFolder, free_address, report, scaled, unique,
    within_reason,
};

use crate::common::*;

const PAGE: &str = include_str!("../../docs/protocol.md");

/// The program of the page. Dropping it kills it.
struct Theirs {
    child: ChildProcess,
    lines: Lines,
    _folder: TempFolder,
}

impl Theirs {
    fn start(world: &World, ttl_seconds: u32) -> Self {
        let (_, program) = PAGE.split_once("```python\n").unwrap();
        let (program, _) = program.split_once("```").unwrap();
        let folder = TempFolder::new("etcd");
        std::fs::write(folder.at("contender.py"), program).unwrap();
        let url = world.env.target().strip_prefix("etcd://").unwrap();
        let (host, prefix) = url.split_once('/').unwrap();
        let mut command = Command::new("python3");
        command
            .arg(folder.at("contender.py"))
            .args([host, &format!("/{prefix}"), LOCK])
            .arg(ttl_seconds.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = ChildProcess::spawn(&mut command);
        Self {
            lines: child.lines(),
            child,
            _folder: folder,
        }
    }

    /// Waits until it holds. Returns its fencing token.
    fn until_held(&mut self) -> i64 {
        let line = self.lines.next().expect("it lives");
        let token = line.strip_prefix("held ").expect("it holds");
        token.parse().unwrap()
    }

    fn leave(&mut self) {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
    }
}

async fn world() -> World {
    World::new(Env::etcd().await).await
}

/// Queues behind them. Returns how they left and our token, once we hold.
async fn granted_after(
    world: &World,
    theirs: &mut Theirs,
    leave: fn(&mut Theirs),
) -> (PreviousHolder, i64) {
    let (mutex, (sink, mut events)) = (world.mutex().await, lock_events());
    let waiter = world
        .queue_up_with(&mutex, LockOptions::new().events(sink))
        .await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    leave(theirs);
    let guard = granted(waiter).await;
    let previous = loop {
        match events.next().await {
            Some(LockEvent::Acquired { previous, .. }) => break previous,
            event => assert!(event.is_some()),
        }
    };
    (previous, guard.fencing_token().as_i64())
}

#[tokio::test]
async fn the_program_of_the_page_waits_for_ours() {
    within_reason(async {
        let world = world().await;
        let ours = world.mutex().await.lock().await.unwrap();
        let mut theirs = Theirs::start(&world, 60);
        theirs.lines.wait_for("queued");
        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!((entries.len(), &entries[1].metadata), (2, &None));
        ours.release().await.unwrap();
        assert_eq!(theirs.until_held(), entries[1].fencing_token.as_i64());
        assert!(entries[1].fencing_token > entries[0].fencing_token);
        theirs.leave();
        world.until_count(0).await;
    })
    .await;
}

#[tokio::test]
async fn ours_waits_until_the_program_of_the_page_leaves() {
    within_reason(async {
        let world = world().await;
        let mut theirs = Theirs::start(&world, 60);
        let before = theirs.until_held();
        let (previous, token) = granted_after(&world, &mut theirs, Theirs::leave).await;
        // `Unknown` if they left before our watch was armed.
        assert_ne!(previous, PreviousHolder::Died);
        assert!(token > before);
    })
    .await;
}

#[tokio::test]
async fn ours_is_granted_after_the_program_of_the_page_was_killed() {
    within_reason(async {
        let world = world().await;
        let mut theirs = Theirs::start(&world, 5);
        let before = theirs.until_held();
        let (previous, token) = granted_after(&world, &mut theirs, |it| it.child.kill()).await;
        assert_ne!(previous, PreviousHolder::Released);
        assert!(token > before);
    })
    .await;
}

#[tokio::test]
async fn a_batch_above_the_limit_of_a_transaction_is_refused() {
    within_reason(async {
        let world = world().await;
        let client = world.client().await;
        let keys = |count| (0..count).map(|number| format!("/batch/{number}"));
        let all = lock_all(&client, keys(126)).await.unwrap();
        all.release().await.unwrap();
        let refusal = lock_all(&client, keys(127)).await.unwrap_err();
        assert!(
            matches!(
                &refusal,
                LockError::Store(Error::LimitReached { limit: 128, .. })
            ),
            "{refusal}"
        );
        let permits = Semaphore::new(&client, "/quota", 1_000).unwrap();
        let refusal = permits.acquire_many(200).await.unwrap_err();
        assert!(
            matches!(
                &refusal,
                LockError::Store(Error::LimitReached { limit: 128, .. })
            ),
            "{refusal}"
        );
        permits
            .acquire_many(100)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}

/// Session timeout of the holders whose leader is stopped.
const TTL: Duration = Duration::from_secs(5);

/// The leader is resumed this long before its holder stops believing. Longer than the leader needs for its answers.
const BLINK: Duration = Duration::from_millis(200);

/// Number of clusters, whose rounds run concurrently.
const CLUSTERS: u64 = 5;

/// A holder and a waiter of the same lock.
struct Rivals {
    session: Session,
    held: Guard,
    waiter: Waiter,
}

impl Rivals {
    async fn new(holders: &[&Etcd], waiters: &[&Etcd]) -> Self {
        let lock = unique("/stopped/leader");
        let mutex = async |members: &[&Etcd], timeout| {
            let hosts: Vec<_> = members.iter().map(|it| it.address().to_string()).collect();
            let options = ConnectOptions::new().session_timeout(timeout);
            let client = connect_with(&format!("etcd://{}", hosts.join(",")), options).await;
            Mutex::new(&client.unwrap(), &lock).unwrap()
        };
        let (first, second) = (mutex(holders, TTL).await, mutex(waiters, LONG).await);
        let held = first.lock().await.unwrap();
        let waiter = tokio::spawn({
            let second = second.clone();
            async move { second.lock().await }
        });
        let observing = second.client().session().await.unwrap();
        until(&observing, &lock, |names| names.len() == 2).await;
        let session = first.client().current_session();
        Self {
            session,
            held,
            waiter,
        }
    }

    /// Waits until the waiter is granted, and returns true if the holder still believes that it holds the lock, too. The
    /// holder releases the lock after `limit`.
    async fn both_hold_within(mut self, limit: Duration) -> bool {
        if let Ok(next) = tokio::time::timeout(limit, &mut self.waiter).await {
            let _next = next.unwrap().unwrap();
            return self.held.is_held();
        }
        // The holder may have lost the lock on a busy machine.
        let _ = self.held.release().await;
        drop(granted(self.waiter).await);
        false
    }
}

async fn leader_and_others(members: &[Etcd]) -> (&Etcd, Vec<&Etcd>) {
    loop {
        let (leaders, others): (Vec<_>, Vec<_>) = members.iter().partition(|it| it.is_leader());
        // A former leader that was resumed may not know yet that another one was elected.
        if let [leader] = leaders[..] {
            return (leader, others);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Stops the leader for almost as long as a holder believes without an answer, and again as soon as it has answered a
/// keep-alive that arrived while it was stopped. The holder that knows no other member can then renew no more, and the
/// new leader ends its lease. Returns how many of two holders believe when their waiters are granted.
async fn stopped_twice(members: &[Etcd]) -> u64 {
    let (leader, others) = leader_and_others(members).await;
    let at_leader = Rivals::new(&[leader], &others).await;
    let anywhere = Rivals::new(&members.iter().collect::<Vec<_>>(), &others).await;
    leader.stop();
    let scene = async {
        let belief = at_leader.held.held_until().unwrap();
        tokio::time::sleep(belief.remaining().saturating_sub(BLINK)).await;
        // By the former leader's clock, both leases outlast this belief, so it does not revoke them.
        if at_leader.held.is_held() {
            let mut states = at_leader.session.states();
            leader.resume();
            let _ = tokio::time::timeout(BLINK, states.next()).await;
            leader.stop();
        }
        at_leader.both_hold_within(LONG).await
    };
    let both = tokio::join!(scene, anywhere.both_hold_within(TTL + TTL / 5));
    leader.resume();
    u64::from(both.0) + u64::from(both.1)
}

/// Stops the leader for longer than the holder's lease lasts, while the holder renews it at the new leader. Before etcd
/// 3.4.31 and 3.5.13, the former leader then has the lease revoked at the new one (etcd #15247).
async fn stopped_past_the_lease(members: &[Etcd]) -> u64 {
    let (leader, others) = leader_and_others(members).await;
    let rivals = Rivals::new(&others, &others).await;
    leader.stop();
    let scene = async {
        tokio::time::sleep(TTL + TTL / 5).await;
        leader.resume();
    };
    let ((), both) = tokio::join!(scene, rivals.both_hold_within(TTL + TTL / 2));
    u64::from(both)
}

#[tokio::test]
async fn a_stopped_leader_never_makes_two_holders() {
    let rounds = CLUSTERS * scaled(1);
    let cluster = async || {
        let members = tokio::task::spawn_blocking(Etcd::start_cluster);
        let members = members.await.unwrap();
        let mut counts = (0, 0);
        for _ in 0..scaled(1) {
            counts.0 += within_reason(stopped_twice(&members)).await;
            counts.1 += within_reason(stopped_past_the_lease(&members)).await;
        }
        counts
    };
    let clusters: Vec<_> = (0..CLUSTERS).map(|_| tokio::spawn(cluster())).collect();
    let (mut both, mut revoked) = (0, 0);
    for cluster in clusters {
        let counts = cluster.await.unwrap();
        both += counts.0;
        revoked += counts.1;
    }
    report(format_args!(
        "{rounds} rounds with a stopped leader: two holders {both} times, and {revoked} times because a former leader \
         revoked a lease"
    ));
    assert_eq!(both, 0);
}

/// The first of the new stores has a lower revision than the old one. The second has a higher one, and another id.
#[tokio::test]
async fn another_store_behind_the_url_is_refused() {
    let start = || tokio::task::spawn_blocking(|| [Etcd::start(), Etcd::start(), Etcd::start()]);
    let [old, lower, higher] = start().await.unwrap();
    within_reason(async {
        let url = |etcd: &Etcd| format!("etcd://{}/app", etcd.address());
        let used = connect(&url(&higher)).await.unwrap();
        for _ in 0..20 {
            let mutex = Mutex::new(&used, LOCK).unwrap();
            mutex.lock().await.unwrap().release().await.unwrap();
        }
        for new in [&lower, &higher] {
            let proxy = |to: &Etcd| Proxy::of_bytes(free_address(), to.address()).unwrap();
            let (before, after) = (proxy(&old), proxy(new));
            after.cut();
            let url = format!("etcd://{},{}/app", before.hosts(), after.hosts());
            let client = connect(&url).await.unwrap();
            let mutex = Mutex::new(&client, LOCK).unwrap();
            let guard = mutex.lock().await.unwrap();
            before.cut();
            after.mend();
            assert_eq!(guard.lost().await, LostReason::SessionExpired);
            let refusal = mutex.lock().await.unwrap_err();
            assert!(
                matches!(refusal, LockError::Store(Error::StoreChanged { .. })),
                "{refusal}"
            );
            client.close().await.ok();
        }
    })
    .await;
}

/// A member that was cut off carries out a request after its client has repeated it at another member.
#[tokio::test]
async fn a_request_that_is_executed_late_leaves_no_entry() {
    let etcd = tokio::task::spawn_blocking(Etcd::start).await.unwrap();
    within_reason(async {
        for _ in 0..20 {
            let proxy = || Proxy::of_bytes(free_address(), etcd.address()).unwrap();
            let proxies = [proxy(), proxy()];
            let [first, second] = proxies.each_ref().map(Proxy::hosts);
            let options = ConnectOptions::new().session_timeout(Duration::from_secs(2));
            let url = format!("etcd://{first},{second}{}", unique("/late"));
            let client = connect_with(&url, options).await.unwrap();
            let mutex = Mutex::new(&client, LOCK).unwrap();
            let used = proxies.iter().position(|it| !it.carried().is_empty());
            let used = &proxies[used.expect("one of them is used")];
            used.hold_requests();
            mutex.lock().await.unwrap().release().await.unwrap();
            used.mend();
            used.wait_until_closed();
            let again = mutex.lock().await.unwrap();
            let session = client.current_session();
            assert_eq!(children(&session, LOCK).await.len(), 1);
            again.release().await.unwrap();
        }
    })
    .await;
}

/// Starts an etcd that requires users. `ann` may use the keys below `/app/`, and those of sessions without a prefix.
async fn etcd_with_users() -> Etcd {
    let start = || {
        let etcd = Etcd::start();
        let add = |method, body: &str| etcd.post(method, None, body);
        for name in ["root", "ann"] {
            let user = format!(r#"{{"name":"{name}","password":"secret"}}"#);
            add("auth/user/add", &user);
        }
        add("auth/role/add", r#"{"name":"app"}"#);
        // `/app/` to `/app0`, and `/lockkeeper` to `/lockkeepes`, in base64.
        for (key, end) in [
            ("L2FwcC8=", "L2FwcDA="),
            ("L2xvY2trZWVwZXI=", "L2xvY2trZWVwZXM="),
        ] {
            let keys = format!(r#"{{"permType":"READWRITE","key":"{key}","range_end":"{end}"}}"#);
            add(
                "auth/role/grant",
                &format!(r#"{{"name":"app","perm":{keys}}}"#),
            );
        }
        add("auth/user/grant", r#"{"user":"root","role":"root"}"#);
        add("auth/user/grant", r#"{"user":"ann","role":"app"}"#);
        add("auth/enable", "{}");
        etcd
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// Makes etcd forget all tokens.
fn forget_tokens(etcd: &Etcd) {
    let root = r#"{"name":"root","password":"secret"}"#;
    let answer = etcd.post("auth/authenticate", None, root);
    let (_, token) = answer.split_once(r#""token":""#).unwrap();
    let (token, _) = token.split_once('"').unwrap();
    etcd.post("auth/disable", Some(token), "{}");
    etcd.post("auth/enable", None, "{}");
}

#[tokio::test]
async fn a_user_has_a_password_and_keeps_the_locks_when_the_tokens_end() {
    let etcd = etcd_with_users().await;
    let address = etcd.address();
    within_reason(async {
        let connected = async |path, secret: Option<&str>| {
            // No keep-alive is due during the test, so only the release can notice that its token has ended.
            let options = ConnectOptions::new().session_timeout(Duration::from_secs(300));
            let options = match secret {
                Some(secret) => options.auth("digest", secret),
                None => options,
            };
            connect_with(&format!("etcd://{address}{path}"), options).await
        };
        for (path, secret) in [
            ("/app", None),
            ("/app", Some("ann:wrong")),
            ("/app", Some("bob:secret")),
        ] {
            let refusal = connected(path, secret).await.unwrap_err();
            assert!(
                matches!(refusal, Error::AuthFailed),
                "{secret:?}: {refusal}"
            );
        }
        let refusal = connected("/other", Some("ann:secret")).await.unwrap_err();
        assert!(matches!(refusal, Error::NoAuth { .. }), "{refusal}");

        let client = connected("/app", Some("ann:secret")).await.unwrap();
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let held = mutex.lock().await.unwrap();
        let mut states = client.current_session().states();
        let forget = tokio::task::spawn_blocking(move || {
            forget_tokens(&etcd);
            etcd
        });
        let _etcd = forget.await.unwrap();
        assert!(held.is_held());
        let released = tokio::time::timeout(LONG, held.release());
        released
            .await
            .expect("it does not wait for a keep-alive")
            .unwrap();
        while states.next().await != Some(SessionState::Reconnected) {}
        mutex.lock().await.unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_watch_without_permission_is_an_error() {
    let etcd = etcd_with_users().await;
    within_reason(async {
        let options = ConnectOptions::new().auth("digest", "ann:secret");
        let url = format!("etcd://{}", etcd.address());
        let client = connect_with(&url, options).await.unwrap();
        let session = client.session().await.unwrap();
        let refusal = session.watch_exists(&path("/other")).await.unwrap_err();
        assert!(matches!(refusal, Error::NoAuth { .. }), "{refusal}");
        drop(session.watch_exists(&path("/app/lock")).await.unwrap());
        assert_eq!(session.state(), SessionState::Connected);
    })
    .await;
}

#[tokio::test]
async fn options_that_etcd_cannot_keep_are_refused() {
    let url = format!("etcd://{}", testkit::etcd().address());
    let refused = async |options| connect_with(&url, options).await.unwrap_err();
    let listed = refused(ConnectOptions::new().acl(Acl::creator_all())).await;
    assert!(matches!(listed, Error::Unimplemented { .. }), "{listed}");
    for (scheme, secret) in [("x509", "CN=ann"), ("digest", "ann")] {
        let identity = refused(ConnectOptions::new().auth(scheme, secret)).await;
        assert!(matches!(identity, Error::BadArguments(_)), "{identity}");
    }
    let client = connect(&url).await.unwrap();
    let closed = Op::Create(Create {
        path: path("/closed"),
        data: Default::default(),
        mode: CreateMode::Persistent,
        acl: Acl::creator_all(),
    });
    let refused = client.current_session().multi([closed]).await.unwrap_err();
    assert!(
        refused.to_string().contains("access control lists"),
        "{refused}"
    );
}

/// Other programs may have keys that are not paths of znodes.
#[tokio::test]
async fn keys_of_other_programs_are_left_out_of_lists() {
    let etcd = Arc::new(tokio::task::spawn_blocking(Etcd::start).await.unwrap());
    within_reason(async {
        let client = connect(&format!("etcd://{}", etcd.address()))
            .await
            .unwrap();
        let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        let puts = {
            let etcd = etcd.clone();
            // `/lock/`, `/lock//x` and `/lock/orders/` in base64.
            move || {
                for key in ["L2xvY2sv", "L2xvY2svL3g=", "L2xvY2svb3JkZXJzLw=="] {
                    etcd.post("kv/put", None, &format!(r#"{{"key":"{key}"}}"#));
                }
            }
        };
        tokio::task::spawn_blocking(puts).await.unwrap();
        let list = list_locks(&client, "/").await.unwrap();
        assert_eq!(list.locks.len(), 1, "{list:?}");
        guard.release().await.unwrap();
    })
    .await;
}

/// Sets or ends the alarm of an etcd at its space quota.
async fn set_alarm(etcd: &Arc<Etcd>, action: &str) {
    let (etcd, alarm) = (etcd.clone(), r#""memberID":"1","alarm":"NOSPACE""#);
    let body = format!(r#"{{"action":"{action}",{alarm}}}"#);
    let post = move || etcd.post("maintenance/alarm", None, &body);
    tokio::task::spawn_blocking(post).await.unwrap();
}

#[tokio::test]
async fn an_etcd_without_room_grants_no_new_lock_and_releases_the_others() {
    let etcd = Arc::new(tokio::task::spawn_blocking(Etcd::start).await.unwrap());
    within_reason(async {
        let rivals = Rivals::new(&[&etcd], &[&etcd]).await;
        let client = connect(&format!("etcd://{}", etcd.address()))
            .await
            .unwrap();
        let mutex = Mutex::new(&client, LOCK).unwrap();
        set_alarm(&etcd, "ACTIVATE").await;
        let refusal = mutex.lock().await.unwrap_err();
        assert!(
            matches!(refusal, LockError::Store(Error::DiskFull { .. })),
            "{refusal}"
        );
        rivals.held.release().await.unwrap();
        granted(rivals.waiter).await.release().await.unwrap();
        set_alarm(&etcd, "DEACTIVATE").await;
        mutex.lock().await.unwrap().release().await.unwrap();
    })
    .await;
}

/// A session cannot put its fence without room. If it renewed its lease nevertheless, it would hold a lock that it cannot
/// release.
#[tokio::test]
async fn a_session_that_reconnects_to_an_etcd_without_room_ends() {
    let etcd = Arc::new(tokio::task::spawn_blocking(Etcd::start).await.unwrap());
    within_reason(async {
        let proxy = Proxy::of_bytes(free_address(), etcd.address()).unwrap();
        let options = ConnectOptions::new().session_timeout(Duration::from_secs(2));
        let client = connect_with(&format!("etcd://{}", proxy.hosts()), options)
            .await
            .unwrap();
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let guard = mutex.lock().await.unwrap();
        set_alarm(&etcd, "ACTIVATE").await;
        proxy.break_off();
        let lost = tokio::time::timeout(LONG, guard.lost()).await;
        assert_eq!(lost, Ok(LostReason::LeaseExpired));
        set_alarm(&etcd, "DEACTIVATE").await;
        let other = connect(&format!("etcd://{}", etcd.address()))
            .await
            .unwrap();
        let mutex = Mutex::new(&other, LOCK).unwrap();
        mutex.lock().await.unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_list_of_many_megabytes_arrives() {
    let etcd = tokio::task::spawn_blocking(Etcd::start).await.unwrap();
    let url = format!("etcd://{}", etcd.address());
    within_reason(async {
        let client = connect(&url).await.unwrap();
        let session = client.session().await.unwrap();
        let (batches, long) = (50, "x".repeat(1_000));
        for batch in 0..batches {
            let creates = (0..100).map(|number| {
                let path = path(&format!("/long/{batch}-{number}-{long}"));
                Op::Create(Create {
                    path,
                    data: Default::default(),
                    mode: CreateMode::Persistent,
                    acl: Acl::open(),
                })
            });
            session.multi(creates.collect::<Vec<_>>()).await.unwrap();
        }
        assert_eq!(children(&session, "/long").await.len(), 100 * batches);
    })
    .await;
}

/// A session that lasts for minutes must not wait for minutes until it asks another member.
#[tokio::test]
async fn a_long_session_leaves_a_silent_member_soon() {
    let etcd = tokio::task::spawn_blocking(Etcd::start).await.unwrap();
    within_reason(async {
        let proxies = [(); 2].map(|()| Proxy::of_bytes(free_address(), etcd.address()).unwrap());
        let [first, second] = proxies.each_ref().map(Proxy::hosts);
        let options = ConnectOptions::new().session_timeout(Duration::from_secs(300));
        let client = connect_with(&format!("etcd://{first},{second}"), options)
            .await
            .unwrap();
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let used = proxies.iter().find(|it| !it.carried().is_empty());
        used.expect("one of them is used").hold_requests();
        let locked = tokio::time::timeout(LONG, mutex.lock()).await;
        drop(locked.expect("it asks the other one").unwrap());
    })
    .await;
}
