//! A store in memory that answers as a ZooKeeper server does: it has no index, so who is ahead must
//! be found from lists of names; and others may write between two of the reads that are asked for
//! together.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Clock, ConnectOptions};
use lockkeeper_store::{
    Backend, BoxFuture, Connector, Create, CreateMode, Enqueue, Predecessor, Reply, Request,
    Response, Result, SessionStatus, ZnodePath,
};

/// Wraps the connector of a store in memory.
#[derive(Debug)]
pub(crate) struct Unindexed(pub(crate) Arc<dyn Connector>);

impl Connector for Unindexed {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let opening = self.0.open(options);
        Box::pin(async move { Ok(Arc::new(Plain(opening.await?)) as Arc<dyn Backend>) })
    }

    fn clock(&self) -> &Clock {
        self.0.clock()
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        self.0.expire(backend)
    }
}

#[derive(Debug)]
struct Plain(Arc<dyn Backend>);

/// Between two reads of one request.
const PAUSE: Duration = Duration::from_millis(1);

impl Backend for Plain {
    fn submit(&self, request: Request) -> Response {
        match request {
            Request::Enqueue(enqueue) => self.enqueue(enqueue),
            Request::GetPredecessor(look) => {
                let parent = look.entry.parent().unwrap();
                let list = self.list(parent);
                Response::eager(async move {
                    names(list.await)
                        .map(Predecessor::Listed)
                        .map(Reply::Predecessor)
                })
            }
            Request::GetQueue { parent, .. } => {
                let list = self.list(parent);
                Response::eager(async move {
                    let names = names(list.await)?;
                    let sorted = false;
                    Ok(Reply::Queue { names, sorted })
                })
            }
            Request::MultiRead(reads) => {
                let inner = self.0.clone();
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
            other => self.0.submit(other),
        }
    }

    fn status(&self) -> &Arc<SessionStatus> {
        self.0.status()
    }

    fn store_id(&self) -> Option<&str> {
        self.0.store_id()
    }
}

impl Plain {
    fn list(&self, path: ZnodePath) -> Response {
        let watch = false;
        self.0.submit(Request::GetChildren { path, watch })
    }

    fn enqueue(&self, enqueue: Enqueue) -> Response {
        let create = self.0.submit(Request::Create(Create {
            path: enqueue.parent.join(&enqueue.name).unwrap(),
            data: enqueue.data,
            mode: CreateMode::EphemeralSequential,
            acl: enqueue.acl,
        }));
        let list = self.list(enqueue.parent);
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
}

fn names(reply: Result<Reply>) -> Result<Vec<String>> {
    match reply? {
        Reply::Children { names, .. } => Ok(names),
        other => panic!("{other:?}"),
    }
}
