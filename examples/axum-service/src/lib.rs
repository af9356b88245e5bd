//! An HTTP service that works under locks. For each account it runs one request at a time, in the order of arrival,
//! across all processes of the service. The README contains the commands and shows the responses.
//!
//! You can copy this code:
//!
//! - `post_cents` acquires a lock with one deadline for the whole wait. Its work stops when the lock is lost, and it
//!   passes the fencing token with every access to the resource.
//! - [`serve`] finishes the current requests before it closes the client.

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

/// Serves requests until `shutdown` completes. Then finishes the current requests, and closes the client.
///
/// # Errors
/// Errors of the listener, and [`io::Error::other`] with a [`lockkeeper::Error`] if the session could not be closed.
/// The locks of the session are then free after the session timeout.
pub async fn serve(
    listener: TcpListener,
    client: Client,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(&client, &Arc::default(), options))
        .with_graceful_shutdown(shutdown)
        .await?;
    // Close the client after the requests have finished, because they need its session.
    client.close().await.map_err(io::Error::other)
}

/// Adds to an account, under its lock.
///
/// If the caller closes the connection, axum drops this future. A dropped wait leaves its queue, and a dropped guard
/// releases its lock.
async fn post_cents(
    State(service): State<Service>,
    Path(account): Path<String>,
    Json(posting): Json<Posting>,
) -> Result<Json<Value>, Refusal> {
    let options = LockOptions::new()
        .label("axum-service")
        .timeout(service.options.lock_timeout)
        // Behind more than 100 requests, the lock would not be granted in time, so refuse immediately.
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
    // If the lock is lost, `protect` drops the work at an await. A loss after the last await no longer stops the work.
    // But the account refuses the work's token once it has seen a newer token.
    let balance = guard.protect(work).await.map_err(LockError::Lost)??;

    // Ignore a lost lock here, because the account has already accepted the write.
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
