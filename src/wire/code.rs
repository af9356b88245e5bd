//! ZooKeeper's error codes, and their mapping to and from [`Error`].

use std::fmt;

use crate::model::error::{Error, QUOTAS};
use crate::model::path::parent_of;
use crate::model::types::SessionId;

macro_rules! codes {
    ($($name:ident = $number:literal,)*) => {
        /// Error code of a reply, with ZooKeeper's number (`KeeperException.Code`).
        ///
        /// Clients before 3.5 do not know -13, -14 and most codes below -119. Of these codes, this server sends only
        /// -121, and only in reply to requests that 3.5 introduced.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is named as in ZooKeeper's KeeperException.Code")]
        pub(crate) enum Code {
            $($name = $number,)*
        }

        impl Code {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            pub(crate) fn of(number: i32) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name,)*
                    _ => return None,
                })
            }
        }
    };
}

codes! {
    Ok = 0,
    SystemError = -1,
    RuntimeInconsistency = -2,
    DataInconsistency = -3,
    ConnectionLoss = -4,
    MarshallingError = -5,
    Unimplemented = -6,
    OperationTimeout = -7,
    BadArguments = -8,
    NewConfigNoQuorum = -13,
    ReconfigInProgress = -14,
    ApiError = -100,
    NoNode = -101,
    NoAuth = -102,
    BadVersion = -103,
    NoChildrenForEphemerals = -108,
    NodeExists = -110,
    NotEmpty = -111,
    SessionExpired = -112,
    InvalidCallback = -113,
    InvalidAcl = -114,
    AuthFailed = -115,
    SessionMoved = -118,
    NotReadOnly = -119,
    EphemeralOnLocalSession = -120,
    NoWatcher = -121,
    RequestTimeout = -122,
    ReconfigDisabled = -123,
    SessionClosedRequireSaslAuth = -124,
    QuotaExceeded = -125,
    ThrottledOp = -127,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) what: &'static str,
    /// Empty for a request without a path or with several paths.
    pub(crate) path: &'a str,
    pub(crate) version: Option<i32>,
    pub(crate) session: SessionId,
}

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path {
            "" => f.write_str(self.what),
            path => write!(f, "{} of {path}", self.what),
        }
    }
}

impl Code {
    pub(crate) fn number(self) -> i32 {
        self as i32
    }

    pub(crate) fn error(self, about: About<'_>) -> Option<Error> {
        let path = || about.path.to_owned();
        let session = about.session;
        Some(match self {
            Self::Ok => return None,
            Self::ConnectionLoss | Self::OperationTimeout | Self::RequestTimeout => {
                Error::ConnectionLoss
            }
            Self::Unimplemented => Error::Unimplemented {
                what: match about.path.starts_with("/zookeeper/quota/") {
                    true => QUOTAS,
                    false => about.what,
                },
            },
            // ZooKeeper's code does not say which of the listed arguments is wrong.
            Self::BadArguments => Error::BadArguments(format!(
                "the server refuses {about}: its path, its access control list or its size"
            )),
            Self::SessionExpired => Error::SessionExpired { session },
            Self::AuthFailed | Self::SessionClosedRequireSaslAuth => Error::AuthFailed,
            Self::SessionMoved => Error::SessionMoved { session },
            Self::SystemError => Error::Protocol(format!(
                "{about} was answered with SystemError ({}): a limit of the server, a full disk, or a fault; see \
                 its log",
                self.number()
            )),
            // All remaining errors name a path.
            other if about.path.is_empty() => other.unexpected(about),
            // A create names a znode that does not exist yet, so report its parent as missing.
            Self::NoNode if about.what.starts_with("create") || about.what == "enqueue" => {
                Error::NoNode {
                    path: parent_of(about.path).unwrap_or("/").to_owned(),
                }
            }
            Self::NoNode => Error::NoNode { path: path() },
            Self::NoAuth => Error::NoAuth { path: path() },
            Self::BadVersion => Error::BadVersion {
                path: path(),
                expected: about.version.unwrap_or(-1),
            },
            Self::NoChildrenForEphemerals => Error::NoChildrenForEphemerals { path: path() },
            Self::NodeExists => Error::NodeExists { path: path() },
            Self::NotEmpty => Error::NotEmpty { path: path() },
            Self::InvalidAcl => Error::InvalidAcl { path: path() },
            other => other.unexpected(about),
        })
    }

    fn unexpected(self, about: About<'_>) -> Error {
        Error::Protocol(format!(
            "{about} was answered with {} ({})",
            self.name(),
            self.number()
        ))
    }
}

/// Returns the code that a client receives for an error.
///
/// ZooKeeper has no code for a reached limit, a full or failed disk, or an exhausted sequence counter. These errors
/// become `SystemError`, which every client knows. Our client also receives the reason ([`Refusal`](super::Refusal)).
impl From<&Error> for Code {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidPath { .. } | Error::BadArguments(_) | Error::TooLarge { .. } => {
                Self::BadArguments
            }
            Error::NoNode { .. } => Self::NoNode,
            Error::NodeExists { .. } => Self::NodeExists,
            Error::NotEmpty { .. } => Self::NotEmpty,
            Error::BadVersion { .. } => Self::BadVersion,
            Error::NoChildrenForEphemerals { .. } => Self::NoChildrenForEphemerals,
            Error::NoAuth { .. } => Self::NoAuth,
            Error::InvalidAcl { .. } => Self::InvalidAcl,
            Error::AuthFailed => Self::AuthFailed,
            Error::MultiFailed { source, .. } => Self::from(&**source),
            Error::ConnectionLoss | Error::ConnectFailed { .. } => Self::ConnectionLoss,
            Error::SessionExpired { .. } | Error::SessionClosed { .. } => Self::SessionExpired,
            Error::SessionMoved { .. } => Self::SessionMoved,
            Error::Unimplemented { .. } => Self::Unimplemented,
            Error::Protocol(_) => Self::MarshallingError,
            Error::LimitReached { .. }
            | Error::SequenceExhausted { .. }
            | Error::NoChroot { .. }
            | Error::Target(_)
            | Error::StoreChanged { .. }
            | Error::StoreDamaged { .. }
            | Error::StoreTooNew { .. }
            | Error::StoreFailed { .. }
            | Error::DiskFull { .. }
            | Error::NotAStore { .. }
            | Error::StoreInUse { .. }
            | Error::ThreadRefused { .. }
            | Error::Forked
            | Error::Tls(_) => Self::SystemError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About<'static> = About {
        what: "setData",
        path: "/a",
        version: Some(3),
        session: SessionId(7),
    };

    #[test]
    fn a_code_that_is_an_error_of_the_store_comes_back_from_it() {
        let of_the_store = [
            Code::Unimplemented,
            Code::BadArguments,
            Code::NoNode,
            Code::NoAuth,
            Code::BadVersion,
            Code::NoChildrenForEphemerals,
            Code::NodeExists,
            Code::NotEmpty,
            Code::SessionExpired,
            Code::InvalidAcl,
            Code::AuthFailed,
            Code::SessionMoved,
            Code::ConnectionLoss,
            Code::MarshallingError,
        ];
        for code in of_the_store {
            let error = code.error(ABOUT).unwrap();
            assert_eq!(Code::from(&error), code, "{error}");
        }
    }

    #[test]
    fn every_code_but_ok_is_an_error() {
        for code in Code::ALL {
            assert_eq!(code.error(ABOUT).is_none(), *code == Code::Ok, "{code:?}");
            assert_eq!(Code::of(code.number()), Some(*code));
        }
        assert_eq!(Code::of(-9_999), None);
    }

    #[test]
    fn an_error_without_a_path_names_none() {
        let about = About {
            what: "multi",
            path: "",
            ..ABOUT
        };
        for code in Code::ALL.iter().filter(|code| **code != Code::Ok) {
            let text = code.error(about).unwrap().to_string();
            assert!(!text.contains('/') && !text.contains("  "), "{text}");
            assert!(!text.ends_with(' '), "{text}");
        }
        let text = Code::BadArguments.error(ABOUT).unwrap().to_string();
        assert!(text.contains("setData of /a"), "{text}");
    }

    #[test]
    fn the_missing_znode_of_a_create_is_the_parent() {
        let about = About {
            what: "create2",
            path: "/a/b",
            ..ABOUT
        };
        let parent = Error::NoNode { path: "/a".into() };
        assert_eq!(Code::NoNode.error(about), Some(parent));
    }
}
