//! [`retry`]: the one retry of idempotent requests.
//!
//! A reply that is lost with its connection leaves open whether the request was carried out. Where carrying it out twice
//! does no harm (a read, a check, a barrier, a create or write with the same outcome), it is sent again. All other requests
//! have explicit loops, which say why.

use lockkeeper_store::Error;

/// Sends an idempotent request until it is answered: again each time that the connection breaks under it.
///
/// No pause and no limit are needed: a request waits for the next connection, and once the session has ended it fails with
/// another error, which ends the loop.
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
