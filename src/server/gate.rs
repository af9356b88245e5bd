//! [`Admission`]: who a client has shown to be, and whether that lets it in.

use std::net::IpAddr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::identity::{Identities, Identity};

/// Whom a server lets in.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) requires_auth: bool,
    /// Whose digests count; empty: anybody's.
    pub(super) users: Vec<Identity>,
    pub(super) superuser: Option<Identity>,
}

/// What one client has shown.
pub(super) struct Admission {
    policy: Arc<Policy>,
    is_proven: bool,
    /// The same as the store has of this connection, by the same limits: what is refused there is not
    /// kept here either.
    identities: Identities,
    /// What whoAmI tells: schemes and users.
    who: Arc<[(String, String)]>,
}

/// What a proof of identity is worth.
pub(super) enum Proof {
    /// This identity.
    Of(Identity),
    /// Nothing that was not known already.
    Nothing,
    Refused,
    /// One more than a client may have, or one that is too long.
    BeyondLimit(Error),
}

impl Admission {
    pub(super) fn new(policy: Arc<Policy>, address: IpAddr) -> Self {
        Self {
            policy,
            is_proven: false,
            identities: Identities::default(),
            who: [("ip".to_owned(), address.to_string())].into(),
        }
    }

    /// Adds an identity that the client has proved: before its first request, by its certificate, or now.
    ///
    /// # Errors
    /// By the limits of [`Identities`].
    pub(super) fn add(&mut self, identity: &Identity) -> Result<()> {
        self.identities.add(identity.clone())?;
        self.is_proven |= identity.is_proof();
        let known = self.who.iter().cloned();
        let entry = (identity.scheme.to_string(), identity.shown().to_owned());
        if !self.who.contains(&entry) {
            self.who = known.chain([entry]).collect();
        }
        Ok(())
    }

    /// Whether the client may ask for anything.
    pub(super) fn lets_in(&self) -> bool {
        self.is_proven || !self.policy.requires_auth
    }

    pub(super) fn who(&self) -> Arc<[(String, String)]> {
        self.who.clone()
    }

    /// Judges what a client has sent to prove an identity.
    pub(super) fn prove(&mut self, scheme: &str, secret: &[u8]) -> Proof {
        if scheme == "ip" {
            return Proof::Nothing;
        }
        let Ok(identity) = Identity::proved(scheme, secret) else {
            return Proof::Refused;
        };
        let policy = &self.policy;
        let is_known = policy.users.is_empty()
            || policy.users.contains(&identity)
            || policy.superuser.as_ref() == Some(&identity);
        if !is_known {
            return Proof::Refused;
        }
        match self.add(&identity) {
            Ok(()) => Proof::Of(identity),
            Err(error) => Proof::BeyondLimit(error),
        }
    }
}
