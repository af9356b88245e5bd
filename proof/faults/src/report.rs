//! [`Report`]: a line of JSON from a worker to its parent. Does no I/O.
//!
//! A worker reports a request before it sends it, and a result after the answer. A killed worker has therefore
//! reported too little, but never too much.

use lockkeeper::FencingToken;
use serde::{Deserialize, Serialize};
use testkit::linearizable::{Answer, Call};

/// The share of a lock that a grant takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Share {
    Exclusive,
    Shared,
    Permits(u32),
}

/// A line of a worker. The worker numbers `grant` and `call`, and `at` is CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report")]
pub(crate) enum Report {
    /// The worker is connected.
    Ready,
    /// A lock is held, according to its guard right after this time.
    Granted {
        grant: u64,
        key: String,
        share: Share,
        token: FencingToken,
        at: u64,
    },
    /// The guard still believes right after this time that it holds.
    Held { grant: u64, at: u64 },
    /// The holder writes to the resource with its token. The parent answers.
    Use { grant: u64 },
    /// The resource has refused the token. `is_held` is the guard's belief after the answer.
    Refused { grant: u64, is_held: bool },
    /// The holder has stopped believing on its own.
    Released { grant: u64 },
    /// The guard was lost before this time.
    Lost { grant: u64, at: u64, reason: String },
    /// A wait has ended without a grant.
    NoGrant { reason: String },
    /// A call on a register is about to be sent.
    Called {
        call: u64,
        key: String,
        at: u64,
        what: Call,
    },
    /// The call's answer has arrived.
    Answered { call: u64, at: u64, answer: Answer },
    /// A task has finished after the end of all faults.
    Done,
    /// An error that no fault explains.
    Failed { text: String },
}

impl Report {
    pub(crate) fn to_line(&self) -> String {
        let json = serde_json::to_string(self).expect("a report is plain JSON");
        json + "\n"
    }

    pub(crate) fn of_line(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_way_as_a_line() {
        let at = 1 << 60;
        let reports = [
            Report::Ready,
            Report::Granted {
                grant: 7,
                key: "semaphore".to_owned(),
                share: Share::Permits(2),
                token: "4294967301".parse().unwrap(),
                at,
            },
            Report::Answered {
                call: 3,
                at,
                answer: Answer::Found(2, u64::MAX),
            },
            Report::Failed {
                text: "an error\nof two lines".to_owned(),
            },
        ];
        for report in reports {
            let line = report.to_line();
            assert_eq!(line.find('\n'), Some(line.len() - 1));
            assert_eq!(Report::of_line(&line).unwrap(), report);
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "ready", r#"{"report":"Held","grant":7}"#] {
            assert!(Report::of_line(line).is_err(), "{line:?}");
        }
    }
}
