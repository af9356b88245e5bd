//! [`ask`]: a call on a znode, sent to a store.

use lockkeeper::{Error, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::linearizable::{Answer, Call};

/// Sends a call; `None` if its outcome is unknown.
pub(crate) async fn ask(session: &Session, path: &ZnodePath, call: Call) -> Option<Answer> {
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
        Call::Get => session.get_data(path).await.map(|(data, stat)| {
            let value = String::from_utf8_lossy(&data).parse().unwrap_or(0);
            Answer::Found(stat.version, value)
        }),
    };
    match outcome {
        Ok(answer) => Some(answer),
        Err(Error::NodeExists { .. }) => Some(Answer::Exists),
        Err(Error::NoNode { .. }) => Some(Answer::Missing),
        Err(Error::BadVersion { .. }) => Some(Answer::OtherVersion),
        Err(_) => None,
    }
}
