//! [`PermitWaiter`]: a request for permits, which it takes immediately or at the head of the queue.
//!
//! If the store can count leases within a transaction, the first request takes the permits on condition that enough are
//! free and no request waits. Otherwise, and on ZooKeeper, the request joins the queue and waits at its head.
//!
//! While the queue is not empty, only its head takes permits, so the number of free ones can only grow while it looks,
//! and no lock over the leases is needed. The head leaves the queue in the same transaction that creates its leases. It
//! never has both an entry and permits, which would block the next waiter although its permits count as held, and never
//! neither, which would let the next waiter take them.

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

/// A request for permits. Dropping it leaves neither entry nor leases behind.
pub(super) struct PermitWaiter<'a> {
    znodes: &'a Znodes,
    terms: &'a WaitOptions,
    waiter: Waiter<'a>,
    /// Names are chosen before the grant is sent, so a drop can delete the leases without the reply (invariant 7).
    leases: Claim<'a, Vec<OpReply>>,
    wanted: u32,
}

/// Evidence that enough permits are free, checked by the transaction of a grant.
enum Basis {
    /// A read at this version showed enough free permits. Their number can only have grown since.
    Read { version: i32 },
    /// The transaction itself counts the held permits.
    Number(Total),
}

impl<'a> PermitWaiter<'a> {
    /// Returns `None` if the terms only want free permits and they are not free.
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
        // A try has just seen free permits and an empty queue.
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

    /// Takes the permits without joining the queue, if enough are free and no request waits.
    async fn take_at_once(&mut self) -> Result<Option<Zxid>> {
        match self.try_number().await {
            Ok(Some(made)) => {
                self.prove(made).await?;
                Ok(Some(made))
            }
            // This request is a few bytes larger than a grant at the head of the queue.
            Err(LockError::Store(Error::TooLarge { .. })) => Ok(None),
            other => other,
        }
    }

    async fn take_in_turn(&mut self) -> Result<Option<Zxid>> {
        let (znodes, session) = (self.znodes, self.session());
        self.wait_for_permits_too();
        // If the grant needs a read, it is sent together with the create. It only counts if the same round trip shows
        // that no entry is ahead, because entries ahead may take what we read earlier.
        let mut early = None;
        let is_read = !znodes.may_have_conditions();
        let read_early = || {
            // Replaces the read of an earlier, refused attempt, which was before this entry existed.
            early = is_read.then(|| session.multi_read(znodes.reads()));
        };
        let mut step = self.waiter.enter(read_early).await?;
        if !self.waiter.wait_from(&mut step).await? {
            return Ok(None);
        }
        let early = match early.filter(|_| self.waiter.is_first_answer()) {
            Some(reply) => match Box::pin(reply).await {
                Ok(replies) => znodes.parse(&replies)?,
                // The entry's own reply has confirmed it. `take` repeats the read.
                Err(Error::ConnectionLoss) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        self.take(early).await
    }

    async fn take(&mut self, mut early: Option<Supply>) -> Result<Option<Zxid>> {
        // The entry ahead of us usually took the permits, so a try would fail. But if the store also waited for
        // permits, they are free now.
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
            // No stale view shows too many free permits. The transaction that removed the last entry ahead also created
            // its leases, and this session has seen it, because otherwise it would not be the head.
            if self.wanted <= supply.free() {
                if let Some(made) = self.try_read(&supply).await? {
                    self.prove(made).await?;
                    return Ok(Some(made));
                }
                continue;
            }
            // The number may have been lowered since the request was made. Waiting would block all requests behind it
            // forever.
            self.znodes.check_total(self.wanted, supply.total)?;
            if self.terms.only_if_free {
                return Ok(None);
            }
            self.waiter
                .tell_blocked(self.znodes.leases.path(), Some(0))?;
            is_worth_a_try = self.until_changed().await?;
        }
    }

    /// Makes the store also wait for the permits, if it can.
    ///
    /// Not used if every step must be reported, because the store does not report entries that leave in the meantime.
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

    /// Also confirms that our entry exists (invariant 8). A head that was removed must not take permits along with the
    /// next one.
    async fn read(&mut self) -> Result<Supply> {
        let entry = self.waiter.path();
        let (supply, mine) = self.znodes.read_with(self.session(), Some(entry)).await?;
        match mine {
            Some(stat) if stat.ephemeral_owner == self.session().id() => Ok(supply),
            _ => Err(self.waiter.removed()),
        }
    }

    /// Sleeps until the leases or the number change, or have changed since the caller read them. Returns false if we
    /// cannot know.
    async fn until_changed(&mut self) -> Result<bool> {
        // Both are sent before either is awaited, which takes one round trip.
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
        // Use the data read with the watches. A permit released after the earlier read fires neither watch.
        let total = self.znodes.number(&data)?;
        let held = u32::try_from(names.len()).unwrap_or(u32::MAX);
        if self.wanted > total || self.wanted <= total.saturating_sub(held) {
            return Ok(true);
        }
        self.waiter.sleep(&mut AnyEvent(leases, number)).await?;
        Ok(true)
    }

    /// Returns `None` if the supply must be read again.
    async fn try_read(&mut self, supply: &Supply) -> Result<Option<Zxid>> {
        if !supply.has_leases {
            create_queue(self.session(), self.znodes.leases.path(), Kind::Lease).await?;
        }
        let version = supply.version;
        self.try_take(Basis::Read { version }).await
    }

    /// Lets the store count, with the number that we saw last. Returns `None` if too few are free, or if the store
    /// cannot do that.
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

    /// Takes the permits in one transaction, which fails unless its basis holds and our entry is in the queue, or the
    /// queue is empty. Returns `None` if a retry may succeed.
    async fn try_take(&mut self, basis: Basis) -> Result<Option<Zxid>> {
        // Before the grant is sent. If the session lapses in the meantime, this lease ends, and `prove` confirms the
        // permits under a new one.
        self.waiter.renew_lease().await?;
        let (session, (conditions, ops)) = (self.session(), self.ops(basis));
        match self.leases.request(|| session.multi(ops)).await {
            Ok(replies) => zxid_of(&replies).map(Some),
            // Do not send it again yet. If the grant was executed, our entry has left the queue, and a second grant
            // would fail as if the entry had been removed.
            Err(error) if error.is_ambiguous() => match Box::pin(self.resolve_lost()).await? {
                // A reply that cannot be decoded would only repeat.
                None if error != Error::ConnectionLoss => Err(error.into()),
                made => Ok(made),
            },
            Err(Error::MultiFailed { index, source }) => self.refused(index, *source, conditions),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the operations of a grant, and how many of the first ones are conditions.
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
            // So that no waiter is overtaken.
            ops.push(Op::Require(Condition::Children {
                znode: self.znodes.locks.path().clone(),
                limit: 0,
            }));
        }
        let conditions = ops.len();
        if self.waiter.has_entered() {
            // At any version, because others may write a revocation request into the entry.
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
            // The token is the grant's zxid. Before 3.9, ZooKeeper returns a Stat for a setData in a multi, but not for
            // a create. The marker is a setData. Without it, the first lease gets its data that way.
            ops.push(Op::SetData {
                path: first.clone(),
                data,
                version: None,
            });
        }
        (conditions, ops)
    }

    /// Decides what a refused operation means. Nothing of the grant was executed.
    fn refused(&mut self, index: usize, why: Error, conditions: usize) -> Result<Option<Zxid>> {
        use Error::{BadVersion, NoAuth, NoNode, NotEmpty};
        if !self.waiter.has_entered() {
            return match why {
                // The queue needs other permissions, and its error names a missing one.
                BadVersion { .. } | NoNode { .. } | NotEmpty { .. } | NoAuth { .. } => Ok(None),
                why => Err(why.into()),
            };
        }
        let (leave_queue, marker) = (conditions, conditions + 1);
        let has_marker = self.waiter.move_marker().is_some();
        match why {
            // The number changed or was deleted, or too few permits are free. The next read stores a missing number.
            BadVersion { .. } | NotEmpty { .. } | NoNode { .. } if index < conditions => Ok(None),
            NoNode { .. } if index == leave_queue => Err(self.waiter.removed()),
            // Another client writes the queue's znode, or we may not. The marker only saves the next waiter a list, so
            // try again without it.
            BadVersion { .. } | NoAuth { .. } if index == marker && has_marker => {
                self.waiter.forget_marker();
                Ok(None)
            }
            // The leases' parent, a container, was reaped. The next read shows that.
            NoNode { .. } => Ok(None),
            why => Err(why.into()),
        }
    }

    /// Finds out whether a grant with a lost reply was executed. Uses a check, which is a write and ordered behind the
    /// grant. A read on the next connection could overtake the grant.
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
            // Not granted, or granted and removed since. In the latter case other leases of the request may still
            // exist.
            (false, false) => {
                self.leases.abandon();
                let names = fresh_leases(self.znodes.leases.path(), self.wanted)?;
                self.leases = Claim::new(session, Names::Exact(names));
                return Ok(None);
            }
            (true, false) | (false, true) => {}
        }
        // The grant deleted the entry, or it was removed. All leases were created together, so the first one decides.
        let created = created_at(session, &first).await?;
        match created {
            Some(_) => self.leases.resolve(true),
            // The claim stays unresolved, so its drop deletes any leases that exist.
            None => return Err(self.waiter.gone(&asked)),
        }
        Ok(created)
    }

    /// Confirms that the leases exist, until the session's lease is valid for long enough (invariant 6). The grant may
    /// have used most of it.
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
        // There is no await from here on, so a drop finds either the claim or the guards. One guard sends the events of
        // all, because they are lost and released together.
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
