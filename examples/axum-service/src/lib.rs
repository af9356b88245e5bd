//! An HTTP service that works under locks: one request at a time per account, in order of arrival,
//! over all processes of the service.
//!
//! What to copy from here:
//!
//! - `Service::post`: the lock with one deadline for the whole wait, the work that ends when the
//!   lock is lost, and the fencing token that goes with every access to the resource.
//! - [`serve`]: requests under way are finished first, and only then is the client closed.

mod accounts;
mod refusal;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use lockkeeper::{Client, LockOptions, LockPath, Mutex, ZnodePath};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

pub use accounts::Accounts;
use refusal::Refusal;

/// How the service behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a request may wait for its account's lock.
    pub lock_timeout: Duration,
    /// How long a posting takes. It stands for the time of a database, or of another service.
    pub work: Duration,
}

/// How many may be ahead of a request before it is refused at once: waiting longer than the
/// client does helps nobody.
const QUEUE_LIMIT: usize = 100;

/// How long the store may take to answer before the service calls itself unready.
const READY_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Service {
    client: Client,
    accounts: Arc<Accounts>,
    options: Options,
}

/// What a request asks for.
#[derive(Deserialize)]
struct Posting {
    cents: i64,
}

/// What it is answered.
#[derive(Serialize)]
struct Posted {
    account: String,
    balance: i64,
    token: lockkeeper::FencingToken,
}

/// The service's routes: `POST /accounts/{account}` and `GET /healthz`.
pub fn router(client: &Client, accounts: &Arc<Accounts>, options: Options) -> Router {
    let service = Service {
        client: client.clone(),
        accounts: accounts.clone(),
        options,
    };
    Router::new()
        .route("/accounts/{account}", post(Service::post))
        .route("/healthz", get(Service::healthz))
        .with_state(service)
}

/// Serves until `shutdown`, finishes the requests that are under way, and closes the client. In
/// this order: a request under way still needs its session.
///
/// # Errors
/// Those of the listener; [`io::Error::other`] with a [`lockkeeper::Error`] when the session could
/// not be closed. Its locks are then free when its timeout has passed.
pub async fn serve(
    listener: TcpListener,
    client: Client,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = router(&client, &Arc::default(), options);
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown)
        .await?;
    client.close().await.map_err(io::Error::other)
}

impl Service {
    /// Adds to an account, under its lock.
    ///
    /// When the caller hangs up, this is dropped wherever it stands: a wait leaves its queue, and a
    /// guard releases its lock.
    async fn post(
        State(service): State<Self>,
        Path(account): Path<String>,
        Json(posting): Json<Posting>,
    ) -> Result<Json<Posted>, Refusal> {
        let lock = LockPath::new("/lock")?.key(&account);
        let options = LockOptions::new()
            .label("axum-service")
            .timeout(service.options.lock_timeout)
            .queue_limit(QUEUE_LIMIT);
        let guard = Mutex::new(&service.client, lock)?
            .lock_with(options)
            .await?;
        let token = guard.fencing_token();

        let work = async {
            let balance = service.accounts.read(&account, token)?;
            service.client.clock().sleep(service.options.work).await;
            let balance = balance
                .checked_add(posting.cents)
                .ok_or(Refusal::Overflow)?;
            service.accounts.write(&account, balance, token)?;
            Ok::<_, Refusal>(balance)
        };
        // When the lock is lost the work is dropped where it stands, before its write. Had it been
        // further, the account would have refused the old token as soon as it had seen a newer one.
        let balance = guard.protect(work).await??;

        // An error would say that the lock was lost after the write, which the account has accepted.
        let _ = guard.release().await;
        Ok(Json(Posted {
            account,
            balance,
            token,
        }))
    }

    /// Says whether the service can do its work: whether the store answers in time.
    async fn healthz(State(service): State<Self>) -> Result<&'static str, Refusal> {
        let asking = async {
            let session = service.client.session().await?;
            session.exists(&ZnodePath::root()).await?;
            Ok("ready")
        };
        tokio::select! {
            answer = asking => answer,
            () = service.client.clock().sleep(READY_WITHIN) => Err(Refusal::Unready),
        }
    }
}
