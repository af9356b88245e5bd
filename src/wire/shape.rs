//! [`Shape`]: what is left of a request once it was handed to the store, so that its answer can be told.

use super::code::Code;
use super::convert::{create, create_mode, create_ttl, deleted, looked_at, version, written};
use super::jute::Text;
use super::multi::{self, MultiOp, MultiResult};
use super::op::Op;
use super::request::Request;
use super::response::Response;
use super::stat::acl_records;
use crate::data;
use crate::error::Error;
use crate::path::ZnodePath;
use crate::protocol::{self as store, OpReply, ReadReply, Reply};

/// What the answer to a request must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    op: Op,
    /// Of a sync, the path, which is told back; of a getEphemerals, how paths must begin, where the
    /// store could not be asked that.
    text: Option<Box<str>>,
    /// Of a multi, its operations.
    parts: Box<[Op]>,
    /// Of a multi, the first operation that was refused before the store saw it. In its place the
    /// store was asked for something that it refuses, so that the operations before it are judged
    /// first, and none is carried out.
    refused: Option<(usize, Code)>,
    /// Of a multiRead, likewise, but the others are read all the same.
    unread: Box<[(usize, Code)]>,
}

impl Shape {
    /// Of any request but a multi, a multiRead and a getEphemerals.
    pub(super) fn of(request: &Request<'_>) -> Self {
        let text = match request {
            Request::Sync(it) => it.path.as_deref().map(Box::from),
            _ => None,
        };
        Self {
            text,
            ..Self::bare(request.op())
        }
    }

    fn bare(op: Op) -> Self {
        Self {
            op,
            text: None,
            parts: Box::default(),
            refused: None,
            unread: Box::default(),
        }
    }

    /// The operation that was asked.
    pub(crate) fn op(&self) -> Op {
        self.op
    }

    /// The answer of the store, as it goes over the wire.
    ///
    /// # Errors
    /// The code of an answer that is a header alone.
    pub(crate) fn answer<'a, W, P>(
        &'a self,
        answer: &'a Result<Reply<W, P>, Error>,
    ) -> Result<Response<'a>, Code> {
        match answer {
            Ok(reply) => self.reply(reply),
            Err(Error::MultiFailed { index, source }) => {
                let refused = self.refused.filter(|(at, _)| at == index);
                let code = refused.map_or_else(|| Code::from(&**source), |(_, code)| code);
                let results = multi::failed(self.parts.len(), *index, code);
                Ok(Response::Multi(results))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn reply<'a, W, P>(&'a self, reply: &'a Reply<W, P>) -> Result<Response<'a>, Code> {
        Ok(match reply {
            Reply::Created { path, .. } if self.op == Op::Create => {
                Response::Path(path.as_str().into())
            }
            Reply::Created { path, stat } => Response::Created(path.as_str().into(), *stat),
            Reply::Done if self.op == Op::Sync => {
                Response::Synced(self.text.as_deref().map(Text::Borrowed))
            }
            Reply::Done if self.op == Op::AddWatch => Response::Watching(0),
            Reply::Done => Response::Empty,
            Reply::Exists { stat, .. } => Response::Stat(stat.ok_or(Code::NoNode)?),
            Reply::Stat(stat) => Response::Stat(*stat),
            Reply::Acl { acl, stat } => Response::Acl(acl_records(acl), *stat),
            Reply::Data { data, stat, .. } => Response::Data(data, *stat),
            Reply::Children { names, .. } if self.op == Op::GetChildren => {
                Response::Names(texts(names))
            }
            Reply::Children { names, stat, .. } => Response::Children(texts(names), *stat),
            Reply::Multi(parts) => Response::Multi(self.written(parts)),
            Reply::MultiRead(parts) => Response::Multi(self.read(parts)),
            Reply::Paths(paths) => Response::Names(self.beginning(paths)),
            Reply::Count(count) => Response::Count(i32::try_from(*count).unwrap_or(i32::MAX)),
            Reply::Watching(_) => Response::Watching(0),
            Reply::Enqueued { .. } | Reply::Predecessor(_) | Reply::Queue { .. } => {
                return Err(Code::SystemError);
            }
        })
    }

    fn written<'a>(&self, parts: &'a [OpReply]) -> Vec<MultiResult<'a>> {
        let result = |(part, op): (&'a OpReply, &Op)| match part {
            OpReply::Created { path, stat } => {
                let path = path.as_str().into();
                match stat {
                    Some(stat) if *op != Op::Create => MultiResult::Created2(path, *stat),
                    _ => MultiResult::Created(path),
                }
            }
            OpReply::Deleted => MultiResult::Deleted,
            OpReply::Set(stat) => MultiResult::Set(*stat),
            OpReply::Checked => MultiResult::Checked,
        };
        parts.iter().zip(&self.parts).map(result).collect()
    }

    fn read<'a>(&self, parts: &'a [ReadReply]) -> Vec<MultiResult<'a>> {
        let result = |(at, part): (usize, &'a ReadReply)| {
            let unread = self.unread.iter().find(|(refused, _)| *refused == at);
            match (unread, part) {
                (Some((_, code)), _) => MultiResult::Failed(code.number()),
                (None, ReadReply::Data { data, stat }) => MultiResult::Data(data, *stat),
                (None, ReadReply::Children(names)) => MultiResult::Children(texts(names)),
                (None, ReadReply::Failed(error)) => MultiResult::Failed(Code::from(error).number()),
            }
        };
        parts.iter().enumerate().map(result).collect()
    }

    fn beginning<'a>(&self, paths: &'a [ZnodePath]) -> Vec<Text<'a>> {
        let paths = paths.iter().map(ZnodePath::as_str);
        let beginning = self.text.as_deref().unwrap_or_default();
        let wanted = paths.filter(|path| path.starts_with(beginning));
        wanted.map(Text::Borrowed).collect()
    }
}

fn texts(names: &[String]) -> Vec<Text<'_>> {
    names.iter().map(|name| Text::Borrowed(&**name)).collect()
}

/// A multi as the store is asked it.
///
/// # Errors
/// A create's flags that are none, or that want a TTL where none can stand, make the whole multi
/// malformed: a server stumbles over them as it reads it.
pub(super) fn multi(ops: &[MultiOp<'_>]) -> Result<(store::Request, Shape), Code> {
    let mut shape = Shape {
        parts: ops.iter().map(MultiOp::op).collect(),
        ..Shape::bare(Op::Multi)
    };
    if ops.iter().any(has_bad_flags) {
        return Err(Code::MarshallingError);
    }
    let mut asked = Vec::with_capacity(ops.len());
    for (index, op) in ops.iter().enumerate() {
        match write_op(op) {
            Ok(op) => asked.push(op),
            Err(code) => {
                shape.refused = Some((index, code));
                asked.push(always_refused());
                break;
            }
        }
    }
    Ok((store::Request::Multi(asked), shape))
}

fn has_bad_flags(op: &MultiOp<'_>) -> bool {
    match op {
        MultiOp::Create(it) | MultiOp::Create2(it) | MultiOp::CreateContainer(it) => {
            create_mode(op.op(), it.flags, -1).is_err()
        }
        _ => false,
    }
}

/// The root cannot be deleted.
fn always_refused() -> store::Op {
    store::Op::Delete {
        path: ZnodePath::root(),
        version: None,
    }
}

fn write_op(op: &MultiOp<'_>) -> Result<store::Op, Code> {
    Ok(match op {
        MultiOp::Create(it) | MultiOp::Create2(it) | MultiOp::CreateContainer(it) => {
            store::Op::Create(create(op.op(), it)?)
        }
        MultiOp::CreateTtl(it) => store::Op::Create(create_ttl(it)?),
        MultiOp::Delete(it) => store::Op::Delete {
            path: deleted(&it.path)?,
            version: version(it.version),
        },
        MultiOp::SetData(it) => store::Op::SetData {
            path: written(&it.path)?,
            data: data::copy(it.data),
            version: version(it.version),
        },
        MultiOp::Check(it) => store::Op::Check {
            path: written(&it.path.0)?,
            version: version(it.version),
        },
        // Not of a multi that was read from a frame.
        MultiOp::GetChildren(_) | MultiOp::GetData(_) => return Err(Code::MarshallingError),
    })
}

/// A multiRead as the store is asked it.
pub(super) fn multi_read(ops: &[MultiOp<'_>]) -> (store::Request, Shape) {
    let mut unread = Vec::new();
    let mut asked = Vec::with_capacity(ops.len());
    for (index, op) in ops.iter().enumerate() {
        asked.push(read_op(op).unwrap_or_else(|code| {
            unread.push((index, code));
            store::ReadOp::GetChildren(ZnodePath::root())
        }));
    }
    let shape = Shape {
        parts: ops.iter().map(MultiOp::op).collect(),
        unread: unread.into(),
        ..Shape::bare(Op::MultiRead)
    };
    (store::Request::MultiRead(asked), shape)
}

fn read_op(op: &MultiOp<'_>) -> Result<store::ReadOp, Code> {
    match op {
        MultiOp::GetData(it) => looked_at(&it.path).map(store::ReadOp::GetData),
        MultiOp::GetChildren(it) => looked_at(&it.path).map(store::ReadOp::GetChildren),
        // Not of a multiRead that was read from a frame.
        _ => Err(Code::MarshallingError),
    }
}

/// A getEphemerals as the store is asked it. The prefix may be any text; where it is no path, all are
/// asked for, and looked through here.
pub(super) fn ephemerals(prefix: &str) -> (store::Request, Shape) {
    let wants_all = prefix.trim().is_empty() || prefix.trim() == "/";
    let (prefix, text) = match ZnodePath::new(prefix) {
        Ok(prefix) => (prefix, None),
        Err(_) if wants_all => (ZnodePath::root(), None),
        Err(_) => (ZnodePath::root(), Some(prefix)),
    };
    let shape = Shape {
        text: text.map(Box::from),
        ..Shape::bare(Op::GetEphemerals)
    };
    (store::Request::GetEphemerals { prefix }, shape)
}
