//! Revocation from the dashboard. Only the holder that the user saw loses the lock.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use lockkeeper::{Client, Error, LockQueue, QueueEntry, Revoker, ZnodePath, lock_queue};
use serde::Deserialize;

use super::board::cut;
use super::shared::Shared;
use crate::locks::described;
use crate::locks::names::escaped;
use crate::revoke;

const MAX_REASON: usize = 200;

const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Revocation {
    path: String,
    entry: String,
    token: String,
    force: bool,
    #[serde(default)]
    reason: String,
}

#[derive(Debug, PartialEq)]
pub(super) enum Found<'a> {
    Holder(&'a QueueEntry),
    /// Another entry holds the lock. The entry that the user saw may still be waiting.
    Another,
    Nobody,
}

impl Revocation {
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|error| format!("the body is not understood: {error}"))
    }

    /// Finds the holder that the user saw. Compares the znode and the fencing token, because some libraries reuse the
    /// names of znodes.
    pub(super) fn find<'a>(&self, queue: &'a LockQueue) -> Found<'a> {
        let shown = queue.holders.iter().find(|holder| {
            holder.path.as_str() == self.entry && holder.fencing_token.to_string() == self.token
        });
        match shown {
            Some(holder) => Found::Holder(holder),
            None if queue.holders.is_empty() => Found::Nobody,
            None => Found::Another,
        }
    }

    fn by(&self) -> String {
        match self.reason.trim() {
            "" => revoke::user("dashboard"),
            reason => format!("{} (lockkeeper dashboard)", cut(reason, MAX_REASON)),
        }
    }
}

/// Executes a revocation. Once the holder has been found, the browser can disconnect without canceling the revocation.
pub(super) async fn carry_out(
    shared: &Shared,
    revocation: Revocation,
    peer: SocketAddr,
) -> Result<&'static str, (StatusCode, String)> {
    let path = ZnodePath::new(&*revocation.path);
    let path = path.map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    if !shared.feed.prefix().contains(&path) {
        return Err((StatusCode::NOT_FOUND, "this lock is not shown here".into()));
    }
    let store = shared.board.lock().store(Instant::now());
    if store.state != "connected" {
        let text =
            "the store is not connected, and another client may hold it by now: nothing was done";
        return Err((StatusCode::SERVICE_UNAVAILABLE, text.into()));
    }
    let client = shared.feed.client();
    // Limit the wait, because after a long time the user may no longer want the revocation.
    let queue = tokio::time::timeout(LOOK_TIMEOUT, lock_queue(&client, &path)).await;
    let refused = |error: Error| (StatusCode::BAD_GATEWAY, error.to_string());
    let queue = queue.map_err(|_| {
        let text = "the store does not answer: nothing was done";
        (StatusCode::GATEWAY_TIMEOUT, text.to_owned())
    })?;
    let queue = queue.map_err(refused)?;
    let holder = match revocation.find(&queue) {
        Found::Holder(holder) => holder.clone(),
        Found::Nobody => return Ok("gone"),
        Found::Another => {
            let text = "another client holds it by now: nothing was done";
            return Err((StatusCode::CONFLICT, text.into()));
        }
    };
    let done = tokio::spawn(async move { revoke(&client, &holder, &revocation, peer).await });
    let done = done.await.unwrap_or(Err(Error::ConnectionLoss));
    done.map_err(refused)
}

async fn revoke(
    client: &Client,
    holder: &QueueEntry,
    revocation: &Revocation,
    peer: SocketAddr,
) -> Result<&'static str, Error> {
    let revoker = Revoker::new(client).by(revocation.by());
    let (reached, result) = match revocation.force {
        true => (
            revoke::take(&revoker, std::slice::from_ref(holder)).await?,
            "removed",
        ),
        false => (revoke::ask_entry(&revoker, holder).await?, "asked"),
    };
    let result = if reached.is_empty() { "gone" } else { result };
    tracing::warn!(
        target: "lockkeeper_dashboard",
        %peer,
        path = escaped(&revocation.path),
        holder = described(holder),
        reason = escaped(&revocation.reason),
        result,
        "a lock was revoked"
    );
    Ok(result)
}
