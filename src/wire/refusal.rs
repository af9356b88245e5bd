//! [`Refusal`]: a server's reason for refusing a request, if ZooKeeper has no code for it.
//!
//! On a connection that agreed to Lockkeeper's extension, the reason follows the header of an error reply. Every reason
//! means that the request has changed nothing, so the client need not look for its effects.

use std::path::PathBuf;

use super::code::About;
use super::jute::{Text, records};
use crate::model::error::Error;
use crate::model::path::parent_of;

records! {
    Refusal<'a> {
        /// Kind of the reason: 1 for a reached limit, 2 for a size above a limit, 3 for a full disk, 4 for exhausted
        /// sequence numbers, 5 for a wrong argument.
        kind: i32,
        /// Name of the limited resource for the kinds 1 and 2, and description of the mistake for the kind 5.
        what: Text<'a>,
        actual: i64,
        limit: i64,
    }
}

const LIMIT: i32 = 1;
const SIZE: i32 = 2;
const DISK: i32 = 3;
const SEQUENCE: i32 = 4;
const ARGUMENT: i32 = 5;

/// Names of limited resources in [`Error`]. The client maps a received name to one of these static strings.
const THINGS: [&str; 15] = [
    "a request",
    "a transaction, with all its access control lists,",
    "an identity",
    "bytes for each session of a full store",
    "bytes in the store",
    "bytes in znodes that outlive their session",
    "bytes of a session's identities",
    "bytes of an answer",
    "bytes of sessions",
    "bytes that wait for the disk",
    "entries of an access control list",
    "identities of a session",
    "sessions",
    "watches of a session",
    "znodes",
];

/// Name of a resource that only a later server limits.
const UNKNOWN_THING: &str = "things that the server counts";

impl Refusal<'static> {
    /// Returns the reason of an error, or `None` if the code is enough or the request may have been executed.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        let number = |number: &usize| i64::try_from(*number).unwrap_or(i64::MAX);
        let (kind, what, actual, limit) = match error {
            Error::LimitReached { what, limit } => (LIMIT, (*what).into(), 0, number(limit)),
            Error::TooLarge {
                what,
                actual,
                limit,
            } => (SIZE, (*what).into(), number(actual), number(limit)),
            // Leave out the directory, because clients need not know it.
            Error::DiskFull { .. } => (DISK, "".into(), 0, 0),
            Error::SequenceExhausted { .. } => (SEQUENCE, "".into(), 0, 0),
            Error::BadArguments(mistake) => (ARGUMENT, mistake.clone().into(), 0, 0),
            _ => return None,
        };
        Some(Self {
            kind,
            what,
            actual,
            limit,
        })
    }
}

impl Refusal<'_> {
    pub(crate) fn error(&self, about: About<'_>) -> Option<Error> {
        let thing = || {
            let known = THINGS.iter().find(|thing| ***thing == *self.what);
            known.copied().unwrap_or(UNKNOWN_THING)
        };
        let number = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        Some(match self.kind {
            LIMIT => Error::LimitReached {
                what: thing(),
                limit: number(self.limit),
            },
            SIZE => Error::TooLarge {
                what: thing(),
                actual: number(self.actual),
                limit: number(self.limit),
            },
            DISK => Error::DiskFull {
                path: PathBuf::from("the server"),
            },
            SEQUENCE => Error::SequenceExhausted {
                path: parent_of(about.path).unwrap_or("/").to_owned(),
            },
            ARGUMENT => Error::BadArguments(self.what.to_string()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::SessionId;
    use crate::wire::{Jute, Reader};

    const ABOUT: About<'static> = About {
        what: "create",
        path: "/a/b",
        version: None,
        session: SessionId(7),
    };

    #[test]
    fn a_reason_comes_back_as_the_same_error() {
        let (actual, limit) = (9, 7);
        let limits = THINGS.map(|what| Error::LimitReached { what, limit });
        let sizes = THINGS.map(|what| Error::TooLarge {
            what,
            actual,
            limit,
        });
        let others = [
            Error::DiskFull {
                path: "the server".into(),
            },
            Error::SequenceExhausted { path: "/a".into() },
            Error::BadArguments("a mistake".into()),
        ];
        for error in limits.into_iter().chain(sizes).chain(others) {
            let mut bytes = Vec::new();
            Refusal::of(&error).unwrap().put(&mut bytes);
            let read = Reader::new(&bytes).next::<Refusal<'_>>().unwrap();
            assert_eq!(read.error(ABOUT), Some(error));
        }
    }

    #[test]
    fn what_a_later_server_refuses_is_still_a_limit() {
        let refusal = Refusal {
            kind: LIMIT,
            what: "wishes".into(),
            actual: 0,
            limit: 3,
        };
        let (what, limit) = (UNKNOWN_THING, 3);
        assert_eq!(
            refusal.error(ABOUT),
            Some(Error::LimitReached { what, limit })
        );
        let refusal = Refusal {
            kind: 99,
            ..refusal
        };
        assert_eq!(refusal.error(ABOUT), None);
    }

    #[test]
    fn a_request_that_may_have_been_carried_out_has_no_reason() {
        let failed = Error::StoreFailed {
            path: "/".into(),
            reason: "a broken disk".into(),
        };
        for error in [failed, Error::ConnectionLoss, Error::Forked] {
            assert_eq!(Refusal::of(&error), None, "{error}");
        }
    }
}
