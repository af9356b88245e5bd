//! Requests to the server: their limits, frames, and pending replies.

use super::{Awaited, ClientSession, MAX_HELD_BYTES, MAX_UNDER_WAY, Phase, Proof, Reads, UnderWay};
use crate::client::served::codec::{self, Dialect, put_request};
use crate::client::served::watches::{Idle, Interest, ServerWatch, WatchKey};
use crate::model::error::{Error, Result};
use crate::model::identity::Secret;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Enqueue, ReadOp, Reply, Request};
use crate::model::size::Scale;
use crate::model::types::CreateMode;
use crate::runtime::clock::BootInstant;
use crate::wire::{self, LENGTH_BYTES, Op, put_frame, xid};

impl<T> ClientSession<T> {
    pub(in super::super) fn submit(&mut self, caller: T, request: Request, now: BootInstant) {
        if self.is_over() || self.close_by.is_some() {
            return self.reply(caller, Err(self.end_error()));
        }
        let is_close = request == Request::Close;
        if !is_close && let Err(error) = self.check_room(&request) {
            return self.reply(caller, Err(error));
        }
        if is_close {
            self.close_by = Some(now.after(self.options.close_timeout));
        }
        match self.phase {
            Phase::Connected => self.send(caller, request, now),
            _ => {
                self.held_bytes += request_bytes(&request);
                self.queued.push_back((caller, request));
            }
        }
    }

    fn check_room(&self, request: &Request) -> Result<()> {
        let reached = |what, limit| Err(Error::LimitReached { what, limit });
        if self.under_way.len() + self.queued.len() >= MAX_UNDER_WAY {
            return reached("requests under way in one session", MAX_UNDER_WAY);
        }
        if self.held_bytes + request_bytes(request) > MAX_HELD_BYTES {
            return reached("bytes of requests under way in one session", MAX_HELD_BYTES);
        }
        Ok(())
    }

    pub(super) fn send(&mut self, caller: T, request: Request, now: BootInstant) {
        self.spoken = now;
        match request {
            Request::Enqueue(enqueue) if self.dialect == Dialect::Plain => {
                self.send_enqueue(caller, enqueue);
            }
            Request::MultiRead(ops) if self.lacks_multi_read => self.send_reads(caller, ops),
            Request::AddAuth { scheme, secret } => {
                let start = self.out.len();
                self.put_proof(&scheme, &secret);
                if let Err(error) = self.check_length(start) {
                    return self.reply(caller, Err(error));
                }
                self.proofs
                    .push_back(Proof::Requested(caller, scheme, secret));
            }
            request => {
                let (xid, bytes) = (self.next_xid(), request_bytes(&request));
                let (chroot, dialect) = (&self.chroot, self.dialect);
                let start = self.out.len();
                let put = put_request(&request, xid, chroot, dialect, &mut self.out);
                let op = match put.and_then(|op| self.check_length(start).map(|()| op)) {
                    Ok(op) => op,
                    Err(error) => return self.reply(caller, Err(error)),
                };
                if let Some((watch, path)) = armed_by(&request) {
                    self.watches.arming(watch, path);
                }
                let what = Awaited::Reply(caller, request);
                self.await_reply(xid, op, bytes, what);
            }
        }
    }

    fn check_length(&mut self, start: usize) -> Result<()> {
        let (actual, limit) = (
            self.out.len() - start - LENGTH_BYTES,
            self.max_request_bytes,
        );
        if actual <= limit {
            return Ok(());
        }
        self.out.truncate(start);
        let what = "a request";
        Err(Error::TooLarge {
            what,
            actual,
            limit,
        })
    }

    /// Sends an enqueue to a ZooKeeper server as two pipelined requests: the create, and the list of the queue.
    fn send_enqueue(&mut self, caller: T, enqueue: Enqueue) {
        let Enqueue {
            parent,
            name,
            data,
            acl,
            ..
        } = enqueue;
        let path = match parent.join(&name) {
            Ok(path) => path,
            Err(error) => return self.reply(caller, Err(error)),
        };
        let create = Create {
            path,
            data,
            mode: CreateMode::EphemeralSequential,
            acl,
        };
        let listing = Request::GetQueue { parent, limit: 0 };
        let (create_xid, listing_xid) = (self.next_xid(), self.next_xid());
        let create = Request::Create(create);
        let (chroot, out) = (&self.chroot, &mut self.out);
        let mut put = |request, xid| put_request(request, xid, chroot, Dialect::Plain, out);
        let ops =
            put(&create, create_xid).and_then(|first| Ok((first, put(&listing, listing_xid)?)));
        let ((first, second), create) = match (ops, create) {
            (Ok(ops), Request::Create(create)) => (ops, create),
            (Err(error), _) => return self.reply(caller, Err(error)),
            _ => unreachable!("it was made a create above"),
        };
        let bytes = create.data.len();
        self.await_reply(create_xid, first, bytes, Awaited::Entry(create));
        self.await_reply(listing_xid, second, 0, Awaited::Listing(caller, None));
    }

    /// Sends a multiRead as single reads, to a server without multiRead. Writes may be committed between these reads.
    fn send_reads(&mut self, caller: T, ops: Vec<ReadOp>) {
        let mut bytes = request_bytes(&Request::MultiRead(ops.clone()));
        for read in &ops {
            let xid = self.next_xid();
            let op = codec::put_read(read, xid, &self.chroot, &mut self.out);
            self.await_reply(xid, op, std::mem::take(&mut bytes), Awaited::Read);
        }
        if ops.is_empty() {
            return self.reply(caller, Ok(Reply::MultiRead(Vec::new())));
        }
        let replies = Vec::with_capacity(ops.len());
        self.reads.push_back(Reads {
            caller,
            ops,
            replies,
        });
    }

    pub(super) fn await_reply(&mut self, xid: i32, op: Op, bytes: usize, what: Awaited<T>) {
        self.held_bytes += bytes;
        self.under_way.push_back(UnderWay {
            xid,
            op,
            bytes,
            what,
        });
    }

    pub(in super::super) fn unwatch(&mut self, key: WatchKey, now: BootInstant) {
        if let Some(idle) = self.watches.remove(key) {
            self.send_removal(&idle, now);
        }
    }

    pub(super) fn send_removal(&mut self, idle: &Idle, now: BootInstant) {
        // Without a connection there is no watch at the server.
        if self.phase != Phase::Connected {
            return;
        }
        self.spoken = now;
        let xid = self.next_xid();
        let request = match idle {
            Idle::Path(watch, path) => wire::Request::RemoveWatches(wire::Watches {
                path: self.chroot.absolute(path).0,
                kind: *watch as i32,
            }),
            Idle::Predecessor(number) => {
                wire::Request::ForgetWatch(wire::ForgetWatch { watch: *number })
            }
        };
        put_frame(&mut self.out, |to| request.put_with_header(xid, to));
        let op = request.op();
        self.await_reply(xid, op, 0, Awaited::Ignored);
    }

    pub(super) fn undo(&mut self, path: ZnodePath) {
        let xid = self.next_xid();
        let version = None;
        let delete = Request::Delete { path, version };
        let put = put_request(&delete, xid, &self.chroot, Dialect::Plain, &mut self.out);
        if let (Ok(op), Request::Delete { path, .. }) = (put, delete) {
            self.await_reply(xid, op, 0, Awaited::Undo(path));
        }
    }

    pub(super) fn next_xid(&mut self) -> i32 {
        // Negative xids are reserved, and ZooKeeper's own client does not use 0.
        self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
        self.last_xid
    }

    pub(super) fn put_proof(&mut self, scheme: &str, secret: &Secret) {
        let auth = wire::Request::Auth(wire::Auth {
            kind: 0,
            scheme: scheme.into(),
            auth: secret.as_bytes(),
        });
        put_frame(&mut self.out, |to| auth.put_with_header(xid::AUTH, to));
    }
}

pub(super) fn request_bytes(request: &Request) -> usize {
    Scale { prefix: 0 }.request(request)
}

pub(super) fn armed_by(request: &Request) -> Option<(ServerWatch, &ZnodePath)> {
    match request {
        Request::Exists { path, watch: true } | Request::GetData { path, watch: true } => {
            Some((ServerWatch::Data, path))
        }
        Request::GetChildren { path, watch: true } => Some((ServerWatch::Children, path)),
        Request::AddWatch { path, mode } => Some((Interest::of(*mode).server_watch(), path)),
        _ => None,
    }
}
