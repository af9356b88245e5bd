//! [`Traffic`]: counts of messages and bytes.

use std::ops::{AddAssign, Sub};

use crate::model::error::Result;
use crate::model::protocol::{
    Condition, Create, Op, OpReply, Predecessor, ReadOp, ReadReply, Reply, Request,
};
use crate::model::watch::WatchedEvent;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "named as the variants of `Request`; a withdrawal is a delete"
)]
pub enum RequestKind {
    Create,
    Delete,
    Exists,
    GetData,
    SetData,
    GetChildren,
    Multi,
    MultiRead,
    Sync,
    GetEphemerals,
    GetAllChildrenNumber,
    AddWatch,
    Enqueue,
    GetPredecessor,
    GetQueue,
    GetAcl,
    SetAcl,
    AddAuth,
    Close,
    /// Any request.
    Any,
}

const KINDS: usize = RequestKind::Any as usize;

impl RequestKind {
    fn of(request: &Request) -> Self {
        match request {
            Request::Create(_) => Self::Create,
            Request::Delete { .. } | Request::Withdraw { .. } => Self::Delete,
            Request::Exists { .. } => Self::Exists,
            Request::GetData { .. } => Self::GetData,
            Request::SetData { .. } => Self::SetData,
            Request::GetChildren { .. } => Self::GetChildren,
            Request::Multi(_) => Self::Multi,
            Request::MultiRead(_) => Self::MultiRead,
            Request::Sync { .. } => Self::Sync,
            Request::GetEphemerals { .. } => Self::GetEphemerals,
            Request::GetAllChildrenNumber { .. } => Self::GetAllChildrenNumber,
            Request::AddWatch { .. } => Self::AddWatch,
            Request::Enqueue(_) => Self::Enqueue,
            Request::GetPredecessor(_) => Self::GetPredecessor,
            Request::GetQueue { .. } => Self::GetQueue,
            Request::GetAcl { .. } => Self::GetAcl,
            Request::SetAcl { .. } => Self::SetAcl,
            Request::AddAuth { .. } => Self::AddAuth,
            Request::Close => Self::Close,
        }
    }

    /// Returns true if a request is of this kind.
    pub fn matches(self, request: &Request) -> bool {
        self == Self::Any || self == Self::of(request)
    }
}

/// Traffic of a [`Faults`](super::Faults) wrapper, or of one of its sessions.
///
/// To measure an operation, subtract the traffic before the operation from the traffic after it. The bytes are
/// estimates that do not depend on the backend. They are the length of names and data, plus 64 bytes for each message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    requests: [u64; KINDS],
    /// Replies that reached the client.
    pub replies: u64,
    /// Watch events that reached the client.
    pub events: u64,
    /// Number of bytes of all requests, replies and events.
    pub bytes: u64,
}

impl Traffic {
    /// Returns the number of requests of this kind that were sent, including lost ones.
    pub fn requests(&self, on: RequestKind) -> u64 {
        match on {
            RequestKind::Any => self.requests.iter().sum(),
            on => self.requests[on as usize],
        }
    }

    pub(super) fn of_request(request: &Request) -> Self {
        let mut traffic = Self::message(request_bytes(request));
        traffic.requests[RequestKind::of(request) as usize] = 1;
        traffic
    }

    pub(super) fn of_reply(reply: &Result<Reply>) -> Self {
        Self {
            replies: 1,
            ..Self::message(reply.as_ref().map_or(0, reply_bytes))
        }
    }

    pub(super) fn of_event(event: &WatchedEvent) -> Self {
        Self {
            events: 1,
            ..Self::message(event.path.as_str().len())
        }
    }

    fn message(bytes: usize) -> Self {
        Self {
            bytes: (bytes + FRAMING) as u64,
            ..Self::default()
        }
    }
}

/// Estimated bytes of a message in addition to names and data, such as headers and versions.
const FRAMING: usize = 64;

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.requests.iter_mut().zip(other.requests) {
            *count += more;
        }
        self.replies += other.replies;
        self.events += other.events;
        self.bytes += other.bytes;
    }
}

impl Sub for Traffic {
    type Output = Self;

    /// Returns the traffic since `earlier`.
    fn sub(mut self, earlier: Self) -> Self {
        for (count, less) in self.requests.iter_mut().zip(earlier.requests) {
            *count -= less;
        }
        self.replies -= earlier.replies;
        self.events -= earlier.events;
        self.bytes -= earlier.bytes;
        self
    }
}

fn request_bytes(request: &Request) -> usize {
    match request {
        Request::Create(create) => create_bytes(create),
        Request::Delete { path, .. }
        | Request::Withdraw { entry: path }
        | Request::Exists { path, .. }
        | Request::GetData { path, .. }
        | Request::GetChildren { path, .. }
        | Request::Sync { path }
        | Request::GetAllChildrenNumber { path }
        | Request::GetAcl { path }
        | Request::SetAcl { path, .. }
        | Request::AddWatch { path, .. } => path.as_str().len(),
        Request::SetData { path, data, .. } => path.as_str().len() + data.len(),
        Request::Multi(ops) => ops.iter().map(|op| FRAMING + op_bytes(op)).sum(),
        Request::MultiRead(ops) => ops
            .iter()
            .map(ReadOp::path)
            .map(|path| FRAMING + path.as_str().len())
            .sum(),
        Request::GetEphemerals { prefix } => prefix.as_str().len(),
        Request::Enqueue(enqueue) => {
            let fixed = enqueue.parent.as_str().len() + enqueue.name.len() + enqueue.data.len();
            fixed + conditions_bytes(&enqueue.conditions)
        }
        Request::GetPredecessor(look) => {
            look.entry.as_str().len() + conditions_bytes(&look.conditions)
        }
        Request::GetQueue { parent, .. } => parent.as_str().len(),
        Request::AddAuth { scheme, secret } => scheme.len() + secret.as_bytes().len(),
        Request::Close => 0,
    }
}

fn create_bytes(create: &Create) -> usize {
    create.path.as_str().len() + create.data.len()
}

fn conditions_bytes(conditions: &[Condition]) -> usize {
    conditions.iter().map(Condition::bytes).sum()
}

fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Create(create) => create_bytes(create),
        Op::SetData { path, data, .. } => path.as_str().len() + data.len(),
        Op::Delete { path, .. } | Op::Check { path, .. } => path.as_str().len(),
        Op::Require(condition) => condition.bytes(),
    }
}

fn reply_bytes(reply: &Reply) -> usize {
    match reply {
        Reply::Created { path, .. } => path.as_str().len(),
        Reply::Data { data, .. } => data.len(),
        Reply::Children { names, .. } | Reply::Queue { names, .. } => names_bytes(names),
        Reply::Multi(replies) => replies
            .iter()
            .map(|reply| match reply {
                OpReply::Created { path, .. } => FRAMING + path.as_str().len(),
                _ => FRAMING,
            })
            .sum(),
        Reply::MultiRead(replies) => replies
            .iter()
            .map(|reply| match reply {
                ReadReply::Data { data, .. } | ReadReply::Entry { data, .. } => {
                    FRAMING + data.len()
                }
                ReadReply::Children(names) => FRAMING + names_bytes(names),
                ReadReply::Failed(_) => FRAMING,
            })
            .sum(),
        Reply::Paths(paths) => paths.iter().map(|path| NAME + path.as_str().len()).sum(),
        Reply::Enqueued { path, ahead, .. } => path.as_str().len() + ahead_bytes(ahead),
        Reply::Predecessor(ahead) => ahead_bytes(ahead),
        Reply::Done
        | Reply::Exists { .. }
        | Reply::Stat(_)
        | Reply::Count(_)
        | Reply::Acl { .. }
        | Reply::Watching(_) => 0,
    }
}

const NAME: usize = 4;

fn names_bytes(names: &[String]) -> usize {
    names.iter().map(|name| NAME + name.len()).sum()
}

fn ahead_bytes(ahead: &Predecessor) -> usize {
    match ahead {
        Predecessor::Blocked { by, .. } => by.as_str().len(),
        Predecessor::Listed(names) => names_bytes(names),
        Predecessor::Clear | Predecessor::Gone | Predecessor::Unknown => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_what_went_through_between() {
        let mut traffic = Traffic::default();
        traffic += Traffic::of_request(&Request::Close);
        let before = traffic;
        let path = "/abc".parse().unwrap();
        traffic += Traffic::of_request(&Request::Exists { path, watch: false });
        traffic += Traffic::of_reply(&Ok(Reply::Queue {
            names: vec!["four".into(), "five5".into()],
            sorted: true,
        }));
        let between = traffic - before;
        assert_eq!(between.requests(RequestKind::Any), 1);
        assert_eq!(between.requests(RequestKind::Exists), 1);
        assert_eq!(between.requests(RequestKind::Close), 0);
        assert_eq!((between.replies, between.events), (1, 0));
        assert_eq!(between.bytes, (64 + 4) + (64 + 8 + 9));
    }
}
