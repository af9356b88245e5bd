//! [`retry`]: repetition of idempotent requests.
//!
//! A reply that is lost with its connection leaves open whether the request was carried out. Where a second time does
//! no harm (a read, a check, a barrier, a create or write whose outcome is the same), the request is sent again. The
//! requests that this does not hold for have loops of their own, which say why.

use lockkeeper_store::Error;

/// Sends an idempotent request until it is answered: again each time the connection breaks under it.
///
/// There is no pause and no limit: a request waits for the next connection by itself, and the end of the session is
/// an error of its own, which ends the repetition.
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
