//! Sends a session's requests through the crate's client, and converts the replies.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use lockkeeper_store::{
    Create, CreateMode, Enqueue, Error, Op, OpReply, PersistentWatcher, Predecessor, ReadOp,
    ReadReply, Reply, Request, Result, SessionId, Stat, ZnodePath,
};
use zookeeper_client as zk;

use crate::convert::{self, Acls, CREATE, RequestContext};
use crate::entries::Loan;
use crate::session::Link;
use crate::watches::{events, oneshot};

/// Largest accepted sequence number. ZooKeeper's counter ends at 2^31 − 1 and then wraps to negative numbers. All
/// clients that use this limit stop before the counter wraps.
const LAST_SEQUENCE: i64 = i32::MAX as i64 - 1_000_001;

/// Sends a request before its first await, and returns the reply.
pub(crate) async fn carry_out(
    link: &Arc<Link>,
    loan: &Arc<Loan>,
    request: Request,
) -> Result<Reply> {
    let client = &loan.client;
    let session = link.session();
    let about = |what, path, version| RequestContext {
        what,
        path,
        version,
        session,
    };
    match request {
        Request::Create(create) => {
            let (path, stat) = self::create(link, loan, &create).await?;
            Ok(Reply::Created { path, stat })
        }
        Request::Delete { path, version } => delete(loan, &path, version, session).await,
        Request::Withdraw { entry } => delete(loan, &entry, None, session).await,
        Request::Exists { path, watch } => exists(link, client, path.as_str(), watch).await,
        Request::GetData { path, watch } => get_data(link, client, path.as_str(), watch).await,
        Request::SetData {
            path,
            data,
            version,
        } => {
            let path = path.as_str();
            let set = client.set_data(path, &data, version).await;
            let stat = set.map_err(|error| about("setData", path, version).error(error))?;
            Ok(Reply::Stat(convert::stat(stat)))
        }
        Request::GetChildren { path, watch } => {
            get_children(link, client, path.as_str(), watch).await
        }
        Request::Multi(ops) => multi(link, loan, &ops).await,
        Request::MultiRead(ops) => multi_read(link, client, &ops).await,
        Request::Sync { path } => {
            let path = path.as_str();
            let synced = client.sync(path).await;
            synced.map_err(|error| about("sync", path, None).error(error))?;
            Ok(Reply::Done)
        }
        Request::GetEphemerals { prefix } => {
            let path = prefix.as_str();
            let found = client.list_ephemerals(path).await;
            let paths = found.map_err(|error| about("getEphemerals", path, None).error(error))?;
            Ok(Reply::Paths(
                paths.iter().map(ZnodePath::new).collect::<Result<_>>()?,
            ))
        }
        Request::GetAllChildrenNumber { path } => {
            let path = path.as_str();
            let counted = client.count_descendants_number(path).await;
            counted
                .map(Reply::Count)
                .map_err(|error| about("getAllChildrenNumber", path, None).error(error))
        }
        Request::AddWatch { path, mode } => {
            let watching = client.watch(path.as_str(), convert::watch_mode(mode)).await;
            let watcher =
                watching.map_err(|error| about("addWatch", path.as_str(), None).error(error))?;
            let events = events(link.clone(), watcher, path, mode);
            Ok(Reply::Watching(PersistentWatcher::from_stream(events)))
        }
        Request::Enqueue(entry) => enqueue(link, loan, entry).await,
        Request::GetPredecessor(look) => {
            let parent = look.entry.parent().unwrap_or_else(ZnodePath::root);
            match client.list_children(parent.as_str()).await {
                Ok(names) => Ok(Reply::Predecessor(Predecessor::Listed(names))),
                Err(zk::Error::NoNode) => Ok(Reply::Predecessor(Predecessor::Gone)),
                Err(error) => Err(about("getChildren", parent.as_str(), None).error(error)),
            }
        }
        Request::GetQueue { parent, .. } => {
            let path = parent.as_str();
            let listed = client.list_children(path).await;
            let names = listed.map_err(|error| about("getChildren", path, None).error(error))?;
            Ok(Reply::Queue {
                names,
                sorted: false,
            })
        }
        Request::GetAcl { path } => {
            let path = path.as_str();
            let found = client.get_acl(path).await;
            let (acl, stat) = found.map_err(|error| about("getACL", path, None).error(error))?;
            let (acl, stat) = (convert::acl(&acl), convert::stat(stat));
            Ok(Reply::Acl { acl, stat })
        }
        Request::SetAcl { path, acl, version } => {
            let (path, acls) = (path.as_str(), Acls::new(&acl));
            let set = client.set_acl(path, &acls.list(), version).await;
            let stat = set.map_err(|error| about("setACL", path, version).error(error))?;
            Ok(Reply::Stat(convert::stat(stat)))
        }
        Request::AddAuth { scheme, secret } => {
            let proved = client.auth(&scheme, secret.as_bytes()).await;
            proved.map_err(|error| about("auth", "", None).error(error))?;
            Ok(Reply::Done)
        }
        // A close sends no request to the crate. Later versions of the store may add other requests.
        _ => Err(Error::Unimplemented {
            what: "this kind of request on a lent client",
        }),
    }
}

async fn delete(
    loan: &Loan,
    path: &ZnodePath,
    version: Option<i32>,
    session: SessionId,
) -> Result<Reply> {
    let about = RequestContext {
        what: "delete",
        path: path.as_str(),
        version,
        session,
    };
    let deleted = loan.client.delete(path.as_str(), version).await;
    if matches!(deleted, Ok(()) | Err(zk::Error::NoNode)) {
        loan.deleted(path);
    }
    deleted.map_err(|error| about.error(error))?;
    Ok(Reply::Done)
}

async fn exists(link: &Arc<Link>, client: &zk::Client, path: &str, watch: bool) -> Result<Reply> {
    let found = if watch {
        let found = client.check_and_watch_stat(path).await;
        found.map(|(stat, watcher)| (stat, Some(oneshot(link, watcher))))
    } else {
        client.check_stat(path).await.map(|stat| (stat, None))
    };
    let (stat, watcher) = found.map_err(|error| read_at(link, "exists", path).error(error))?;
    Ok(Reply::Exists {
        stat: stat.map(convert::stat),
        watcher,
    })
}

async fn get_data(link: &Arc<Link>, client: &zk::Client, path: &str, watch: bool) -> Result<Reply> {
    let found = if watch {
        let found = client.get_and_watch_data(path).await;
        found.map(|(data, stat, watcher)| (data, stat, Some(oneshot(link, watcher))))
    } else {
        client
            .get_data(path)
            .await
            .map(|(data, stat)| (data, stat, None))
    };
    let (data, stat, watcher) =
        found.map_err(|error| read_at(link, "getData", path).error(error))?;
    Ok(Reply::Data {
        data: Bytes::from(data),
        stat: convert::stat(stat),
        watcher,
    })
}

async fn get_children(
    link: &Arc<Link>,
    client: &zk::Client,
    path: &str,
    watch: bool,
) -> Result<Reply> {
    let found = if watch {
        let found = client.get_and_watch_children(path).await;
        found.map(|(names, stat, watcher)| (names, stat, Some(oneshot(link, watcher))))
    } else {
        client
            .get_children(path)
            .await
            .map(|(names, stat)| (names, stat, None))
    };
    let (names, stat, watcher) =
        found.map_err(|error| read_at(link, "getChildren", path).error(error))?;
    Ok(Reply::Children {
        names,
        stat: convert::stat(stat),
        watcher,
    })
}

fn read_at<'a>(link: &Link, what: &'static str, path: &'a str) -> RequestContext<'a> {
    RequestContext {
        what,
        path,
        version: None,
        session: link.session(),
    }
}

async fn create(link: &Link, loan: &Arc<Loan>, create: &Create) -> Result<(ZnodePath, Stat)> {
    let acls = Acls::new(&create.acl);
    let path = create.path.as_str();
    let made = loan
        .client
        .create(path, &create.data, &acls.options(create.mode))
        .await;
    created(link, loan, create, made)
}

/// Converts the reply of a create. If the znode's number is near the end of ZooKeeper's counter, returns an error and
/// deletes the znode, because the caller does not learn its name.
fn created(
    link: &Link,
    loan: &Arc<Loan>,
    create: &Create,
    made: Result<(zk::Stat, zk::CreateSequence), zk::Error>,
) -> Result<(ZnodePath, Stat)> {
    let about = RequestContext {
        what: CREATE,
        path: create.path.as_str(),
        version: None,
        session: link.session(),
    };
    let made = made.map_err(|error| about.error(error));
    let made = made.and_then(|(stat, number)| Ok((convert::made(create, number)?, stat)));
    let path = made.as_ref().map(|(path, _)| path.clone());
    loan.created(create, &path.map_err(Error::clone));
    let (path, stat) = made?;
    if is_exhausted(create, &path) {
        let error = sequence_exhausted(&path);
        loan.undo(vec![path]);
        return Err(error);
    }
    Ok((path, convert::stat(stat)))
}

fn is_exhausted(create: &Create, made: &ZnodePath) -> bool {
    let number = made.as_str().strip_prefix(create.path.as_str());
    let number = number.and_then(|number| number.parse().ok());
    create.mode.is_sequential()
        && !number.is_some_and(|number| (0..=LAST_SEQUENCE).contains(&number))
}

fn sequence_exhausted(made: &ZnodePath) -> Error {
    let parent = made.parent().unwrap_or_else(ZnodePath::root);
    Error::SequenceExhausted {
        path: parent.to_string(),
    }
}

/// Sends the create and the list of the queue together, in one round trip.
async fn enqueue(link: &Link, loan: &Arc<Loan>, entry: Enqueue) -> Result<Reply> {
    let create = Create {
        path: entry.parent.join(&entry.name)?,
        data: entry.data,
        mode: CreateMode::EphemeralSequential,
        acl: entry.acl,
    };
    let acls = Acls::new(&create.acl);
    let client = &loan.client;
    let making = client.create(
        create.path.as_str(),
        &create.data,
        &acls.options(create.mode),
    );
    // The crate sends the list request when this future is created, which is before we await the create.
    let listing = client.list_children(entry.parent.as_str());
    let made = making.await;
    // Use the list only if the create succeeded. Otherwise the list may be from another connection, and may have been
    // read before the entry existed.
    let (path, stat) = created(link, loan, &create, made)?;
    let ahead = match listing.await {
        Ok(names) => Predecessor::Listed(names),
        // Do not return the error of the list. The caller would not learn the name of its entry and could not clean it
        // up.
        Err(_) => Predecessor::Unknown,
    };
    Ok(Reply::Enqueued {
        path,
        czxid: stat.czxid,
        ahead,
    })
}

async fn multi(link: &Link, loan: &Arc<Loan>, ops: &[Op]) -> Result<Reply> {
    if ops.iter().any(|op| matches!(op, Op::Require(_))) {
        return Err(Error::Unimplemented {
            what: "conditions on data or children in a multi",
        });
    }
    let made = commit(&loan.client, ops, link.session()).await;
    loan.multi(ops, &made);
    let replies = made?;
    let exhausted = ops
        .iter()
        .zip(&replies)
        .find_map(|answered| match answered {
            (Op::Create(create), OpReply::Created { path, .. }) if is_exhausted(create, path) => {
                Some(sequence_exhausted(path))
            }
            _ => None,
        });
    let Some(error) = exhausted else {
        return Ok(Reply::Multi(replies));
    };
    // Delete in reverse order, so that children are deleted before their parents.
    let made = replies.into_iter().rev().filter_map(|reply| match reply {
        OpReply::Created { path, .. } => Some(path),
        _ => None,
    });
    loan.undo(made.collect());
    Err(error)
}

async fn commit(client: &zk::Client, ops: &[Op], session: SessionId) -> Result<Vec<OpReply>> {
    let failed = |index: usize, error| Error::MultiFailed {
        index,
        source: Box::new(convert::about_op(&ops[index], session).error(error)),
    };
    let mut writer = client.new_multi_writer();
    for (index, op) in ops.iter().enumerate() {
        convert::add_op(&mut writer, op).map_err(|error| failed(index, error))?;
    }
    let results = writer.commit().await.map_err(|error| match error {
        zk::MultiWriteError::OperationFailed { index, source } if index < ops.len() => {
            failed(index, source)
        }
        error => RequestContext {
            what: "multi",
            path: "",
            version: None,
            session,
        }
        .error(error.into()),
    })?;
    results.into_iter().map(convert::op_reply).collect()
}

/// Reads several znodes together. If the server is too old for multiRead, sends separate reads. Other writes may then
/// happen between the reads.
async fn multi_read(link: &Link, client: &zk::Client, ops: &[ReadOp]) -> Result<Reply> {
    let session = link.session();
    if link.lacks_multi_read.load(Ordering::Relaxed) {
        return read_each(client, ops, session).await;
    }
    let mut reader = client.new_multi_reader();
    for op in ops {
        convert::add_read(&mut reader, op)
            .map_err(|error| convert::about_read(op, session).error(error))?;
    }
    let about = RequestContext {
        what: "multiRead",
        path: "",
        version: None,
        session,
    };
    let results = match reader.commit().await {
        Err(zk::Error::Unimplemented) => {
            // Relaxed ordering is enough. If a request does not see this value, the server only refuses one more
            // multiRead.
            link.lacks_multi_read.store(true, Ordering::Relaxed);
            tracing::info!(%session, "server without multiRead: reads are sent one by one");
            return loop {
                // After it has refused the request (`UnimplementedRequestProcessor`), the server closes the connection.
                // The following reads are then lost. We retry them, which is safe for reads.
                match read_each(client, ops, session).await {
                    Err(Error::ConnectionLoss) => {}
                    read => break read,
                }
            };
        }
        results => results.map_err(|error| about.error(error))?,
    };
    let replies = ops.iter().zip(results);
    Ok(Reply::MultiRead(
        replies
            .map(|(op, result)| convert::read_reply(op, result, session))
            .collect(),
    ))
}

/// Sends all reads before it awaits them. This takes one round trip, like a multiRead, but the result is not a
/// snapshot.
async fn read_each(client: &zk::Client, ops: &[ReadOp], session: SessionId) -> Result<Reply> {
    let mut reading: Vec<Reading<'_>> = Vec::with_capacity(ops.len());
    for op in ops {
        reading.push(match op {
            ReadOp::GetData(path) | ReadOp::GetEntry(path) => {
                let found = client.get_data(path.as_str());
                Box::pin(async move {
                    let (data, stat) = found.await?;
                    let (data, stat) = (Bytes::from(data), convert::stat(stat));
                    Ok(convert::data_reply(op, data, stat))
                })
            }
            ReadOp::GetChildren(path) => {
                let found = client.list_children(path.as_str());
                Box::pin(async move { found.await.map(ReadReply::Children) })
            }
        });
    }
    let mut replies = Vec::with_capacity(ops.len());
    for (op, reading) in ops.iter().zip(reading) {
        let reply = reading.await;
        let reply = reply.map_err(|error| convert::about_read(op, session).error(error));
        replies.push(match reply {
            Err(error) if error.is_answer() => ReadReply::Failed(error),
            reply => reply?,
        });
    }
    Ok(Reply::MultiRead(replies))
}

type Reading<'a> = Pin<Box<dyn Future<Output = Result<ReadReply, zk::Error>> + Send + 'a>>;
