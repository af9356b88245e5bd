//! [`retry`]: retries idempotent requests.
//!
//! If a connection is lost before the reply arrives, we do not know whether the request was executed. [`retry`] sends
//! the request again, so use it only for requests that can safely be executed twice.

use lockkeeper_store::Error;

/// Sends a request again while it fails with a lost connection. The loop needs no pause or limit, because a request
/// waits for the next connection, and fails when the session has ended.
pub(crate) async fn retry<T, F>(mut request: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match request().await {
            Err(Error::ConnectionLoss) => {}
            reply => return reply,
        }
    }
}
