//! Work of the clients of a server that is killed, and their reports of it, line by line.
//!
//! A client is a process with one session: `tests/kazoo/survivor.py`, `tests/curator/Survivor.java` or
//! [`ours`](super::ours). Its arguments are its name, the server's address, its timeout in milliseconds and the number
//! of its writers. It ends when its stdin ends, as soon as each writer has its answer. It reconnects as its library
//! does, and has three kinds of tasks:
//!
//! - **Writers**, each in its own folder, `/work/NAME/WRITER`, with one write under way at a time, never repeated.
//!   Writes are numbered from 0; by its number modulo four, write n creates `n-N` (0), sets `counter` (1), sets `pair`
//!   and creates `m-N` in one multi (2), or deletes the `n-…` that was created 19 writes before (3; sets `counter`
//!   during the first 19). The data of each is the number.
//! - **A contender** for the lock `/lock`, by the library's own recipe. The holder writes its token, the czxid of its
//!   znode, to the protected resource: `/gate` holds the highest token that it has seen.
//! - **A watcher** of `/bell`. Whenever it has read the bell anew, it checks that its ephemeral znode `/alive/NAME`
//!   exists, which it creates once in each session.
//!
//! Each line is one write to a pipe that all processes share, so their order is that of the writes. A client reports
//! that something is over before it tells the server (`left`), and that something has begun after the server's answer:
//! so a client that is told of a later event reports it later.
//!
//! ```text
//! NAME done WRITER NUMBER ZXID VERSION     the write is acknowledged; -1 for a figure that the answer lacks
//! NAME unknown WRITER NUMBER               its answer was lost
//! NAME refused WRITER NUMBER               there is no such znode
//! NAME held SESSION TOKEN                  the lock is held
//! NAME shown SESSION TOKEN                 the protected resource has acknowledged the token
//! NAME left SESSION TOKEN                  it is no longer believed to be held
//! NAME saw SESSION VERSION                 the bell was read, and a watch is armed
//! NAME fired SESSION                       the watch has fired
//! NAME alive SESSION CZXID                 of the ephemeral znode; 0 when it is not there
//! NAME away SESSION                        the connection is lost
//! NAME back SESSION SILENT_MS              the same session is connected again
//! NAME lost SESSION SILENT_MS              the session is over
//! NAME ended                               its last word: it holds nothing, and closes its session
//! NAME failed WHY                          what must not be
//! ```
//!
//! `SILENT_MS` is the time since the last request was sent whose answer proved the session. The test itself adds lines in
//! between, under the name `test`: [`Told`].

use std::fmt;
use std::str::FromStr;

/// Name of a client.
pub(crate) type Name = String;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Line {
    Client(Name, Said),
    Test(Told),
}

/// Report of a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Wrote {
        writer: usize,
        number: u64,
        answer: Answer,
    },
    Held(i64, i64),
    Shown(i64, i64),
    Left(i64, i64),
    Saw(i64, i32),
    Fired(i64),
    Alive(i64, i64),
    Away(i64),
    Back(i64, u64),
    Lost(i64, u64),
    Ended,
    Failed(String),
}

/// Answer to a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    Done {
        zxid: Option<i64>,
        version: Option<i32>,
    },
    Unknown,
    Refused,
}

/// Action of the test, in the midst of the reports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    /// The server of this life is ready.
    Ready(u64),
    /// It is dead.
    Killed(u64),
    /// This client is dead.
    Died(Name),
    /// The bell was rung: it is at this version now.
    Rung(i32),
    /// This dead client's ephemeral znode is gone.
    Gone(Name),
}

impl Line {
    /// Parses a line; `None` for any other text.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (name, said) = line.split_once(' ')?;
        Some(match name {
            "test" => Self::Test(Told::parse(said)?),
            _ => Self::Client(name.to_owned(), Said::parse(said)?),
        })
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(life) => write!(f, "test ready {life}"),
            Self::Killed(life) => write!(f, "test killed {life}"),
            Self::Died(name) => write!(f, "test died {name}"),
            Self::Rung(version) => write!(f, "test rung {version}"),
            Self::Gone(name) => write!(f, "test gone {name}"),
        }
    }
}

impl Told {
    fn parse(told: &str) -> Option<Self> {
        Some(match told.split_once(' ')? {
            ("ready", life) => Self::Ready(number(life)?),
            ("killed", life) => Self::Killed(number(life)?),
            ("died", name) => Self::Died(name.to_owned()),
            ("rung", version) => Self::Rung(number(version)?),
            ("gone", name) => Self::Gone(name.to_owned()),
            _ => return None,
        })
    }
}

impl Said {
    fn parse(said: &str) -> Option<Self> {
        let words: Vec<_> = said.split(' ').collect();
        let known = |text: &str| number::<i64>(text).map(|number| (number >= 0).then_some(number));
        Some(match words[..] {
            ["done", writer, at, zxid, version] => Self::Wrote {
                writer: number(writer)?,
                number: number(at)?,
                answer: Answer::Done {
                    zxid: known(zxid)?,
                    version: known(version)?.map(|version| version as i32),
                },
            },
            [answer @ ("unknown" | "refused"), writer, at] => Self::Wrote {
                writer: number(writer)?,
                number: number(at)?,
                answer: match answer {
                    "unknown" => Answer::Unknown,
                    _ => Answer::Refused,
                },
            },
            ["held", session, token] => Self::Held(number(session)?, number(token)?),
            ["shown", session, token] => Self::Shown(number(session)?, number(token)?),
            ["left", session, token] => Self::Left(number(session)?, number(token)?),
            ["saw", session, version] => Self::Saw(number(session)?, number(version)?),
            ["fired", session] => Self::Fired(number(session)?),
            ["alive", session, czxid] => Self::Alive(number(session)?, number(czxid)?),
            ["away", session] => Self::Away(number(session)?),
            ["back", session, silent] => Self::Back(number(session)?, number(silent)?),
            ["lost", session, silent] => Self::Lost(number(session)?, number(silent)?),
            ["ended"] => Self::Ended,
            ["failed", ..] => Self::Failed(said.to_owned()),
            _ => return None,
        })
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// Work of one write, by its number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    Make,
    Count,
    Both,
    /// Deletes the znode that the write of this number created.
    Delete(u64),
}

/// After how many writes a znode is deleted.
const LIFETIME: u64 = 19;

impl Work {
    pub(crate) fn of(number: u64) -> Self {
        match number % 4 {
            0 => Self::Make,
            2 => Self::Both,
            3 if number >= LIFETIME => Self::Delete(number - LIFETIME),
            _ => Self::Count,
        }
    }
}
