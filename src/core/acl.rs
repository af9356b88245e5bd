//! Access control: the right that each request needs, as in ZooKeeper 3.9.

use std::collections::HashSet;

use super::budget::bytes_of_acl;
use super::journal::{LogMode, TxnOp, set_acl_bytes};
use super::sessions::{Session, SessionRef};
use super::work::Work;
use super::write::{check_version, next_version};
use super::{Core, CoreReply, Effects, End, Now, Stamp};
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::identity::{AUTH, DIGEST, Identities, Identity, is_anyone, is_valid, user_of};
use crate::model::path::ZnodePath;
use crate::model::protocol::Reply;
use crate::model::types::AclEntry;

/// Maximum number of entries of an access control list. The limit bounds the work of an access check (invariant 10).
const MAX_ENTRIES: usize = 1_024;

impl Core {
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "a server asks"))]
    pub(crate) fn superuser(&self) -> Option<&Identity> {
        self.options.super_digest.as_ref()
    }

    #[allow(dead_code, reason = "of the server")]
    pub(crate) fn identities(&self, of: SessionRef) -> &[Identity] {
        let session = self.sessions.slots.get(of.slot as usize);
        let session = session.filter(|session| session.is_of(of));
        session.map_or(&[], |session| &session.identities)
    }

    /// Replaces the superuser's digest. Sessions that proved the old digest keep their rights until their connections
    /// end.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn set_superuser(&mut self, digest: Option<Identity>) {
        self.options.super_digest = digest;
    }

    /// Adds an identity to a session. The superuser's digest also adds the superuser's identity.
    pub(crate) fn add_identity(&mut self, of: SessionRef, identity: Identity) -> Result<()> {
        let is_super = self.options.super_digest.as_ref() == Some(&identity);
        let session = self.sessions.slots.get(of.slot as usize);
        let Some(session) = session.filter(|session| session.is_of(of)) else {
            return Ok(());
        };
        let before = session.identities.bytes();
        // Only proved identities count against the limit. An address does not, because it is small, and a full store
        // must still accept the client's connection.
        if identity.is_proof() && !session.is_local {
            self.check_identity_room(before, identity.kept_bytes())?;
        }
        let session = self.sessions.get_mut(of.slot);
        let mut added = session.identities.add(identity);
        if added.is_ok() && is_super {
            added = session.identities.add(Identity::superuser());
        }
        let (is_local, after) = (session.is_local, session.identities.bytes());
        if !is_local {
            self.sessions.identity_bytes += after - before;
        }
        added
    }

    /// Adds the identity that a secret proves. A wrong secret ends the session. ZooKeeper only closes the connection,
    /// but a local session has no connection that could be closed.
    pub(super) fn add_auth(
        &mut self,
        session: SessionRef,
        scheme: &str,
        secret: &[u8],
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        match Identity::proved(scheme, secret) {
            Ok(identity) => {
                self.add_identity(session, identity)?;
                Ok(Reply::Done)
            }
            Err(refused) => {
                self.end_session(session.slot, End::Expired, now, effects);
                Err(refused)
            }
        }
    }

    #[inline]
    pub(super) fn allow(
        &self,
        session: SessionRef,
        node: u32,
        rights: u8,
        asked: impl FnOnce() -> String,
    ) -> Result<()> {
        let acl = &self.tree.node(node).acl;
        if acl.entries().is_none() {
            return Ok(());
        }
        let identities = &self.sessions.get(session.slot).identities;
        check_right(acl, rights, identities, &self.tree.work, asked)
    }

    #[inline]
    pub(super) fn listed(&self, session: SessionRef, acl: Acl, path: &ZnodePath) -> Result<Acl> {
        match acl.entries() {
            None => Ok(acl),
            Some(_) => {
                let identities = &self.sessions.get(session.slot).identities;
                resolved(acl, identities, &self.tree.work, path)
            }
        }
    }

    pub(super) fn get_acl(&self, session: SessionRef, path: &ZnodePath) -> Result<CoreReply> {
        let index = self.existing(path)?;
        let asked = || path.to_string();
        self.allow(session, index, AclEntry::READ | AclEntry::ADMIN, asked)?;
        let node = self.tree.node(index);
        // Show the digests to a session that may set the list, because it could replace the list anyway.
        let may_set = self.allow(session, index, AclEntry::ADMIN, asked).is_ok();
        let acl = match may_set {
            true => node.acl.clone(),
            false => {
                let entries = node.acl.entries().unwrap_or_default();
                self.tree.work.add(entries.len());
                masked(&node.acl)
            }
        };
        let stat = node.stat();
        Ok(Reply::Acl { acl, stat })
    }

    pub(super) fn set_acl(
        &mut self,
        session: SessionRef,
        path: ZnodePath,
        acl: Acl,
        expected: Option<i32>,
        now: Now,
    ) -> Result<CoreReply> {
        let acl = self.listed(session, acl, &path)?;
        let node = self.existing(&path)?;
        self.allow(session, node, AclEntry::ADMIN, || path.to_string())?;
        let current = self.tree.node(node).aversion;
        check_version(current, &path, expected)?;
        let before = bytes_of_acl(&self.tree.node(node).acl);
        self.check_growth(session, node, before, bytes_of_acl(&acl))?;
        self.check_txn(set_acl_bytes(&path, &acl))?;
        let aversion = next_version(current);
        let at = self.stamp(now, self.log_mode_of(self.tree.node(node).owner_slot));
        self.log(session.id, at, || TxnOp::SetAcl {
            path,
            acl: acl.clone(),
            aversion,
        });
        self.apply_set_acl(node, acl, aversion, at);
        Ok(Reply::Stat(self.tree.node(node).stat()))
    }

    /// Applies a new access control list. As in ZooKeeper, no watch fires and the znode's zxids stay the same.
    pub(super) fn apply_set_acl(&mut self, index: u32, acl: Acl, aversion: i32, at: Stamp) {
        let node = self.tree.node(index);
        let (before, after) = (bytes_of_acl(&node.acl), bytes_of_acl(&acl));
        self.sessions.recharge(node.owner_slot, before, after);
        self.tree.set_acl(index, acl);
        let node = self.tree.node_mut(index);
        node.aversion = aversion;
        if at.log_mode == LogMode::Sync {
            node.kept = at.zxid.0;
        }
    }
}

impl Session {
    pub(super) fn is_of(&self, of: SessionRef) -> bool {
        self.id == of.id && self.connection == of.connection
    }
}

#[inline]
pub(super) fn check_right(
    acl: &Acl,
    rights: u8,
    identities: &Identities,
    work: &Work,
    asked: impl FnOnce() -> String,
) -> Result<()> {
    match has_right(acl, rights, identities, work) {
        true => Ok(()),
        false => Err(Error::NoAuth { path: asked() }),
    }
}

#[inline]
pub(super) fn has_right(acl: &Acl, rights: u8, identities: &Identities, work: &Work) -> bool {
    acl.granted(identities).is_none_or(|granted| {
        work.add(granted.work);
        granted.rights & rights != 0
    })
}

/// Removes duplicates from an access control list, and replaces its `auth` entries with the creator's identities.
#[inline(never)]
pub(super) fn resolved(
    acl: Acl,
    identities: &[Identity],
    work: &Work,
    path: &ZnodePath,
) -> Result<Acl> {
    let Some(entries) = acl.entries() else {
        return Ok(acl);
    };
    let invalid = || Error::InvalidAcl {
        path: path.to_string(),
    };
    let (mut list, mut known) = (Vec::new(), HashSet::new());
    for entry in entries.iter().filter(|entry| known.insert(*entry)) {
        let before = list.len();
        if entry.scheme == AUTH {
            let proofs = identities.iter().filter(|identity| identity.is_proof());
            list.extend(proofs.map(|identity| AclEntry {
                permissions: entry.permissions,
                scheme: identity.scheme.to_owned(),
                id: identity.id.clone().into(),
            }));
        } else if is_valid(entry) {
            list.push(entry.clone());
        }
        // Refuse an invalid entry, or an `auth` entry of a client without proved identities, because ignoring the entry
        // would change the list's meaning.
        if list.len() == before {
            return Err(invalid());
        }
        if list.len() > MAX_ENTRIES {
            return Err(Error::LimitReached {
                what: "entries of an access control list",
                limit: MAX_ENTRIES,
            });
        }
    }
    work.add(list.len());
    match &list[..] {
        [] => Err(invalid()),
        [only] if is_anyone(only) && only.permissions == AclEntry::ALL => Ok(Acl::open()),
        list if list == entries => Ok(acl),
        _ => Ok(Acl::new(list)),
    }
}

/// Hides the password hashes of `digest` entries, because passwords could be guessed from them.
fn masked(acl: &Acl) -> Acl {
    let Some(entries) = acl.entries() else {
        return Acl::open();
    };
    let shown = entries.iter().map(|entry| match entry.scheme.as_str() {
        DIGEST => AclEntry {
            id: format!("{}:x", user_of(&entry.id)),
            ..entry.clone()
        },
        _ => entry.clone(),
    });
    Acl::new(shown.collect::<Vec<_>>())
}
