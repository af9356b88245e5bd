//! Watches of a session. One-shot watchers fire once. Persistent watchers must be added again after a reconnection.

use std::sync::Arc;

use futures_core::Stream;
use lockkeeper_store::{Result, WatchMode, WatchedEvent, Watcher, ZnodePath};
use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::convert::{self, RequestContext};
use crate::either;
use crate::session::{Link, final_state, received, sent, spawn};

/// Returns the watcher of one event. A separate task waits for the event, because the crate's watcher would outlive
/// this session.
pub(crate) fn oneshot(link: &Arc<Link>, watcher: zk::OneshotWatcher) -> Watcher {
    let (mut send, event) = oneshot::channel();
    let link = link.clone();
    spawn(async move {
        // If the caller drops its watcher, the crate's watcher is dropped too, which removes the watch.
        let end = either(final_state(&link.status), send.closed());
        let event = match either(watcher.changed(), end).await {
            Some(event) => {
                // The status must show the new connection before the event of this connection arrives, because waiters
                // discard events of older connections (invariant 8).
                link.settle().await;
                link.record_expiry(convert::event(event, link.session()))
            }
            None => Err(link.end()),
        };
        let _ = send.send(event);
    });
    Watcher::from_future(async move { received(event.await) })
}

/// Returns the events of a persistent watch. The crate queues unread events without a limit. After a reconnection the
/// crate does not register a persistent watch again, and ZooKeeper does not deliver the events in between
/// (ZOOKEEPER-4698). So we add the watch again and then report that events were lost.
pub(crate) fn events(
    link: Arc<Link>,
    mut watcher: zk::PersistentWatcher,
    path: ZnodePath,
    mode: WatchMode,
) -> impl Stream<Item = Result<WatchedEvent>> + Send + 'static {
    async_stream::stream! {
        loop {
            let Some(event) = either(watcher.changed(), final_state(&link.status)).await else {
                yield Err(link.end());
                return;
            };
            link.settle().await;
            let state = event.session_state;
            let of_session = event.event_type == zk::EventType::Session;
            match link.record_expiry(convert::event(event, link.session())) {
                Err(lockkeeper_store::Error::ConnectionLoss) if of_session => {
                    // Report the loss after the reconnection, because the reader could not read the znodes before it.
                    if state == zk::SessionState::Disconnected {
                        continue;
                    }
                    // Add the watch before the loss is reported. The reader reads the znodes after this report, and
                    // needs an event for each change after its read.
                    match watch_again(&link, &path, mode).await {
                        Ok(again) => watcher = again,
                        Err(error) => {
                            yield Err(error);
                            return;
                        }
                    }
                    yield Err(lockkeeper_store::Error::ConnectionLoss);
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
        let Some(loan) = link.loan.lock().clone() else {
            return Err(link.end());
        };
        let (path, session) = (path.clone(), link.session());
        let watching = sent(async move {
            let watching = loan
                .client
                .watch(path.as_str(), convert::watch_mode(mode))
                .await;
            let about = RequestContext {
                what: "addWatch",
                path: path.as_str(),
                version: None,
                session,
            };
            watching.map_err(|error| about.error(error))
        });
        match received(watching.await) {
            // The addWatch or its reply was lost. Send it again, because adding a watch twice has no other effect than
            // adding it once.
            Err(lockkeeper_store::Error::ConnectionLoss) => {}
            done => return done,
        }
    }
}
