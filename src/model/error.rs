//! Errors of requests and of URLs.

use std::path::PathBuf;
use std::time::Duration;

use crate::model::types::{HumanDuration, SessionId};
use crate::runtime::fork;
use crate::tls::TlsError;

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a request failed.
///
/// [`Error::is_answer`] tells an answer of the store (the request was refused and changed nothing)
/// from the loss of an answer (it may have been carried out, [`Error::is_ambiguous`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path breaks ZooKeeper's rules; nothing was sent.
    #[error("invalid path \"{path}\": {reason}", path = .path.escape_debug())]
    InvalidPath {
        /// The path as it was given.
        path: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// An argument cannot be meant; nothing was changed.
    #[error("bad argument: {0}")]
    BadArguments(String),
    /// There is no such znode.
    #[error("no znode {path}")]
    NoNode {
        /// The znode that was asked for, or the missing parent of the one to be created.
        path: String,
    },
    /// A znode of that path exists already.
    #[error("znode {path} exists already")]
    NodeExists {
        /// The znode; of one that was to be numbered, without the number.
        path: String,
    },
    /// The znode has children, so it cannot be deleted.
    #[error("znode {path} has children")]
    NotEmpty {
        /// The znode.
        path: String,
    },
    /// The znode's version is another than the one that was expected.
    #[error("znode {path} is not at the expected version {expected}")]
    BadVersion {
        /// The znode.
        path: String,
        /// The version that the request named; -1 where it named data ([`Condition::Data`](crate::Condition::Data)).
        expected: i32,
    },
    /// Ephemeral znodes have no children.
    #[error("the parent of {path} is ephemeral and can have no children")]
    NoChildrenForEphemerals {
        /// The znode that was to be created; of a sequential one without the number.
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
        /// The znode that was to have it.
        path: String,
    },
    /// The credentials were refused, so the request changed nothing.
    ///
    /// The session is over if they were new to the store. It lives on if the store had accepted them before, and has
    /// changed its users since: the client goes on connecting for as long as the session may live, since the user may
    /// be added again.
    #[error("authentication failed")]
    AuthFailed,
    /// The request, or its transaction, is larger than a limit. It changed nothing.
    #[error("{what} of {actual} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// Its size in bytes.
        actual: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A stated limit is reached.
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// The things of which there are too many.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The parent's counter of children is at its end, so it can number no more of them.
    #[error("the sequence numbers under {path} are used up")]
    SequenceExhausted {
        /// The parent.
        path: String,
    },
    /// An operation of a multi failed, so none of them was carried out.
    #[error("operation {index} of the multi failed: {source}")]
    MultiFailed {
        /// Index of the operation, counted from 0.
        index: usize,
        /// The reason.
        source: Box<Error>,
    },
    /// The connection broke before the answer came: the request may or may not have been carried out.
    #[error("the connection was lost before the answer came")]
    ConnectionLoss,
    /// The session has expired; its ephemeral znodes are gone.
    #[error("session {session} has expired")]
    SessionExpired {
        /// The session.
        session: SessionId,
    },
    /// The session was closed by this program.
    #[error("session {session} is closed")]
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// The session has moved to another connection; this one can use it no more.
    #[error("session {session} has moved to another connection")]
    SessionMoved {
        /// The session.
        session: SessionId,
    },
    /// No server answered in time at any of the addresses.
    #[error(
        "cannot connect to {url} within {timeout}: {reason}{}",
        start_a_server(*is_absent, url, hosts),
        timeout = HumanDuration(*.timeout)
    )]
    ConnectFailed {
        /// The URL that the client was given.
        url: String,
        /// The addresses that were tried, as `host:port`.
        hosts: String,
        /// The connect timeout, for which they were tried.
        timeout: Duration,
        /// The failure of the last try.
        reason: String,
        /// True if that was a server without TLS which does not run on this machine: starting one helps.
        is_absent: bool,
    },
    /// The system has refused this library a thread, or the descriptors that it needs. Nothing was opened, and the next
    /// attempt tries again.
    #[error(
        "the system refuses the thread {thread}: {reason}; raise the limits of threads and of open files, or close some"
    )]
    ThreadRefused {
        /// Name of the thread.
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
    /// The URL cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// TLS was asked for, and its certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A client found another store at the known address.
    #[error(
        "the store at {target} is another one than before (expected {expected}, found {found}), so that its fencing tokens \
         cannot be compared: correct the URL if it leads to the wrong server; if the store was replaced, reset what \
         the resources remember of tokens, and connect again"
    )]
    StoreChanged {
        /// The URL.
        target: String,
        /// The id of the store that the client knows.
        expected: String,
        /// The id that it found.
        found: String,
    },
    /// The store's files are not as the store wrote them. It is not opened: data after the damage cannot be trusted,
    /// and acknowledged writes would be lost silently.
    #[error(
        "the store is damaged: {} at byte {offset}: {reason}. Nothing was changed. Keep a copy of the folder, \
         look at it with `lockkeeper inspect DIR`, and restore a backup with `lockkeeper restore FILE DIR`, or take \
         what can be read of it with `lockkeeper salvage DIR NEW`",
        .file.display()
    )]
    StoreDamaged {
        /// The file.
        file: PathBuf,
        /// Byte offset of the damage in it.
        offset: u64,
        /// The expectation, and the finding that breaks it.
        reason: String,
    },
    /// A newer version of Lockkeeper has written this.
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
        /// The newest format that this build knows.
        known: u32,
    },
    /// The disk failed. A store that is open takes no more writes after that.
    #[error("the store at {} has failed: {reason}", .path.display())]
    StoreFailed {
        /// The file or the folder.
        path: PathBuf,
        /// The failure.
        reason: String,
    },
    /// There is no room on the disk. Nothing was changed: reads, locks and deletes go on, and writes do
    /// when there is room again.
    #[error("no room on the disk for the store at {}: make some, and write again", .path.display())]
    DiskFull {
        /// The store's folder; of one that another process serves the words "the server".
        path: PathBuf,
    },
    /// The folder holds other things than a store.
    #[error("{} is not a Lockkeeper store: {reason}", .path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
        /// The expectation, and the finding that breaks it.
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
        /// The process, where it is known.
        pid: Option<u32>,
    },
    /// The store does not know this kind of request.
    #[error("the store does not support {what}")]
    Unimplemented {
        /// The missing feature.
        what: &'static str,
    },
    /// This process was forked, without exec, from one that used the store.
    #[error(
        "this process was forked from one that uses the store, and has none of its threads: \
         connect after the fork, in processes that did not connect before, or run another program (exec)"
    )]
    Forked,
    /// The server or the client library said something that it should not say.
    #[error("protocol: {0}")]
    Protocol(String),
}

impl Error {
    /// Fails in a process that was forked from one which had used this library.
    #[inline]
    pub(crate) fn if_forked() -> Result<()> {
        match fork::is_forked() {
            true => Err(Self::Forked),
            false => Ok(()),
        }
    }

    /// Returns true if the store itself refused the request, so that it changed nothing.
    ///
    /// False for a lost connection (unknown), an ended session, and requests that were refused on the client's side.
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

    /// Returns true if the request may have been carried out although it failed: the reply was lost, or
    /// cannot be read.
    ///
    /// After an ambiguous create its znode may exist, and must be looked for.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::ConnectionLoss | Self::Protocol(_))
    }

    /// Returns true if the session is over, for this process at least, or the store refuses its user.
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

/// Returns advice for a server that does not run on this machine, if it is one that we know how to start.
pub(crate) fn start_a_server(is_absent: bool, url: &str, hosts: &str) -> String {
    match url.split_once(':').filter(|_| is_absent) {
        Some(("lockkeeper", _)) => format!("; `lockkeeper serve --listen {hosts}` starts one"),
        Some(("lockkeeper+unix", _)) => {
            format!("; `lockkeeper serve --listen unix:{hosts}` starts one")
        }
        _ => String::new(),
    }
}

/// The feature that [`Error::Unimplemented`] names for znodes of ZooKeeper's quotas.
pub(crate) const QUOTAS: &str = "quotas, so nothing can be created below /zookeeper/quota";

fn unknown_scheme(scheme: &str, url: &str) -> String {
    let url = url.escape_debug();
    match scheme {
        "" => format!("\"{url}\" has no scheme"),
        _ => format!("unknown scheme \"{}\" in \"{url}\"", scheme.escape_debug()),
    }
}

/// So that what cannot fail to be a path can stand where a path is asked for.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// The reason why a URL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The scheme is none that is known. Schemes are lower-case.
    #[error(
        "{}: expected memory:[NAME], file:PATH, lockkeeper[+tls]://host:port[/chroot], lockkeeper+unix:///PATH[?chroot=/PATH] or zookeeper[+tls]://host:port[,host:port…][/chroot]",
        unknown_scheme(scheme, url)
    )]
    UnknownScheme {
        /// The whole URL.
        url: String,
        /// Its scheme; empty where the URL has no `:`.
        scheme: String,
    },
    /// The scheme is known, and this build leaves it out.
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
    /// A part of the URL is malformed.
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
        /// The part as written.
        text: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// Secrets never stand in a URL.
    #[error("credentials do not belong in a URL: give them in ConnectOptions")]
    Credentials,
}

/// A [`Target`](crate::Target) is taken where a URL is.
impl From<std::convert::Infallible> for TargetError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
