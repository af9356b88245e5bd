//! [`Refusal`]: the response to a request that failed.

use std::error::Error;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

#[derive(Debug)]
pub(crate) struct Refusal(StatusCode, String);

impl Refusal {
    pub(crate) fn overflow() -> Self {
        let reason = "the balance would be too large".to_owned();
        Self(StatusCode::UNPROCESSABLE_ENTITY, reason)
    }

    pub(crate) fn unready() -> Self {
        let reason = "the store does not answer".to_owned();
        Self(StatusCode::SERVICE_UNAVAILABLE, reason)
    }
}

/// Any other error means that the lock was not granted or was lost, or that the store did not answer. The caller may
/// try again.
impl<E: Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, reason) = self;
        let body = Json(json!({ "error": reason }));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // One second is a guess, because the queue moves as fast as its holders work.
            return (status, [(header::RETRY_AFTER, "1")], body).into_response();
        }
        (status, body).into_response()
    }
}
