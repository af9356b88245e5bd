//! Handling of bytes from the server: replies to the handshake and to requests, and events.

use std::time::Duration;

use super::outgoing::armed_by;
use super::{Awaited, ClientSession, End, Opened, Output, Phase, Proof, Reads, UnderWay};
use super::{LARGEST_REPLY_BYTES, REARMING_ROOM, codec};
use crate::client::sequence_limit::{created_by, exhausted, is_within_limit, sequence_exhausted};
use crate::client::served::codec::{CREATE, Dialect, read_error, read_reply};
use crate::client::served::watches::{Idle, WatchKey};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Predecessor, Reply, Request};
use crate::model::types::{SessionId, Zxid};
use crate::model::watch::{EventKind, PredecessorGone, WatchedEvent};
use crate::runtime::clock::BootInstant;
use crate::wire::{
    self, About, Code, ConnectResponse, Departure, EXTENSION, Frames, Malformed, OLDEST_EXTENSION,
    Op, Reader, ReplyHeader, Response, ServerLimits, WatcherEvent, event_kind, foreign_protocol,
    xid,
};

impl<T> ClientSession<T> {
    pub(in super::super) fn received(&mut self, bytes: &[u8], now: BootInstant) {
        // The reader may still deliver bytes of a connection that was given up.
        if !matches!(self.phase, Phase::Handshaking { .. } | Phase::Connected) {
            return;
        }
        self.heard = now;
        let empty = Frames::new(LARGEST_REPLY_BYTES);
        let mut frames = std::mem::replace(&mut self.frames, empty);
        frames.push(bytes);
        loop {
            let handled = match frames.next() {
                Ok(Some(frame)) => self.handle_frame(frame, now),
                Ok(None) => break,
                Err(_) => Err(frames
                    .word()
                    .and_then(foreign_protocol)
                    .unwrap_or("the length of a frame is negative or above the limit")),
            };
            if let Err(why) = handled {
                return self.disconnect(why, now);
            }
            // Ignore bytes after a refusal or the last reply of the session.
            if !matches!(self.phase, Phase::Connected) {
                return;
            }
        }
        if self.returning.is_none() {
            self.alive = now;
        }
        self.frames = frames;
    }

    fn handle_frame(&mut self, frame: &[u8], now: BootInstant) -> Result<(), &'static str> {
        let mut body = Reader::new(frame);
        match self.phase {
            Phase::Handshaking { sent, .. } => self.handle_handshake(&mut body, sent, now),
            Phase::Connected => self.handle_message(&mut body, now),
            _ => Ok(()),
        }
    }

    fn handle_handshake(
        &mut self,
        body: &mut Reader<'_>,
        sent: BootInstant,
        now: BootInstant,
    ) -> Result<(), &'static str> {
        let response = body.next::<ConnectResponse<'_>>();
        let response = response.map_err(|_| "a malformed reply to the handshake")?;
        let (id, timeout_ms) = (SessionId(response.session), response.timeout_ms);
        if id.0 == 0 || timeout_ms <= 0 {
            self.outputs.push_back(Output::Disconnect);
            match self.id.0 {
                0 => self.disconnected(now),
                _ => self.end(End::Expired),
            }
            return Ok(());
        }
        if self.id.0 != 0 && self.id != id {
            return Err("another session than the one that was asked for");
        }
        let password = response.password.try_into();
        self.password = password.map_err(|_| "a password of another length")?;
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        let is_first = self.id.0 == 0;
        (self.id, self.timeout) = (id, timeout);
        (self.phase, self.opened) = (Phase::Connected, now);
        self.dialect = match response.protocol_version {
            EXTENSION => Dialect::Extended,
            OLDEST_EXTENSION => Dialect::Third,
            _ => Dialect::Plain,
        };
        let limits = body.next::<ServerLimits>().ok();
        let stated = limits.and_then(|it| usize::try_from(it.frame_bytes).ok());
        self.max_request_bytes = stated.map_or(usize::MAX, |it| it.saturating_sub(REARMING_ROOM));
        if self.dialect == Dialect::Plain && !self.options.is_plain {
            tracing::warn!(
                session = %id,
                "the server does not know Lockkeeper's extension: locks take more requests, and refusals have no reasons"
            );
        }
        let opened = Opened {
            id,
            timeout,
            sent,
            tick: (self.dialect == Dialect::Plain).then_some(self.options.tick),
        };
        if is_first || self.options.auth.is_empty() {
            self.alive = now;
            self.outputs.push_back(Output::Opened(opened));
        } else {
            self.returning = Some(opened);
        }
        self.resume(is_first, now);
        Ok(())
    }

    fn handle_message(
        &mut self,
        body: &mut Reader<'_>,
        now: BootInstant,
    ) -> Result<(), &'static str> {
        let header = body.next::<ReplyHeader>();
        let header = header.map_err(|_| "a frame without a header")?;
        match header.xid {
            xid::EVENT => self.handle_event(&header, body),
            xid::DEPARTURE => self.handle_departure(&header, body),
            xid::PING => Ok(()),
            // setWatches failed. Reconnect, because the server may accept it on the next connection.
            xid::SET_WATCHES if header.err != 0 => Err("watches were not armed again"),
            xid::SET_WATCHES => Ok(()),
            xid::AUTH => self.handle_proof(header.err, body, now),
            _ => self.handle_reply(&header, body, now),
        }
    }

    fn handle_event(
        &mut self,
        header: &ReplyHeader,
        body: &mut Reader<'_>,
    ) -> Result<(), &'static str> {
        let event = body.next::<WatcherEvent<'_>>();
        let event = event.map_err(|_| "a malformed event")?;
        let (Some(kind), Ok(path)) = (event_kind(event.kind), self.chroot.parse(&event.path.0))
        else {
            // Ignore session events, which servers do not send, and paths outside of the chroot, where we have no
            // watches.
            return Ok(());
        };
        let zxid = (header.zxid > 0).then_some(Zxid(header.zxid));
        for (key, is_last) in self.watches.fire(kind, &path) {
            let path = path.clone();
            let event = WatchedEvent {
                kind,
                path,
                zxid,
                predecessor_gone: None,
            };
            let fired = Output::Event {
                key,
                is_last,
                event,
            };
            self.outputs.push_back(fired);
        }
        Ok(())
    }

    fn handle_departure(
        &mut self,
        header: &ReplyHeader,
        body: &mut Reader<'_>,
    ) -> Result<(), &'static str> {
        let departure = body.next::<Departure>();
        let departure = departure.map_err(|_| "a malformed departure")?;
        // The watch is unknown if its watcher was dropped while this event was on its way.
        if let Some((key, path)) = self.watches.departed(departure.watch) {
            let reason = wire::reason(departure.reason);
            let event = WatchedEvent {
                kind: EventKind::NodeDeleted,
                path,
                zxid: (header.zxid > 0).then_some(Zxid(header.zxid)),
                predecessor_gone: Some(PredecessorGone::new(departure.clear, reason)),
            };
            self.outputs.push_back(Output::Event {
                key,
                is_last: true,
                event,
            });
        }
        Ok(())
    }

    fn handle_proof(
        &mut self,
        err: i32,
        body: &mut Reader<'_>,
        now: BootInstant,
    ) -> Result<(), &'static str> {
        let proof = self.proofs.pop_front();
        let proof = proof.ok_or("a reply to no proof of identity")?;
        if err == Code::AuthFailed.number() {
            self.handle_refused_proof(proof, now);
            return Ok(());
        }
        match proof {
            Proof::Requested(caller, scheme, secret) if err == 0 => {
                let proved = (scheme, secret);
                if !self.options.auth.contains(&proved) {
                    self.options.auth.push(proved);
                }
                self.reply(caller, Ok(Reply::Done));
            }
            Proof::Requested(caller, ..) => {
                let about = About {
                    what: "auth",
                    path: "",
                    version: None,
                    session: self.id,
                };
                self.reply(caller, Err(codec::refused(err, body, about)));
            }
            Proof::Repeated if err == 0 => {
                let is_last = !self.proofs.iter().any(|it| matches!(it, Proof::Repeated));
                if is_last && let Some(opened) = self.returning.take() {
                    self.is_refused = false;
                    self.outputs.push_back(Output::Opened(opened));
                }
            }
            // Reconnect, because without this identity the server would refuse the session's requests.
            Proof::Repeated => return Err("an identity that was proved before is refused"),
        }
        Ok(())
    }

    /// Closes the connection after a refused proof. This also ends the session, unless the identity was accepted on an
    /// earlier connection. In that case we keep trying, because an administrator may add the user again.
    fn handle_refused_proof(&mut self, proof: Proof<T>, now: BootInstant) {
        self.outputs.push_back(Output::Disconnect);
        let was_refused = std::mem::replace(&mut self.is_refused, true);
        match proof {
            Proof::Repeated if self.returning.is_some() => {
                if !was_refused {
                    let session = self.id;
                    tracing::warn!(%session, "identity refused that was accepted before: still trying until the session is over");
                }
                if self.close_by.is_some() {
                    return self.end(End::Closed);
                }
                // Do not return `ConnectionLoss`, which would mean that the requests may have been executed. The server
                // executes nothing after a refused proof.
                self.fail_replies(&Error::AuthFailed);
                self.pause(now);
            }
            proof => {
                self.end(End::AuthFailed);
                if let Proof::Requested(caller, ..) = proof {
                    self.reply(caller, Err(Error::AuthFailed));
                }
            }
        }
    }

    fn handle_reply(
        &mut self,
        header: &ReplyHeader,
        body: &mut Reader<'_>,
        now: BootInstant,
    ) -> Result<(), &'static str> {
        let answered = self.under_way.pop_front_if(|it| it.xid == header.xid);
        let UnderWay {
            op, what, bytes, ..
        } = answered.ok_or("a reply to no request")?;
        self.held_bytes -= bytes;
        // Like ZooKeeper's own client, take the zxid only from replies to requests. setWatches sends this zxid, and the
        // server fires each watch whose znode has changed since.
        self.last_zxid = self.last_zxid.max(header.zxid);
        match what {
            Awaited::Reply(caller, request @ Request::MultiRead(_))
                if header.err == Code::Unimplemented.number() =>
            {
                let session = self.id;
                tracing::info!(%session, "server without multiRead: reads are sent one by one");
                self.lacks_multi_read = true;
                self.held_bytes += bytes;
                self.queued.push_back((caller, request));
                // The server closes the connection after this reply (ZooKeeper's `UnimplementedRequestProcessor`).
                self.outputs.push_back(Output::Disconnect);
                self.disconnected(now);
            }
            Awaited::Read => self.take_read(op, header.err, body),
            Awaited::Reply(caller, request) => {
                self.answer(caller, &request, op, header.err, body, now);
            }
            Awaited::Entry(create) => {
                let created = self.created(&create, op, header.err, body);
                if let Some(UnderWay {
                    what: Awaited::Listing(_, entry),
                    ..
                }) = self.under_way.front_mut()
                {
                    *entry = Some(created);
                }
            }
            Awaited::Listing(caller, created) => {
                let listed = match header.err {
                    0 => Response::read(op, body).ok(),
                    _ => None,
                };
                let ahead = match listed {
                    Some(Response::Names(names)) => {
                        let names = names.into_iter().map(wire::Text::into_owned);
                        Predecessor::Listed(names.collect())
                    }
                    _ => Predecessor::Unknown,
                };
                let created = created.unwrap_or(Err(Error::ConnectionLoss));
                let reply = created.map(|(path, czxid)| Reply::Enqueued { path, czxid, ahead });
                self.reply(caller, reply);
            }
            Awaited::Undo(_) | Awaited::Ignored => {}
        }
        Ok(())
    }

    fn take_read(&mut self, op: Op, err: i32, body: &mut Reader<'_>) {
        let Some(reads) = self.reads.front_mut() else {
            return;
        };
        let read = &reads.ops[reads.replies.len()];
        reads
            .replies
            .push(codec::read_alone(read, op, err, body, self.id));
        if reads.replies.len() < reads.ops.len() {
            return;
        }
        if let Some(Reads {
            caller, replies, ..
        }) = self.reads.pop_front()
        {
            let replies = replies.into_iter().collect::<Result<_>>();
            self.reply(caller, replies.map(Reply::MultiRead));
        }
    }

    fn answer(
        &mut self,
        caller: T,
        request: &Request,
        op: Op,
        err: i32,
        body: &mut Reader<'_>,
        now: BootInstant,
    ) {
        let (session, watches) = (self.id, &mut self.watches);
        let reply = match err {
            0 => read_reply(request, op, body, &self.chroot, session, watches),
            err => read_error(request, err, body, session, watches),
        };
        let reply = reply.and_then(|reply| self.within_limit(request, reply));
        if let Some((watch, path)) = armed_by(request)
            && self.watches.answered(watch, path)
        {
            self.send_removal(&Idle::Path(watch, path.clone()), now);
        }
        if *request == Request::Close && reply.is_ok() {
            self.outputs.push_back(Output::Disconnect);
            self.end(End::Closed);
        }
        if matches!(reply, Err(Error::SessionExpired { .. })) {
            self.outputs.push_back(Output::Disconnect);
            self.end(End::Expired);
        }
        self.reply(caller, reply);
    }

    /// Refuses and deletes a znode whose sequence number is near the end of ZooKeeper's counter. Servers with our
    /// extension have a larger counter.
    fn within_limit(
        &mut self,
        request: &Request,
        reply: Reply<WatchKey, WatchKey>,
    ) -> Result<Reply<WatchKey, WatchKey>> {
        if self.dialect != Dialect::Plain {
            return Ok(reply);
        }
        match (request, &reply) {
            (Request::Create(create), Reply::Created { path, .. })
                if !is_within_limit(create, path) =>
            {
                let error = sequence_exhausted(path);
                self.undo(path.clone());
                Err(error)
            }
            (Request::Multi(ops), Reply::Multi(replies)) => match exhausted(ops, replies) {
                Some(error) => {
                    for path in created_by(replies) {
                        self.undo(path);
                    }
                    Err(error)
                }
                None => Ok(reply),
            },
            _ => Ok(reply),
        }
    }

    fn created(
        &mut self,
        create: &Create,
        op: Op,
        err: i32,
        body: &mut Reader<'_>,
    ) -> Result<(ZnodePath, Zxid)> {
        if err != 0 {
            let about = About {
                what: CREATE,
                path: create.path.as_str(),
                version: None,
                session: self.id,
            };
            return Err(codec::error(err, about));
        }
        match Response::read(op, body) {
            Ok(Response::Created(path, stat)) => {
                let path = self.chroot.parse(&path.0)?;
                if !is_within_limit(create, &path) {
                    let error = sequence_exhausted(&path);
                    self.undo(path);
                    return Err(error);
                }
                Ok((path, stat.czxid))
            }
            Ok(_) => Err(codec::malformed(CREATE, codec::OTHER_KIND)),
            Err(Malformed(why)) => Err(codec::malformed(CREATE, why)),
        }
    }
}
