//! Sessions of the crate zookeeper-client lent to the store, to run our locks on a third-party client.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_store::{
    Backend, BoxFuture, Client, Clock, ConnectOptions, Connector, Error, Result, SessionId,
    connect_with,
};
use lockkeeper_zookeeper_client::{LentClient, zookeeper_client as zk};

use crate::runtime;

const PAUSE: Duration = Duration::from_millis(100);

/// Connects to the store at a URL, or at `lent://host:port/chroot` with a client of the crate zookeeper-client.
pub async fn connect_to(url: &str, options: ConnectOptions) -> Result<Client> {
    match url.strip_prefix("lent://") {
        None => connect_with(url, options).await,
        Some(target) => {
            let connector = Arc::new(Lent::at(target));
            Client::open(connector, url.to_owned(), options).await
        }
    }
}

/// Opens each session with a separate ZooKeeper client, because a client of the crate never opens a second session.
#[derive(Debug)]
struct Lent {
    hosts: String,
    chroot: String,
    clock: Clock,
    /// Lets a test end a session.
    opened: Arc<Mutex<HashMap<SessionId, zk::SessionInfo>>>,
}

impl Lent {
    fn at(target: &str) -> Self {
        let (hosts, chroot) = target.split_at(target.find('/').expect("it has a chroot"));
        Self {
            hosts: hosts.to_owned(),
            chroot: chroot.to_owned(),
            clock: Clock::system(),
            opened: Arc::default(),
        }
    }
}

impl Connector for Lent {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let connector = connector(options);
        let (hosts, chroot) = (self.hosts.clone(), self.chroot.clone());
        let (create_chroot, opened) = (options.get_create_chroot(), self.opened.clone());
        // Drop the options that only concern the ZooKeeper client.
        let options = ConnectOptions::new()
            .acl(options.get_acl().clone())
            .connect_timeout(options.get_connect_timeout())
            .ensemble_tick(options.get_ensemble_tick());
        Box::pin(async move {
            let client = lendable(connector, &hosts).await?;
            if create_chroot {
                let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
                client.mkdir(&chroot, &persistent).await.map_err(failed)?;
            }
            let client = client.chroot(chroot).expect("the path is valid");
            let session = SessionId(client.session_id().0);
            opened
                .lock()
                .unwrap()
                .insert(session, client.session().clone());
            let timeout = client.session_timeout();
            LentClient::new(client, timeout).open(&options).await
        })
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        let status = backend.status().clone();
        let info = self.opened.lock().unwrap().get(&status.id()).cloned();
        let hosts = self.hosts.clone();
        Box::pin(async move {
            let info = info.expect("the session was opened here");
            end_session(&hosts, info).await.map_err(failed)?;
            let mut changes = status.states();
            while !status.state().is_final() && changes.next().await.is_some() {}
            Ok(())
        })
    }
}

fn connector(options: &ConnectOptions) -> zk::Connector {
    let timeout = options.get_session_timeout();
    let connector = zk::Client::connector()
        .with_session_timeout(timeout.unwrap_or(Duration::from_secs(15)))
        .with_fail_eagerly();
    options
        .get_auth()
        .fold(connector, |connector, (scheme, secret)| {
            connector.with_auth(scheme, secret)
        })
}

/// Runs the crate's tasks on the runtime of servers and proxies, because a test may block its own.
struct Spawner;

impl spawns_core::Spawn for Spawner {
    fn spawn(&self, task: spawns_core::Task) {
        runtime().spawn(Box::into_pin(task.future));
    }
}

/// Connects, and retries while the server is not there. Fails only with [`Error::AuthFailed`].
pub async fn lendable(connector: zk::Connector, hosts: &str) -> Result<zk::Client> {
    let hosts = hosts.to_owned();
    let connecting = runtime().spawn_blocking(move || {
        // The crate uses the spawner of the thread that connects.
        let _spawner = spawns_core::enter(&Spawner);
        loop {
            match pollster::block_on(connector.clone().connect(&hosts)) {
                Ok(client) => return Ok(client),
                Err(zk::Error::AuthFailed) => return Err(Error::AuthFailed),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    });
    connecting.await.expect("it does not panic")
}

/// Ends a session of the crate: connects with its id and password, and closes it. The session's client reconnects and
/// learns of the end.
pub async fn end_session(hosts: &str, session: zk::SessionInfo) -> io::Result<()> {
    let hosts = hosts.to_owned();
    let closing = move || close(&hosts, &handshake(session)?);
    let closed = runtime().spawn_blocking(closing).await;
    closed.expect("it does not panic")
}

/// Returns the frame that connects with a session's id and password. The crate does not expose the password, so we
/// make it send the frame to a local listener.
fn handshake(info: zk::SessionInfo) -> io::Result<Vec<u8>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    let connector = zk::Client::connector()
        .with_session(info)
        .with_fail_eagerly();
    std::thread::spawn(move || pollster::block_on(connector.connect(&address)));
    let (mut client, _) = listener.accept()?;
    let mut frame = vec![0; 4];
    client.read_exact(&mut frame)?;
    let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
    frame.resize(4 + length as usize, 0);
    client.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// Closes a session, and retries until the server confirms it, because the session's client reconnects and may take
/// the session back first.
fn close(hosts: &str, handshake: &[u8]) -> io::Result<()> {
    const CLOSE_SESSION: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5];
    loop {
        let mut server = TcpStream::connect(hosts)?;
        server.write_all(&[handshake, &CLOSE_SESSION].concat())?;
        let mut answers = Vec::new();
        match server.read_to_end(&mut answers) {
            Err(error) if !crate::wire::is_closed(&error) => return Err(error),
            _ => {}
        }
        // The handshake's answer, with the timeout after the version (0 if the session has ended), then another frame.
        let length = answers
            .first_chunk()
            .map(|length| u32::from_be_bytes(*length));
        let is_over = answers.get(8..12).is_some_and(|timeout| timeout == [0; 4]);
        if is_over || length.is_some_and(|length| answers.len() > 4 + length as usize) {
            return Ok(());
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Protocol(error.to_string())
}
