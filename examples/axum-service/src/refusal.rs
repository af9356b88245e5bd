//! [`Refusal`]: why a request was not carried out, and what the caller is told.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockkeeper::{Error, LockError, LostReason, StaleToken};
use serde_json::json;

/// Why a request was not carried out.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The lock could not be had.
    Lock(LockError),
    /// The lock was lost during the work.
    Lost(LostReason),
    /// The lock was lost, and the account knew it first.
    Stale(StaleToken),
    /// The store does not answer.
    Store(Error),
    /// The store does not answer in time.
    Unready,
    /// The sum is none that an account can hold.
    Overflow,
}

/// When to come again, in seconds. A guess: the queue moves on as fast as its holders work.
const RETRY_AFTER_S: &str = "1";

impl Refusal {
    fn reason(&self) -> String {
        match self {
            Self::Lock(error) => error.to_string(),
            Self::Lost(reason) => format!("the lock was lost: {reason}"),
            Self::Stale(error) => format!("the lock was lost: {error}"),
            Self::Store(error) => error.to_string(),
            Self::Unready => "the store does not answer".to_owned(),
            Self::Overflow => "the balance would be too large".to_owned(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.reason() }));
        if matches!(self, Self::Overflow) {
            return (StatusCode::UNPROCESSABLE_ENTITY, body).into_response();
        }
        let retry_after = [(header::RETRY_AFTER, RETRY_AFTER_S)];
        (StatusCode::SERVICE_UNAVAILABLE, retry_after, body).into_response()
    }
}

impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<LostReason> for Refusal {
    fn from(reason: LostReason) -> Self {
        Self::Lost(reason)
    }
}

impl From<StaleToken> for Refusal {
    fn from(error: StaleToken) -> Self {
        Self::Stale(error)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}
