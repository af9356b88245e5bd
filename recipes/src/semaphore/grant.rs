//! [`PermitWaiter`]: the first of a semaphore's queue, which waits for permits and grants them to itself.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use lockkeeper_store::{
    Create, CreateMode, Error, Op, OpReply, Session, WatchedEvent, Watcher, Zxid,
};

use super::leases::fresh_leases;
use super::permit::Permit;
use super::place::{Place, Supply};
use crate::error::Result;
use crate::events::EventSink;
use crate::guard::Guard;
use crate::names::Kind;
use crate::queue::{Claim, Grant, Names, Queue, WaitOptions, Waiter, create_queue, created_at};
use crate::retry::retry;
use crate::token::FencingToken;

/// The first of a queue. It alone may take permits, so what it reads as free stays free until it
/// leaves; and it leaves in the very transaction that makes its leases.
pub(super) struct PermitWaiter<'a> {
    place: &'a Place,
    terms: &'a WaitOptions,
    waiter: Waiter<'a>,
    /// The leases, whose names are complete before the grant that creates them is sent.
    leases: Claim<'a, Vec<OpReply>>,
    wanted: u32,
}

/// The operations of a grant, in their order.
const CHECK_NUMBER: usize = 0;
const LEAVE_QUEUE: usize = 1;
const MARKER: usize = 2;

impl<'a> PermitWaiter<'a> {
    /// Joins the queue, waits for the turn and for the permits, and takes them. `None` when they
    /// were to be had at once and were not.
    pub(super) async fn grant(
        place: &'a Place,
        session: &'a Session,
        wanted: u32,
        terms: &'a WaitOptions,
        events: Option<EventSink>,
    ) -> Result<Option<Permit>> {
        let queue = Queue {
            session,
            path: &place.locks,
            kind: Kind::Acquirer,
        };
        let mut waiter = Waiter::new(queue, terms, events.clone());
        // The supply is read in the round trip of the create. It counts if the turn has come in that very trip: what
        // is read before the turn may be granted to others meanwhile.
        let mut early = None;
        let read_early = |is_under_way: bool| {
            // What was read behind an earlier attempt came before this entry.
            early = is_under_way.then(|| session.multi_read(place.reads()));
        };
        let mut step = waiter.enter(read_early).await?;
        if !waiter.wait_from(&mut step).await? {
            return Ok(None);
        }
        let early = match early.filter(|_| waiter.is_first_answer()) {
            Some(reply) => match Box::pin(reply).await {
                Ok(replies) => place.parse(&replies)?,
                // Read again: the supply is no part of the queue, so nothing is lost with it.
                Err(Error::ConnectionLoss) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        let names = Names::Exact(fresh_leases(&place.leases, wanted)?);
        let mut head = Self {
            place,
            terms,
            waiter,
            leases: Claim::new(session, names),
            wanted,
        };
        let made = head.take(early).await?;
        Ok(made.map(|made| head.into_permit(made, events)))
    }

    /// Waits until there are enough permits, and takes them.
    async fn take(&mut self, mut early: Option<Supply>) -> Result<Option<Zxid>> {
        loop {
            let supply = match early.take() {
                Some(supply) => supply,
                None => self.read().await?,
            };
            if self.wanted <= supply.free() {
                if let Some(made) = self.ask(&supply).await? {
                    self.prove(made).await?;
                    return Ok(Some(made));
                }
                continue;
            }
            self.place.check_total(self.wanted, supply.total)?;
            if self.terms.only_if_free {
                return Ok(None);
            }
            self.waiter.tell_blocked(&self.place.leases, Some(0))?;
            self.until_changed().await?;
        }
    }

    fn session(&self) -> &'a Session {
        self.waiter.queue.session
    }

    /// Reads the supply, and confirms in the same moment that this entry is there and its session's.
    async fn read(&mut self) -> Result<Supply> {
        let entry = self.waiter.path();
        let (supply, mine) = self.place.read_with(self.session(), Some(entry)).await?;
        match mine {
            Some(stat) if stat.ephemeral_owner == self.session().id() => Ok(supply),
            _ => Err(self.waiter.removed()),
        }
    }

    /// Sleeps until leases or number change. Comes back at once where they have changed since they
    /// were read, so that the caller reads them again.
    async fn until_changed(&mut self) -> Result<()> {
        let leases = self.session().watch_children(&self.place.leases);
        let number = self.session().watch_data(&self.place.permits);
        let (leases, number) = (leases.await, number.await);
        let ((names, _, leases), (data, _, number)) = match (leases, number) {
            (Ok(leases), Ok(number)) => (leases, number),
            // Reading makes what is missing, and waits for the connection.
            (Err(Error::NoNode { .. } | Error::ConnectionLoss), _)
            | (_, Err(Error::NoNode { .. } | Error::ConnectionLoss)) => return Ok(()),
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        let total = self.place.number(&data)?;
        let held = u32::try_from(names.len()).unwrap_or(u32::MAX);
        if self.wanted > total || self.wanted <= total.saturating_sub(held) {
            return Ok(());
        }
        self.waiter.sleep(&mut Either(leases, number)).await
    }

    /// Takes the permits, in one transaction that fails unless the number is the one that was read
    /// and this entry stands in the queue. `None`: read again.
    async fn ask(&mut self, supply: &Supply) -> Result<Option<Zxid>> {
        if !supply.has_leases {
            create_queue(self.session(), &self.place.leases, Kind::Lease).await?;
        }
        self.waiter.renew_lease().await?;
        let (session, ops) = (self.session(), self.ops(supply.version));
        match self.leases.request(|| session.multi(ops).into()).await {
            Ok(replies) => zxid_of(&replies).map(Some),
            // Not sent again unseen: if it was carried out, this entry has left the queue, and a second grant would
            // fail for that as if it had been removed.
            Err(error) if error.is_ambiguous() => match Box::pin(self.find()).await? {
                // A refusal that cannot be read would come again.
                None if error != Error::ConnectionLoss => Err(error.into()),
                made => Ok(made),
            },
            Err(Error::MultiFailed { index, source }) => self.refused(index, *source),
            Err(error) => Err(error.into()),
        }
    }

    fn ops(&self, version: i32) -> Vec<Op> {
        let entry = self.waiter.path();
        let data = self.terms.data.to_bytes();
        let marker = self.waiter.move_marker();
        let has_marker = marker.is_some();
        let leases = self.leases.exact_names();
        let first = &leases[0];
        let mut ops = Vec::with_capacity(leases.len() + 3);
        ops.push(Op::Check {
            path: self.place.permits.clone(),
            version: Some(version),
        });
        ops.push(Op::Delete {
            path: entry.clone(),
            version: None,
        });
        ops.extend(marker);
        for path in leases {
            let is_set_below = !has_marker && path == first;
            ops.push(Op::Create(Create {
                path: path.clone(),
                data: if is_set_below {
                    Bytes::new()
                } else {
                    data.clone()
                },
                mode: CreateMode::Ephemeral,
                acl: self.session().acl().clone(),
            }));
        }
        if !has_marker {
            // ZooKeeper before 3.9 says of a setData when it was, but not of a create.
            ops.push(Op::SetData {
                path: first.clone(),
                data,
                version: None,
            });
        }
        ops
    }

    /// Decides what to do about an operation that was refused.
    fn refused(&mut self, index: usize, why: Error) -> Result<Option<Zxid>> {
        let has_marker = self.waiter.move_marker().is_some();
        match (index, why) {
            // It was changed; or deleted, and reading stores it again.
            (CHECK_NUMBER, Error::BadVersion { .. } | Error::NoNode { .. }) => Ok(None),
            (LEAVE_QUEUE, Error::NoNode { .. }) => Err(self.waiter.removed()),
            // Somebody else writes there, or this client may not: do without a marker.
            (MARKER, Error::BadVersion { .. } | Error::NoAuth { .. }) if has_marker => {
                self.waiter.forget_marker();
                Ok(None)
            }
            // The parent of the leases was reaped since it was read: reading tells.
            (_, Error::NoNode { .. }) => Ok(None),
            (_, why) => Err(why.into()),
        }
    }

    /// Finds out whether a grant was carried out whose answer was lost: then this entry has left the
    /// queue. A check of it goes through the whole log behind the grant.
    async fn find(&mut self) -> Result<Option<Zxid>> {
        let (session, entry) = (self.session(), self.waiter.path().clone());
        match retry(|| session.check(&entry, None)).await {
            Ok(()) => {
                self.leases.resolve(false);
                return Ok(None);
            }
            Err(Error::MultiFailed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // The first tells of all: they are created together.
        let created = created_at(session, &self.leases.exact_names()[0]).await?;
        match created {
            Some(_) => self.leases.resolve(true),
            // A drop deletes what is left of them.
            None => return Err(self.waiter.removed()),
        }
        Ok(created)
    }

    /// Has the store commit that the leases are there, until that proves them held now.
    async fn prove(&mut self, made: Zxid) -> Result<()> {
        while !self.waiter.may_grant() {
            self.waiter.renew_lease().await?;
            let (session, first) = (self.session(), self.leases.exact_names()[0].clone());
            match retry(|| session.check(&first, None)).await {
                Ok(()) => {}
                Err(Error::MultiFailed { .. }) => return Err(self.waiter.removed()),
                Err(error) => return Err(error.into()),
            }
        }
        tracing::debug!(path = %self.place.root, count = self.wanted, token = %made.0, "permits granted");
        Ok(())
    }

    fn into_permit(mut self, made: Zxid, events: Option<EventSink>) -> Permit {
        let session = self.session();
        let token = FencingToken::new(made);
        let lease = self.waiter.granted_instead(token);
        // Told once for all of them.
        let mut events = events;
        let guards = self.leases.take().into_iter().map(|path| {
            let grant = Grant::new(path, token, lease.clone());
            let data = self.terms.data.clone();
            Guard::new(session.clone(), grant, Kind::Lease, data, events.take())
        });
        Permit::new(guards.collect())
    }
}

/// Returns the zxid of a grant.
fn zxid_of(replies: &[OpReply]) -> Result<Zxid> {
    let told = replies.iter().find_map(|reply| match reply {
        OpReply::Set(stat) => Some(stat.mzxid),
        _ => None,
    });
    told.ok_or_else(|| Error::Protocol("a grant was answered without a state".to_owned()).into())
}

/// The first event of two watches.
struct Either(Watcher, Watcher);

impl Future for Either {
    type Output = Result<WatchedEvent, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Pending => Pin::new(&mut self.1).poll(context),
            ready => ready,
        }
    }
}
