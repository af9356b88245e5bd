//! Errors of requests and of URLs.

use std::path::PathBuf;
use std::time::Duration;

use crate::model::types::{HumanDuration, SessionId};
use crate::runtime::process::is_forked;
use crate::tls::TlsError;

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a request failed.
///
/// If [`Error::is_answer`] returns true, the store refused the request and changed nothing. If [`Error::is_ambiguous`]
/// returns true, the request may have been executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path breaks ZooKeeper's rules. Nothing was sent.
    #[error("invalid path \"{path}\": {reason}", path = .path.escape_debug())]
    InvalidPath {
        /// The given path.
        path: String,
        /// The broken rule.
        reason: &'static str,
    },
    /// An argument is invalid. Nothing was changed.
    #[error("bad argument: {0}")]
    BadArguments(String),
    /// The znode does not exist.
    #[error("no znode {path}")]
    NoNode {
        /// The requested znode, or the missing parent of a znode to be created.
        path: String,
    },
    /// A znode with this path already exists.
    #[error("znode {path} exists already")]
    NodeExists {
        /// The znode, without the number if it is sequential.
        path: String,
    },
    /// The znode cannot be deleted because it has children.
    #[error("znode {path} has children")]
    NotEmpty {
        /// The znode.
        path: String,
    },
    /// The znode does not have the expected version.
    #[error("znode {path} is not at the expected version {expected}")]
    BadVersion {
        /// The znode.
        path: String,
        /// The required version, or -1 if the request requires certain data instead
        /// ([`Condition::Data`](crate::Condition::Data)).
        expected: i32,
    },
    /// Ephemeral znodes cannot have children.
    #[error("the parent of {path} is ephemeral and can have no children")]
    NoChildrenForEphemerals {
        /// The znode to be created, without the number if it is sequential.
        path: String,
    },
    /// The znode's access control list does not allow this.
    #[error("not authorized for {path}")]
    NoAuth {
        /// The znode.
        path: String,
    },
    /// The access control list is empty or malformed.
    #[error("invalid access control list for {path}")]
    InvalidAcl {
        /// The znode.
        path: String,
    },
    /// The credentials were refused, and the request changed nothing.
    ///
    /// If the store never accepted these credentials, the session has ended. If it accepted them and has since changed
    /// its users, the session continues. The client keeps trying to connect while the session may be alive, because the
    /// user may be added again.
    #[error("authentication failed")]
    AuthFailed,
    /// The request or its transaction exceeds a size limit. Nothing was changed.
    #[error("{what} of {actual} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// The oversized item.
        what: &'static str,
        /// Its size in bytes.
        actual: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A documented limit is reached.
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// The limited item.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The parent's counter is used up, so it cannot number more children.
    #[error("the sequence numbers under {path} are used up")]
    SequenceExhausted {
        /// The parent.
        path: String,
    },
    /// An operation of a multi failed, so none was executed.
    #[error("operation {index} of the multi failed: {source}")]
    MultiFailed {
        /// Index of the operation, starting at 0.
        index: usize,
        /// The reason.
        source: Box<Error>,
    },
    /// The connection was lost before the answer arrived. The request may or may not have been executed.
    #[error("the connection was lost before the answer came")]
    ConnectionLoss,
    /// The session has expired, and its ephemeral znodes are deleted.
    #[error("session {session} has expired")]
    SessionExpired {
        /// The session.
        session: SessionId,
    },
    /// This program closed the session.
    #[error("session {session} is closed")]
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// The session has moved to another connection and cannot be used on this one.
    #[error("session {session} has moved to another connection")]
    SessionMoved {
        /// The session.
        session: SessionId,
    },
    /// No server answered in time at any address.
    #[error(
        "cannot connect to {url} within {timeout}: {reason}{}",
        start_a_server(*is_absent, url, hosts),
        timeout = HumanDuration(*.timeout)
    )]
    ConnectFailed {
        /// The client's URL.
        url: String,
        /// The addresses, as `host:port`.
        hosts: String,
        /// The connect timeout.
        timeout: Duration,
        /// The last failure.
        reason: String,
        /// True if the last attempt failed because no server is running on this machine, so starting one helps. Always
        /// false with TLS.
        is_absent: bool,
    },
    /// The operating system refused to create a thread, or the file descriptors that the thread needs. Nothing was
    /// opened. The next attempt may succeed.
    #[error(
        "the system refuses the thread {thread}: {reason}; raise the limits of threads and of open files, or close some"
    )]
    ThreadRefused {
        /// The thread's name.
        thread: &'static str,
        /// The system's error.
        reason: String,
    },
    /// The path in the URL does not exist on the server.
    #[error(
        "the chroot {path} does not exist on {hosts}; create it, or ask for it with ConnectOptions::create_chroot"
    )]
    NoChroot {
        /// The path.
        path: String,
        /// The server.
        hosts: String,
    },
    /// The URL is not usable.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// TLS is requested, but its certificates or keys are not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client found a different store at a known address.
    #[error(
        "the store at {target} is another one than before (expected {expected}, found {found}), so that its fencing tokens \
         cannot be compared: correct the URL if it leads to the wrong server; if the store was replaced, reset what \
         the resources remember of tokens, and connect again"
    )]
    StoreChanged {
        /// The URL.
        target: String,
        /// The known store's id.
        expected: String,
        /// The id that was found.
        found: String,
    },
    /// The store's files differ from what the store wrote. The store is not opened, because data after the damage
    /// cannot be trusted.
    #[error(
        "the store is damaged: {} at byte {offset}: {reason}. Nothing was changed. Keep a copy of the folder, \
         look at it with `lockkeeper inspect DIR`, and restore a backup with `lockkeeper restore FILE DIR`, or take \
         what can be read of it with `lockkeeper salvage DIR NEW`",
        .file.display()
    )]
    StoreDamaged {
        /// The file.
        file: PathBuf,
        /// Byte offset of the damage.
        offset: u64,
        /// The expected and the actual content.
        reason: String,
    },
    /// A newer version of Lockkeeper wrote this file.
    #[error(
        "{} is of format {version}, and this build knows formats up to {known}: open it with the version that \
         wrote it, or restore an older backup",
        .file.display()
    )]
    StoreTooNew {
        /// The file.
        file: PathBuf,
        /// Its format.
        version: u32,
        /// The newest format that this build supports.
        known: u32,
    },
    /// The disk failed. An open store accepts no more writes.
    #[error("the store at {} has failed: {reason}", .path.display())]
    StoreFailed {
        /// The file or the folder.
        path: PathBuf,
        /// The failure.
        reason: String,
    },
    /// The disk is full. Nothing was changed. Reads, locks and deletes continue to work. Writes work again when there
    /// is room.
    #[error("no room on the disk for the store at {}: make some, and write again", .path.display())]
    DiskFull {
        /// The store's folder, or "the server" for a served store.
        path: PathBuf,
    },
    /// The folder contains something other than a store.
    #[error("{} is not a Lockkeeper store: {reason}", .path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
        /// The expected and the actual content.
        reason: String,
    },
    /// Another process has the store open.
    #[error(
        "the store at {} is in use by {}", .path.display(),
        .pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    StoreInUse {
        /// The folder.
        path: PathBuf,
        /// The process, if known.
        pid: Option<u32>,
    },
    /// The store does not support this kind of request.
    #[error("the store does not support {what}")]
    Unimplemented {
        /// The missing feature.
        what: &'static str,
    },
    /// This process was forked, without exec, from a process that used the store.
    #[error(
        "this process was forked from one that uses the store, and has none of its threads: \
         connect after the fork, in processes that did not connect before, or run another program (exec)"
    )]
    Forked,
    /// The server or the client library violated the protocol.
    #[error("protocol: {0}")]
    Protocol(String),
}

impl Error {
    #[inline]
    pub(crate) fn if_forked() -> Result<()> {
        match is_forked() {
            true => Err(Self::Forked),
            false => Ok(()),
        }
    }

    /// Returns true if the store itself refused the request, which changed nothing.
    ///
    /// Returns false for a lost connection (outcome unknown), an ended session, and requests refused by the client.
    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::NoNode { .. }
                | Self::NodeExists { .. }
                | Self::NotEmpty { .. }
                | Self::BadVersion { .. }
                | Self::NoChildrenForEphemerals { .. }
                | Self::NoAuth { .. }
                | Self::InvalidAcl { .. }
                | Self::SequenceExhausted { .. }
                | Self::MultiFailed { .. }
                | Self::Unimplemented { .. }
        )
    }

    /// Returns true if the request may have been executed although it failed, because the reply was lost or cannot be
    /// read. When etcd runs out of room, it refuses a request that it has executed.
    ///
    /// After an ambiguous create, check whether the znode exists.
    pub fn is_ambiguous(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLoss | Self::Protocol(_) | Self::DiskFull { .. }
        )
    }

    /// Returns true if the session has ended, at least for this process, or if the store refuses the session's user.
    pub fn is_session_end(&self) -> bool {
        matches!(
            self,
            Self::SessionExpired { .. }
                | Self::SessionClosed { .. }
                | Self::AuthFailed
                | Self::Forked
        )
    }
}

pub(crate) fn start_a_server(is_absent: bool, url: &str, hosts: &str) -> String {
    match url.split_once(':').filter(|_| is_absent) {
        Some(("lockkeeper", _)) => format!("; `lockkeeper serve --listen {hosts}` starts one"),
        Some(("lockkeeper+unix", _)) => {
            format!("; `lockkeeper serve --listen unix:{hosts}` starts one")
        }
        _ => String::new(),
    }
}

pub(crate) const QUOTAS: &str = "quotas, so nothing can be created below /zookeeper/quota";

fn unknown_scheme(scheme: &str, url: &str) -> String {
    let url = url.escape_debug();
    match scheme {
        "" => format!("\"{url}\" has no scheme"),
        _ => format!("unknown scheme \"{}\" in \"{url}\"", scheme.escape_debug()),
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Reason why a URL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The scheme is unknown. Schemes are lower-case.
    #[error(
        "{}: expected memory:[NAME], file:PATH, lockkeeper[+tls]://host:port[/chroot], lockkeeper+unix:///PATH[?chroot=/PATH] or zookeeper[+tls]://host:port[,host:port…][/chroot]",
        unknown_scheme(scheme, url)
    )]
    UnknownScheme {
        /// The whole URL.
        url: String,
        /// The URL's scheme, or an empty string if the URL has no `:`.
        scheme: String,
    },
    /// This build does not include the scheme.
    #[error(
        "\"{url}\" needs the feature \"{feature}\", which this build leaves out",
        url = .url.escape_debug(),
        feature = .feature.escape_debug()
    )]
    FeatureMissing {
        /// The whole URL.
        url: String,
        /// The Cargo feature.
        feature: &'static str,
    },
    /// A host is missing.
    #[error(
        "no host in \"{url}\": expected lockkeeper[+tls]://host:port[/chroot] or zookeeper[+tls]://host:port[,host:port…][/chroot]",
        url = .url.escape_debug()
    )]
    NoHost {
        /// The whole URL.
        url: String,
    },
    /// Part of the URL is malformed.
    #[error(
        "bad {part} \"{text}\" in \"{url}\": {reason}",
        text = .text.escape_debug(),
        url = .url.escape_debug()
    )]
    BadPart {
        /// The whole URL.
        url: String,
        /// The part: `host`, `port`, `socket`, `option`, `chroot`, `folder` or `store name`.
        part: &'static str,
        /// The part's text.
        text: String,
        /// The broken rule.
        reason: &'static str,
    },
    /// URLs must not contain secrets.
    #[error("credentials do not belong in a URL: give them in ConnectOptions")]
    Credentials,
}

impl From<std::convert::Infallible> for TargetError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
