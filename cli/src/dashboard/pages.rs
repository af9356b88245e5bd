//! [`DashboardPages`]: the page and its HTTP interface.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::access::{Access, Aim};
use super::revoke::{self, Revocation};
use super::shared::{MAX_VIEWERS, Shared};
use super::{query, streams};
use crate::http::{Body, Connection, Pages, allow, read_all};

const MAX_BODY: usize = 16 << 10;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// Headers of every response. They keep a browser from treating a client's text as a page, a script or a style.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri \
         'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(crate) struct DashboardPages {
    pub(super) shared: Arc<Shared>,
    pub(super) access: Access,
    pub(super) store: String,
    pub(super) prefix: String,
}

#[derive(Clone, Copy, Debug)]
enum Page {
    Asset(&'static str, &'static str),
    About,
    Locks,
    Lock,
    Revoke,
}

impl Page {
    fn find(path: &str) -> Option<Self> {
        Some(match path {
            "/" => Self::Asset(HTML, include_str!("page/index.html")),
            "/assets/app.css" => Self::Asset(CSS, include_str!("page/app.css")),
            "/assets/app.js" => Self::Asset(SCRIPT, include_str!("page/app.js")),
            "/assets/format.js" => Self::Asset(SCRIPT, include_str!("page/format.js")),
            "/assets/link.js" => Self::Asset(SCRIPT, include_str!("page/link.js")),
            "/assets/list.js" => Self::Asset(SCRIPT, include_str!("page/list.js")),
            "/assets/lock.js" => Self::Asset(SCRIPT, include_str!("page/lock.js")),
            "/assets/plot.js" => Self::Asset(SCRIPT, include_str!("page/plot.js")),
            "/assets/revoke.js" => Self::Asset(SCRIPT, include_str!("page/revoke.js")),
            "/assets/stream.js" => Self::Asset(SCRIPT, include_str!("page/stream.js")),
            "/assets/icon.svg" => Self::Asset(SVG, include_str!("page/icon.svg")),
            "/api/about" => Self::About,
            "/api/locks" => Self::Locks,
            "/api/lock" => Self::Lock,
            "/api/revoke" => Self::Revoke,
            _ => return None,
        })
    }

    fn aim(self) -> Aim {
        match self {
            Self::Asset(..) => Aim::Page,
            Self::About | Self::Locks | Self::Lock => Aim::Read,
            Self::Revoke => Aim::Revoke,
        }
    }
}

impl Pages for DashboardPages {
    const NAME: &'static str = "the dashboard is";

    async fn answer(&self, request: Request<Incoming>, connection: &Connection) -> Response<Body> {
        let (head, body) = request.into_parts();
        let mut answer = match self.respond(&head, body, connection).await {
            Ok(answer) => answer,
            Err((status, why)) => error(status, &why),
        };
        if answer.status() == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        HEADERS.into_iter().for_each(|(name, value)| {
            let value = HeaderValue::from_static(value);
            answer.headers_mut().insert(name, value);
        });
        answer
    }

    async fn run(&self) {
        self.shared.run().await;
    }
}

type Refused = (StatusCode, String);

impl DashboardPages {
    async fn respond(
        &self,
        head: &Parts,
        body: Incoming,
        connection: &Connection,
    ) -> Result<Response<Body>, Refused> {
        let owned = |(status, why): (StatusCode, &str)| (status, why.to_owned());
        self.access.check_host(head).map_err(owned)?;
        let page = Page::find(head.uri.path());
        let page = page.ok_or_else(|| (StatusCode::NOT_FOUND, "there is no such page".into()))?;
        if !is_served(page, &head.method) {
            return Ok(wrong_method(page));
        }
        self.access.check(head, page.aim()).map_err(owned)?;
        let bad = |why| (StatusCode::BAD_REQUEST, why);
        let query = head.uri.query();
        Ok(match page {
            Page::Asset(kind, text) => answer(StatusCode::OK, kind, text.into()),
            Page::About => object(StatusCode::OK, &self.about()),
            Page::Locks => {
                let cursor = query::locks(query).map_err(bad)?;
                self.stream(head, connection, |shared, to| {
                    streams::locks(shared, cursor, to)
                })?
            }
            Page::Lock => {
                let cursor = query::queue(query).map_err(bad)?;
                if !self.shared.feed.prefix().contains(&cursor.path) {
                    return Err((StatusCode::NOT_FOUND, "this lock is not shown here".into()));
                }
                self.stream(head, connection, |shared, to| {
                    streams::queue(shared, cursor, to)
                })?
            }
            Page::Revoke => {
                check_json(&head.headers)?;
                let body = read_all(body, MAX_BODY).await.map_err(owned)?;
                let revocation = Revocation::parse(&body).map_err(bad)?;
                let result = revoke::carry_out(&self.shared, revocation, connection.peer).await?;
                object(StatusCode::OK, &json!({ "result": result }))
            }
        })
    }

    fn about(&self) -> Value {
        json!({
            "store": self.store,
            "prefix": self.prefix,
            "version": env!("CARGO_PKG_VERSION"),
            "revoke": self.access.allows_revoke,
        })
    }

    fn stream<F>(
        &self,
        head: &Parts,
        connection: &Connection,
        serve: impl FnOnce(Arc<Shared>, tokio::sync::mpsc::Sender<hyper::body::Bytes>) -> F,
    ) -> Result<Response<Body>, Refused>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if head.method == Method::HEAD {
            return Ok(answer(StatusCode::OK, EVENTS, "".into()));
        }
        let events = streams::open(&self.shared, serve).ok_or_else(|| {
            let text = format!("{MAX_VIEWERS} pages are open already: close one, or try again");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        })?;
        connection.last();
        let mut answer = answer(StatusCode::OK, EVENTS, Body::Stream(events));
        // Without this header, nginx holds events back until they amount to a few kilobytes.
        answer
            .headers_mut()
            .insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
        Ok(answer)
    }
}

fn is_served(page: Page, method: &Method) -> bool {
    match page {
        Page::Revoke => method == Method::POST,
        _ => matches!(*method, Method::GET | Method::HEAD),
    }
}

fn wrong_method(page: Page) -> Response<Body> {
    let methods = match page {
        Page::Revoke => "POST",
        _ => "GET, HEAD",
    };
    let text = format!("this page is for {}", methods.replace(", ", " and "));
    allow(error(StatusCode::METHOD_NOT_ALLOWED, &text), methods)
}

fn check_json(headers: &HeaderMap) -> Result<(), Refused> {
    let kind = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let kind = kind.and_then(|it| it.split(';').next());
    match kind.is_some_and(|it| it.trim().eq_ignore_ascii_case(JSON)) {
        true => Ok(()),
        false => Err((
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("the body has to be {JSON}"),
        )),
    }
}

fn answer(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn object(status: StatusCode, value: &Value) -> Response<Body> {
    answer(status, JSON, format!("{value}\n").into())
}

fn error(status: StatusCode, why: &str) -> Response<Body> {
    object(status, &json!({ "error": why }))
}
