//! [`retry`]: retries idempotent requests.
//!
//! If a reply is lost with its connection, we do not know whether the request was executed. This function sends the
//! request again, so it may only be used for requests that can safely be executed twice (a read, a check, a barrier, a
//! create or write with the same outcome). All other requests have explicit loops, which state their reasons.

use lockkeeper_store::Error;

/// Sends a request again until it does not fail with a lost connection. This loop needs no pause or limit, because a
/// request waits for the next connection, and fails with another error when the session has ended.
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
