//! [`Token`]: the secret that grants access to pages.

use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use hyper::header::{AUTHORIZATION, HeaderMap};
use subtle::ConstantTimeEq;

const TOKEN_BYTES: RangeInclusive<usize> = 16..=1_024;

#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(BASE64_URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Reads a token from the first line of a file. Error messages do not contain the token.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let told = |error| format!("{shown} cannot be read: {error}");
        // Check the type before opening the file, because opening a named pipe would wait for a writer.
        if !path.metadata().map_err(told)?.is_file() {
            return Err(format!("{shown} is not a file"));
        }
        let file = File::open(path).map_err(told)?;
        // Check the opened file, because the path may lead to another file by now.
        let found = file.metadata().map_err(told)?;
        let mode = found.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(format!(
                "{shown} can be read by others (mode {mode:03o}), who would know the token: `chmod 600` makes it private"
            ));
        }
        let mut text = String::new();
        let limit = *TOKEN_BYTES.end() as u64 + 2;
        file.take(limit).read_to_string(&mut text).map_err(told)?;
        let token = text.lines().next().unwrap_or_default().trim();
        let is_printable = token.bytes().all(|c| c.is_ascii_graphic());
        match TOKEN_BYTES.contains(&token.len()) && is_printable {
            true => Ok(Self(token.to_owned())),
            false => Err(format!(
                "{shown} has no token: expected 16 to 1,024 letters, digits or signs without blanks, as from `openssl \
                 rand -hex 32`"
            )),
        }
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_bearer(&self, headers: &HeaderMap) -> bool {
        authorization(headers)
            .is_some_and(|(scheme, secret)| scheme == "bearer" && self.is(secret.trim()))
    }

    /// Returns `true` if a request presents this token as a bearer token or as any user's password.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let password = || {
            let (scheme, pair) = authorization(headers)?;
            let pair = BASE64_STANDARD.decode(pair.trim()).ok()?;
            let pair = String::from_utf8(pair).ok().filter(|_| scheme == "basic")?;
            Some(self.is(pair.split_once(':')?.1))
        };
        self.is_bearer(headers) || password().unwrap_or(false)
    }

    /// Compares in constant time.
    fn is(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Returns the authorization scheme in lower case and the value. Returns `None` unless there is exactly one such
/// header.
fn authorization(headers: &HeaderMap) -> Option<(String, &str)> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
    Some((scheme.to_ascii_lowercase(), rest))
}
