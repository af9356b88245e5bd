//! Watches of a session: one-shot watchers, and persistent ones, which have to be added again after a reconnection.

use std::sync::Arc;

use futures_core::Stream;
use zookeeper_client as zk;

use super::convert::{self, RequestContext};
use super::session::{Link, sent};
use crate::error::{Error, Result};
use crate::path::ZnodePath;
use crate::watch::{WatchMode, WatchedEvent, Watcher};

pub(super) fn oneshot(link: &Arc<Link>, watcher: zk::OneshotWatcher) -> Watcher {
    let link = link.clone();
    Watcher::from_future(async move {
        let event = watcher.changed().await;
        // An event of a new connection must not arrive before the state shows that connection: waiters discard events of
        // an older one (invariant 8).
        link.settle().await;
        link.record_expiry(convert::event(event, link.session()))
    })
}

/// Returns the events of a persistent watch.
///
/// Unread events wait in the crate, without a limit. After a reconnection the crate does not re-register such watches,
/// and ZooKeeper itself loses the events in between (ZOOKEEPER-4698): so the watch is added again, and then the loss is
/// reported.
pub(super) fn events(
    link: Arc<Link>,
    mut watcher: zk::PersistentWatcher,
    path: ZnodePath,
    mode: WatchMode,
) -> impl Stream<Item = Result<WatchedEvent>> + Send + 'static {
    async_stream::stream! {
        loop {
            let event = watcher.changed().await;
            link.settle().await;
            let state = event.session_state;
            let of_session = event.event_type == zk::EventType::Session;
            match link.record_expiry(convert::event(event, link.session())) {
                Err(Error::ConnectionLoss) if of_session => {
                    // Reported after the reconnection: before, the reader could not read again.
                    if state == zk::SessionState::Disconnected {
                        continue;
                    }
                    // Added before the loss is reported: the reader reads upon the report, and must get an event for each
                    // change after that.
                    match watch_again(&link, &path, mode).await {
                        Ok(again) => watcher = again,
                        Err(error) => {
                            yield Err(error);
                            return;
                        }
                    }
                    yield Err(Error::ConnectionLoss);
                }
                Err(end) => {
                    yield Err(end);
                    return;
                }
                event => yield event,
            }
        }
    }
}

async fn watch_again(
    link: &Link,
    path: &ZnodePath,
    mode: WatchMode,
) -> Result<zk::PersistentWatcher> {
    loop {
        let Some(client) = link.client.lock().clone() else {
            return Err(link.end());
        };
        let (path, session) = (path.clone(), link.session());
        let watching = sent(Box::pin(async move {
            let watching = client.watch(path.as_str(), convert::watch_mode(mode)).await;
            let about = RequestContext {
                what: "addWatch",
                path: path.as_str(),
                version: None,
                session,
            };
            watching.map_err(|error| about.error(error))
        }));
        let watching = match watching {
            Ok(watching) => watching,
            Err(pending) => pending.await?,
        };
        match watching {
            // The addWatch or its reply was lost. Adding a watch twice is the same as once.
            Err(Error::ConnectionLoss) => {}
            done => return done,
        }
    }
}
