//! Recorded connections of ZooKeeper's Java client and kazoo to 3.8 and 3.9 servers. Our codec must write each frame
//! bit for bit as recorded, and the embedded store must answer like the servers.

use std::collections::{HashMap, VecDeque};

use super::transcript::{RECORDED, Recording, body, recordings};
use crate::engine::Store;
use crate::model::acl::Acl;
use crate::model::types::{SessionId, Stat, Zxid};
use crate::wire::stat::checked_acl;
use crate::wire::*;

struct Call<'a> {
    request: Request<'a>,
    zxid: Zxid,
    answer: Result<Response<'a>, Code>,
}

fn read(recording: &Recording) -> (Vec<Call<'_>>, Vec<(WatcherEvent<'_>, i64)>) {
    let mut asked: HashMap<i32, VecDeque<Request<'_>>> = HashMap::new();
    let (mut calls, mut events) = (Vec::new(), Vec::new());
    for (index, (of_client, frame)) in recording.frames.iter().enumerate() {
        let mut again = Vec::new();
        put_frame(&mut again, |to| match (index, of_client) {
            (0, true) => handshake::<ConnectRequest<'_>>(body(frame), to),
            (1, false) => handshake::<ConnectResponse<'_>>(body(frame), to),
            (_, true) => {
                let Incoming { xid, request } = Incoming::read(body(frame)).unwrap();
                request.put_with_header(xid, to);
                asked.entry(xid).or_default().push_back(request);
            }
            (_, false) => {
                let mut from = Reader::new(body(frame));
                let header: ReplyHeader = from.next().unwrap();
                if header.xid == xid::EVENT {
                    let event: WatcherEvent<'_> = from.next().unwrap();
                    put_event(&event, Some(header.zxid), to);
                    events.push((event, header.zxid));
                } else {
                    header.put(to);
                    let asked = asked.get_mut(&header.xid).and_then(VecDeque::pop_front);
                    let request = asked.unwrap();
                    let zxid = Zxid(header.zxid);
                    let answer = answer(request.op(), header, &mut from, to);
                    calls.push(Call {
                        request,
                        zxid,
                        answer,
                    });
                }
                assert!(from.is_empty());
            }
        });
        assert_eq!(again, *frame, "frame {index} of {}", recording.name);
    }
    (calls, events)
}

fn handshake<'a, T: Jute<'a>>(frame: &'a [u8], to: &mut Vec<u8>) {
    let mut from = Reader::new(frame);
    from.next::<T>().unwrap().put(to);
    assert!(from.is_empty());
}

fn answer<'a>(
    op: Op,
    header: ReplyHeader,
    from: &mut Reader<'a>,
    to: &mut Vec<u8>,
) -> Result<Response<'a>, Code> {
    match Code::of(header.err).unwrap() {
        Code::Ok => {
            let response = Response::read(op, from).unwrap();
            response.put(to);
            Ok(response)
        }
        code => Err(code),
    }
}

#[test]
fn every_frame_of_real_clients_and_servers_is_read_and_written_again_bit_for_bit() {
    for (version, calls, _) in RECORDED {
        let mut missing = Op::ALL.to_vec();
        // No client sends a check outside of a multi, or sasl to a server without sasl.
        missing.retain(|op| !matches!(op, Op::Check | Op::Sasl | Op::Ping));
        missing.retain(|op| !op.is_extension());
        for recording in &recordings(calls) {
            for call in read(recording).0 {
                missing.retain(|op| *op != call.request.op());
            }
        }
        assert_eq!(missing, [], "not recorded of {version}");
    }
}

#[test]
fn every_recorded_frame_comes_out_of_the_stream_whatever_the_pieces() {
    for (_, calls, _) in RECORDED {
        for recording in &recordings(calls) {
            let sent: Vec<_> = recording.bodies(true).map(<[u8]>::to_vec).collect();
            let mut stream = Vec::new();
            for body in &sent {
                put_frame(&mut stream, |to| to.extend_from_slice(body));
            }
            for piece in [1, 7, 100, stream.len()] {
                let mut frames = Frames::new(LARGEST_FRAME_BYTES);
                let mut found = Vec::new();
                for bytes in stream.chunks(piece) {
                    frames.push(bytes);
                    while let Some(frame) = frames.next().unwrap() {
                        found.push(frame.to_vec());
                    }
                }
                assert_eq!(found, sent);
            }
        }
    }
}

#[test]
fn an_event_says_its_zxid_since_3_9_unless_it_answers_a_set_watches() {
    for (version, calls, _) in RECORDED {
        let recordings = recordings(calls);
        let events: Vec<_> = recordings
            .iter()
            .flat_map(|recording| read(recording).1)
            .collect();
        assert!(!events.is_empty());
        let told = events.iter().filter(|(_, zxid)| *zxid > 0).count();
        assert_eq!(told > 0, version == "3.9.3", "{version}: {events:?}");
        for (event, _) in events {
            assert_eq!(event.state, 3);
            assert!(event_kind(event.kind).is_some());
        }
    }
}

/// A round trip would not notice that two fields are read and written in the same wrong order. So the test compares the
/// fields with the effects of the calls.
#[test]
fn the_fields_of_the_records_are_those_that_they_are_called() {
    for (version, calls, _) in RECORDED {
        let recordings = recordings(calls);
        let of_java: Vec<_> = recordings
            .iter()
            .filter(|recording| recording.name == "java")
            .collect();
        let shake = of_java[0].bodies(true).next().unwrap();
        let asked: ConnectRequest<'_> = Reader::new(shake).next().unwrap();
        assert_eq!((asked.timeout_ms, asked.session), (30_000, 0));
        let shake = of_java[0].bodies(false).next().unwrap();
        let shaken: ConnectResponse<'_> = Reader::new(shake).next().unwrap();
        assert_eq!(shaken.timeout_ms, 30_000);
        assert_eq!(shaken.password.len(), PASSWORD_BYTES);
        let calls: Vec<_> = of_java
            .iter()
            .flat_map(|recording| read(recording).0)
            .collect();
        stats(&calls, SessionId(shaken.session));
        lists(&calls, version);
    }
}

fn stats(calls: &[Call<'_>], session: SessionId) {
    let mut answers = calls.iter().map(|call| (call, call.answer.as_ref()));
    let made = answers.find_map(|(call, answer)| match answer {
        Ok(Response::Created(path, stat)) if path.0.starts_with("/java/e-") => {
            Some((call.zxid, *stat))
        }
        _ => None,
    });
    let (zxid, stat) = made.unwrap();
    assert_eq!((stat.czxid, stat.mzxid, stat.pzxid), (zxid, zxid, zxid));
    assert_eq!((stat.ephemeral_owner, stat.data_length), (session, 9));
    assert!(stat.ctime == stat.mtime && stat.ctime > 1 << 40);
    let set = answers.find_map(|(call, answer)| match (&call.request, answer) {
        (Request::SetData(it), Ok(Response::Stat(stat))) => Some((call.zxid, it, *stat)),
        _ => None,
    });
    let (zxid, asked, stat) = set.unwrap();
    assert_eq!((asked.path.as_ref(), asked.version), ("/java", 0));
    assert!(stat.czxid < stat.pzxid && stat.pzxid < stat.mzxid && stat.mzxid == zxid);
    assert!(stat.ctime < stat.mtime);
    assert_eq!((stat.version, stat.cversion, stat.aversion), (1, 5, 0));
    assert_eq!((stat.num_children, stat.data_length), (5, 9));
    let set = answers.find_map(|(call, answer)| match (&call.request, answer) {
        (Request::SetAcl(_), Ok(Response::Stat(stat))) => Some(*stat),
        _ => None,
    });
    let stat = set.unwrap();
    assert_eq!((stat.version, stat.cversion, stat.aversion), (0, 0, 1));
}

fn lists(calls: &[Call<'_>], version: &str) {
    let find = |op| calls.iter().find(|call| call.request.op() == op);
    let Some(Request::Create(create)) = find(Op::Create).map(|call| &call.request) else {
        panic!("no create in {version}");
    };
    assert_eq!(checked_acl(&create.acl), Ok(Acl::open()));
    let Some(Request::SetWatches(watches)) = find(Op::SetWatches).map(|call| &call.request) else {
        panic!("no setWatches in {version}");
    };
    let has = |list: &NonNullList<Path<'_>>, path: &str| list.0.iter().any(|it| it.0 == path);
    assert!(has(&watches.data, "/java/own"), "{watches:?}");
    assert!(has(&watches.exist, "/java/w/never"), "{watches:?}");
    assert!(has(&watches.child, "/java/t"), "{watches:?}");
    assert!(watches.relative_zxid > 0);
    let Some(Request::SetWatches2(watches)) = find(Op::SetWatches2).map(|call| &call.request)
    else {
        panic!("no setWatches2 in {version}");
    };
    assert!(has(&watches.persistent, "/java/p"), "{watches:?}");
    assert!(has(&watches.recursive, "/java/t"), "{watches:?}");
    let Some(Request::Auth(auth)) = find(Op::Auth).map(|call| &call.request) else {
        panic!("no auth in {version}");
    };
    assert_eq!(
        (auth.scheme.as_ref(), auth.auth),
        ("digest", &b"user:secret"[..])
    );
    let Some(Ok(Response::WhoAmI(who))) = find(Op::WhoAmI).map(|call| &call.answer) else {
        panic!("no whoAmI in {version}");
    };
    let who: Vec<_> = who.iter().map(|it| (&*it.scheme, &*it.user)).collect();
    assert_eq!(who, [("ip", "127.0.0.1"), ("digest", "user")]);
}

#[tokio::test]
async fn the_embedded_store_answers_what_a_real_server_answered() {
    let (_, calls, _) = RECORDED[1];
    let recordings = recordings(calls);
    let mut count = 0;
    for client in ["java", "kazoo"] {
        let recording = recordings
            .iter()
            .find(|recording| recording.name == client)
            .unwrap();
        count += replay(recording).await;
    }
    assert!(count > 40, "only {count} calls are the store's");
}

async fn replay(recording: &Recording) -> usize {
    let client = Store::memory().connect().await.unwrap();
    let session = client.session().await.unwrap();
    let mut count = 0;
    for call in read(recording).0 {
        let Call {
            request, answer, ..
        } = call;
        let (reply, shape) = match to_store(&request) {
            Err(code) => {
                assert_eq!(answer, Err(code), "{request:?}");
                continue;
            }
            Ok((None, _)) => {
                if let Request::Auth(it) = &request {
                    let secret = it.auth.to_vec();
                    session.add_auth(&*it.scheme, secret).await.unwrap();
                }
                continue;
            }
            Ok((Some(asked), shape)) => (session.submit(asked).await, shape),
        };
        count += 1;
        let ours = shape.answer(&reply).map(without_stats);
        assert_eq!(ours, answer.map(without_stats), "{request:?}");
    }
    count
}

fn without_stats(response: Response<'_>) -> Response<'_> {
    let sorted = |mut names: Vec<Text<'_>>| {
        names.sort();
        names
            .into_iter()
            .map(|name| Text::Owned(name.into_owned()))
            .collect()
    };
    match response {
        Response::Created(path, stat) => Response::Created(path, bare(stat)),
        Response::Stat(stat) => Response::Stat(bare(stat)),
        Response::Acl(list, stat) => Response::Acl(list, bare(stat)),
        Response::Data(data, stat) => Response::Data(data, bare(stat)),
        Response::Names(names) => Response::Names(sorted(names)),
        Response::Children(names, stat) => Response::Children(sorted(names), bare(stat)),
        Response::Multi(results) => {
            let bare = |(op, response)| (op, without_stats(response));
            Response::Multi(results.into_iter().map(|result| result.map(bare)).collect())
        }
        other => other,
    }
}

fn bare(stat: Stat) -> Stat {
    Stat {
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        data_length: stat.data_length,
        num_children: stat.num_children,
        ..Stat::default()
    }
}
