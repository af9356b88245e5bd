//! The server's side of `lockkeeper admin`. Over a Unix socket, the server's own user and root can list and end
//! sessions, drain the server and reload its configuration.
//!
//! A client sends one JSON object on a line, and receives one or more JSON objects. We identify the client's user only
//! by the credentials from the kernel.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    AuditEvent, AuditOutcome, AuditRecord, Error, KickOutcome, NotReady, Server, ServerMonitor,
    SessionId, SessionInfo, SocketListener,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};

use super::audit::AuditLog;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Lists the sessions.
    Sessions,
    /// Ends a session.
    Kick { session: String },
    /// Closes the connection of a session.
    Disconnect { session: String },
    /// Stops opening new sessions. The server ends when all sessions have ended, or after this many milliseconds.
    Drain { timeout_ms: Option<u64>, wait: bool },
    /// Opens sessions again.
    Undrain,
    /// Reloads the configuration.
    Reload,
    /// Answers a four-letter word.
    Word { word: String },
}

pub(super) enum Task {
    Reload {
        by: String,
        reply: oneshot::Sender<Result<String, String>>,
    },
    /// A drain has started. `timeout` is the client's limit, if the client has set one.
    Drain { timeout: Option<Duration> },
    /// A drain was undone.
    Undrain,
}

pub(super) struct Control {
    tasks: mpsc::Receiver<Task>,
    stop: oneshot::Sender<()>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    server: Arc<Server>,
    monitor: ServerMonitor,
    audit: Option<AuditLog>,
    tasks: mpsc::Sender<Task>,
    clients: Arc<Semaphore>,
}

const MAX_CLIENTS: usize = 16;
const MAX_REQUEST_BYTES: u64 = 4 << 10;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

const LAST_REPLIES: Duration = Duration::from_secs(1);

const RETRY_DELAY: Duration = Duration::from_millis(50);

const LOOK: Duration = Duration::from_millis(100);

impl Control {
    pub(super) fn start(
        socket: Option<SocketListener>,
        server: &Arc<Server>,
        audit: Option<AuditLog>,
    ) -> Self {
        let (sender, tasks) = mpsc::channel(MAX_CLIENTS);
        let (stop, stopped) = oneshot::channel();
        let accepting = socket.map(|socket| {
            let shared = Arc::new(Shared {
                server: server.clone(),
                monitor: server.monitor(),
                audit,
                tasks: sender,
                clients: Arc::new(Semaphore::new(MAX_CLIENTS)),
            });
            tokio::spawn(accept(socket, shared, stopped))
        });
        Self {
            tasks,
            stop,
            accepting,
        }
    }

    pub(super) async fn next(&mut self) -> Task {
        match self.tasks.recv().await {
            Some(task) => task,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn stop(self) {
        drop(self.stop);
        // Drop the queue. Otherwise a client task that waits for the main task would wait forever.
        drop(self.tasks);
        if let Some(accepting) = self.accepting {
            let _ = accepting.await;
        }
    }
}

async fn accept(socket: SocketListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    info!(path = %socket.path().display(), "serving `lockkeeper admin`");
    let mut clients = JoinSet::new();
    let mut has_failed = false;
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            Some(_) = clients.join_next() => continue,
            _ = &mut stopped => break,
        };
        let failed_before = std::mem::replace(&mut has_failed, accepted.is_err());
        match accepted {
            Ok(stream) => drop(clients.spawn(serve(stream, shared.clone()))),
            Err(error) => {
                if !failed_before {
                    warn!(%error, "accept failed");
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
    // Let pending replies finish, because the server may end immediately after this.
    let answered = async { while clients.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_REPLIES, answered).await;
    clients.shutdown().await;
}

async fn serve(mut stream: UnixStream, shared: Arc<Shared>) {
    let Ok(_permit) = shared.clients.clone().try_acquire_owned() else {
        return;
    };
    let peer = match admitted(&stream) {
        Ok(peer) => peer,
        Err(peer) => {
            warn!(peer, "`lockkeeper admin` of another user refused");
            let reply = json!({"error": "only the server's own user and root may do this"});
            let _ = send(&mut stream, &reply).await;
            return;
        }
    };
    let request = tokio::time::timeout(CLIENT_TIMEOUT, receive(&mut stream)).await;
    let Ok(Ok(line)) = request else { return };
    let request = match serde_json::from_str::<Request>(&line) {
        Ok(request) => request,
        Err(error) => {
            let reply = json!({"error": format!("not a request of this version: {error}")});
            let _ = send(&mut stream, &reply).await;
            return;
        }
    };
    let replies = shared.answer(&request, &peer).await;
    for reply in &replies {
        let sent = tokio::time::timeout(CLIENT_TIMEOUT, send(&mut stream, reply)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
    if matches!(request, Request::Drain { wait: true, .. }) && replies[0].get("error").is_none() {
        // The new task has no handle to the server, because such a handle would keep the server from ending.
        tokio::spawn(wait_for_drain(shared.monitor.clone(), stream));
    }
}

/// Checks that the client is the server's user or root. Both results contain a description of the client.
fn admitted(stream: &UnixStream) -> Result<String, String> {
    let Ok(peer) = stream.peer_cred() else {
        return Err("unix:unknown".into());
    };
    let mut shown = format!("unix:uid={}", peer.uid());
    if let Some(pid) = peer.pid() {
        shown.push_str(&format!(",pid={pid}"));
    }
    let own = rustix::process::geteuid().as_raw();
    match peer.uid() == own || peer.uid() == 0 {
        true => Ok(shown),
        false => Err(shown),
    }
}

async fn receive(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = String::new();
    let limited = stream.take(MAX_REQUEST_BYTES);
    BufReader::new(limited).read_line(&mut line).await?;
    Ok(line)
}

async fn send(stream: &mut UnixStream, reply: &Value) -> io::Result<()> {
    stream.write_all(format!("{reply}\n").as_bytes()).await
}

impl Shared {
    async fn answer(&self, request: &Request, peer: &str) -> Vec<Value> {
        let answered = match request {
            Request::Sessions => return self.sessions().await,
            Request::Kick { session } => self.kick(session, peer).await,
            Request::Disconnect { session } => self.disconnect(session, peer),
            Request::Drain { timeout_ms, .. } => self.drain(*timeout_ms, peer).await,
            Request::Undrain => self.undrain(peer).await,
            Request::Reload => self.reload(peer).await,
            Request::Word { word } => self.word(word.clone()).await,
        };
        vec![answered.unwrap_or_else(|error| json!({ "error": error }))]
    }

    fn record(
        &self,
        event: AuditEvent,
        outcome: AuditOutcome,
        peer: &str,
        fill: impl FnOnce(&mut AuditRecord),
    ) {
        if let Some(audit) = &self.audit {
            audit.note(event, outcome, |record| {
                record.peer = Some(peer.into());
                fill(record);
            });
        }
    }

    async fn sessions(&self) -> Vec<Value> {
        let monitor = self.monitor.clone();
        let list = tokio::task::spawn_blocking(move || {
            let sessions = monitor.sessions();
            sessions.iter().map(session_json).collect()
        });
        list.await.unwrap_or_default()
    }

    async fn kick(&self, session: &str, peer: &str) -> Result<Value, String> {
        let id = parsed(session)?;
        let identities = self.identities(id).await;
        let kicked = self.server.kick(id).await;
        let outcome = match &kicked {
            Ok(_) => AuditOutcome::Success,
            Err(_) => AuditOutcome::Failure,
        };
        self.record(AuditEvent::Kick, outcome, peer, |record| {
            record.session = Some(id);
            record.identities = identities;
        });
        match kicked {
            Ok(outcome) => {
                info!(session = %id, peer, "session ended by an operator");
                let is_over = outcome == KickOutcome::Ended;
                Ok(json!({"session": id.to_string(), "ended": is_over}))
            }
            Err(Error::SessionExpired { .. }) => Err(format!("there is no session {id}")),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn identities(&self, id: SessionId) -> Vec<String> {
        if self.audit.is_none() {
            return Vec::new();
        }
        let monitor = self.monitor.clone();
        let listed = tokio::task::spawn_blocking(move || monitor.sessions());
        let listed = listed.await.unwrap_or_default().into_iter();
        let mut found = listed.filter(|it| it.session == id);
        found.next().map_or_else(Vec::new, |it| it.identities)
    }

    fn disconnect(&self, session: &str, peer: &str) -> Result<Value, String> {
        let id = parsed(session)?;
        let is_done = self.server.disconnect(id);
        let outcome = match is_done {
            true => AuditOutcome::Success,
            false => AuditOutcome::Failure,
        };
        self.record(AuditEvent::Disconnect, outcome, peer, |record| {
            record.session = Some(id);
        });
        match is_done {
            true => Ok(json!({"session": id.to_string(), "disconnected": true})),
            false => Err(format!("no connection has the session {id}")),
        }
    }

    async fn drain(&self, timeout_ms: Option<u64>, peer: &str) -> Result<Value, String> {
        let is_new = self.server.drain();
        let timeout = timeout_ms.map(Duration::from_millis);
        if is_new || timeout.is_some() {
            let _ = self.tasks.send(Task::Drain { timeout }).await;
        }
        if is_new {
            info!(
                peer,
                "draining: no more sessions are opened; `lockkeeper admin undrain` undoes it"
            );
            self.record(AuditEvent::Drain, AuditOutcome::Success, peer, |_| ());
        }
        Ok(json!({"draining": true, "sessions": self.count().await}))
    }

    async fn undrain(&self, peer: &str) -> Result<Value, String> {
        if !self.server.undrain() {
            return Err("the server is not draining".into());
        }
        let _ = self.tasks.send(Task::Undrain).await;
        info!(peer, "drain undone: sessions are opened again");
        self.record(AuditEvent::Undrain, AuditOutcome::Success, peer, |_| ());
        Ok(json!({"draining": false, "sessions": self.count().await}))
    }

    async fn count(&self) -> usize {
        let monitor = self.monitor.clone();
        let counted = tokio::task::spawn_blocking(move || {
            let sessions = monitor.sessions();
            sessions.iter().filter(|it| !it.is_local).count()
        });
        counted.await.unwrap_or_default()
    }

    async fn reload(&self, peer: &str) -> Result<Value, String> {
        let (reply, replied) = oneshot::channel();
        let by = peer.to_owned();
        let stops = "the server stops".to_owned();
        let sent = self.tasks.send(Task::Reload { by, reply }).await;
        sent.map_err(|_| stops.clone())?;
        let changes = replied.await.map_err(|_| stops)??;
        Ok(json!({"reloaded": true, "changes": changes}))
    }

    async fn word(&self, word: String) -> Result<Value, String> {
        let monitor = self.monitor.clone();
        let unknown = format!(
            "\"{word}\" is not a four-letter word",
            word = word.escape_debug()
        );
        let text = tokio::task::spawn_blocking(move || monitor.four_letter_word(&word));
        let text = text.await.ok().flatten().ok_or(unknown)?;
        Ok(json!({ "text": text }))
    }
}

/// Keeps the connection open until the process ends or the client closes it. If the drain is undone, reports this to
/// the client.
async fn wait_for_drain(monitor: ServerMonitor, mut stream: UnixStream) {
    let undone = async {
        while let Err(NotReady::Draining | NotReady::StoreFailed(_)) = monitor.check_ready() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = undone => {
            let reply = json!({"error": "the drain was undone"});
            let _ = send(&mut stream, &reply).await;
        }
        // A client sends only one request, so any read means that the client has closed the connection.
        _ = stream.read_u8() => {}
    }
}

fn parsed(text: &str) -> Result<SessionId, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let id = u64::from_str_radix(digits, 16).ok();
    let id = id.filter(|_| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_hexdigit()));
    id.map(|id| SessionId(id.cast_signed())).ok_or_else(|| {
        format!(
            "\"{text}\" is not a session: expected an id, such as 0x1a2b3c",
            text = text.escape_debug()
        )
    })
}

fn session_json(of: &SessionInfo) -> Value {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    json!({
        "session": of.session.to_string(),
        "peer": of.peer,
        "connected_ms": of.connected.map(ms),
        "timeout_ms": of.timeout.map(ms),
        "identities": of.identities,
        "ephemerals": of.ephemerals,
        "watches": of.watches,
        "local": of.is_local,
    })
}
