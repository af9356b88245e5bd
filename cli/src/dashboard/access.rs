//! [`Access`]: decides whether the dashboard may answer a request. Does no I/O.
//!
//! Any web page can make the user's browser send requests to the dashboard. We refuse requests from other sites, which
//! we recognize by the headers that browsers add. An attacker can also make a foreign name resolve to this machine (DNS
//! rebinding). We refuse requests whose `Host` header contains such a name.

use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;

use crate::http::token::Token;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) token: Option<Token>,
    /// True if reading also needs the token, because other machines can reach the address.
    pub(crate) is_private: bool,
    pub(crate) allows_revoke: bool,
    pub(crate) hosts: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// The page itself, which contains no secrets.
    Page,
    Read,
    Revoke,
}

pub(super) type Refusal = (StatusCode, &'static str);

impl Access {
    pub(super) fn check_host(&self, head: &Parts) -> Result<(), Refusal> {
        self.host(head).map(drop).ok_or((
            StatusCode::MISDIRECTED_REQUEST,
            "this name is not one of the dashboard's: use an address or localhost, or allow the name",
        ))
    }

    pub(super) fn check(&self, head: &Parts, aim: Aim) -> Result<(), Refusal> {
        // Accept requests from other sites, because any site may link to the page.
        if aim == Aim::Page {
            return Ok(());
        }
        let host = self.host(head).unwrap_or_default();
        if !is_same_site(&head.headers, host) {
            return Err((
                StatusCode::FORBIDDEN,
                "this request comes from a page of another site, or a proxy has replaced its Host header",
            ));
        }
        if aim == Aim::Revoke && !self.allows_revoke {
            return Err((
                StatusCode::FORBIDDEN,
                "locks cannot be revoked here: the dashboard was started without --allow-revoke",
            ));
        }
        let needs_token = aim == Aim::Revoke || aim == Aim::Read && self.is_private;
        match needs_token && !self.is_proved(&head.headers) {
            true => Err((
                StatusCode::UNAUTHORIZED,
                "the token is missing or wrong: open the URL that was printed at the start",
            )),
            false => Ok(()),
        }
    }

    fn host<'a>(&self, head: &'a Parts) -> Option<&'a str> {
        let host = only(&head.headers, &HOST)??;
        let is_own = |authority: &Authority| {
            let name = authority.host();
            let literal = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
            // Accept any IP address as the host, because DNS rebinding needs a name.
            !authority.as_str().contains('@')
                && (literal.unwrap_or(name).parse::<IpAddr>().is_ok()
                    || name.eq_ignore_ascii_case("localhost")
                    || self.hosts.iter().any(|it| it.eq_ignore_ascii_case(name)))
        };
        let is_allowed = host.parse().is_ok_and(|host| is_own(&host));
        let is_allowed = is_allowed && head.uri.authority().is_none_or(is_own);
        is_allowed.then_some(host)
    }

    fn is_proved(&self, headers: &HeaderMap) -> bool {
        // Accept no passwords, because a browser would add them to requests from other sites.
        self.token
            .as_ref()
            .is_some_and(|token| token.is_bearer(headers))
    }
}

/// Returns `true` for requests from the dashboard's own page and from clients other than browsers.
fn is_same_site(headers: &HeaderMap, host: &str) -> bool {
    let site = match only(headers, &FETCH_SITE) {
        Some(None) => true,
        Some(Some(site)) => site == "same-origin" || site == "none",
        None => false,
    };
    let origin = match only(headers, &ORIGIN) {
        Some(None) => true,
        // Accept both schemes, because a proxy may have terminated TLS.
        Some(Some(origin)) => {
            let own = ["http://", "https://"].into_iter();
            own.filter_map(|scheme| origin.strip_prefix(scheme))
                .any(|it| it.eq_ignore_ascii_case(host))
        }
        None => false,
    };
    site && origin
}

/// Returns `Some(None)` if the header is missing, and `None` if the header occurs more than once or is not text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Some(None),
        (Some(value), None) => value.to_str().ok().map(Some),
        _ => None,
    }
}
