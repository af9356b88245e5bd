//! Waiting for one's turn: watch the nearest entry that blocks, and confirm after every wake.

use lockkeeper_store::{
    BootInstant, Error, GetPredecessor, Lease, Predecessor, Skip, ZnodePath, Zxid, sequence_of,
};

use super::claim::{Entry, Form};
use super::contenders::check_name;
use super::list::Turn;
use super::release_marker::CurrentMark;
use super::sleep::Wake;
use crate::error::{LockError, Result};
use crate::events::PreviousHolder;
use crate::names::contender_number;
use crate::progress::Progress;
use crate::retry::retry;
use crate::token::FencingToken;

/// What a contender waits for, and how.
pub(crate) struct Terms {
    pub(crate) form: Form,
    pub(crate) queue_limit: Option<usize>,
    /// Whether to give up at once unless nobody is ahead.
    pub(crate) only_if_free: bool,
    pub(crate) progress: Option<Progress>,
}

/// What is known of a node that holds.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) path: ZnodePath,
    pub(crate) token: FencingToken,
    /// The session's lease when this was granted.
    pub(crate) lease: Lease,
    /// The queue's mark, where this contender has read one.
    pub(crate) mark: Option<CurrentMark>,
}

impl Held {
    /// What nobody was ahead of when it was made.
    pub(crate) fn at_once(path: ZnodePath, czxid: Zxid, lease: Lease) -> Self {
        Self {
            path,
            token: FencingToken::new(czxid),
            lease,
            mark: None,
        }
    }
}

impl<'a> Entry<'a> {
    /// Enters the queue, waits for its turn, and holds. `None` when it was to be had at once and was not.
    pub(crate) async fn acquire(self, terms: &Terms) -> Result<Option<Held>> {
        let lease = self.session.lease();
        Waiting::new(self, lease).acquire(terms).await
    }

    /// As [`acquire`](Self::acquire), but stays an entry, whose dropping leaves the queue.
    pub(crate) async fn take_turn(self, terms: &Terms) -> Result<Option<Waiting<'a>>> {
        let lease = self.session.lease();
        let mut waiting = Waiting::new(self, lease);
        Ok(waiting.turn(terms).await?.map(|_| waiting))
    }
}

/// An entry on its way to the head of its queue.
pub(crate) struct Waiting<'a> {
    pub(crate) entry: Entry<'a>,
    pub(super) lease: Lease,
    pub(crate) mark: Option<CurrentMark>,
    /// How many names a list would have, when that was last seen.
    pub(super) queued: usize,
    /// When it first had to wait.
    pub(super) since: Option<BootInstant>,
    /// The last position that was told.
    pub(super) position: Option<usize>,
    /// How the one before left, as far as that is known.
    pub(super) previous: PreviousHolder,
}

impl<'a> Waiting<'a> {
    /// Of an entry that asks for its place, or has asked, under this lease of the session.
    pub(crate) fn new(entry: Entry<'a>, lease: Lease) -> Self {
        Self {
            lease,
            entry,
            mark: None,
            queued: 0,
            since: None,
            position: None,
            previous: PreviousHolder::Free,
        }
    }

    /// As [`Entry::acquire`]. By reference, too: see [`turn`](Self::turn).
    pub(crate) async fn acquire(&mut self, terms: &Terms) -> Result<Option<Held>> {
        let token = self.turn(terms).await?;
        Ok(token.map(|token| self.hold(token)))
    }

    pub(super) fn skip(&self) -> Skip {
        self.entry.kind.skip()
    }

    /// Enters, and waits until nobody is ahead. By reference, all of it: what a future takes by value
    /// it keeps twice.
    async fn turn(&mut self, terms: &Terms) -> Result<Option<FencingToken>> {
        let (czxid, mut ahead) = self.entry.enter(&terms.form).await?;
        let token = FencingToken::new(czxid);
        loop {
            match ahead {
                Predecessor::Clear if self.may_grant() => return Ok(Some(token)),
                // The turn has come, but the proof that the session lives is old: get a new one.
                Predecessor::Clear => Box::pin(self.prove()).await?,
                Predecessor::Blocked {
                    by,
                    mut watcher,
                    count,
                } => {
                    if !self.entry.kind.is_own(by.as_str()) && !self.is_contender(&by)? {
                        ahead = Box::pin(self.list()).await?;
                        continue;
                    }
                    if terms.only_if_free {
                        return Ok(None);
                    }
                    self.told_ahead(&by, count, terms)?;
                    // The store confirmed my entry and its place when it took the other out.
                    let wake = self.sleep_behind(&by, &mut watcher, &terms.form).await?;
                    if let Wake::Clear(cause) = wake {
                        self.previous = PreviousHolder::of(cause);
                        ahead = Predecessor::Clear;
                        continue;
                    }
                }
                // Boxed, as all that only a remote store asks for: a waiter in process stays small.
                Predecessor::Listed(names) => match Box::pin(self.over_list(names, terms)).await? {
                    None => return Ok(None),
                    Some(Turn::Mine) if self.may_grant() => return Ok(Some(token)),
                    Some(Turn::Mine) => Box::pin(self.prove()).await?,
                    Some(Turn::Look) => {}
                },
                Predecessor::Gone => return Err(self.removed()),
                _ => {}
            }
            ahead = self.look(terms).await?;
        }
    }

    /// Waits for a lease that is fresh, and has the store commit that this entry's node is there.
    pub(crate) async fn prove(&mut self) -> Result<()> {
        self.begin_to_hold().await?;
        let (session, path) = (self.entry.session, self.entry.path().clone());
        match retry(|| session.check(&path, None)).await {
            Ok(()) => Ok(()),
            Err(Error::MultiFailed { .. }) => Err(self.removed()),
            Err(error) => Err(error.into()),
        }
    }

    async fn look(&mut self, terms: &Terms) -> Result<Predecessor> {
        self.entry.alongside = None;
        let look = GetPredecessor {
            entry: self.entry.path().clone(),
            skip: self.skip(),
            count: terms.form.count,
        };
        let session = self.entry.session;
        match Box::pin(retry(|| session.get_predecessor(look.clone()))).await {
            Err(Error::NoNode { .. }) => Ok(Predecessor::Gone),
            ahead => Ok(ahead?),
        }
    }

    /// Tells a contender from another ephemeral node with a number, which the store's index does not.
    fn is_contender(&self, by: &ZnodePath) -> Result<bool> {
        check_name(self.entry.parent, self.entry.kind, by.name())?;
        Ok(contender_number(self.entry.session, by.name()).is_some())
    }

    /// Lists all children, as a store without an index does.
    async fn list(&mut self) -> Result<Predecessor> {
        let (session, parent) = (self.entry.session, self.entry.parent);
        match retry(|| session.get_children(parent)).await {
            Ok((names, _)) => Ok(Predecessor::Listed(names)),
            Err(Error::NoNode { .. }) => Ok(Predecessor::Gone),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn removed(&self) -> LockError {
        match self.entry.session.status().end() {
            Some(end) => end.into(),
            None => LockError::EntryDeleted {
                entry: self.entry.path().clone(),
            },
        }
    }

    /// Returns true if what this entry is granted now is not lost at once (invariant 6).
    pub(crate) fn may_grant(&self) -> bool {
        self.lease.may_grant()
    }

    /// Waits for a lease that is fresh: what is granted from then on is held for as long as the session
    /// does not lapse. Dropped meanwhile, the entry leaves the queue.
    pub(crate) async fn begin_to_hold(&mut self) -> Result<()> {
        self.lease = self.entry.session.fresh_lease().await?;
        Ok(())
    }

    /// Whether it has stood behind somebody.
    pub(crate) fn has_waited(&self) -> bool {
        self.previous != PreviousHolder::Free
    }

    /// Notes that the store has committed, under this lease of the session, that the entry is there.
    pub(crate) fn proved(&mut self, lease: Lease) {
        self.lease = lease;
    }
}

/// The number of an entry's node.
pub(crate) fn number_of(path: &ZnodePath) -> Option<i64> {
    sequence_of(path.name())
}
