//! Line-based reports of the child.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) path: String,
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) version: i32,
    /// The session of an ephemeral one.
    pub(crate) owner: i64,
    /// Without white space.
    pub(crate) data: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Store(String),
    /// A znode found when the store was opened.
    Found(Found),
    /// All found znodes are reported.
    Ready,
    /// A writer's operation was acknowledged.
    Done {
        writer: usize,
        number: u64,
        zxid: Option<i64>,
        /// Its number, if it joined the queue.
        sequence: Option<i64>,
    },
    /// A writer's operation failed with an error that the tree explains.
    Failed(usize, u64),
    /// The store refused it.
    Refused(usize, u64),
    /// A lock is held with this token.
    Token(usize, i64),
    /// The resource behind a lock has acknowledged this token.
    Shown(usize, i64),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(id) => write!(f, "store {id}"),
            Self::Found(found) => {
                let Found {
                    path,
                    czxid,
                    mzxid,
                    version,
                    owner,
                    data,
                } = found;
                write!(f, "found {path} {czxid} {mzxid} {version} {owner} ={data}")
            }
            Self::Ready => f.write_str("ready"),
            Self::Done {
                writer,
                number,
                zxid,
                sequence,
            } => {
                let (zxid, sequence) = (zxid.unwrap_or(-1), sequence.unwrap_or(-1));
                write!(f, "done {writer} {number} {zxid} {sequence}")
            }
            Self::Failed(writer, number) => write!(f, "failed {writer} {number}"),
            Self::Refused(writer, number) => write!(f, "refused {writer} {number}"),
            Self::Token(lock, token) => write!(f, "token {lock} {token}"),
            Self::Shown(lock, token) => write!(f, "shown {lock} {token}"),
        }
    }
}

impl Said {
    /// Returns `None` for a line of the test harness.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let some = |text: &str| number::<i64>(text).map(|number| (number >= 0).then_some(number));
        Some(match words[..] {
            ["store", id] => Self::Store(id.to_owned()),
            ["found", path, czxid, mzxid, version, owner, data] => Self::Found(Found {
                path: path.to_owned(),
                czxid: number(czxid)?,
                mzxid: number(mzxid)?,
                version: number(version)?,
                owner: number(owner)?,
                data: data.strip_prefix('=')?.to_owned(),
            }),
            ["ready"] => Self::Ready,
            ["done", writer, at, zxid, sequence] => Self::Done {
                writer: number(writer)?,
                number: number(at)?,
                zxid: some(zxid)?,
                sequence: some(sequence)?,
            },
            ["failed", writer, at] => Self::Failed(number(writer)?, number(at)?),
            ["refused", writer, at] => Self::Refused(number(writer)?, number(at)?),
            ["token", lock, token] => Self::Token(number(lock)?, number(token)?),
            ["shown", lock, token] => Self::Shown(number(lock)?, number(token)?),
            _ => return None,
        })
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}
