//! Traffic of clients while nothing happens: one idle, one holding a lock and one waiting for it.
//!
//! Other tests check what a client believes. A client in an endless loop can believe the right things, so these tests
//! count what it sends.

use std::time::Duration;

use lockkeeper::testing::{Plan, RequestKind, TestStore};
use lockkeeper::{Client, Clock, ConnectOptions, Mutex, Store, StoreOptions};

use crate::common::*;

/// Session timeout of all clients. Heartbeats are due every third of it.
const TIMEOUT: Duration = Duration::from_secs(6);

/// Counts requests in virtual time, before and after an outage.
async fn in_process(store: Store) {
    const WINDOW: Duration = Duration::from_secs(30);
    let store = TestStore::wrapping(store.connector(), "memory:idle", Plan::calm());
    let heartbeats = WINDOW.as_secs() / (TIMEOUT / 3).as_secs();
    // A session without a timeout has no heartbeats.
    for (options, expected) in [
        (ConnectOptions::new(), 0),
        (ConnectOptions::new().session_timeout(TIMEOUT), heartbeats),
    ] {
        let mut clients = Vec::new();
        for _ in ["idle", "holding", "waiting"] {
            clients.push(store.client_with(options.clone()).await.unwrap());
        }
        let mutex = |client: &Client| Mutex::new(client, LOCK).unwrap();
        let _held = mutex(&clients[1]).lock().await.unwrap();
        let waiting = mutex(&clients[2]);
        let waiting = tokio::spawn(async move { waiting.lock().await });
        store.settle().await;
        for what in ["at first", "after an outage"] {
            let before: Vec<_> = clients.iter().map(|it| store.traffic_of(it)).collect();
            store.advance(WINDOW).await;
            for (client, before) in clients.iter().zip(before) {
                let sent = (store.traffic_of(client) - before).requests(RequestKind::Any);
                // The window may start or end with a heartbeat. A long wait sends two requests to check whether it
                // waits for its own session.
                let allowed = expected..=expected + 2;
                assert!(allowed.contains(&sent), "{what}: {sent} of {allowed:?}");
                store.disconnect_for(client, Duration::from_secs(1));
            }
            // The next window starts after the reconnection's requests.
            store.advance(Duration::from_secs(2)).await;
        }
        waiting.abort();
    }
}

fn virtual_time() -> StoreOptions {
    StoreOptions::new().clock(Clock::new_virtual())
}

#[tokio::test]
async fn in_memory() {
    in_process(Store::memory_with(virtual_time())).await;
}

#[tokio::test]
async fn in_a_folder() {
    let folder = testkit::TempFolder::new("idle");
    in_process(Store::file_with(folder.path(), virtual_time()).unwrap()).await;
}

pub(crate) mod over_a_wire {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::path::PathBuf;
    use std::time::Instant;

    use lockkeeper::{Error, Server, ServerOptions, SessionState, connect_with};
    use lockkeeper_store::AccessOptions;
    use tokio::time::sleep;

    use super::*;
    use testkit::{
        Counts, Proxy, SWEEP, Served, TempFolder, four_letter_word, unique, within_reason,
        zookeeper,
    };

    const WINDOW: Duration = Duration::from_secs(3);

    /// The tick of the tests' servers (`ZooKeeperConfig`).
    const TICK: Duration = Duration::from_millis(200);

    /// Downtime of a server without a replacement.
    const OUTAGE: Duration = Duration::from_secs(1);

    const PING: Duration = Duration::from_secs(2);

    /// Largest traffic of one client per window, in addition to heartbeats and pings.
    struct Limits {
        connections: usize,
        new_sessions: usize,
        requests: usize,
    }

    /// A long wait checks once whether it waits for its own session.
    const LOOK: usize = 2;

    const QUIET: Limits = Limits {
        connections: 0,
        new_sessions: 0,
        requests: LOOK,
    };

    /// After a lost connection. Over Unix sockets, a client retries every 100 ms while the server is down.
    const RECONNECTED: Limits = Limits {
        connections: 40,
        new_sessions: 0,
        requests: 16,
    };

    impl Limits {
        /// Asserts that a client stayed within the limits.
        fn check(&self, counts: Counts, time: Duration, what: &str) {
            println!("{what}: {counts:?} in {time:?}");
            let is_within = counts.connections <= self.connections
                && counts.new_sessions <= self.new_sessions
                && counts.requests <= self.requests + Self::heartbeats(time)
                && counts.pings <= self.connections + Self::pings(time);
            assert!(is_within, "{what}: {counts:?} in {time:?}");
        }

        fn heartbeats(time: Duration) -> usize {
            1 + (time.as_millis() / (TIMEOUT / 3).as_millis()) as usize
        }

        fn pings(time: Duration) -> usize {
            1 + (time.as_millis() / PING.as_millis()) as usize
        }
    }

    pub(crate) enum Place {
        /// Addresses of one server or of an ensemble's members.
        ZooKeeper(Vec<SocketAddr>),
        Tcp(SocketAddr),
        Unix {
            server: PathBuf,
            folder: PathBuf,
        },
    }

    /// One client, with a proxy for each address of its URL.
    struct Party {
        role: &'static str,
        proxies: Vec<Proxy>,
        client: Client,
    }

    impl Party {
        async fn new(
            place: &Place,
            chroot: &str,
            role: &'static str,
            options: &ConnectOptions,
        ) -> Self {
            let (proxies, url) = wire(place, chroot);
            let client = connect_with(url.as_str(), options.clone()).await.unwrap();
            Self {
                role,
                proxies,
                client,
            }
        }

        fn take_counts(&self) -> Counts {
            self.proxies.iter().map(Proxy::take_counts).sum()
        }

        /// Takes the server away: for good if there is another one, otherwise for a while.
        async fn fail_over(&self) {
            if let [only] = &self.proxies[..] {
                only.cut();
                sleep(OUTAGE).await;
                return only.mend();
            }
            let used = self.proxies.iter().find(|proxy| proxy.is_in_use());
            used.expect("it is connected").cut();
        }
    }

    fn wire(place: &Place, chroot: &str) -> (Vec<Proxy>, String) {
        match place {
            Place::ZooKeeper(servers) => {
                let proxies: Vec<_> = servers.iter().map(|server| Proxy::to(*server)).collect();
                let hosts: Vec<_> = proxies.iter().map(Proxy::hosts).collect();
                let url = format!("zookeeper://{}/{chroot}", hosts.join(","));
                (proxies, url)
            }
            Place::Tcp(server) => {
                let proxy = Proxy::to(*server);
                let url = format!("lockkeeper://{}/{chroot}", proxy.hosts());
                (vec![proxy], url)
            }
            Place::Unix { server, folder } => {
                let proxy = Proxy::between_sockets(folder.join(unique("s")), server.clone());
                let url = format!("lockkeeper+unix://{}?chroot=/{chroot}", proxy.hosts());
                (vec![proxy], url)
            }
        }
    }

    fn options() -> ConnectOptions {
        let options = ConnectOptions::new().create_chroot();
        options.session_timeout(TIMEOUT).ensemble_tick(TICK)
    }

    struct Figures {
        packets: usize,
        zxid: usize,
    }

    fn figures(server: SocketAddr) -> Figures {
        let asked = |word, name: &str, radix| {
            let answer = four_letter_word(server, word).unwrap();
            let found = answer.lines().find_map(|line| line.strip_prefix(name));
            usize::from_str_radix(found.expect(name).trim(), radix).unwrap()
        };
        Figures {
            packets: asked("mntr", "zk_packets_received", 10),
            zxid: asked("srvr", "Zxid: 0x", 16),
        }
    }

    /// Counts a window of all clients, and asserts that each stays within the limits. Returns its duration.
    async fn count(parties: &[Party], limits: &Limits, what: &str) -> Duration {
        let start = Instant::now();
        sleep(WINDOW).await;
        for party in parties {
            let what = format!("{}, {what}", party.role);
            limits.check(party.take_counts(), start.elapsed(), &what);
        }
        start.elapsed()
    }

    /// Counts a window in which nothing happens. Also checks the figures of servers that no other test uses.
    async fn count_quiet(parties: &[Party], own: &[SocketAddr], what: &str) {
        for party in parties {
            party.take_counts();
        }
        let before: Vec<_> = own.iter().map(|server| figures(*server)).collect();
        let time = count(parties, &QUIET, what).await;
        let mut received = 0;
        for (server, before) in own.iter().zip(before) {
            let after = figures(*server);
            // Each client is connected to one member, but all members apply each write.
            received += after.packets - before.packets;
            let writes = after.zxid - before.zxid;
            println!("{what}: {writes} transactions");
            assert!(writes <= parties.len() * Limits::heartbeats(time));
        }
        println!("{what}: {received} packets");
        let of_each = Limits::heartbeats(time) + Limits::pings(time);
        // ZooKeeper also counts the two requests for its figures.
        assert!(received <= parties.len() * of_each + LOOK + 2 * own.len());
    }

    /// Counts the traffic of the three clients at first, after lost connections and after a fail-over. No other test
    /// uses the servers `own`.
    pub(crate) async fn clients_cost_little(place: Place, own: &[SocketAddr]) {
        let chroot = unique("idle");
        let mut parties = Vec::new();
        for role in ["idle", "holding", "waiting"] {
            parties.push(Party::new(&place, &chroot, role, &options()).await);
        }
        let mutex = |party: &Party| Mutex::new(&party.client, LOCK).unwrap();
        let held = mutex(&parties[1]).lock().await.unwrap();
        let waiting = mutex(&parties[2]);
        let waiting = tokio::spawn(async move { waiting.lock().await });
        let session = parties[0].client.session().await.unwrap();
        until(&session, LOCK, |names| names.len() == 2).await;
        count_quiet(&parties, own, "at first").await;

        for party in &parties {
            let mut states = party.client.current_session().states();
            party.proxies.iter().for_each(Proxy::break_off);
            while states.next().await != Some(SessionState::Reconnected) {}
        }
        count(&parties, &RECONNECTED, "after a reconnection").await;
        count_quiet(&parties, own, "long after a reconnection").await;

        for party in &parties {
            party.fail_over().await;
        }
        count(&parties, &RECONNECTED, "after a fail-over").await;
        count_quiet(&parties, own, "long after a fail-over").await;
        assert!(held.is_held() && !waiting.is_finished());
        waiting.abort();
    }

    #[tokio::test]
    async fn served() {
        let served = Served::start(SWEEP);
        let place = Place::Tcp(served.address());
        within_reason(clients_cost_little(place, &[served.address()])).await;
    }

    #[tokio::test]
    async fn unix() {
        let (served, folder) = (Served::start(SWEEP), TempFolder::new("idle"));
        let place = Place::Unix {
            server: served.socket().to_owned(),
            folder: folder.path().to_owned(),
        };
        within_reason(clients_cost_little(place, &[served.address()])).await;
    }

    #[tokio::test]
    async fn without_the_extension() {
        let served = Served::start(SWEEP);
        let place = Place::ZooKeeper(vec![served.address(); 2]);
        within_reason(clients_cost_little(place, &[served.address()])).await;
    }

    #[tokio::test]
    async fn on_zookeeper() {
        let place = Place::ZooKeeper(vec![zookeeper().address(); 2]);
        within_reason(clients_cost_little(place, &[])).await;
    }

    /// The proxy accepts and closes each connection, so attempts must back off.
    #[tokio::test]
    async fn without_a_server() {
        let served = Served::start(SWEEP);
        let server = served.address();
        for place in [Place::Tcp(server), Place::ZooKeeper(vec![server])] {
            let (proxies, url) = wire(&place, &unique("idle"));
            proxies[0].cut();
            let connecting = connect_with(url.as_str(), options().connect_timeout(WINDOW));
            let failed = connecting.await.unwrap_err();
            assert!(matches!(failed, Error::ConnectFailed { .. }), "{failed}");
            let counts = proxies[0].take_counts();
            assert!(counts.connections <= 20, "{url}: {counts:?}");
        }
    }

    const ORDERS: &str = "orders:08sob9dMDb87qFrxEU6Yzq8j3HU=";

    /// A client whose user is removed, and one whose password is refused.
    async fn refused_clients_cost_little(place: impl Fn(&Server) -> Place) {
        let (folder, store) = (TempFolder::new("idle"), Store::memory());
        let options_of_server = ServerOptions::new()
            .listen((Ipv4Addr::LOCALHOST, 0).into())
            .unix_listen(folder.path().join("server"))
            .require_auth(true)
            .user(ORDERS)
            .unwrap();
        let server = Server::bind(&store, options_of_server).await.unwrap();
        let (place, chroot) = (place(&server), unique("idle"));
        let auth = options().auth("digest", "orders:secret");
        let mut parties = Vec::new();
        for role in ["holding", "waiting"] {
            parties.push(Party::new(&place, &chroot, role, &auth).await);
        }
        let [holder, waiter] = [0, 1].map(|at| Mutex::new(&parties[at].client, LOCK).unwrap());
        let held = holder.lock().await.unwrap();
        let waiting = tokio::spawn(async move { waiter.lock().await });
        let session = parties[0].client.session().await.unwrap();
        until(&session, LOCK, |names| names.len() == 2).await;

        const OTHER: &str = "other:08sob9dMDb87qFrxEU6Yzq8j3HU=";
        server.reload_access(AccessOptions::new().user(OTHER).unwrap());
        for party in &parties {
            party.take_counts();
        }
        count(&parties, &RECONNECTED, "after the removal of its user").await;
        waiting.await.unwrap().unwrap_err();
        // Each retries until its own session ends, which may be some time after the other one's.
        for party in &parties {
            let mut states = party.client.current_session().states();
            while states.next().await.is_some_and(|state| !state.is_final()) {}
            party.take_counts();
        }
        assert!(!held.is_held());
        // The last attempt may reach the proxy late.
        let last = Limits {
            connections: 1,
            ..QUIET
        };
        count(&parties, &last, "long after the removal").await;

        a_refused_client_gives_up(&place, auth).await;
        server.shutdown().await;
    }

    async fn a_refused_client_gives_up(place: &Place, options: ConnectOptions) {
        let (proxies, url) = wire(place, &unique("idle"));
        let refused = connect_with(url.as_str(), options).await.unwrap_err();
        assert_eq!(refused, Error::AuthFailed);
        sleep(WINDOW).await;
        let counts: Counts = proxies.iter().map(Proxy::take_counts).sum();
        assert!(counts.connections <= 2, "{counts:?}");
    }

    /// A ZooKeeper accepts any password but refuses unknown schemes.
    #[tokio::test]
    async fn a_refused_scheme_on_zookeeper() {
        let place = Place::ZooKeeper(vec![zookeeper().address()]);
        let auth = options().auth("unknown", "secret");
        within_reason(a_refused_client_gives_up(&place, auth)).await;
    }

    fn address(server: &Server) -> SocketAddr {
        server.local_addr().unwrap()
    }

    #[tokio::test]
    async fn a_removed_user_over_tcp() {
        let test = refused_clients_cost_little(|server| Place::Tcp(address(server)));
        within_reason(test).await;
    }

    #[tokio::test]
    async fn a_removed_user_over_a_socket() {
        let folder = TempFolder::new("idle");
        let place = |server: &Server| Place::Unix {
            server: server.unix_path().unwrap().to_owned(),
            folder: folder.path().to_owned(),
        };
        within_reason(refused_clients_cost_little(place)).await;
    }

    #[tokio::test]
    async fn a_removed_user_without_the_extension() {
        let place = |server: &Server| Place::ZooKeeper(vec![address(server)]);
        within_reason(refused_clients_cost_little(place)).await;
    }
}
