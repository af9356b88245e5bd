//! [`Failure`]: the reason why a command fails, and its exit status.
//!
//! The statuses are from `sysexits.h` where possible, so that scripts can distinguish our failures from the statuses of
//! a command that we run.

use std::fmt;
use std::process::ExitCode;

use lockkeeper::{Error, LockError, TargetError};

use crate::locks::names::{escaped, lock_name};
use crate::output::print_error;

#[derive(Debug)]
pub(crate) enum Failure {
    Usage(String),
    Unreachable(String),
    NotAcquired(String),
    Lost(String),
    Other(String),
}

impl Failure {
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Other(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 69, // EX_UNAVAILABLE
            Self::NotAcquired(_) => 75, // EX_TEMPFAIL
            Self::Lost(_) => 76,        // EX_PROTOCOL
        }
    }

    pub(crate) fn report(&self) -> ExitCode {
        print_error(self);
        ExitCode::from(self.status())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text)
            | Self::Unreachable(text)
            | Self::NotAcquired(text)
            | Self::Lost(text)
            | Self::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Report the error of the failed operation, because the user does not know about the multi request around it.
        if let Error::MultiFailed { source, .. } = error {
            return Self::from(*source);
        }
        let text = match &error {
            // Write our own text, because the library's text names the library's options instead of this command's.
            Error::NoChroot { path, hosts } => {
                format!("the chroot {path} does not exist on {hosts}: --create-chroot creates it")
            }
            Error::Target(TargetError::Credentials) => {
                "credentials do not belong in a URL: give them with --auth or in LOCKKEEPER_AUTH"
                    .to_owned()
            }
            error => error.to_string(),
        };
        match error {
            Error::BadArguments(_) | Error::InvalidPath { .. } | Error::Target(_) => {
                Self::Usage(text)
            }
            Error::ConnectFailed { .. }
            | Error::ConnectionLoss
            | Error::SessionExpired { .. }
            | Error::StoreChanged { .. } => Self::Unreachable(text),
            _ => Self::Other(text),
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Timeout { .. } => Self::NotAcquired(error.to_string()),
            LockError::Lost(_) => Self::Lost(error.to_string()),
            LockError::DuplicateKey { .. } => Self::Usage(error.to_string()),
            LockError::PermitsMismatch {
                path,
                stored,
                stated,
            } => Self::Other(format!(
                "{path} has {stored} permits, not {stated}: write --permits N/{stored}, or change the number with \
                 `lockkeeper permits {} {stated}`",
                escaped(&lock_name(&path))
            )),
            LockError::Store(error) => error.into(),
            _ => Self::Other(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

pub(crate) fn failed(error: &dyn std::error::Error) -> ExitCode {
    print_error(error);
    ExitCode::FAILURE
}

pub(crate) fn in_a_store(command: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    // A single-threaded runtime starts fastest, and these commands have little to do in parallel.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = runtime
        .map_err(Failure::from)
        .and_then(|it| it.block_on(command));
    ended(done)
}

pub(crate) fn ended(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
