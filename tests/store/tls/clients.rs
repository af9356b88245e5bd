//! Third-party clients over TLS, and our client on a real ZooKeeper with TLS.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::{JARS, ZooKeeper};

use super::*;

/// Certificates as files, for programs that need them.
struct Files(TempFolder);

impl Files {
    /// Writes `ca.pem`, and for each certificate NAME.pem, NAME.key and NAME-both.pem.
    fn new(authority: &Authority, signed: &[(&str, &Signed)]) -> Self {
        let files = Self(TempFolder::new("tls-clients"));
        files.write("ca.pem", &authority.pem);
        for (name, signed) in signed {
            let both = format!("{}{}", signed.key, signed.certificate);
            files.write(&format!("{name}.pem"), &signed.certificate);
            files.write(&format!("{name}.key"), &signed.key);
            files.write(&format!("{name}-both.pem"), &both);
        }
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.at(name)
    }

    /// Returns Java's properties for these files.
    fn properties(&self, name: &str) -> Vec<String> {
        let (own, authority) = (self.path(&format!("{name}-both.pem")), self.path("ca.pem"));
        [
            ("keyStore.location", own.display().to_string()),
            ("keyStore.type", "PEM".to_owned()),
            ("trustStore.location", authority.display().to_string()),
            ("trustStore.type", "PEM".to_owned()),
        ]
        .map(|(key, value)| format!("-Dzookeeper.ssl.{key}={value}"))
        .into()
    }
}

fn java() -> Command {
    for jar in JARS.split(':') {
        assert!(
            Path::new(jar).exists(),
            "{jar} is missing: run tests/run, which installs what the tests need"
        );
    }
    let mut java = Command::new("java");
    java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    java.args(["-XX:-UsePerfData", "-cp", JARS]);
    java
}

async fn outcome(mut command: Command) -> (bool, String) {
    let run = move || command.stdin(Stdio::null()).output().unwrap();
    let output = within_reason(tokio::task::spawn_blocking(run))
        .await
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into(),
    )
}

/// Runs a command in Java's `zkCli.sh`, with or without a client certificate.
async fn zk_cli(files: &Files, server: SocketAddr, who: &str, command: &[&str]) -> (bool, String) {
    let mut java = java();
    java.arg("-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty")
        .arg("-Dzookeeper.client.secure=true")
        .args(files.properties(who))
        .arg("org.apache.zookeeper.ZooKeeperMain")
        .args(["-timeout", "20000", "-server", &server.to_string()])
        .args(command);
    outcome(java).await
}

#[tokio::test]
async fn java_s_client_speaks_tls_with_us() {
    let world = World::guarded().await;
    let server = world.server.tls_addr().unwrap();
    let (alice, bob) = (
        world.authority.client("alice", When::Now),
        world.authority.client("bob", When::Now),
    );
    let files = Files::new(&world.authority, &[("alice", &alice), ("bob", &bob)]);
    let cli = async |who, command: &[&str]| zk_cli(&files, server, who, command).await;

    // zkCli cannot parse an id with a comma, so we use a list for the creator.
    let (done, said) = cli("alice", &["create", "/n", "of alice", "auth::cdrwa"]).await;
    assert!(done && said.contains("Created /n"), "{said}");
    let (_, said) = cli("alice", &["getAcl", "/n"]).await;
    assert!(said.contains("'x509,'CN=alice%2CO=Example"), "{said}");
    let (_, said) = cli("alice", &["whoami"]).await;
    assert!(said.contains("x509: CN=alice,O=Example"), "{said}");
    let (_, said) = cli("bob", &["get", "/n"]).await;
    assert!(said.contains("Insufficient permission : /n"), "{said}");
    let (done, said) = cli("alice", &["get", "/n"]).await;
    assert!(done && said.contains("of alice"), "{said}");
}

fn python() -> PathBuf {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/python").into();
    let python = PathBuf::from(env::var_os("LOCKKEEPER_PYTHON").unwrap_or_else(default));
    assert!(
        python.exists(),
        "{} is missing: run `tests/run kazoo`, which makes it",
        python.display()
    );
    python
}

mod kazoo {
    use super::*;

    #[tokio::test]
    async fn kazoo_speaks_tls_with_us() {
        let world = World::guarded().await;
        let server = world.server.tls_addr().unwrap();
        let stranger = Authority::new("a stranger");
        let signed = [
            ("alice", world.authority.client("alice", When::Now)),
            ("bob", world.authority.client("bob", When::Now)),
            ("expired", world.authority.client("alice", When::Before)),
            ("stranger", stranger.client("alice", When::Now)),
        ];
        let signed = signed.each_ref().map(|(name, signed)| (*name, signed));
        let files = Files::new(&world.authority, &signed);
        files.write("stranger-ca.pem", &stranger.pem);
        let mut calls = Command::new(python());
        calls
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/calls.py"))
            .arg(server.to_string())
            .arg(files.0.path());
        let (done, said) = outcome(calls).await;
        assert!(done && said.contains("all done\n"), "{said}");
    }
}

fn zookeeper(authority: &Authority) -> (ZooKeeper, Files) {
    let signed = authority.server(ADDRESS, When::Now);
    let files = Files::new(authority, &[("server", &signed)]);
    let [both, ca] = ["server-both.pem", "ca.pem"].map(|name| files.path(name));
    (ZooKeeper::start_secure(&both, &ca), files)
}

#[tokio::test]
async fn a_real_zookeeper_speaks_tls_with_our_client_and_calls_it_the_same() {
    let authority = Authority::new("the tests' authority");
    let (server, _files) = zookeeper(&authority);
    let url = format!("zookeeper://{}", server.secure_hosts());
    let session = async |name: &str| {
        let tls = authority
            .client(name, When::Now)
            .shown(authority.believed());
        let options = ConnectOptions::new().tls(tls);
        let options = options.connect_timeout(Duration::from_secs(60));
        let client = connect_with(url.as_str(), options).await.unwrap();
        client.session().await.unwrap()
    };
    let (alice, bob) = (session("alice").await, session("bob").await);
    make(&alice, "/n").await;
    let n = path("/n");
    alice.set_acl(&n, Acl::creator_all(), None).await.unwrap();
    assert_eq!(alice.get_acl(&n).await.unwrap().0, x509("alice"));
    assert_eq!(bob.get_data(&n).await.map(drop), no_auth("/n"));

    let options = ConnectOptions::new().tls(Authority::new("a stranger").believed());
    let options = options.connect_timeout(Duration::from_secs(60));
    match connect_with(url.as_str(), options).await {
        Err(Error::Tls(TlsError::Refused { reason, .. })) => {
            assert!(reason.contains("UnknownIssuer"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_wrong_protocol_is_named_of_a_real_zookeeper() {
    let authority = Authority::new("the tests' authority");
    let (server, _files) = zookeeper(&authority);
    for (url, tls) in [
        (format!("zookeeper://{}", server.hosts()), None),
        (
            format!("zookeeper://{}", server.secure_hosts()),
            Some(authority.client("alice", When::Now)),
        ),
    ] {
        let options = ConnectOptions::new().connect_timeout(Duration::from_secs(60));
        let options = match tls {
            Some(alice) => options.tls(alice.shown(authority.believed())),
            None => options,
        };
        connect_with(url.as_str(), options).await.unwrap();
    }
    let ports = [server.address(), server.secure_address()];
    refusals::wrong_protocols_are_named(ports, &authority).await;
}
