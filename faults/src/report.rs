//! [`Report`]: a line that a worker tells its parent. PURE.
//!
//! A worker reports that it asks for something before it asks, and that it has something after the answer: a process that
//! is killed in between has reported too little, never too much.

use std::fmt;
use std::str::{FromStr, SplitWhitespace};

use lockkeeper::FencingToken;

use crate::linearizable::{Answer, Call};

/// Part of a lock that a grant takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Exclusive,
    Shared,
    Permits(u32),
}

/// A line of a worker. `grant` and `call` are numbers that the worker gives; `at` is CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The worker is connected.
    Ready,
    /// A lock is held, as the guard believes right after this moment.
    Granted {
        grant: u64,
        key: String,
        share: Share,
        token: FencingToken,
        at: u64,
    },
    /// The guard still believes right after this moment.
    Held { grant: u64, at: u64 },
    /// The holder writes to the resource with its token. The parent answers.
    Use { grant: u64 },
    /// The resource has refused the token, and the guard believes so after the answer.
    Refused { grant: u64, is_held: bool },
    /// The holder believes no more, by its own will.
    Released { grant: u64 },
    /// The guard was lost before this moment.
    Lost { grant: u64, at: u64, reason: String },
    /// A wait has ended without a grant, for this reason.
    NoGrant { reason: String },
    /// A call on a register is about to be sent.
    Called {
        call: u64,
        key: String,
        at: u64,
        what: Call,
    },
    /// Its answer has arrived.
    Answered { call: u64, at: u64, answer: Answer },
    /// A task has finished after the end of all faults.
    Done,
    /// An error that no fault explains.
    Failed { text: String },
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("x"),
            Self::Shared => f.write_str("s"),
            Self::Permits(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "x" => Self::Exclusive,
            "s" => Self::Shared,
            count => Self::Permits(parsed(count)?),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Granted {
                grant,
                key,
                share,
                token,
                at,
            } => write!(f, "granted {grant} {key} {share} {token} {at}"),
            Self::Held { grant, at } => write!(f, "held {grant} {at}"),
            Self::Use { grant } => write!(f, "use {grant}"),
            Self::Refused { grant, is_held } => write!(f, "refused {grant} {is_held}"),
            Self::Released { grant } => write!(f, "released {grant}"),
            Self::Lost { grant, at, reason } => write!(f, "lost {grant} {at} {reason}"),
            Self::NoGrant { reason } => write!(f, "no-grant {reason}"),
            Self::Called {
                call,
                key,
                at,
                what,
            } => {
                write!(f, "called {call} {key} {at} ")?;
                write_call(f, what)
            }
            Self::Answered { call, at, answer } => {
                write!(f, "answered {call} {at} ")?;
                write_answer(f, answer)
            }
            Self::Done => f.write_str("done"),
            Self::Failed { text } => write!(f, "failed {}", text.replace('\n', " | ")),
        }
    }
}

fn write_call(f: &mut fmt::Formatter<'_>, call: &Call) -> fmt::Result {
    let version = |version: &Option<i32>| version.map_or("any".to_owned(), |it| it.to_string());
    match call {
        Call::Create { value } => write!(f, "create {value}"),
        Call::Set { value, version: of } => write!(f, "set {value} {}", version(of)),
        Call::Delete { version: of } => write!(f, "delete {}", version(of)),
        Call::Get => f.write_str("get"),
    }
}

fn write_answer(f: &mut fmt::Formatter<'_>, answer: &Answer) -> fmt::Result {
    match answer {
        Answer::Done => f.write_str("done"),
        Answer::Version(version) => write!(f, "version {version}"),
        Answer::Found(version, value) => write!(f, "found {version} {value}"),
        Answer::Exists => f.write_str("exists"),
        Answer::Missing => f.write_str("missing"),
        Answer::OtherVersion => f.write_str("other-version"),
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = Words(rest.split_whitespace());
        Ok(match name {
            "ready" => Self::Ready,
            "granted" => Self::Granted {
                grant: words.next()?,
                key: words.next()?,
                share: words.next()?,
                token: words.next()?,
                at: words.next()?,
            },
            "held" => Self::Held {
                grant: words.next()?,
                at: words.next()?,
            },
            "use" => Self::Use {
                grant: words.next()?,
            },
            "refused" => Self::Refused {
                grant: words.next()?,
                is_held: words.next()?,
            },
            "released" => Self::Released {
                grant: words.next()?,
            },
            "lost" => Self::Lost {
                grant: words.next()?,
                at: words.next()?,
                reason: words.rest(),
            },
            "no-grant" => Self::NoGrant {
                reason: words.rest(),
            },
            "called" => Self::Called {
                call: words.next()?,
                key: words.next()?,
                at: words.next()?,
                what: words.call()?,
            },
            "answered" => Self::Answered {
                call: words.next()?,
                at: words.next()?,
                answer: words.answer()?,
            },
            "done" => Self::Done,
            "failed" => Self::Failed { text: words.rest() },
            other => return Err(format!("no report is called {other:?}")),
        })
    }
}

/// The words of a line behind its name.
struct Words<'a>(SplitWhitespace<'a>);

impl Words<'_> {
    fn next<T: FromStr>(&mut self) -> Result<T, String> {
        parsed(self.0.next().ok_or("a word is missing")?)
    }

    fn rest(self) -> String {
        self.0.collect::<Vec<_>>().join(" ")
    }

    fn version(&mut self) -> Result<Option<i32>, String> {
        match self.0.next() {
            Some("any") => Ok(None),
            Some(version) => parsed(version).map(Some),
            None => Err("a version is missing".to_owned()),
        }
    }

    fn call(&mut self) -> Result<Call, String> {
        Ok(match self.0.next() {
            Some("create") => Call::Create {
                value: self.next()?,
            },
            Some("set") => Call::Set {
                value: self.next()?,
                version: self.version()?,
            },
            Some("delete") => Call::Delete {
                version: self.version()?,
            },
            Some("get") => Call::Get,
            other => return Err(format!("no call is {other:?}")),
        })
    }

    fn answer(&mut self) -> Result<Answer, String> {
        Ok(match self.0.next() {
            Some("done") => Answer::Done,
            Some("version") => Answer::Version(self.next()?),
            Some("found") => Answer::Found(self.next()?, self.next()?),
            Some("exists") => Answer::Exists,
            Some("missing") => Answer::Missing,
            Some("other-version") => Answer::OtherVersion,
            other => return Err(format!("no answer is {other:?}")),
        })
    }
}

fn parsed<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("cannot read {word:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_way_as_a_line() {
        let key = || "mutex-0".to_owned();
        let token = "4294967301".parse().unwrap();
        let granted = |share| Report::Granted {
            grant: 7,
            key: key(),
            share,
            token,
            at: 12,
        };
        let called = |what| Report::Called {
            call: 3,
            key: key(),
            at: 5,
            what,
        };
        let answered = |answer| Report::Answered {
            call: 3,
            at: 9,
            answer,
        };
        let version = Some(4);
        let reports = [
            Report::Ready,
            granted(Share::Exclusive),
            granted(Share::Shared),
            granted(Share::Permits(2)),
            Report::Held { grant: 7, at: 13 },
            Report::Use { grant: 7 },
            Report::Refused {
                grant: 7,
                is_held: false,
            },
            Report::Released { grant: 7 },
            Report::Lost {
                grant: 7,
                at: 20,
                reason: "the session has expired".to_owned(),
            },
            Report::NoGrant {
                reason: "gave up".to_owned(),
            },
            called(Call::Create { value: 1 }),
            called(Call::Set { value: 1, version }),
            called(Call::Delete { version: None }),
            called(Call::Get),
            answered(Answer::Done),
            answered(Answer::Version(2)),
            answered(Answer::Found(2, 1)),
            answered(Answer::Exists),
            answered(Answer::Missing),
            answered(Answer::OtherVersion),
            Report::Done,
            Report::Failed {
                text: "an error".to_owned(),
            },
        ];
        for report in reports {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "",
            "granted 7 mutex-0 x",
            "held 7 soon",
            "called 1 k 2 jump",
        ] {
            assert!(line.parse::<Report>().is_err(), "{line:?}");
        }
    }
}
