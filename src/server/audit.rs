//! The audit log: an [`AuditSink`] receives an [`AuditRecord`] for each action.
//!
//! Hostile clients cannot flood the log. Successes are recorded only for actions that were performed. In each
//! [`WINDOW`], only the first [`BURST`] failures of one kind from one network get a record each. One more record
//! contains the number of the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::peer::{Network, PeerAddress};
use crate::core::ChangeKind;
use crate::engine::AuditedChange;
use crate::model::path::ZnodePath;
use crate::model::types::{AclEntry, SessionId, Zxid};
use crate::runtime::clock::{BootInstant, Clock};

/// Receives a server's audit records ([`ServerOptions::audit`](super::ServerOptions::audit)).
///
/// The tasks that serve clients call [`record`](Self::record), so it must not block. Pass the record on through a
/// bounded queue.
pub trait AuditSink: Send + Sync + 'static {
    /// Receives a record.
    fn record(&self, record: AuditRecord);
}

/// An action, or an attempted action. Contains no passwords and no password hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// Time by the store's clock.
    pub time: SystemTime,
    /// The action.
    pub event: AuditEvent,
    /// Outcome of the action.
    pub outcome: AuditOutcome,
    /// Session that performed the action or was its target.
    pub session: Option<SessionId>,
    /// Identities that the client had proved, such as `digest:jane`, and its address, such as `ip:127.0.0.1`.
    pub identities: Vec<String>,
    /// The client, such as `127.0.0.1:4711` or `unix:uid=1000,pid=4711`. A record of several actions names the network
    /// instead.
    pub peer: Option<String>,
    /// User of a failed authentication, as named by the client.
    pub user: Option<String>,
    /// The znode.
    pub path: Option<ZnodePath>,
    /// Owner of an ephemeral znode that another session deleted, usually the holder of a lock that was taken away.
    pub owner: Option<SessionId>,
    /// New access control list, with entries such as `digest:jane:cdrwa`.
    pub acl: Vec<String>,
    /// The four-letter word.
    pub word: Option<&'static str>,
    /// Zxid of the transaction that performed the action.
    pub zxid: Option<Zxid>,
    /// Number of actions that this record represents.
    pub count: u64,
    /// A reason, or a list of changes.
    pub detail: Option<String>,
}

macro_rules! events {
    ($($(#[$doc:meta])* $event:ident = $name:literal,)*) => {
        /// A recorded action.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum AuditEvent {
            $($(#[$doc])* $event,)*
        }

        impl AuditEvent {
            /// All events.
            pub const ALL: &'static [Self] = &[$(Self::$event,)*];

            /// Returns the name that logs use for the event.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$event => $name,)*
                }
            }
        }
    };
}

events! {
    /// The server has started to serve.
    ServerStart = "server_start",
    /// The server stops.
    ServerStop = "server_stop",
    /// A client has proved an identity, or has failed to prove one.
    Authenticate = "authenticate",
    /// A client has sent a wrong password for an existing session.
    TakeUpSession = "take_up_session",
    /// A persistent znode, or another session's ephemeral znode, was deleted.
    Delete = "delete",
    /// An access control list was set.
    SetAcl = "set_acl",
    /// A four-letter word was refused.
    FourLetterWord = "four_letter_word",
    /// Users, the super user or the four-letter words were replaced.
    Reload = "reload",
    /// A connection was closed because an identity that it had proved was removed.
    RemoveIdentity = "remove_identity",
    /// The server has started to drain.
    Drain = "drain",
    /// The server opens sessions again.
    Undrain = "undrain",
    /// An operator has ended a session.
    Kick = "kick",
    /// An operator has closed a session's connection.
    Disconnect = "disconnect",
    /// [`AuditRecord::count`] records were lost.
    Dropped = "dropped",
}

/// Outcome of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditOutcome {
    /// The action was done.
    Success,
    /// The action was refused or failed.
    Failure,
}

impl AuditOutcome {
    /// Returns the name that logs use for the outcome.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

impl AuditRecord {
    /// Returns a record of one action at the present time, without a client.
    pub fn new(event: AuditEvent, outcome: AuditOutcome) -> Self {
        Self {
            time: SystemTime::now(),
            event,
            outcome,
            session: None,
            identities: Vec::new(),
            peer: None,
            user: None,
            path: None,
            owner: None,
            acl: Vec::new(),
            word: None,
            zxid: None,
            count: 1,
            detail: None,
        }
    }
}

const BURST: u64 = 20;

const WINDOW: Duration = Duration::from_secs(10);

/// Maximum number of networks whose failures are counted separately. Failures from further networks share one count.
const MAX_NETWORKS: usize = 1_024;

/// Maximum length of a recorded user name, in bytes. Longer names are cut, because clients choose them.
const MAX_USER_BYTES: usize = 128;

pub(super) struct Audit {
    sink: Option<Arc<dyn AuditSink>>,
    clock: Clock,
    windows: Mutex<HashMap<(AuditEvent, Option<Network>), Window>>,
    opened: Notify,
}

#[derive(Debug)]
struct Window {
    since: BootInstant,
    count: u64,
}

impl Audit {
    pub(super) fn new(sink: Option<Arc<dyn AuditSink>>, clock: Clock) -> Self {
        Self {
            sink,
            clock,
            windows: Mutex::default(),
            opened: Notify::new(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    pub(super) fn success(&self, event: AuditEvent, fill: impl FnOnce(&mut AuditRecord)) {
        self.put(event, AuditOutcome::Success, fill);
    }

    pub(super) fn failure(
        &self,
        event: AuditEvent,
        peer: PeerAddress,
        fill: impl FnOnce(&mut AuditRecord),
    ) {
        if self.is_on() && self.allows(event, peer.network()) {
            self.put(event, AuditOutcome::Failure, |record| {
                record.peer = Some(peer.to_string());
                fill(record);
            });
        }
    }

    fn put(&self, event: AuditEvent, outcome: AuditOutcome, fill: impl FnOnce(&mut AuditRecord)) {
        let Some(sink) = &self.sink else { return };
        let mut record = AuditRecord::new(event, outcome);
        let unix_ms = u64::try_from(self.clock.unix_ms()).unwrap_or(0);
        record.time = UNIX_EPOCH + Duration::from_millis(unix_ms);
        fill(&mut record);
        sink.record(record);
    }

    fn allows(&self, event: AuditEvent, network: Network) -> bool {
        let mut windows = self.windows.lock();
        let mut key = (event, Some(network));
        if windows.len() >= MAX_NETWORKS && !windows.contains_key(&key) {
            key.1 = None;
        }
        let is_first = windows.is_empty();
        let window = windows.entry(key).or_insert_with(|| Window {
            since: self.clock.now(),
            count: 0,
        });
        window.count += 1;
        let allows = window.count <= BURST;
        drop(windows);
        if is_first {
            self.opened.notify_one();
        }
        allows
    }

    /// Whenever a window ends, records the number of failures without a record. The future never completes.
    pub(super) async fn sum_up(self: Arc<Self>) {
        loop {
            self.opened.notified().await;
            while !self.windows.lock().is_empty() {
                self.clock.sleep(WINDOW / 10).await;
                self.close_windows(self.clock.now());
            }
        }
    }

    pub(super) fn finish(&self) {
        self.close_windows(BootInstant::from_nanos(u64::MAX));
    }

    fn close_windows(&self, now: BootInstant) {
        let mut over = Vec::new();
        self.windows.lock().retain(|key, window| {
            let is_over = now.since(window.since) >= WINDOW;
            if is_over && window.count > BURST {
                over.push((*key, window.count - BURST));
            }
            !is_over
        });
        // Do not hold the lock while calling the sink, because the sink is user code.
        for ((event, network), count) in over {
            self.put(event, AuditOutcome::Failure, |record| {
                record.count = count;
                record.peer = network.map(|network| match network {
                    Network::Ip(address) => address.to_string(),
                    Network::User(uid) => format!("unix:uid={uid}"),
                });
                record.detail = Some("further ones, which are not recorded by themselves".into());
            });
        }
    }

    pub(super) fn changes(
        &self,
        changes: Vec<AuditedChange>,
        session: SessionId,
        peer: PeerAddress,
    ) {
        for AuditedChange {
            change,
            identities,
            zxid,
        } in changes
        {
            let event = match change.kind {
                ChangeKind::Delete { .. } => AuditEvent::Delete,
                ChangeKind::SetAcl(_) => AuditEvent::SetAcl,
            };
            let fill = |record: &mut AuditRecord| {
                record.session = Some(session);
                record.identities = identities;
                record.peer = Some(peer.to_string());
                record.path = Some(change.path);
                record.zxid = zxid;
                match change.kind {
                    ChangeKind::Delete { owner } => record.owner = owner,
                    ChangeKind::SetAcl(acl) => record.acl = shown_acl(acl.entries()),
                }
            };
            match zxid {
                Some(_) => self.success(event, fill),
                None => self.failure(event, peer, fill),
            }
        }
    }
}

/// Returns the user named in a client's proof, or `None` if the name could be the secret itself.
pub(super) fn claimed_user(scheme: &str, secret: &[u8]) -> Option<String> {
    let at = secret.iter().position(|byte| *byte == b':')?;
    let name = String::from_utf8_lossy(&secret[..at.min(MAX_USER_BYTES)]);
    (scheme == "digest").then(|| name.into_owned())
}

fn shown_acl(entries: Option<&[AclEntry]>) -> Vec<String> {
    let Some(entries) = entries else {
        return vec!["world:anyone:cdrwa".into()];
    };
    let shown = entries.iter().map(|entry| {
        let id = match entry.scheme.as_str() {
            "digest" => entry.id.split(':').next().unwrap_or_default(),
            _ => &entry.id,
        };
        let rights = [
            (AclEntry::CREATE, 'c'),
            (AclEntry::DELETE, 'd'),
            (AclEntry::READ, 'r'),
            (AclEntry::WRITE, 'w'),
            (AclEntry::ADMIN, 'a'),
        ];
        let rights = rights
            .iter()
            .filter(|(right, _)| entry.permissions & right != 0);
        let rights: String = rights.map(|(_, letter)| *letter).collect();
        format!("{}:{id}:{rights}", entry.scheme)
    });
    shown.collect()
}

#[derive(Clone, Default)]
pub(super) struct SharedSink(pub(super) Option<Arc<dyn AuditSink>>);

impl fmt::Debug for SharedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "AuditSink"
        } else {
            "None"
        })
    }
}
