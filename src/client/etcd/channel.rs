//! [`Members`]: connections to the members of an etcd cluster, and calls to its API.
//!
//! One thread of the process does all the work on its own runtime, so callers need no executor.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_core::Stream;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::{InvalidUri, PathAndQuery};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Uri};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::messages::{
    AUTHENTICATE, Authenticate, AuthenticateResponse, LeaseKeepAlive, LeaseKeepAliveResponse,
    WatchRequest, WatchResponse,
};
use crate::model::error::{Error, Result};
use crate::tls::{ClientTls, client_config, server_names};

/// A connection without traffic for this long is checked by a ping. etcd accepts one ping in 5 s.
const PING_AFTER: Duration = Duration::from_secs(10);

/// Limit of an answer in bytes, as in etcd's own client. The list of a prefix can be long.
const LARGEST_ANSWER: usize = i32::MAX as usize;

/// Runs work on the thread of etcd's sessions.
pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Result<()> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let handle = match HANDLE.get() {
        Some(handle) => handle,
        None => {
            let _starting = STARTING.lock();
            match HANDLE.get() {
                Some(handle) => handle,
                None => {
                    let started = start_thread()?;
                    HANDLE.get_or_init(|| started)
                }
            }
        }
    };
    handle.spawn(work);
    Ok(())
}

fn start_thread() -> Result<Handle> {
    let thread = "lockkeeper-etcd";
    let refused = |error: std::io::Error| Error::ThreadRefused {
        thread,
        reason: error.to_string(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(refused)?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(thread.to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(refused)?;
    Ok(handle)
}

/// A call without a successful answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The answer was lost, so the call may have been executed.
    Lost(String),
    /// A member refused the call, so the call has changed nothing.
    Refused { code: Code, reason: String },
    /// The store's revision fell, so the store was replaced by an older copy.
    Replaced { before: i64, now: i64 },
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let reason = status.message().to_owned();
        match exact_code(&status) {
            // A member also answers `Unavailable` if it loses its leader after it has proposed the call, so the call
            // may have been executed.
            Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Aborted => Self::Lost(reason),
            code => Self::Refused { code, reason },
        }
    }
}

/// Returns the code of an error. For some errors of authentication, etcd's own code is too general.
fn exact_code(status: &Status) -> Code {
    match status.message() {
        // The token has expired, or is older than a change of etcd's users. The next connection gets a new one.
        "etcdserver: invalid auth token" | "etcdserver: revision of auth store is old" => {
            Code::Aborted
        }
        // A busy member has dropped the request.
        "etcdserver: too many requests" => Code::Aborted,
        "etcdserver: user name is empty"
        | "etcdserver: authentication failed, invalid user ID or password" => Code::Unauthenticated,
        _ => status.code(),
    }
}

#[derive(Clone)]
pub(super) struct Members {
    hosts: Vec<String>,
    tls: Option<Tls>,
    user: Option<Authenticate>,
    /// Number of attempts, from a random start. The copies share it.
    attempts: Arc<AtomicUsize>,
}

impl Members {
    pub(super) fn new(hosts: Vec<String>, tls: Option<Tls>, user: Option<Authenticate>) -> Self {
        let first = u16::from_ne_bytes(crate::runtime::platform::random());
        Self {
            attempts: Arc::new(AtomicUsize::new(first.into())),
            hosts,
            tls,
            user,
        }
    }

    /// Connects to the next member of the list, so that repeated calls try all members in turn.
    pub(super) async fn connect(&self, limit: Duration) -> Result<Connection, Failure> {
        let member = self.attempts.fetch_add(1, Ordering::Relaxed) % self.hosts.len();
        let host = &self.hosts[member];
        let failed =
            |error: &dyn std::error::Error| Failure::Lost(format!("{host}: {}", cause(error)));
        let endpoint = Channel::from_shared(format!("http://{host}"));
        let endpoint = endpoint.map_err(|error| failed(&error))?;
        let endpoint = endpoint.tcp_nodelay(true).connect_timeout(limit);
        // A waiter only listens to its watches, so it would notice a dead connection only at the next keep-alive.
        let endpoint = endpoint
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(limit)
            .keep_alive_while_idle(true);
        let connected = match &self.tls {
            None => endpoint.connect().await,
            Some(tls) => {
                let origin = format!("https://{host}").parse();
                let endpoint = endpoint.origin(origin.map_err(|error: InvalidUri| failed(&error))?);
                let (host, tls) = (host.clone(), tls.clone());
                let dial = move |_: Uri| tls.clone().dial(host.clone(), member);
                endpoint.connect_with_connector(service_fn(dial)).await
            }
        };
        let mut connection = Connection {
            channel: connected.map_err(|error| failed(&error))?,
            token: None,
            fence: 0,
        };
        if let Some(user) = self.user.clone() {
            connection.token = connection.authenticate(user, limit).await?;
        }
        Ok(connection)
    }
}

#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    /// The names that the members' certificates must have.
    names: Vec<ServerName<'static>>,
}

impl Tls {
    pub(super) fn new(tls: &ClientTls, hosts: &[String]) -> Result<Self> {
        let mut config = Arc::unwrap_or_clone(client_config(tls)?);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            connector: Arc::new(config).into(),
            names: server_names(tls, hosts)?,
        })
    }

    async fn dial(self, host: String, member: usize) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let socket = TcpStream::connect(host).await?;
        socket.set_nodelay(true)?;
        let name = self.names[member].clone();
        self.connector.connect(name, socket).await.map(TokioIo::new)
    }
}

/// Returns the innermost source of an error, because tonic's own message only says "transport error".
fn cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[derive(Clone)]
pub(super) struct Connection {
    channel: Channel,
    /// Proof of the session's user.
    token: Option<MetadataValue<Ascii>>,
    /// Revision at which the session started to use the connection, or 0 before. No two connections have the same one.
    pub(super) fence: i64,
}

impl Connection {
    pub(super) fn is(&self, other: &Self) -> bool {
        self.fence == other.fence
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Failure> {
        let client = Grpc::new(self.channel.clone());
        let mut client = client.max_decoding_message_size(LARGEST_ANSWER);
        let ready = client.ready().await;
        ready.map_err(|error| Failure::Lost(cause(&error)))?;
        Ok(client)
    }

    /// Returns a token for the user, or `None` if etcd does not know users.
    async fn authenticate(
        &self,
        user: Authenticate,
        limit: Duration,
    ) -> Result<Option<MetadataValue<Ascii>>, Failure> {
        match self.call(AUTHENTICATE, user, limit).await {
            Ok(AuthenticateResponse { token }) => {
                let malformed = |_| Failure::Lost("the token is not a header".to_owned());
                token.parse().map(Some).map_err(malformed)
            }
            Err(Failure::Refused {
                code: Code::FailedPrecondition,
                ..
            }) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn request<T>(&self, body: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(body);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    /// Calls a method. Treats the answer as lost if it does not arrive within `limit`.
    pub(super) async fn call<Q, A>(
        &self,
        method: &'static str,
        request: Q,
        limit: Duration,
    ) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let call = async {
            let path = PathAndQuery::from_static(method);
            let codec = ProstCodec::<Q, A>::default();
            let mut client = self.ready().await?;
            let answer = client.unary(self.request(request), path, codec);
            Ok(answer.await?.into_inner())
        };
        within(limit, call).await
    }

    /// Opens a stream, and sends it each of the requests.
    async fn stream<Q, A>(
        &self,
        method: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Failure>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let path = PathAndQuery::from_static(method);
        let codec = ProstCodec::<Q, A>::default();
        let mut client = self.ready().await?;
        let answers = client.streaming(self.request(requests), path, codec);
        Ok(answers.await?.into_inner())
    }

    pub(super) async fn keep_alive(
        &self,
        lease: i64,
        limit: Duration,
    ) -> Result<LeaseKeepAliveResponse, Failure> {
        // Keep the sending side open until the answer has arrived. Otherwise the server ends the stream.
        let (_open, end) = tokio::sync::oneshot::channel::<()>();
        let requests = async_stream::stream! {
            yield LeaseKeepAlive { id: lease };
            let _ = end.await;
        };
        let call = async {
            let answers = self.stream("/etcdserverpb.Lease/LeaseKeepAlive", requests);
            let answer: Option<_> = answers.await?.message().await?;
            answer.ok_or_else(|| Failure::Lost("the stream ended".to_owned()))
        };
        within(limit, call).await
    }

    /// Opens a watch stream, and sends it each request from `requests`.
    pub(super) async fn watch(
        &self,
        mut requests: mpsc::UnboundedReceiver<WatchRequest>,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        let requests = async_stream::stream! {
            while let Some(request) = requests.recv().await {
                yield request;
            }
        };
        self.stream("/etcdserverpb.Watch/Watch", requests).await
    }
}

async fn within<A>(
    limit: Duration,
    call: impl Future<Output = Result<A, Failure>>,
) -> Result<A, Failure> {
    let late = |_| Err(Failure::Lost(format!("no answer within {limit:?}")));
    let answer = tokio::time::timeout(limit, call).await;
    answer.unwrap_or_else(late)
}
