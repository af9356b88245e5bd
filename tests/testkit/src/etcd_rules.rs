//! A store in memory that follows the rules of the etcd backend, except that it numbers entries as the store does. A
//! parent needs no create, znodes have no times, and entries do not wait for conditions. A waiter's queue is read some
//! time after the entry ahead has left, so other entries may have left meanwhile.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Backend, Blockers, Connector, Create, CreateMode, Enqueue, GetPredecessor, Op, OpReply,
    Predecessor, ReadReply, Reply, Request, Response, Stat, Watcher, ZnodePath,
};

use crate::{Intercept, intercepted};

pub fn etcd_rules(connector: Arc<dyn Connector>) -> Arc<dyn Connector> {
    intercepted(connector, || EtcdRules)
}

struct EtcdRules;

/// Delay between the departure of an entry and the read of the queue.
const PAUSE: Duration = Duration::from_millis(1);

impl Intercept for EtcdRules {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        match &request {
            Request::Create(Create {
                path,
                mode: CreateMode::Container,
                ..
            }) => {
                return Response::ready(Ok(Reply::Created {
                    path: path.clone(),
                    stat: Stat::default(),
                }));
            }
            Request::Create(create) => create_parents(inner, &create.path),
            Request::Enqueue(enqueue) => {
                create_parents(inner, &enqueue.parent.join("entry").unwrap())
            }
            Request::Multi(ops) => {
                for op in ops {
                    if let Op::Create(create) = op {
                        create_parents(inner, &create.path);
                    }
                }
            }
            _ => {}
        }
        match request {
            Request::Enqueue(enqueue) => {
                let (blockers, waiter) = (enqueue.blockers, inner.clone());
                let reply = inner.submit(Request::Enqueue(Enqueue {
                    conditions: Vec::new(),
                    ..enqueue
                }));
                Response::eager(async move {
                    match reply.await? {
                        Reply::Enqueued { path, czxid, ahead } => Ok(Reply::Enqueued {
                            ahead: judged_late(waiter, path.clone(), blockers, ahead),
                            path,
                            czxid,
                        }),
                        other => panic!("{other:?}"),
                    }
                })
            }
            Request::GetPredecessor(look) => {
                let (blockers, waiter, entry) = (look.blockers, inner.clone(), look.entry.clone());
                let reply = inner.submit(Request::GetPredecessor(GetPredecessor {
                    conditions: Vec::new(),
                    ..look
                }));
                Response::eager(async move {
                    match reply.await? {
                        Reply::Predecessor(ahead) => Ok(Reply::Predecessor(judged_late(
                            waiter, entry, blockers, ahead,
                        ))),
                        other => panic!("{other:?}"),
                    }
                })
            }
            other => {
                let reply = inner.submit(other);
                Response::eager(async move { reply.await.map(without_times) })
            }
        }
    }
}

fn create_parents(inner: &Arc<dyn Backend>, path: &ZnodePath) {
    let Some(parent) = path.parent().filter(|parent| !parent.is_root()) else {
        return;
    };
    create_parents(inner, &parent);
    drop(inner.submit(Request::Create(Create {
        path: parent,
        data: Default::default(),
        mode: CreateMode::Container,
        acl: Default::default(),
    })));
}

/// Lets the waiter read its queue again when the entry ahead has left.
fn judged_late(
    inner: Arc<dyn Backend>,
    entry: ZnodePath,
    blockers: Blockers,
    ahead: Predecessor,
) -> Predecessor {
    let Predecessor::Blocked { by, watcher, count } = ahead else {
        return ahead;
    };
    let watcher = Watcher::from_future(async move {
        let mut event = watcher.await?;
        inner.status().clock().sleep(PAUSE).await;
        if let Some(gone) = &mut event.predecessor_gone {
            let look = GetPredecessor {
                entry,
                blockers,
                conditions: Vec::new(),
                count: false,
            };
            let reply = inner.submit(Request::GetPredecessor(look)).await?;
            gone.clear = matches!(reply, Reply::Predecessor(Predecessor::Clear));
        }
        Ok(event)
    });
    Predecessor::Blocked { by, watcher, count }
}

fn without_times(reply: Reply) -> Reply {
    let stripped = |stat: Stat| Stat {
        ctime: 0,
        mtime: 0,
        ..stat
    };
    match reply {
        Reply::Created { path, stat } => Reply::Created {
            path,
            stat: stripped(stat),
        },
        Reply::Exists { stat, watcher } => Reply::Exists {
            stat: stat.map(stripped),
            watcher,
        },
        Reply::Data {
            data,
            stat,
            watcher,
        } => Reply::Data {
            data,
            stat: stripped(stat),
            watcher,
        },
        Reply::Stat(stat) => Reply::Stat(stripped(stat)),
        Reply::Multi(replies) => {
            let stripped = |reply| match reply {
                OpReply::Created { path, stat } => OpReply::Created {
                    path,
                    stat: stat.map(stripped),
                },
                OpReply::Set(stat) => OpReply::Set(stripped(stat)),
                other => other,
            };
            Reply::Multi(replies.into_iter().map(stripped).collect())
        }
        Reply::MultiRead(replies) => {
            let stripped = |reply| match reply {
                ReadReply::Data { data, stat } => ReadReply::Data {
                    data,
                    stat: stripped(stat),
                },
                ReadReply::Entry { data, stat, .. } => ReadReply::Entry {
                    data,
                    stat: stripped(stat),
                    granted_at_ms: None,
                },
                other => other,
            };
            Reply::MultiRead(replies.into_iter().map(stripped).collect())
        }
        other => other,
    }
}
