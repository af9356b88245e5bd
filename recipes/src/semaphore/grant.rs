//! [`PermitWaiter`]: a request for permits of a semaphore.
//!
//! If the store can count leases within a transaction, the request first tries to take the permits in one transaction,
//! which checks that enough permits are free and the queue is empty. If this fails, the request joins the queue.
//! ZooKeeper cannot count, so there every request joins the queue.
//!
//! While the queue is not empty, only its head takes permits. So the number of free permits can only grow while the
//! head counts them. One transaction deletes the head's entry and creates its leases. If the entry outlived the
//! creation, the head would block the next waiter needlessly. If the entry were deleted first, the next waiter could
//! take the head's permits.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use lockkeeper_store::{
    Condition, Create, CreateMode, Error, Op, OpReply, ReadOp, ReadReply, Session, WatchedEvent,
    Watcher, ZnodePath, Zxid,
};

use super::leases::fresh_leases;
use super::permit::Permit;
use super::znodes::{Supply, Total, Znodes};
use crate::error::{LockError, Result};
use crate::events::EventSink;
use crate::guard::{Guard, GuardSet};
use crate::names::Kind;
use crate::queue::{
    Claim, Contender, Grant, Names, Permits, Queue, WaitOptions, Waiter, attended, create_queue,
    created_at,
};
use crate::retry::retry;
use crate::token::FencingToken;

/// A request for permits. When dropped, it leaves neither an entry nor leases behind.
pub(super) struct PermitWaiter<'a> {
    znodes: &'a Znodes,
    terms: &'a WaitOptions,
    waiter: Waiter<'a>,
    /// The names are chosen before the grant is sent, so a drop can delete the leases before the reply arrives
    /// (invariant 7).
    leases: Claim<'a, Vec<OpReply>>,
    wanted: u32,
}

/// Condition for enough free permits, which the grant's transaction checks.
enum Basis {
    /// Version of the znode `permits` in a read that showed enough free permits. While this version is unchanged, the
    /// number of free permits can only have grown since the read.
    Read { version: i32 },
    /// The transaction itself counts the held permits.
    Number(Total),
}

impl<'a> PermitWaiter<'a> {
    pub(super) async fn grant(
        znodes: &'a Arc<Znodes>,
        session: &'a Session,
        wanted: u32,
        terms: &'a WaitOptions,
        events: Option<EventSink>,
    ) -> Result<Option<Permit>> {
        let queue = Queue {
            session,
            path: znodes.locks.path(),
            kind: Kind::Acquirer,
        };
        let names = fresh_leases(znodes.leases.path(), wanted)?;
        let first = names[0].clone();
        let mut head = Self {
            znodes,
            terms,
            waiter: Waiter::new(queue, terms, events.clone()),
            leases: Claim::new(session, Names::Exact(names)),
            wanted,
        };
        let contender = head.waiter.contender();
        let contender = move || {
            let mut contender: Contender = contender();
            contender.permits = Some(Box::new(WantedPermits {
                znodes: znodes.clone(),
                wanted,
                first,
            }));
            contender
        };
        let made = attended(pin!(head.take_permits()), contender).await?;
        znodes.note_contended(head.waiter.has_waited());
        Ok(made.map(|made| head.into_permit(made, events)))
    }

    async fn take_permits(&mut self) -> Result<Option<Zxid>> {
        let (znodes, terms) = (self.znodes, self.terms);
        // A try ignores the hint `is_contended`, because it has just read that permits are free and the queue is empty.
        let mut made = match terms.only_if_free || !znodes.is_contended() {
            true => self.take_at_once().await?,
            false => None,
        };
        if made.is_none() {
            znodes.note_contended(true);
            made = Box::pin(self.take_in_turn()).await?;
        }
        Ok(made)
    }

    async fn take_at_once(&mut self) -> Result<Option<Zxid>> {
        match self.try_number().await {
            Ok(Some(made)) => {
                self.prove(made).await?;
                Ok(Some(made))
            }
            // The request was too large. Join the queue, because a grant at its head is a few bytes smaller.
            Err(LockError::Store(Error::TooLarge { .. })) => Ok(None),
            other => other,
        }
    }

    async fn take_in_turn(&mut self) -> Result<Option<Zxid>> {
        let (znodes, session) = (self.znodes, self.session());
        self.wait_for_permits_too();
        // If the grant needs a read, send the read together with the create. The result only counts if the same round
        // trip shows no entry ahead, because an entry ahead may take the permits that we read as free.
        let mut early = None;
        let is_read = !znodes.may_have_conditions();
        let read_early = || {
            // Replace the read of an earlier, refused attempt, because it was sent before this entry existed.
            early = is_read.then(|| session.multi_read(znodes.reads()));
        };
        let mut step = self.waiter.enter(read_early).await?;
        if !self.waiter.wait_from(&mut step).await? {
            return Ok(None);
        }
        let early = match early.filter(|_| self.waiter.is_first_answer()) {
            Some(reply) => match Box::pin(reply).await {
                Ok(replies) => znodes.parse(&replies)?,
                Err(Error::ConnectionLoss) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        self.take(early).await
    }

    async fn take(&mut self, mut early: Option<Supply>) -> Result<Option<Zxid>> {
        // After a wait, the entry ahead has usually taken the free permits, so a grant without a read would fail. But
        // if the store waited for the permits as well as for that entry, enough permits are free now.
        let mut is_worth_a_try = !self.waiter.has_waited() || self.waiter.has_conditions();
        loop {
            if is_worth_a_try && let Some(made) = self.try_number().await? {
                self.prove(made).await?;
                return Ok(Some(made));
            }
            let supply = match early.take() {
                Some(supply) => supply,
                None => self.read().await?,
            };
            // Even a stale read cannot show too many free permits. An entry that gets permits leaves the queue in the
            // transaction that creates its leases. This session has seen the last entry ahead leave, so it reads the
            // leases of all earlier entries.
            if self.wanted <= supply.free() {
                if let Some(made) = self.try_read(&supply).await? {
                    self.prove(made).await?;
                    return Ok(Some(made));
                }
                continue;
            }
            // The number of permits may have been lowered. A wait for more permits than exist would block all requests
            // behind this one forever.
            self.znodes.check_total(self.wanted, supply.total)?;
            if self.terms.only_if_free {
                return Ok(None);
            }
            self.waiter
                .tell_blocked(self.znodes.leases.path(), Some(0))?;
            is_worth_a_try = self.until_changed().await?;
        }
    }

    /// Makes the store also wait for the permits, if it supports that. Does nothing if a caller wants a report of each
    /// entry that leaves, because the store would then skip some of them.
    fn wait_for_permits_too(&mut self) {
        let total = self.znodes.last_seen();
        if self.znodes.may_have_conditions()
            && !self.waiter.is_watched()
            && self.wanted <= total.number
        {
            self.waiter
                .set_conditions(self.znodes.conditions(self.wanted, total).into());
        }
    }

    fn session(&self) -> &'a Session {
        self.waiter.queue.session
    }

    /// Reads the supply, and confirms that our entry exists (invariant 8). If our entry was removed, the next entry is
    /// now the head of the queue, and only the head may take permits.
    async fn read(&mut self) -> Result<Supply> {
        let entry = self.waiter.path();
        let (supply, mine) = self.znodes.read_with(self.session(), Some(entry)).await?;
        match mine {
            Some(stat) if stat.ephemeral_owner == self.session().id() => Ok(supply),
            _ => Err(self.waiter.removed()),
        }
    }

    /// Sleeps until the leases or the number of permits change. Returns false if a watch could not be armed, so the
    /// caller must read again.
    async fn until_changed(&mut self) -> Result<bool> {
        // Send both requests before awaiting either.
        let leases = self.session().watch_children(self.znodes.leases.path());
        let number = self.session().watch_data(self.znodes.permits.path());
        let (leases, number) = (leases.await, number.await);
        let ((names, _, leases), (data, _, number)) = match (leases, number) {
            (Ok(leases), Ok(number)) => (leases, number),
            // The caller's next read waits for the connection, and stores a missing number.
            (Err(Error::NoNode { .. } | Error::ConnectionLoss), _)
            | (_, Err(Error::NoNode { .. } | Error::ConnectionLoss)) => return Ok(false),
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        // A permit released between the caller's read and the watch fires neither watch, so check the data that arrived
        // with the watches.
        let total = self.znodes.number(&data)?;
        let held = u32::try_from(names.len()).unwrap_or(u32::MAX);
        if self.wanted > total || self.wanted <= total.saturating_sub(held) {
            return Ok(true);
        }
        self.waiter.sleep(&mut AnyEvent(leases, number)).await?;
        Ok(true)
    }

    async fn try_read(&mut self, supply: &Supply) -> Result<Option<Zxid>> {
        if !supply.has_leases {
            create_queue(self.session(), self.znodes.leases.path(), Kind::Lease).await?;
        }
        let version = supply.version;
        self.try_take(Basis::Read { version }).await
    }

    /// Takes the permits if the store itself can count the leases. Returns `None` if the store cannot, or if too few
    /// permits are free.
    async fn try_number(&mut self) -> Result<Option<Zxid>> {
        let total = self.znodes.last_seen();
        if self.wanted > total.number || !self.znodes.may_have_conditions() {
            return Ok(None);
        }
        match self.try_take(Basis::Number(total)).await {
            Err(LockError::Store(Error::Unimplemented { .. })) => {
                self.znodes.note_no_conditions();
                Ok(None)
            }
            tried => tried,
        }
    }

    /// Takes the permits in one transaction, which fails unless `basis` holds and our entry is in the queue (or, if we
    /// have no entry, the queue is empty). Returns `None` if a retry may succeed.
    async fn try_take(&mut self, basis: Basis) -> Result<Option<Zxid>> {
        // Renew the session's lease before the grant is sent. If the lease is too old when the reply arrives, `prove`
        // renews the lease again and confirms the permits.
        self.waiter.renew_lease().await?;
        let (session, (conditions, ops)) = (self.session(), self.ops(basis));
        match self.leases.request(|| session.multi(ops)).await {
            Ok(replies) => zxid_of(&replies).map(Some),
            // The reply is lost. Do not repeat the grant yet. If it was executed, our entry has left, and a second
            // grant would fail as if the entry had been removed.
            Err(error) if error.is_ambiguous() => match Box::pin(self.resolve_lost()).await? {
                // The reply could not be decoded, and a repeated reply would not decode either.
                None if error != Error::ConnectionLoss => Err(error.into()),
                made => Ok(made),
            },
            Err(Error::MultiFailed { index, source }) => self.refused(index, *source, conditions),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the operations of a grant, and the number of conditions at their start.
    fn ops(&self, basis: Basis) -> (usize, Vec<Op>) {
        let data = self.terms.data.to_bytes();
        let marker = self.waiter.move_marker();
        let has_marker = marker.is_some();
        let leases = self.leases.exact_names();
        let first = &leases[0];
        let mut ops = Vec::with_capacity(leases.len() + 4);
        match basis {
            Basis::Read { version } => ops.push(Op::Check {
                path: self.znodes.permits.path().clone(),
                version: Some(version),
            }),
            Basis::Number(total) => {
                let conditions = self.znodes.conditions(self.wanted, total);
                ops.extend(conditions.map(Op::Require));
            }
        }
        if !self.waiter.has_entered() {
            ops.push(Op::Require(Condition::Children {
                znode: self.znodes.locks.path().clone(),
                limit: 0,
            }));
        }
        let conditions = ops.len();
        if self.waiter.has_entered() {
            // Delete at any version, because others may write a revocation request into the entry.
            ops.push(Op::Delete {
                path: self.waiter.path().clone(),
                version: None,
            });
            ops.extend(marker);
        }
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
            // The token is the grant's zxid. In a multi, ZooKeeper before 3.9 returns the zxid only for a setData. A
            // grant without a release marker has no setData yet, so write the first lease's data with one.
            ops.push(Op::SetData {
                path: first.clone(),
                data,
                version: None,
            });
        }
        (conditions, ops)
    }

    /// Decides how to continue after the store refused the operation at `index`, and with it the whole grant.
    fn refused(&mut self, index: usize, why: Error, conditions: usize) -> Result<Option<Zxid>> {
        use Error::{BadVersion, NoAuth, NoNode, NotEmpty};
        if !self.waiter.has_entered() {
            return match why {
                // Join the queue instead. If we lack a permission there too, joining reports it.
                BadVersion { .. } | NoNode { .. } | NotEmpty { .. } | NoAuth { .. } => Ok(None),
                why => Err(why.into()),
            };
        }
        let (leave_queue, marker) = (conditions, conditions + 1);
        let has_marker = self.waiter.move_marker().is_some();
        match why {
            // The number changed or was deleted, or too few permits are free. Read again.
            BadVersion { .. } | NotEmpty { .. } | NoNode { .. } if index < conditions => Ok(None),
            NoNode { .. } if index == leave_queue => Err(self.waiter.removed()),
            // Another client has written the queue's znode, or we may not write it. The release marker is optional,
            // because it only saves the next waiter from listing the queue. Try again without the marker.
            BadVersion { .. } | NoAuth { .. } if index == marker && has_marker => {
                self.waiter.forget_marker();
                Ok(None)
            }
            NoNode { .. } => Ok(None),
            why => Err(why.into()),
        }
    }

    /// Finds out whether a grant with a lost reply was executed. A check is ordered behind the grant like a write. A
    /// read on the next connection could overtake the grant.
    async fn resolve_lost(&mut self) -> Result<Option<Zxid>> {
        let (session, first) = (self.session(), self.leases.exact_names()[0].clone());
        let asked = match self.waiter.has_entered() {
            true => self.waiter.path().clone(),
            false => first.clone(),
        };
        let is_there = match retry(|| session.check(&asked, None)).await {
            Ok(()) => true,
            Err(Error::MultiFailed { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        match (self.waiter.has_entered(), is_there) {
            (true, true) => {
                self.leases.resolve(false);
                return Ok(None);
            }
            // The grant was not executed, or the first lease was removed afterwards. Other leases may still exist, so
            // delete all of them.
            (false, false) => {
                self.leases.abandon();
                let names = fresh_leases(self.znodes.leases.path(), self.wanted)?;
                self.leases = Claim::new(session, Names::Exact(names));
                return Ok(None);
            }
            (true, false) | (false, true) => {}
        }
        // The grant or another client deleted the entry. All leases are created together, so the first lease shows
        // which of the two did it.
        let created = created_at(session, &first).await?;
        match created {
            Some(_) => self.leases.resolve(true),
            // Dropping the unresolved claim deletes any leases that exist.
            None => return Err(self.waiter.gone(&asked)),
        }
        Ok(created)
    }

    /// Confirms that the leases exist, and repeats this until the session's own lease is valid for long enough
    /// (invariant 6).
    async fn prove(&mut self, made: Zxid) -> Result<()> {
        while !self.waiter.may_grant() {
            self.waiter.renew_lease().await?;
            let (session, first) = (self.session(), self.leases.exact_names()[0].clone());
            match retry(|| session.check(&first, None)).await {
                Ok(()) => {}
                Err(Error::MultiFailed { .. }) => return Err(self.waiter.gone(&first)),
                Err(error) => return Err(error.into()),
            }
        }
        tracing::debug!(path = %self.znodes.root, count = self.wanted, token = %made.0, "permits granted");
        Ok(())
    }

    fn into_permit(mut self, made: Zxid, events: Option<EventSink>) -> Permit {
        let session = self.session();
        let token = FencingToken::new(made);
        let lease = self.waiter.granted_instead(token);
        // From here on there is no await, so no drop can happen before the guards own the leases. One guard reports the
        // events of all.
        let mut events = events;
        let guards = self.leases.take().into_iter().map(|path| {
            let grant = Grant::new(path.into(), token, lease.clone());
            let data = self.terms.data.clone();
            Guard::new(session.clone(), grant, Kind::Lease, data, events.take())
        });
        Permit::new(GuardSet::new(guards))
    }
}

struct WantedPermits {
    znodes: Arc<Znodes>,
    wanted: u32,
    first: ZnodePath,
}

impl Permits for WantedPermits {
    fn path(&self) -> &ZnodePath {
        &self.znodes.root
    }

    fn granted<'a>(
        &'a self,
        session: &'a Session,
        first: Option<ZnodePath>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<ZnodePath>>> + Send + 'a>> {
        Box::pin(async move {
            let mut reads = self.znodes.reads();
            reads.push(ReadOp::GetData(self.first.clone()));
            let answers = session.multi_read(reads).await?;
            if let Some(ReadReply::Data { .. }) = answers.get(2) {
                return Ok(Some(self.first.clone()));
            }
            let supply = self.znodes.parse(&answers)?;
            let are_free = supply.is_some_and(|supply| self.wanted <= supply.free());
            Ok(first.filter(|_| are_free))
        })
    }
}

fn zxid_of(replies: &[OpReply]) -> Result<Zxid> {
    let told = replies.iter().find_map(|reply| match reply {
        OpReply::Set(stat) => Some(stat.mzxid),
        _ => None,
    });
    told.ok_or_else(|| Error::Protocol("a grant was answered without a state".to_owned()).into())
}

struct AnyEvent(Watcher, Watcher);

impl Future for AnyEvent {
    type Output = Result<WatchedEvent, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Pending => Pin::new(&mut self.1).poll(context),
            ready => ready,
        }
    }
}
