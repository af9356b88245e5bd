//! Frames that no client sends. The codec and the store must answer them like a 3.9 server, with the exceptions listed
//! here.

use super::transcript::{RECORDED, Recording, recordings};
use crate::client::session::Session;
use crate::engine::Store;
use crate::model::data;
use crate::model::types::{CreateMode, Stat};
use crate::wire::*;

const DIFFERENT: [(&str, &str); 3] = [
    (
        "addWatch of null",
        "a watch that can never fire: refused as bad arguments",
    ),
    (
        "addWatch of what is no path",
        "a watch that can never fire: refused as bad arguments",
    ),
    (
        "sasl of a server that has none",
        "an empty token, as if all were well: a clear refusal is better",
    ),
];

type Verdict = (Option<i32>, bool, Option<Vec<u8>>);

fn recorded(recording: &Recording) -> Verdict {
    let mut answers = recording.bodies(false);
    let Some(frame) = answers.next() else {
        return (None, recording.closed, None);
    };
    assert_eq!(answers.next(), None, "{}", recording.name);
    let mut from = Reader::new(frame);
    let header: ReplyHeader = from.next().unwrap();
    let said = recording.bodies(true).next().map(Incoming::read);
    let record = match said {
        Some(Ok(asked)) if header.err == 0 && is_told_by_the_store(&asked.request) => {
            let record = Response::read(asked.request.op(), &mut from).unwrap();
            Some(essence(record))
        }
        _ => None,
    };
    (Some(header.err), recording.closed, record)
}

fn is_told_by_the_store(request: &Request<'_>) -> bool {
    matches!(to_store(request), Ok((Some(_), _)))
}

fn essence(record: Response<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    without_names(record).put(&mut bytes);
    bytes
}

fn without_names(record: Response<'_>) -> Response<'_> {
    let made = |path: Path<'_>| {
        let path = path.0.trim_end_matches(|it: char| it.is_ascii_digit());
        Path::from(path.to_owned())
    };
    let part = |(op, record)| (op, without_names(record));
    match record {
        Response::Path(path) => Response::Path(made(path)),
        Response::Created(path, _) => Response::Created(made(path), Stat::default()),
        Response::Stat(_) => Response::Stat(Stat::default()),
        Response::Names(_) => Response::Names(Vec::new()),
        Response::Multi(results) => {
            Response::Multi(results.into_iter().map(|result| result.map(part)).collect())
        }
        other => other,
    }
}

async fn ours(session: &Session, frame: &[u8]) -> Verdict {
    let request = match Incoming::read(frame) {
        Ok(Incoming { request, .. }) => request,
        Err(Refused::Close) => return (None, true, None),
        Err(Refused::Answer { code, .. }) => return (Some(code.number()), false, None),
        Err(Refused::AnswerAndClose { code, .. }) => return (Some(code.number()), true, None),
    };
    match to_store(&request) {
        Err(code) => (Some(code.number()), false, None),
        Ok((None, _)) => {
            let (code, closes) = by_the_server(&request);
            (Some(code.number()), closes, None)
        }
        Ok((Some(asked), shape)) => {
            let reply = session.submit(asked).await;
            let closes = shape.op() == Op::CloseSession;
            match shape.answer(&reply) {
                Ok(record) => (Some(0), closes, Some(essence(record))),
                Err(code) => (Some(code.number()), closes, None),
            }
        }
    }
}

fn by_the_server(request: &Request<'_>) -> (Code, bool) {
    match request {
        Request::Ping | Request::WhoAmI | Request::SetWatches(_) => (Code::Ok, false),
        Request::Reconfig(_) => (Code::Unimplemented, false),
        Request::SetAcl(it) if it.path.is_empty() => (Code::BadArguments, false),
        Request::CheckWatches(it) | Request::RemoveWatches(it) => match it.kind {
            1..=5 => (Code::NoWatcher, false),
            _ => (Code::MarshallingError, false),
        },
        Request::Auth(it) => match it.scheme.as_ref() {
            "digest" | "ip" => (Code::Ok, false),
            _ => (Code::AuthFailed, true),
        },
        Request::Sasl(_) => (Code::AuthFailed, true),
        other => panic!("{other:?} is for the store"),
    }
}

fn is_one_request(recording: &Recording) -> bool {
    recording.bodies(true).count() == 1
        && !recording.name.starts_with("handshake")
        && !is_no_frame(recording)
}

fn is_no_frame(recording: &Recording) -> bool {
    recording.name.contains(" length") && recording.frames[0].1.len() == LENGTH_BYTES
        || recording.name == "a request before the handshake"
}

async fn session() -> Session {
    let client = Store::memory().connect().await.unwrap();
    let session = client.session().await.unwrap();
    for path in ["/q", "/q/null"] {
        let path = path.parse().unwrap();
        let made = session.create(&path, "data", CreateMode::Persistent);
        made.await.unwrap();
    }
    session
}

#[tokio::test]
async fn any_frame_is_answered_as_a_real_server_answers_it() {
    let (version, _, quirks) = RECORDED[1];
    let recordings = recordings(quirks);
    let mut different = Vec::new();
    for recording in recordings
        .iter()
        .filter(|recording| is_one_request(recording))
    {
        let frame = recording.bodies(true).next().unwrap();
        let (expected, ours) = (recorded(recording), ours(&session().await, frame).await);
        if expected != ours {
            different.push((recording.name, expected, ours));
        }
    }
    let mut names = different.iter().map(|(name, ..)| *name);
    let known = DIFFERENT.iter().map(|(name, _)| *name);
    assert!(names.by_ref().eq(known), "{version}: {different:#?}");
}

#[test]
fn lengths_that_no_frame_has_close_the_connection() {
    for (_, _, quirks) in RECORDED {
        let mut count = 0;
        for recording in recordings(quirks)
            .iter()
            .filter(|recording| is_no_frame(recording))
        {
            assert!(recording.closed && recording.frames.iter().all(|(of_client, _)| *of_client));
            let sent = &recording.frames[0].1;
            let mut frames = Frames::new(LARGEST_FRAME_BYTES);
            frames.push(sent);
            let refused = match frames.next() {
                Ok(Some(frame)) => Reader::new(frame).next::<ConnectRequest<'_>>().is_err(),
                Ok(None) => false,
                Err(_) => true,
            };
            assert!(refused, "{}", recording.name);
            count += 1;
        }
        assert_eq!(count, 3);
    }
}

#[test]
fn handshakes_are_read_and_answered_as_by_a_real_server() {
    for (_, _, quirks) in RECORDED {
        let recordings = recordings(quirks);
        let shakes = recordings
            .iter()
            .filter(|it| it.name.starts_with("handshake"));
        let mut count = 0;
        for recording in shakes.filter(|recording| recording.name != "handshake, cut") {
            let asked = recording.bodies(true).next().unwrap();
            let asked: ConnectRequest<'_> = Reader::new(asked).next().unwrap();
            let Some(answer) = recording.bodies(false).next() else {
                assert!(
                    recording.closed && asked.last_zxid_seen > 1 << 32,
                    "{}",
                    recording.name
                );
                continue;
            };
            let said: ConnectResponse<'_> = Reader::new(answer).next().unwrap();
            assert_eq!(said.read_only.is_some(), asked.read_only.is_some());
            if said.session == 0 {
                assert!(recording.closed, "{}", recording.name);
                assert_eq!(said, ConnectResponse::refused(asked.read_only));
            }
            let mut again = Vec::new();
            said.put(&mut again);
            assert_eq!(again, answer, "{}", recording.name);
            count += 1;
        }
        assert!(count > 8, "{count}");
    }
}

#[test]
fn null_data_is_neither_read_nor_written_as_empty() {
    for (_, _, quirks) in RECORDED {
        let recordings = recordings(quirks);
        let of_null = recordings
            .iter()
            .find(|it| it.name == "getData of null data");
        let answer = of_null.unwrap().bodies(false).next().unwrap();
        let mut from = Reader::new(answer);
        from.next::<ReplyHeader>().unwrap();
        let Ok(Response::Data(data, stat)) = Response::read(Op::GetData, &mut from) else {
            panic!("{answer:?}");
        };
        assert!(data::is_null(data));
        assert_eq!((data.len(), stat.data_length), (0, 0));
        let mut again = Vec::new();
        Response::Data(data, stat).put(&mut again);
        assert!(answer.ends_with(&again));
    }
}

#[test]
fn an_unknown_operation_is_answered_with_zxid_minus_1_and_before_anything_else_closes() {
    let (_, _, quirks) = RECORDED[1];
    let recordings = recordings(quirks);
    let unknown = recordings
        .iter()
        .find(|it| it.name == "an unknown operation");
    let answer = unknown.unwrap().bodies(false).next().unwrap();
    let mut ours = Vec::new();
    ReplyHeader::new(1, UNKNOWN_ZXID, Code::Unimplemented).put(&mut ours);
    assert_eq!(ours, answer);
}
