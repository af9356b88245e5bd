//! Refused clients, untrusted servers and unusable options.

use super::*;

/// Limit for retrying transient failures. A refused certificate is reported immediately.
const PATIENCE: Duration = Duration::from_secs(10);

async fn refusal(url: &str, tls: Option<ClientTls>) -> String {
    let options = ConnectOptions::new();
    let options = match tls {
        Some(tls) => options.tls(tls).connect_timeout(6 * PATIENCE),
        None => options.connect_timeout(PATIENCE),
    };
    match connect_with(url, options).await {
        Err(Error::Tls(TlsError::Refused { reason, .. })) => reason,
        Err(Error::ConnectFailed { reason, .. }) => reason,
        Err(error) => panic!("it should have been tried: {error}"),
        Ok(_) => panic!("it was let in"),
    }
}

/// Runs the cases concurrently, because each takes time.
async fn refused(cases: impl IntoIterator<Item = (String, Option<ClientTls>, &'static str)>) {
    let trying = cases
        .into_iter()
        .map(|(url, tls, says)| tokio::spawn(async move { (refusal(&url, tls).await, says) }));
    for tried in trying.collect::<Vec<_>>() {
        let (reason, says) = tried.await.unwrap();
        assert!(reason.contains(says), "{reason:?} does not say {says:?}");
    }
}

#[tokio::test]
async fn clients_without_the_right_certificate_are_refused() {
    let world = World::guarded().await;
    let (authority, stranger) = (&world.authority, Authority::new("a stranger"));
    let believing = || authority.believed();
    let server = authority.server(ADDRESS, When::Now);
    refused([
        (world.url(), Some(believing()), "CertificateRequired"),
        (
            world.url(),
            Some(stranger.client("alice", When::Now).shown(believing())),
            "UnknownCA",
        ),
        (
            world.url(),
            Some(authority.client("alice", When::Before).shown(believing())),
            "CertificateExpired",
        ),
        (
            world.url(),
            Some(authority.client("alice", When::Later).shown(believing())),
            "Certificate",
        ),
        // A server certificate is not valid for a client.
        (world.url(), Some(server.shown(believing())), "Certificate"),
    ])
    .await;
    // The server still works.
    make(&world.session_of("alice").await, "/n").await;
}

/// An identity beyond the size limit would be dropped, and its client would have none.
#[tokio::test]
async fn a_certificate_with_an_endless_name_is_refused_and_a_long_one_is_not() {
    let world = World::guarded().await;
    let endless = world.authority.client(&"n".repeat(5_000), When::Now);
    let tls = endless.shown(world.authority.believed());
    let options = ConnectOptions::new().tls(tls);
    let options = options.connect_timeout(Duration::from_secs(2));
    let refused = connect_with(world.url().as_str(), options).await;
    assert!(refused.is_err());
    make(&world.session_of(&"n".repeat(500)).await, "/n").await;
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_others_are_not() {
    let authority = Authority::new("the tests' authority");
    let alice = authority.client("alice", When::Now);
    let tls = authority.server(ADDRESS, When::Now).options();
    let tls = tls.client_ca_pem(authority.revoking(&alice)).unwrap();
    let world = World::with(tls, authority).await;
    make(&world.session_of("bob").await, "/n").await;
    let alice = alice.shown(world.authority.believed());
    refused([(world.url(), Some(alice), "CertificateRevoked")]).await;
}

#[tokio::test]
async fn servers_that_cannot_be_believed_are_refused() {
    let (authority, stranger) = (
        Authority::new("the tests' authority"),
        Authority::new("a stranger"),
    );
    let store = Store::memory();
    let mut servers = Vec::new();
    for (signed, says) in [
        (stranger.server(ADDRESS, When::Now), "UnknownIssuer"),
        (authority.server(ADDRESS, When::Before), "expired"),
        (authority.server(ADDRESS, When::Later), "not valid yet"),
        (
            authority.server("127.0.0.2", When::Now),
            "not valid for name",
        ),
        (
            authority.server("localhost", When::Now),
            "not valid for name",
        ),
        // A client certificate is not valid for a server.
        (
            authority.client("alice", When::Now),
            "InvalidCertificate|certificate",
        ),
    ] {
        servers.push((serve(&store, signed.options()).await, says));
    }
    let cases = servers.iter().map(|(server, says)| {
        let url = format!("lockkeeper://{}", server.tls_addr().unwrap());
        let says = says.split('|').next_back().unwrap();
        (url, Some(authority.believed()), says)
    });
    refused(cases.collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn a_name_of_the_certificate_is_enough() {
    let authority = Authority::new("the tests' authority");
    let tls = authority.server("localhost", When::Now).options();
    let world = World::with(tls, authority).await;
    let url = format!(
        "lockkeeper://localhost:{}",
        world.server.tls_addr().unwrap().port()
    );
    let options = ConnectOptions::new().tls(world.authority.believed());
    let client = connect_with(url.as_str(), options).await.unwrap();
    make(&client.session().await.unwrap(), "/n").await;
}

/// Checks that clients of both kinds recognize TLS on a plain port, or the reverse, at their first attempt.
pub(super) async fn wrong_protocols_are_named(
    [plain, secure]: [SocketAddr; 2],
    authority: &Authority,
) {
    for scheme in ["lockkeeper", "zookeeper"] {
        for (url, says) in [
            (format!("{scheme}://{secure}"), "speaks TLS"),
            (format!("{scheme}+tls://{plain}"), "does not speak TLS"),
        ] {
            let options = match url.contains("+tls") {
                true => ConnectOptions::new().tls(authority.believed()),
                false => ConnectOptions::new(),
            };
            let options = options.connect_timeout(Duration::from_secs(10_000));
            let connecting = connect_with(url.as_str(), options);
            match within_reason(connecting).await {
                Err(Error::Tls(error)) => assert!(error.to_string().contains(says), "{error}"),
                other => panic!("{url}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn the_wrong_protocol_is_named() {
    let authority = Authority::new("the tests' authority");
    let tls = authority.server(ADDRESS, When::Now).options();
    let tls = tls.client_ca_pem(authority.pem.as_str()).unwrap();
    let options = ServerOptions::new()
        .listen(somewhere())
        .tls(tls)
        .tls_listen(somewhere());
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let ports = [server.local_addr(), server.tls_addr()];
    wrong_protocols_are_named(ports.map(Option::unwrap), &authority).await;
}

async fn told(address: SocketAddr, bytes: &'static [u8]) -> Vec<u8> {
    let talk = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        let mut said = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut said);
        said
    };
    within_reason(tokio::task::spawn_blocking(talk))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_connection_without_tls_is_closed_at_once() {
    let authority = Authority::new("the tests' authority");
    let tls = authority.server(ADDRESS, When::Now).options();
    let options = ServerOptions::new()
        .tls(tls)
        .tls_listen(somewhere())
        .tls_only()
        .four_letter_words("*")
        .unwrap()
        // So that no client is disconnected for being slow.
        .handshake_timeout(Duration::from_secs(100_000));
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    assert_eq!(server.local_addr(), None);
    let address = server.tls_addr().unwrap();
    for bytes in [
        &b"ruok"[..],
        &[0, 0, 0, 45, 0, 0, 0, 0],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
    ] {
        assert_eq!(told(address, bytes).await, b"", "{bytes:x?}");
    }
    // Malformed TLS is answered with a TLS alert.
    let alert = told(address, &[22, 3, 1, 0, 4, 1, 0, 0, 0]).await;
    assert_eq!(alert.first(), Some(&21), "{alert:x?}");
}

#[tokio::test]
async fn a_silent_client_keeps_no_other_waiting_and_goes_in_time() {
    let authority = Authority::new("the tests' authority");
    let tls = authority.server(ADDRESS, When::Now).options();
    let options = ServerOptions::new()
        .tls(tls)
        .tls_listen(somewhere())
        .tls_only()
        .max_half_open(20)
        .handshake_timeout(Duration::from_secs(3));
    let store = Store::memory();
    let server = Server::bind(&store, options).await.unwrap();
    let address = server.tls_addr().unwrap();
    let world = World {
        authority,
        server,
        store,
    };
    let mut silent: Vec<TcpStream> = (0..10)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for stream in &mut silent[5..] {
        stream.write_all(&[22, 3]).unwrap();
    }
    let client = world
        .client(ConnectOptions::new(), world.authority.believed())
        .await;
    make(&client.session().await.unwrap(), "/n").await;

    let wait = move || {
        for mut stream in silent {
            let _ = stream.read_to_end(&mut Vec::new());
        }
    };
    within_reason(tokio::task::spawn_blocking(wait))
        .await
        .unwrap();
    make(&client.session().await.unwrap(), "/m").await;
}

fn says(result: Result<impl Sized, TlsError>) -> String {
    match result {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn unusable_certificates_and_keys_are_refused_with_the_reason() {
    let folder = TempFolder::new("tls");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let authority = Authority::new("the tests' authority");
    let (one, other) = (
        authority.server(ADDRESS, When::Now),
        authority.server(ADDRESS, When::Now),
    );
    let (pem, key) = (file("a.pem", &one.certificate), file("a.key", &one.key));
    let other_key = file("b.key", &other.key);
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = file("c.key", encrypted);
    let garbled = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let garbled = file("garbled.pem", garbled);
    let torn = file("torn.pem", &one.certificate[..200]);
    let missing = folder.path().join("missing.pem");

    let new = |certificate, key| TlsOptions::from_pem_files(certificate, key);
    for (said, parts) in [
        (says(new(&missing, &key)), ["missing.pem", "cannot be read"]),
        (
            says(new(&pem, &missing)),
            ["the server's key", "missing.pem"],
        ),
        (says(new(&key, &key)), ["a.key", "holds no certificate"]),
        (says(new(&pem, &pem)), ["a.pem", "holds no key"]),
        (
            says(new(&pem, &other_key)),
            ["b.key does not belong to", "a.pem"],
        ),
        (says(new(&pem, &encrypted)), ["c.key", "is encrypted"]),
        (says(new(&garbled, &key)), ["garbled.pem", "cannot be used"]),
        (says(new(&torn, &key)), ["torn.pem", "is not PEM"]),
        (
            says(one.options().client_ca(&key)),
            ["authority of clients", "a.key"],
        ),
        (
            says(one.options().client_ca_pem("")),
            ["authority of clients", "holds no certificate"],
        ),
        (
            says(ClientTls::new().ca_file(&missing)),
            ["authority", "missing.pem"],
        ),
    ] {
        assert!(
            parts.iter().all(|part| said.contains(part)),
            "{said}: {parts:?}"
        );
    }
    // An expired certificate only logs a warning.
    let expired: Signed = authority.server(ADDRESS, When::Before);
    let shown = format!("{:?}", expired.options());
    assert!(!shown.contains("PRIVATE"), "{shown}");
}

#[tokio::test]
async fn a_client_that_cannot_mean_it_does_not_even_try() {
    let authority = Authority::new("the tests' authority");
    let alice = authority.client("alice", When::Now);
    let bob = authority.client("bob", When::Now);
    let mixed = authority
        .believed()
        .client_certificate(alice.certificate.as_str(), bob.key.as_str());
    for (url, tls, says) in [
        (
            "lockkeeper://127.0.0.1:1",
            ClientTls::new(),
            "no certificate authority",
        ),
        (
            "lockkeeper://127.0.0.1:1",
            ClientTls::new().ca_pem("x"),
            "holds no certificate",
        ),
        (
            "lockkeeper://127.0.0.1:1",
            mixed,
            "does not belong to the client certificate",
        ),
        ("lockkeeper://bad%name:1", authority.believed(), "bad%name"),
        (
            "zookeeper://127.0.0.1:1,a..b:1",
            authority.believed(),
            "a..b",
        ),
    ] {
        match connect_with(url, ConnectOptions::new().tls(tls)).await {
            Err(Error::Tls(error)) => assert!(error.to_string().contains(says), "{error}"),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("{says}: it was let in"),
        }
    }
    // An in-process store has no wire.
    let options = ConnectOptions::new().tls(ClientTls::new());
    connect_with("memory:tls", options).await.unwrap();
}

#[tokio::test]
async fn an_address_that_others_can_reach_requires_an_identity() {
    let authority = Authority::new("the tests' authority");
    let tls = || authority.server(ADDRESS, When::Now).options();
    // This machine does not have the address, so listening there would fail.
    let everywhere: SocketAddr = "203.0.113.1:1".parse().unwrap();
    let open = || ServerOptions::new().tls_listen(everywhere).tls_only();
    let store = Store::memory();
    let bound = async |options| Server::bind(&store, options).await.unwrap_err();

    let error = bound(open().tls(tls())).await;
    assert!(
        matches!(error, ServerError::Exposed { address } if address == everywhere),
        "{error}"
    );
    for options in [
        open().tls(tls().client_ca_pem(authority.pem.as_str()).unwrap()),
        open().tls(tls()).require_auth(true),
        open().tls(tls()).insecure(true),
    ] {
        let error = bound(options).await;
        assert!(matches!(error, ServerError::Listen { .. }), "{error}");
    }
    // TLS certificates do not protect the plain address.
    let tls = tls().client_ca_pem(authority.pem.as_str()).unwrap();
    let beside = ServerOptions::new().listen(everywhere);
    let beside = beside.tls_listen(somewhere()).tls(tls.clone());
    assert!(matches!(bound(beside).await, ServerError::Exposed { .. }));

    let without = ServerOptions::new().tls_listen(somewhere());
    assert!(matches!(
        bound(without).await,
        ServerError::TlsIncomplete { .. }
    ));
    let without = ServerOptions::new().tls(tls);
    assert!(matches!(
        bound(without).await,
        ServerError::TlsIncomplete { .. }
    ));
    let without = ServerOptions::new().tls_only();
    assert!(matches!(bound(without).await, ServerError::NoAddress));
}
