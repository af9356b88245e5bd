//! [`Refusal`]: the response to a request that was not carried out.

use std::error::Error;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A response that says why a request was not carried out.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    reason: String,
}

impl Refusal {
    pub(crate) fn overflow() -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            reason: "the balance would be too large".to_owned(),
        }
    }

    pub(crate) fn unready() -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "the store does not answer".to_owned(),
        }
    }
}

/// The lock was not granted or was lost, or the store did not answer: the caller may try again.
impl<E: Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: error.to_string(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.reason }));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            // In seconds; a guess, since the queue moves on as fast as its holders work.
            return (self.status, [(header::RETRY_AFTER, "1")], body).into_response();
        }
        (self.status, body).into_response()
    }
}
