//! A store in memory that behaves like a ZooKeeper server. It has no index, so predecessors must be found in lists of
//! names, and other clients may write between two reads that were sent together.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Backend, Connector, Create, CreateMode, Enqueue, Predecessor, Reply, Request, Response, Result,
    ZnodePath,
};

use crate::{Intercept, intercepted};

pub fn unindexed(connector: Arc<dyn Connector>) -> Arc<dyn Connector> {
    intercepted(connector, || Unindexed)
}

struct Unindexed;

/// Delay between two reads of one request.
const PAUSE: Duration = Duration::from_millis(1);

impl Intercept for Unindexed {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        match request {
            Request::Enqueue(enqueue) => enqueue_by_list(inner, enqueue),
            Request::GetPredecessor(look) => {
                let parent = look.entry.parent().unwrap();
                let list = list(inner, parent);
                Response::eager(async move {
                    names(list.await)
                        .map(Predecessor::Listed)
                        .map(Reply::Predecessor)
                })
            }
            Request::GetQueue { parent, .. } => {
                let list = list(inner, parent);
                Response::eager(async move {
                    let names = names(list.await)?;
                    let sorted = false;
                    Ok(Reply::Queue { names, sorted })
                })
            }
            Request::MultiRead(reads) => {
                let inner = inner.clone();
                Response::eager(async move {
                    let mut replies = Vec::new();
                    for (number, read) in reads.into_iter().enumerate() {
                        if number > 0 {
                            inner.status().clock().sleep(PAUSE).await;
                        }
                        match inner.submit(Request::MultiRead(vec![read])).await? {
                            Reply::MultiRead(reply) => replies.extend(reply),
                            other => panic!("{other:?}"),
                        }
                    }
                    Ok(Reply::MultiRead(replies))
                })
            }
            other => inner.submit(other),
        }
    }
}

fn list(inner: &Arc<dyn Backend>, path: ZnodePath) -> Response {
    let watch = false;
    inner.submit(Request::GetChildren { path, watch })
}

fn enqueue_by_list(inner: &Arc<dyn Backend>, enqueue: Enqueue) -> Response {
    let create = inner.submit(Request::Create(Create {
        path: enqueue.parent.join(&enqueue.name).unwrap(),
        data: enqueue.data,
        mode: CreateMode::EphemeralSequential,
        acl: enqueue.acl,
    }));
    let list = list(inner, enqueue.parent);
    Response::eager(async move {
        match create.await? {
            Reply::Created { path, stat } => Ok(Reply::Enqueued {
                path,
                czxid: stat.czxid,
                ahead: Predecessor::Listed(names(list.await)?),
            }),
            other => panic!("{other:?}"),
        }
    })
}

fn names(reply: Result<Reply>) -> Result<Vec<String>> {
    match reply? {
        Reply::Children { names, .. } => Ok(names),
        other => panic!("{other:?}"),
    }
}
