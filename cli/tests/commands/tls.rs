//! `lockkeeper serve` with TLS: certificates, revocation lists, and their errors.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_store::{Client, ClientTls, ConnectOptions, Error, connect_with};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, SerialNumber, date_time_ymd,
};
use rustix::process::Signal;

use super::server::*;
use super::support::*;

pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// Returns the authority's certificate, and a revocation list that must be renewed before the start of this year.
    fn with_list(&self, renewed_by: i32) -> String {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2000, 1, 1),
            next_update: date_time_ymd(renewed_by, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        format!("{}{}", self.pem, list.pem().unwrap())
    }

    pub(crate) fn sign(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// Files with the certificates of a server. Their names are the names of the options.
pub(crate) struct Files {
    folder: TempFolder,
    pub(crate) authority: Authority,
}

impl Files {
    pub(crate) fn new() -> Self {
        let files = Self {
            folder: TempFolder::short(),
            authority: Authority::new("one"),
        };
        files.renew(&files.authority);
        fs::write(files.at("ca"), &files.authority.pem).unwrap();
        files
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.at(name)
    }

    fn renew(&self, authority: &Authority) {
        let (certificate, key) = authority.sign();
        fs::write(self.at("cert"), certificate).unwrap();
        fs::write(self.at("key"), key).unwrap();
    }

    /// Adds the TLS options with these files to a command, and a free address.
    pub(crate) fn tls<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.args(["--data", "memory", "--tls-listen", "127.0.0.1:0"]);
        command.arg("--tls-cert").arg(self.at("cert"));
        command.arg("--tls-key").arg(self.at("key"))
    }
}

pub(crate) fn tls_address(server: &Server) -> &str {
    let (_, address) = server
        .ready
        .split_once(" tls ")
        .expect("it says its TLS address");
    address
}

async fn connect(address: &str, tls: ClientTls) -> Result<Client, Error> {
    let url = format!("lockkeeper://{address}");
    let options = ConnectOptions::new().tls(tls);
    connect_with(
        &url,
        options.connect_timeout(std::time::Duration::from_secs(2)),
    )
    .await
}

fn believing(authority: &Authority) -> ClientTls {
    ClientTls::new().ca_pem(authority.pem.clone())
}

#[test]
fn both_addresses_are_told_and_served() {
    let files = Files::new();
    let server = Server::start(files.tls(&mut serve()));
    assert_eq!(
        server.ready,
        format!(
            "lockkeeper ready {} tls {}",
            server.address(),
            tls_address(&server)
        )
    );
    block_on(async {
        server.connect().await.session().await.unwrap();
        let client = connect(tls_address(&server), believing(&files.authority)).await;
        client.unwrap().session().await.unwrap();
        let stranger = Authority::new("stranger");
        assert!(
            connect(tls_address(&server), believing(&stranger))
                .await
                .is_err()
        );
    });
    assert_eq!(server.end(Signal::TERM).status.code(), Some(0));
}

#[test]
fn with_a_tls_address_alone_no_plain_address_is_served() {
    let files = Files::new();
    let server = Server::start(files.tls(&mut bare()));
    assert_eq!(
        server.ready,
        format!("lockkeeper ready tls {}", tls_address(&server))
    );
    block_on(async {
        let client = connect(tls_address(&server), believing(&files.authority)).await;
        client.unwrap().session().await.unwrap();
    });
    assert_eq!(server.end(Signal::TERM).status.code(), Some(0));
}

#[test]
fn clients_without_a_certificate_stay_outside_where_one_is_asked_for() {
    let files = Files::new();
    let mut command = bare();
    let server = Server::start(
        files
            .tls(&mut command)
            .arg("--tls-client-ca")
            .arg(files.at("ca")),
    );
    let (certificate, key) = files.authority.sign();
    block_on(async {
        let address = tls_address(&server);
        assert!(connect(address, believing(&files.authority)).await.is_err());
        let known = believing(&files.authority).client_certificate(certificate, key);
        connect(address, known)
            .await
            .unwrap()
            .session()
            .await
            .unwrap();
    });
    assert_eq!(server.end(Signal::TERM).status.code(), Some(0));
}

#[test]
fn renewed_certificates_are_taken_on_sighup_and_bad_ones_are_not() {
    let files = Files::new();
    let server = Server::start(files.tls(&mut bare()));
    let address = tls_address(&server).to_owned();
    let other = Authority::new("other");
    files.renew(&other);
    server.signal(Signal::HUP);
    server.logs("SIGHUP: reloaded: the certificates were read");
    block_on(async { connect(&address, believing(&other)).await.unwrap() });
    fs::write(files.at("key"), "no key").unwrap();
    server.signal(Signal::HUP);
    server.logs("the former configuration stays in use");
    block_on(async {
        connect(&address, believing(&other)).await.unwrap();
        assert!(
            connect(&address, believing(&files.authority))
                .await
                .is_err()
        );
    });
    assert_eq!(server.end(Signal::TERM).status.code(), Some(0));
}

/// Writes a configuration file with this certificate and key. It contains client authorities if `asks_clients` is true.
fn configure(files: &Files, [certificate, key]: [&str; 2], asks_clients: bool) -> PathBuf {
    let at = |name| files.at(name).display().to_string();
    let mut text = format!(
        "data = \"memory\"\ntls-listen = \"127.0.0.1:0\"\ntls-cert = {:?}\ntls-key = {:?}\n",
        at(certificate),
        at(key)
    );
    if asks_clients {
        text.push_str(&format!("tls-client-ca = [{:?}]\n", at("ca")));
    }
    fs::write(files.at("config"), text).unwrap();
    files.at("config")
}

#[test]
fn a_reload_tells_what_is_in_force_and_refuses_to_lose_the_authority() {
    let files = Files::new();
    let config = configure(&files, ["cert", "key"], true);
    let server = Server::start(bare().arg("--config").arg(config));
    let address = tls_address(&server).to_owned();
    let without_certificate = || block_on(connect(&address, believing(&files.authority)));
    assert!(without_certificate().is_err());
    configure(&files, ["cert", "key"], false);
    server.signal(Signal::HUP);
    let line = server.logs("SIGHUP: ");
    assert!(
        line.contains("no authority of clients' certificates"),
        "{line}"
    );
    assert!(without_certificate().is_err());
    for name in ["cert", "key"] {
        fs::copy(files.at(name), files.at(&format!("new-{name}"))).unwrap();
    }
    configure(&files, ["new-cert", "new-key"], true);
    server.signal(Signal::HUP);
    let line = server.logs("SIGHUP: reloaded");
    assert!(
        line.ends_with("the certificates were read; tls-cert has changed; tls-key has changed"),
        "{line}"
    );
    assert_eq!(server.end(Signal::TERM).status.code(), Some(0));
}

#[test]
fn files_that_a_reload_names_are_watched() {
    let files = Files::new();
    let config = configure(&files, ["cert", "key"], false);
    let server = Server::start(bare().arg("--watch-files").arg("--config").arg(config));
    let address = tls_address(&server).to_owned();
    let sign = |authority: &Authority| {
        let (certificate, key) = authority.sign();
        fs::write(files.at("new-cert"), certificate).unwrap();
        fs::write(files.at("new-key"), key).unwrap();
    };
    sign(&files.authority);
    configure(&files, ["new-cert", "new-key"], false);
    server.logs("a file has changed: reloaded");
    let renewed = Authority::new("renewed");
    sign(&renewed);
    while block_on(connect(&address, believing(&renewed))).is_err() {
        server.logs("a file has changed");
    }
    assert_eq!(server.end(Signal::TERM).status.code(), Some(0));
}

#[test]
fn an_occupied_port_for_tls_is_named_and_its_option() {
    let files = Files::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = files.at("config");
    fs::write(
        &config,
        format!("tls-listen = {address:?}\ndata = \"memory\"\nlog-level = \"error\"\n"),
    )
    .unwrap();
    let mut command = bare();
    command.arg("--config").arg(config);
    command
        .arg("--tls-cert")
        .arg(files.at("cert"))
        .arg("--tls-key")
        .arg(files.at("key"));
    let said = failure(&command.output().unwrap());
    let expected = "is in use by another program: choose another address with --tls-listen";
    assert_eq!(said, format!("lockkeeper: {address} {expected}\n"));
}

/// Runs the command with `--check-config`. Returns the exit code and the output.
fn checked(command: &mut Command) -> (Option<i32>, String) {
    let output = command.arg("--check-config").output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_check_tells_what_tls_would_be_served() {
    let files = Files::new();
    let (code, said) = checked(files.tls(&mut bare()));
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("# on 127.0.0.1:0, with TLS\n") && !said.contains("without TLS"),
        "{said}"
    );
    let mut command = serve();
    let ca = files.at("ca");
    let (code, said) = checked(files.tls(&mut command).arg("--tls-client-ca").arg(&ca));
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("with TLS, for clients with a certificate"),
        "{said}"
    );
    assert!(said.contains("without TLS"), "{said}");
}

#[test]
fn certificates_that_cannot_be_used_are_named_before_anything_starts() {
    let files = Files::new();
    let refused = |change: &dyn Fn(&Files), expected: &[&str]| {
        let files = Files::new();
        change(&files);
        let mut command = bare();
        let command = files
            .tls(&mut command)
            .arg("--tls-client-ca")
            .arg(files.at("ca"));
        let (code, said) = checked(command);
        assert_eq!(code, Some(2), "{said}");
        for expected in expected {
            assert!(said.contains(expected), "no {expected}: {said}");
        }
    };
    let path = |name: &str| format!("/{name}");
    for name in ["cert", "key", "ca"] {
        refused(
            &|files| fs::remove_file(files.at(name)).unwrap(),
            &[&path(name)],
        );
        refused(
            &|files| fs::write(files.at(name), "nonsense").unwrap(),
            &[&path(name)],
        );
    }
    // Use the key of another certificate.
    let (_, key) = files.authority.sign();
    refused(&|files| fs::write(files.at("key"), &key).unwrap(), &["key"]);
}

#[test]
fn half_of_what_tls_needs_is_refused() {
    let file = |option: &str| format!("{option}={}", Path::new("/nowhere").display());
    for (options, expected) in [
        (
            vec!["--tls-listen=127.0.0.1:0".to_owned()],
            "--tls-cert and --tls-key",
        ),
        (
            vec!["--tls-listen=127.0.0.1:0".into(), file("--tls-cert")],
            "--tls-key",
        ),
        (vec![file("--tls-cert"), file("--tls-key")], "--tls-listen"),
        (
            vec![file("--tls-client-ca")],
            "--tls-listen and --tls-cert and --tls-key",
        ),
    ] {
        let (code, said) = checked(bare().args(&options));
        assert_eq!(code, Some(2), "{options:?}: {said}");
        assert!(
            said.contains(&format!("for TLS, options are missing: {expected}")),
            "{options:?}: {said}"
        );
    }
}

#[test]
fn an_address_for_others_is_served_to_holders_of_certificates() {
    let files = Files::new();
    let exposed = |options: &[&str]| {
        let mut command = bare();
        command
            .args(["--data", "memory", "--tls-listen", "0.0.0.0:0"])
            .args(options);
        command
            .arg("--tls-cert")
            .arg(files.at("cert"))
            .arg("--tls-key")
            .arg(files.at("key"));
        checked(&mut command)
    };
    let ca = format!("--tls-client-ca={}", files.at("ca").display());
    let (code, said) = exposed(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("0.0.0.0:0 can be reached from other machines"),
        "{said}"
    );
    for options in [&[&*ca][..], &["--insecure"], &["--require-auth"]] {
        let (code, said) = exposed(options);
        assert_eq!(code, Some(0), "{said}");
    }
    // The plain address is checked independently of TLS.
    let (code, said) = exposed(&[&ca, "--listen=0.0.0.0:1"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("0.0.0.0:1 can be reached from other machines"),
        "{said}"
    );
}

/// Sends bytes to the TLS port, and waits until the server closes the connection. Returns our local address.
fn hung_up_on(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    // Ignore an error, because the server may also reset the connection.
    let _ = stream.read_to_end(&mut Vec::new());
    stream.local_addr().unwrap().to_string()
}

#[test]
fn refused_handshakes_of_tls_are_logged_with_the_address_and_no_disk_is_filled_with_them() {
    const TOLD: &str = "TLS handshake refused";
    const TIMES: usize = 50;
    let files = Files::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[22, 3, 1, 0, 4, 1, 0, 0, 0],
    ] {
        let server = Server::start(files.tls(&mut bare()));
        let address = tls_address(&server).to_owned();
        let first = hung_up_on(&address, bytes);
        // The server closes the connection before it logs the error. Wait for this line, so that a later handshake is
        // not logged in its place.
        server.logs(TOLD);
        for _ in 1..TIMES {
            hung_up_on(&address, bytes);
        }
        let ended = server.end(Signal::TERM);
        let told: Vec<_> = ended
            .log
            .lines()
            .filter(|line| line.contains(TOLD))
            .collect();
        assert!(!told.is_empty(), "{}", ended.log);
        assert!(told[0].contains(&first), "{told:?}");
        // The server logs only one line in a few seconds.
        assert!(told.len() < TIMES / 2, "{} lines", told.len());
    }
}

/// The revocation list still applies, but certificates that were revoked later are not in it.
#[test]
fn an_expired_revocation_list_is_warned_of() {
    const TOLD: &str = "revocation list expired";
    let files = Files::new();
    let serve_with = |list: String| {
        fs::write(files.at("ca"), list).unwrap();
        let mut command = bare();
        files.tls(&mut command).arg("--tls-client-ca");
        Server::start(command.arg(files.at("ca")))
    };
    let ended = serve_with(files.authority.with_list(2001)).end(Signal::TERM);
    assert!(ended.log.contains(TOLD), "{}", ended.log);
    let server = serve_with(files.authority.with_list(3000));
    fs::write(files.at("ca"), files.authority.with_list(2002)).unwrap();
    server.signal(Signal::HUP);
    server.logs("SIGHUP: reloaded: the certificates were read");
    let ended = server.end(Signal::TERM);
    let (before, after) = ended.log.split_once("ready").unwrap_or(("", &ended.log));
    assert!(!before.contains(TOLD), "{before}");
    assert_eq!(after.matches(TOLD).count(), 1, "{after}");
}
