//! An HTTP service that works under locks. Each account has one request at a time, in the order of arrival, across all
//! processes of the service. The README has the commands and shows the responses.
//!
//! Copy from here:
//!
//! - `post`: a lock with one deadline for the whole wait, work that stops when the lock is lost, and the fencing token
//!   passed with every access to the resource.
//! - [`serve`]: finishes the current requests before it closes the client.

mod accounts;
mod refusal;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use lockkeeper::{Client, LockError, LockOptions, LockPath, Mutex, ZnodePath};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub use accounts::Accounts;
use refusal::Refusal;

/// Options of the service.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum time that a request waits for its account's lock.
    pub lock_timeout: Duration,
    /// Duration of a posting. It represents a database or another service.
    pub work: Duration,
}

#[derive(Clone)]
struct Service {
    client: Client,
    accounts: Arc<Accounts>,
    options: Options,
}

#[derive(serde::Deserialize)]
struct Posting {
    cents: i64,
}

/// Returns the service's routes: `POST /accounts/{account}` and `GET /healthz`.
pub fn router(client: &Client, accounts: &Arc<Accounts>, options: Options) -> Router {
    Router::new()
        .route("/accounts/{account}", post(post_cents))
        .route("/healthz", get(healthz))
        .with_state(Service {
            client: client.clone(),
            accounts: accounts.clone(),
            options,
        })
}

/// Serves until `shutdown`, finishes the current requests, and closes the client.
///
/// # Errors
/// Errors of the listener, and [`io::Error::other`] with a [`lockkeeper::Error`] if the session could not be closed.
/// Its locks are then free after its timeout.
pub async fn serve(
    listener: TcpListener,
    client: Client,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(&client, &Arc::default(), options))
        .with_graceful_shutdown(shutdown)
        .await?;
    // After the requests have finished, because they need the session.
    client.close().await.map_err(io::Error::other)
}

/// Adds to an account, under its lock.
///
/// If the caller hangs up, axum drops this future. A wait then leaves its queue, and a guard releases its lock.
async fn post_cents(
    State(service): State<Service>,
    Path(account): Path<String>,
    Json(posting): Json<Posting>,
) -> Result<Json<Value>, Refusal> {
    let options = LockOptions::new()
        .label("axum-service")
        .timeout(service.options.lock_timeout)
        // With so many ahead it would not be granted in time, so refuse immediately.
        .queue_limit(100);
    let mutex = Mutex::new(&service.client, LockPath::new("/lock")?.key(&account))?;
    let guard = mutex.lock_with(options).await?;
    let token = guard.fencing_token();

    let work = async {
        let balance = service.accounts.read(&account, token)?;
        service.client.clock().sleep(service.options.work).await;
        let balance = balance.checked_add(posting.cents);
        let balance = balance.ok_or_else(Refusal::overflow)?;
        service.accounts.write(&account, balance, token)?;
        Ok::<_, Refusal>(balance)
    };
    // If the lock is lost, the work is dropped at an await. After its last await, the account refuses the token once it
    // has seen a newer one.
    let balance = guard.protect(work).await.map_err(LockError::Lost)??;

    // Ignored, because the account has accepted the write even if the lock was lost after it.
    let _ = guard.release().await;
    let posted = json!({ "account": account, "balance": balance, "token": token });
    Ok(Json(posted))
}

async fn healthz(State(service): State<Service>) -> Result<&'static str, Refusal> {
    let answer = async {
        let session = service.client.session().await?;
        session.exists(&ZnodePath::root()).await?;
        Ok("ready")
    };
    tokio::select! {
        answer = answer => answer,
        () = service.client.clock().sleep(Duration::from_secs(1)) => Err(Refusal::unready()),
    }
}
