//! [`Head`]: the first of a semaphore's queue, which waits for permits and grants them to itself.

use bytes::Bytes;
use lockkeeper_store::{Create, CreateMode, Error, Op, OpReply, Session, Zxid};

use super::leases::Leases;
use super::permit::Permit;
use super::place::{Place, Supply};
use crate::error::Result;
use crate::events::EventSink;
use crate::guard::Guard;
use crate::names::Kind;
use crate::queue::{Alongside, Entry, Held, Terms, Waiting, make_queue};
use crate::retry::retry;
use crate::token::FencingToken;

/// The first of a queue. It alone may take permits, so what it reads as free stays free until it
/// leaves; and it leaves in the very transaction that makes its leases.
pub(super) struct Head<'a> {
    place: &'a Place,
    terms: &'a Terms,
    waiting: Waiting<'a>,
    leases: Leases<'a>,
    wanted: u32,
}

/// The operations of a grant, in their order.
const CHECK_NUMBER: usize = 0;
const LEAVE_QUEUE: usize = 1;
const MARK: usize = 2;

impl<'a> Head<'a> {
    /// Joins the queue, waits for the turn and for the permits, and takes them. `None` when they
    /// were to be had at once and were not.
    pub(super) async fn grant(
        place: &'a Place,
        session: &'a Session,
        wanted: u32,
        terms: &'a Terms,
        events: Option<EventSink>,
    ) -> Result<Option<Permit>> {
        let mut entry = Entry::new(session, &place.locks, Kind::Acquirer, events.clone());
        // In process a read costs no round trip that could be saved.
        if session.timeout().is_some() {
            entry.alongside = Some(Alongside::new(place.reads()));
        }
        let Some(waiting) = entry.take_turn(terms).await? else {
            return Ok(None);
        };
        let mut head = Self {
            place,
            terms,
            waiting,
            leases: Leases::new(session, &place.leases, wanted)?,
            wanted,
        };
        let made = head.take().await?;
        Ok(made.map(|made| head.into_permit(made, events)))
    }

    /// Waits until there are enough permits, and takes them.
    async fn take(&mut self) -> Result<Option<Zxid>> {
        let mut early = self.early().await?;
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
            self.waiting
                .told_ahead(&self.place.leases, Some(0), self.terms)?;
            self.until_changed().await?;
        }
    }

    fn session(&self) -> &'a Session {
        self.waiting.entry.session
    }

    /// What was read in the round trip of the entry's create, if its turn came in that very trip.
    async fn early(&mut self) -> Result<Option<Supply>> {
        let alongside = self.waiting.entry.alongside.take();
        let Some(answer) = alongside.and_then(|alongside| alongside.into_answer()) else {
            return Ok(None);
        };
        match Box::pin(answer).await {
            Ok(answers) => self.place.parse(&answers),
            Err(Error::ConnectionLoss) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the supply, and confirms in the same moment that this entry is there and its session's.
    async fn read(&mut self) -> Result<Supply> {
        let entry = self.waiting.entry.path();
        let (supply, mine) = self.place.read_with(self.session(), Some(entry)).await?;
        match mine {
            Some(stat) if stat.ephemeral_owner == self.session().id() => Ok(supply),
            _ => Err(self.waiting.removed()),
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
        self.waiting.until_either((leases, number)).await
    }

    /// Takes the permits, in one transaction that fails unless the number is the one that was read
    /// and this entry stands in the queue. `None`: read again.
    async fn ask(&mut self, supply: &Supply) -> Result<Option<Zxid>> {
        if !supply.has_leases {
            make_queue(self.session(), &self.place.leases, Kind::Lease).await?;
        }
        self.waiting.begin_to_hold().await?;
        let ops = self.ops(supply.version);
        match self.leases.ask(ops).await {
            Ok(replies) => zxid_of(&replies).map(Some),
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
        let entry = self.waiting.entry.path();
        let data = self.terms.form.data.to_bytes();
        let mark = self.waiting.mark;
        let mark = mark.and_then(|mark| mark.release(self.session(), Kind::Acquirer, entry));
        let has_mark = mark.is_some();
        let first = &self.leases.paths()[0];
        let mut ops = Vec::with_capacity(self.leases.paths().len() + 3);
        ops.push(Op::Check {
            path: self.place.permits.clone(),
            version: Some(version),
        });
        ops.push(Op::Delete {
            path: entry.clone(),
            version: None,
        });
        ops.extend(mark);
        for path in self.leases.paths() {
            let is_set_below = !has_mark && path == first;
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
        if !has_mark {
            // ZooKeeper before 3.9 says of a setData when it was, but not of a create.
            ops.push(Op::SetData {
                path: first.clone(),
                data,
                version: None,
            });
        }
        ops
    }

    /// What to do about an operation that was refused.
    fn refused(&mut self, index: usize, why: Error) -> Result<Option<Zxid>> {
        let has_mark = self.waiting.mark.is_some();
        match (index, why) {
            // It was changed; or deleted, and reading stores it again.
            (CHECK_NUMBER, Error::BadVersion { .. } | Error::NoNode { .. }) => Ok(None),
            (LEAVE_QUEUE, Error::NoNode { .. }) => Err(self.waiting.removed()),
            // Somebody else writes there, or this client may not: do without a mark.
            (MARK, Error::BadVersion { .. } | Error::NoAuth { .. }) if has_mark => {
                self.waiting.mark = None;
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
        let entry = self.waiting.entry.path().clone();
        let session = self.session();
        match retry(|| session.check(&entry, None)).await {
            Ok(()) => {
                self.leases.refused();
                return Ok(None);
            }
            Err(Error::MultiFailed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match self.leases.find().await? {
            Some(made) => Ok(Some(made)),
            None => Err(self.waiting.removed()),
        }
    }

    /// Has the store commit that the leases are there, until that proves them held now.
    async fn prove(&mut self, made: Zxid) -> Result<()> {
        while !self.waiting.may_grant() {
            self.waiting.begin_to_hold().await?;
            let (session, first) = (self.session(), self.leases.paths()[0].clone());
            match retry(|| session.check(&first, None)).await {
                Ok(()) => {}
                Err(Error::MultiFailed { .. }) => return Err(self.waiting.removed()),
                Err(error) => return Err(error.into()),
            }
        }
        tracing::debug!(path = %self.place.root, count = self.wanted, token = %made.0, "permits granted");
        Ok(())
    }

    fn into_permit(self, made: Zxid, events: Option<EventSink>) -> Permit {
        let session = self.session();
        let token = FencingToken::new(made);
        let lease = self.waiting.granted(token);
        // Told once for all of them.
        let mut events = events;
        let guards = self.leases.into_paths().into_iter().map(|path| {
            let held = Held {
                path,
                token,
                lease: lease.clone(),
                mark: None,
            };
            let data = self.terms.form.data.clone();
            Guard::new(session.clone(), held, Kind::Lease, data, events.take())
        });
        Permit::new(guards.collect())
    }
}

/// When a grant was: all of it under one zxid.
fn zxid_of(replies: &[OpReply]) -> Result<Zxid> {
    let told = replies.iter().find_map(|reply| match reply {
        OpReply::Set(stat) => Some(stat.mzxid),
        _ => None,
    });
    told.ok_or_else(|| Error::Protocol("a grant was answered without a state".to_owned()).into())
}
