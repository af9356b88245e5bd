//! [`retry`]: retries idempotent requests.
//!
//! If a reply is lost with its connection, we do not know whether the request was executed. Requests that can safely be
//! executed twice (a read, a check, a barrier, a create or write with the same outcome) are sent again here. All others
//! have explicit loops with their reasons.

use lockkeeper_store::Error;

/// Needs no pause or limit, because a request waits for the next connection, and fails with another error when the
/// session has ended.
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
