//! [`Entry`]: a place in a queue that is given up when it is dropped, at whatever moment.

use std::future::poll_fn;
use std::pin::Pin;

use lockkeeper_store::{
    Call, Cleanup, CreateMode, Enqueue, Error, Heartbeat, Predecessor, ReadOp, ReadReply, Session,
    ZnodePath, Zxid, spawn_detached,
};

use super::cleanup::{find_unanswered, remove, remove_all, sweep};
use super::release_marker::ReleaseMarker;
use crate::events::{EventSink, LockEvent};
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::retry::retry;

/// An entry's node, the transaction that made it, and who is ahead of it.
pub(crate) type Answer = (ZnodePath, Zxid, Predecessor);

/// A place in a queue. Dropping it leaves no node behind, even between the sending of the create
/// and its answer, and even when the connection breaks there.
pub(crate) struct Entry<'a> {
    pub(crate) session: &'a Session,
    pub(crate) parent: &'a ZnodePath,
    pub(crate) kind: Kind,
    pub(crate) events: Option<EventSink>,
    /// What is read in the round trip of the create.
    pub(crate) alongside: Option<Box<Alongside>>,
    id: EntryId,
    stage: Stage,
    /// Keeps the session's proof fresh while this waits, so that its turn costs no other round trip.
    _heartbeat: Heartbeat,
}

/// A read that is sent right behind an entry's create, and carried out after it.
pub(crate) struct Alongside {
    reads: Vec<ReadOp>,
    answer: Option<Call<Vec<ReadReply>>>,
}

impl Alongside {
    pub(crate) fn new(reads: Vec<ReadOp>) -> Box<Self> {
        let answer = None;
        Box::new(Self { reads, answer })
    }

    /// The answer, if the read was sent.
    pub(crate) fn into_answer(self) -> Option<Call<Vec<ReadReply>>> {
        self.answer
    }
}

enum Stage {
    /// Nothing of it is at the store.
    Out,
    /// The create is under way.
    Sent(Box<Call<Answer>>),
    /// The create's answer was lost, or cannot be read.
    Unknown,
    /// It was asked for before it was told to enter, and answered.
    Answered(Result<Answer, Error>),
    /// It stands in the queue.
    In(ZnodePath),
}

/// What an entry is made of.
pub(crate) struct Form {
    pub(crate) data: EntryData,
    pub(crate) count: bool,
}

impl<'a> Entry<'a> {
    pub(crate) fn new(
        session: &'a Session,
        parent: &'a ZnodePath,
        kind: Kind,
        events: Option<EventSink>,
    ) -> Self {
        Self {
            session,
            parent,
            kind,
            events,
            alongside: None,
            id: EntryId::fresh(),
            stage: Stage::Out,
            _heartbeat: session.heartbeat(),
        }
    }

    /// One whose node stands in the queue already.
    pub(crate) fn standing(
        session: &'a Session,
        parent: &'a ZnodePath,
        kind: Kind,
        events: Option<EventSink>,
        answer: Answer,
    ) -> Self {
        let mut entry = Self::new(session, parent, kind, events);
        entry.stage = Stage::Answered(Ok(answer));
        entry
    }

    /// One that has [asked](ask) for its place.
    pub(crate) fn asked(
        session: &'a Session,
        parent: &'a ZnodePath,
        kind: Kind,
        id: EntryId,
        answer: Result<Result<Answer, Error>, Call<Answer>>,
    ) -> Self {
        Self {
            session,
            parent,
            kind,
            events: None,
            alongside: None,
            id,
            stage: match answer {
                Err(call) => Stage::Sent(Box::new(call)),
                Ok(answer) => Stage::Answered(answer),
            },
            _heartbeat: session.heartbeat(),
        }
    }

    fn name(&self) -> String {
        self.kind.name(self.id)
    }

    /// The entry's node. Only for one that has entered.
    pub(crate) fn path(&self) -> &ZnodePath {
        match &self.stage {
            Stage::In(path) => path,
            _ => unreachable!("only an entry that has entered is asked for its node"),
        }
    }

    /// Joins the queue, making its parents where they are missing.
    pub(crate) async fn enter(&mut self, form: &Form) -> Result<(Zxid, Predecessor), Error> {
        loop {
            match self.send(form).await {
                Ok((path, czxid, ahead)) => {
                    self.stage = Stage::In(path);
                    return Ok((czxid, ahead));
                }
                // Never made, or reaped since: containers go when they are empty.
                Err(Error::NoNode { .. }) => {
                    self.stage = Stage::Out;
                    Box::pin(make_queue(self.session, self.parent, self.kind)).await?;
                }
                Err(error) if error.is_ambiguous() => {
                    self.stage = Stage::Unknown;
                    // It may have been carried out before the create.
                    self.alongside = None;
                    if let Some(czxid) = Box::pin(self.find()).await? {
                        return Ok((czxid, Predecessor::Unknown));
                    }
                    self.stage = Stage::Out;
                    // What was lost with its connection can be sent again; a refusal that cannot be
                    // read would come again.
                    if error != Error::ConnectionLoss {
                        return Err(error);
                    }
                }
                Err(error) => {
                    self.stage = Stage::Out;
                    return Err(error);
                }
            }
        }
    }

    async fn send(&mut self, form: &Form) -> Result<Answer, Error> {
        match std::mem::replace(&mut self.stage, Stage::Out) {
            Stage::Answered(answer) => return answer,
            Stage::Sent(call) => self.stage = Stage::Sent(call),
            _ => {
                if let Some(alongside) = &mut self.alongside {
                    // What an earlier attempt has read came before this one's entry.
                    alongside.answer = None;
                }
                match ask(self.session, self.parent, self.kind, self.id, form).now_or_never() {
                    Ok(answer) => return answer,
                    // Kept here while it is awaited, so that a drop finds it.
                    Err(call) => self.stage = Stage::Sent(Box::new(call)),
                }
                if let Some(alongside) = &mut self.alongside {
                    alongside.answer = Some(self.session.multi_read(alongside.reads.clone()));
                }
            }
        }
        poll_fn(|context| match &mut self.stage {
            Stage::Sent(call) => Pin::new(call).poll(context),
            _ => unreachable!("nothing else moves the stage while the answer is awaited"),
        })
        .await
    }

    /// Looks for the node of a create whose answer was lost.
    async fn find(&mut self) -> Result<Option<Zxid>, Error> {
        let found = find_unanswered(self.session, self.parent, &self.name()).await?;
        Ok(found.map(|(path, czxid)| {
            self.stage = Stage::In(path);
            czxid
        }))
    }

    /// Hands the node over to a guard, which deletes it from now on.
    pub(crate) fn take_path(&mut self) -> ZnodePath {
        self.events = None;
        match std::mem::replace(&mut self.stage, Stage::Out) {
            Stage::In(path) => path,
            _ => unreachable!("only an entry that has entered becomes a guard"),
        }
    }

    pub(crate) fn put(&self, event: impl FnOnce() -> LockEvent) {
        if let Some(events) = &self.events {
            events.put(event());
        }
    }

    fn abandon(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Out) {
            Stage::Out => {}
            Stage::In(path) => remove_all(self.session, [&path]),
            Stage::Answered(answer) => self.abandon_answered(answer),
            Stage::Sent(call) => {
                let (session, parent, name) = self.identity();
                let pending = Cleanup::new(&session, &parent);
                spawn_detached(async move {
                    let (_pending, session) = (pending, session);
                    match call.await {
                        Ok((path, ..)) => remove(&session, &path),
                        Err(error) if error.is_ambiguous() => sweep(session, parent, name).await,
                        Err(_) => {}
                    }
                });
            }
            Stage::Unknown => self.sweep(),
        }
        self.put(|| LockEvent::Abandoned);
    }

    fn abandon_answered(&self, answer: Result<Answer, Error>) {
        match answer {
            Ok((path, ..)) => remove_all(self.session, [&path]),
            Err(error) if error.is_ambiguous() => self.sweep(),
            Err(_) => {}
        }
    }

    fn sweep(&self) {
        let (session, parent, name) = self.identity();
        spawn_detached(sweep(session, parent, name));
    }

    fn identity(&self) -> (Session, ZnodePath, String) {
        (self.session.clone(), self.parent.clone(), self.name())
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Asks for a place in a queue. Who drops what comes of it leaves a node behind, until an
/// [`Entry`] has been made of it.
#[inline]
pub(crate) fn ask(
    session: &Session,
    parent: &ZnodePath,
    kind: Kind,
    id: EntryId,
    form: &Form,
) -> Call<Answer> {
    session.enqueue(Enqueue {
        parent: parent.clone(),
        name: kind.name(id),
        data: form.data.to_bytes(),
        acl: session.acl().clone(),
        skip: kind.skip(),
        count: form.count,
    })
}

/// Makes a queue's parent, as a container where the server has them, and what is missing above it.
pub(crate) async fn make_queue(
    session: &Session,
    parent: &ZnodePath,
    kind: Kind,
) -> Result<(), Error> {
    let mut mode = CreateMode::Container;
    loop {
        let marker = ReleaseMarker::fresh(kind).to_bytes();
        match retry(|| session.create(parent, marker.clone(), mode)).await {
            Ok(_) | Err(Error::NodeExists { .. }) => return Ok(()),
            Err(Error::Unimplemented { .. }) if mode == CreateMode::Container => {
                mode = CreateMode::Persistent;
            }
            Err(Error::NoNode { .. }) => {
                let Some(above) = parent.parent().filter(|above| !above.is_root()) else {
                    return Err(Error::NoNode {
                        path: parent.to_string(),
                    });
                };
                retry(|| session.create_all(&above, CreateMode::Persistent)).await?;
            }
            Err(error) => return Err(error),
        }
    }
}
