//! [`ask`]: sends a call on a znode to a store.

use lockkeeper::{Error, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::linearizable::{Answer, Call};

/// Makes a read return everything committed before it. A plain read may be stale in an ensemble, so a write on the
/// same connection precedes it.
///
/// # Errors
/// If the write fails, because the read proves nothing without it.
pub async fn up_to_date<T>(
    session: &Session,
    is_ensemble: bool,
    read: impl FnOnce(&Session) -> lockkeeper_store::Call<T>,
) -> Result<T, Error> {
    // Send both before awaiting either, so that they use the same connection.
    let barrier = is_ensemble.then(|| session.check(&ZnodePath::root(), None));
    let read = read(session);
    if let Some(barrier) = barrier {
        barrier.await?;
    }
    read.await
}

/// Sends a call. Returns `None` if its outcome is unknown.
pub async fn ask(
    session: &Session,
    path: &ZnodePath,
    call: Call,
    is_ensemble: bool,
) -> Option<Answer> {
    let outcome = match call {
        Call::Create { value } => session
            .create(path, value.to_string(), CreateMode::Persistent)
            .await
            .map(|_| Answer::Done),
        Call::Set { value, version } => session
            .set_data(path, value.to_string(), version)
            .await
            .map(|stat| Answer::Version(stat.version)),
        Call::Delete { version } => session.delete(path, version).await.map(|()| Answer::Done),
        Call::Get => {
            let read = up_to_date(session, is_ensemble, |session| session.get_data(path)).await;
            read.map(|(data, stat)| {
                let value = String::from_utf8_lossy(&data).parse().unwrap_or(0);
                Answer::Found(stat.version, value)
            })
        }
    };
    match outcome {
        Ok(answer) => Some(answer),
        Err(Error::NodeExists { .. }) => Some(Answer::Exists),
        Err(Error::NoNode { .. }) => Some(Answer::Missing),
        Err(Error::BadVersion { .. }) => Some(Answer::OtherVersion),
        Err(_) => None,
    }
}
