//! [`Identity`]: a proved identity that access control entries can match. [`Identities`]: all identities of one client.
//! Their number and size are limited, because a single `auth` entry may expand to all of them.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use sha1::{Digest, Sha1};

use crate::model::error::{Error, Result};
use crate::model::types::AclEntry;

/// Placeholder in an entry. The store replaces it with all identities that the session has proved.
pub(crate) const AUTH: &str = "auth";
pub(crate) const DIGEST: &str = "digest";
pub(crate) const IP: &str = "ip";
const X509: &str = "x509";
/// The user of a Unix socket's client, proved by the kernel.
const UID: &str = "uid";
/// The superuser, who may do everything. No access control list contains this scheme.
const SUPER: &str = "super";

/// Proof of an identity, as `user:password`. The `Debug` output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Bytes);

impl Secret {
    /// Creates a secret.
    pub fn new(secret: impl Into<Bytes>) -> Self {
        Self(secret.into())
    }

    /// Returns the bytes, for a backend to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) scheme: &'static str,
    /// A digest's id contains a hash, so use [`shown`](Self::shown) to show an id.
    pub(crate) id: Box<str>,
}

impl Identity {
    pub(crate) fn proved(scheme: &str, secret: &[u8]) -> Result<Self> {
        match scheme {
            DIGEST => Ok(Self::digest(secret)),
            _ => Err(Error::AuthFailed),
        }
    }

    /// Returns the identity `user:base64(sha1(user:password))`. As on a ZooKeeper server, invalid UTF-8 becomes U+FFFD,
    /// and a secret without a colon is a user without a password.
    pub(crate) fn digest(secret: &[u8]) -> Self {
        let secret = String::from_utf8_lossy(secret);
        let user = user_of(&secret);
        let hash = BASE64_STANDARD.encode(Sha1::digest(secret.as_bytes()));
        Self {
            scheme: DIGEST,
            id: format!("{user}:{hash}").into(),
        }
    }

    pub(crate) fn written_digest(text: &str) -> Option<Self> {
        let (user, hash) = text.split_once(':')?;
        let bytes = BASE64_STANDARD.decode(hash).ok()?;
        let is_hash = bytes.len() == <Sha1 as Digest>::output_size();
        (is_hash && !user.is_empty()).then(|| Self {
            scheme: DIGEST,
            id: text.into(),
        })
    }

    #[allow(dead_code, reason = "of the server")]
    pub(crate) fn ip(address: IpAddr) -> Self {
        Self {
            scheme: IP,
            id: address.to_canonical().to_string().into(),
        }
    }

    #[allow(dead_code, reason = "of the server")]
    pub(crate) fn uid(uid: u32) -> Self {
        Self {
            scheme: UID,
            id: uid.to_string().into(),
        }
    }

    #[allow(dead_code, reason = "of the server")]
    pub(crate) fn x509(name: &str) -> Self {
        Self {
            scheme: X509,
            id: name.into(),
        }
    }

    pub(crate) fn superuser() -> Self {
        Self {
            scheme: SUPER,
            id: "".into(),
        }
    }

    fn bytes(&self) -> usize {
        self.scheme.len() + self.id.len()
    }

    pub(crate) fn kept_bytes(&self) -> usize {
        IDENTITY_BYTES + COPIES * self.id.len()
    }

    pub(crate) fn check_size(&self) -> Result<()> {
        if self.bytes() <= MAX_IDENTITY_BYTES {
            return Ok(());
        }
        Err(Error::TooLarge {
            what: "an identity",
            actual: self.bytes(),
            limit: MAX_IDENTITY_BYTES,
        })
    }

    /// Returns the id without a digest's hash, so that it may be shown.
    pub(crate) fn shown(&self) -> &str {
        match self.scheme {
            DIGEST => user_of(&self.id),
            _ => &self.id,
        }
    }

    pub(crate) fn is_superuser(&self) -> bool {
        self.scheme == SUPER
    }

    /// Returns true if the client has proved the identity. Entries of the scheme `auth` expand only to proved
    /// identities.
    pub(crate) fn is_proof(&self) -> bool {
        matches!(self.scheme, DIGEST | X509 | UID)
    }

    pub(crate) fn is_meant_by(&self, entry: &AclEntry) -> bool {
        self.scheme == entry.scheme
            && match self.scheme {
                IP => {
                    let address = self.id.parse();
                    Network::parse(&entry.id)
                        .is_some_and(|network| address.is_ok_and(|address| network.has(address)))
                }
                _ => *self.id == *entry.id,
            }
    }
}

/// Does not show hashes, because passwords could be guessed from them.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.shown())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Maximum length of a scheme and its id together. A certificate's name rarely exceeds a few hundred bytes.
const MAX_IDENTITY_BYTES: usize = 4 << 10;

const IDENTITY_BYTES: usize = 192;

/// Number of copies of a served session's identities: in the store, at its connection, and in replies to whoAmI.
const COPIES: usize = 3;

/// Maximum number of identities of a client. A check looks up each identity in the whole access control list.
const MAX_IDENTITIES: usize = 64;

/// Maximum total length of a client's identities. An entry of the scheme `auth` expands to all of them, and a multi can
/// contain such an entry for each znode that it creates.
const MAX_IDENTITIES_BYTES: usize = 16 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Identities {
    all: Vec<Identity>,
    /// Number of this set of identities, above 0. No different set in this process ever gets the same number.
    stamp: u64,
}

const NO_IDENTITIES: u64 = 1;

impl Default for Identities {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            stamp: NO_IDENTITIES,
        }
    }
}

impl Identities {
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    pub(crate) fn new(identities: impl IntoIterator<Item = Identity>) -> Result<Self> {
        let mut all = Self::default();
        let mut identities = identities.into_iter();
        identities.try_for_each(|identity| all.add(identity))?;
        Ok(all)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.all.iter().map(Identity::kept_bytes).sum()
    }

    /// Adds an identity, unless the set already contains it. On an error, nothing is added. The limits do not apply to
    /// the superuser's identity, because it is only added together with another identity.
    pub(crate) fn add(&mut self, identity: Identity) -> Result<()> {
        static LAST_STAMP: AtomicU64 = AtomicU64::new(NO_IDENTITIES);
        if self.all.contains(&identity) {
            return Ok(());
        }
        if !identity.is_superuser() {
            identity.check_size()?;
            let bytes: usize = self.all.iter().map(Identity::bytes).sum();
            check_limit(
                "identities of a session",
                self.all.len() + 1,
                MAX_IDENTITIES,
            )?;
            let what = "bytes of a session's identities";
            check_limit(what, bytes + identity.bytes(), MAX_IDENTITIES_BYTES)?;
        }
        self.all.push(identity);
        self.stamp = LAST_STAMP.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(())
    }
}

fn check_limit(what: &'static str, actual: usize, limit: usize) -> Result<()> {
    match actual <= limit {
        true => Ok(()),
        false => Err(Error::LimitReached { what, limit }),
    }
}

impl std::ops::Deref for Identities {
    type Target = [Identity];

    fn deref(&self) -> &[Identity] {
        &self.all
    }
}

pub(crate) fn is_anyone(entry: &AclEntry) -> bool {
    entry.scheme == "world" && entry.id == "anyone"
}

/// Returns true if the entry's id is valid for its scheme. `auth` entries must already be expanded.
pub(crate) fn is_valid(entry: &AclEntry) -> bool {
    match entry.scheme.as_str() {
        // ZooKeeper splits the id with Java's `split`, which drops empty parts at the end.
        DIGEST => entry.id.trim_end_matches(':').matches(':').count() == 1,
        IP => Network::parse(&entry.id).is_some(),
        X509 => is_distinguished_name(&entry.id) || is_alternative_name(&entry.id),
        UID => is_uid(&entry.id),
        _ => is_anyone(entry),
    }
}

/// Returns true for a user id in the form that the server writes. Other forms would match no client.
fn is_uid(id: &str) -> bool {
    let uid = id.parse::<u32>();
    uid.is_ok_and(|uid| uid.to_string() == id)
}

pub(crate) fn user_of(digest: &str) -> &str {
    digest.split(':').next().unwrap_or_default()
}

fn is_distinguished_name(name: &str) -> bool {
    let mut parts = Vec::new();
    let (mut start, mut is_escaped, mut is_quoted) = (0, false, false);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' | b';' | b'+' if !is_quoted => {
                parts.push(&name[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&name[start..]);
    let is_attribute = |part: &&str| {
        let named = part.split_once('=').map(|(name, _)| name.trim());
        named.is_some_and(|name| !name.is_empty() && !name.contains('"'))
    };
    !is_escaped && !is_quoted && parts.iter().all(is_attribute)
}

/// Returns true for an alternative name, such as `DNS:a.example`. An alternative name cannot be confused with a
/// subject, whose first attribute has a `=` before any colon.
fn is_alternative_name(id: &str) -> bool {
    let name = id.strip_prefix("URI:").or_else(|| id.strip_prefix("DNS:"));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// Range of addresses, written `ADDRESS[/BITS]`.
#[derive(Debug)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).ok()?;
        (bits <= width).then_some(Self { address, bits })
    }

    pub(crate) fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                // `/0` shifts out all bits, which Rust treats as an overflow. Every address matches in this case.
                differ.checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(scheme: &str, id: &str) -> AclEntry {
        AclEntry {
            permissions: AclEntry::ALL,
            scheme: scheme.into(),
            id: id.into(),
        }
    }

    #[test]
    fn a_digest_is_zookeepers() {
        let digest = Identity::digest(b"super:test");
        assert_eq!(&*digest.id, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
        assert_eq!(Identity::written_digest(&digest.id), Some(digest.clone()));
        assert_eq!(digest.shown(), "super");
        assert_eq!(format!("{digest:?}"), "digest:super");
        assert!(Identity::digest(b"alone").id.starts_with("alone:"));
    }

    #[test]
    fn a_password_is_no_digest() {
        for text in [
            "",
            "user",
            "user:",
            "user:password",
            ":D/InIHSb7yEEbrWz8b9l71RjZJU=",
        ] {
            assert_eq!(Identity::written_digest(text), None, "{text:?}");
        }
    }

    #[test]
    fn each_scheme_knows_its_ids() {
        let valid = [
            ("world", "anyone"),
            ("digest", "user:hash"),
            ("digest", ":hash"),
            ("ip", "10.0.0.1"),
            ("ip", "10.0.0.0/8"),
            ("ip", "0.0.0.0/0"),
            ("ip", "::1"),
            ("ip", "fe80::/10"),
            ("x509", "CN=client,O=a\\, b,C=\"x, y\""),
            ("x509", "URI:spiffe://example/a"),
            ("x509", "DNS:a.example"),
            ("uid", "0"),
            ("uid", "1000"),
        ];
        for (scheme, id) in valid {
            assert!(is_valid(&entry(scheme, id)), "{scheme}:{id}");
        }
        let invalid = [
            ("world", "nobody"),
            ("digest", "user"),
            ("digest", "user:"),
            ("digest", "a:b:c"),
            ("ip", ""),
            ("ip", "10.0.0"),
            ("ip", "10.0.0.1/33"),
            ("ip", "10.0.0.1/-1"),
            ("ip", "10.0.0.1/8/8"),
            ("ip", "localhost"),
            ("x509", ""),
            ("x509", "client"),
            ("x509", "CN=a,b"),
            ("x509", "CN=\"a"),
            ("x509", "URI:"),
            ("x509", "DNS:a b"),
            ("uid", ""),
            ("uid", "root"),
            ("uid", "01"),
            ("uid", "+1"),
            ("uid", "-1"),
            ("uid", "4294967296"),
            ("auth", ""),
            ("super", ""),
            ("sasl", "user"),
            ("", "anyone"),
        ];
        for (scheme, id) in invalid {
            assert!(!is_valid(&entry(scheme, id)), "{scheme}:{id}");
        }
    }

    #[test]
    fn an_address_is_meant_by_the_networks_that_have_it() {
        let at = |address: &str| Identity::ip(address.parse().unwrap());
        for (address, network, is_meant) in [
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("10.1.2.3", "10.1.2.2/31", true),
            ("10.1.2.3", "192.168.0.0/0", true),
            ("10.1.2.3", "::/0", false),
            ("::ffff:10.1.2.3", "10.1.2.3/32", true),
            ("fe80::1", "fe80::/10", true),
            ("2001:db8::1", "fe80::/10", false),
            ("2001:db8::1", "::/0", true),
        ] {
            let entry = entry("ip", network);
            assert_eq!(
                at(address).is_meant_by(&entry),
                is_meant,
                "{address} {network}"
            );
        }
    }

    #[test]
    fn no_secret_proves_what_a_connection_alone_can() {
        for scheme in ["uid", "x509", "ip", "super", "auth", "world"] {
            for secret in ["0", "", "anyone"] {
                assert!(
                    Identity::proved(scheme, secret.as_bytes()).is_err(),
                    "{scheme}"
                );
            }
        }
        assert!(Identity::uid(0).is_proof());
    }

    #[test]
    fn only_the_same_name_is_meant() {
        let digest = Identity::digest(b"user:secret");
        assert!(digest.is_meant_by(&entry("digest", &digest.id)));
        assert!(!Identity::digest(b"user:other").is_meant_by(&entry("digest", &digest.id)));
        assert!(!digest.is_meant_by(&entry("x509", &digest.id)));
        assert!(Identity::x509("CN=a").is_meant_by(&entry("x509", "CN=a")));
        assert!(!Identity::x509("CN=a").is_meant_by(&entry("x509", "CN=b")));
        assert!(Identity::uid(10).is_meant_by(&entry("uid", "10")));
        assert!(!Identity::uid(10).is_meant_by(&entry("uid", "1")));
    }
}
