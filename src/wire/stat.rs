//! Records of [`Stat`] and access control lists.

use std::borrow::Cow;

use super::code::Code;
use super::jute::{Jute, Malformed, Path, Reader, Text};
use crate::model::acl::Acl;
use crate::model::types::{AclEntry, SessionId, Stat, Zxid};

const STAT_BYTES: usize = 68;

impl Jute<'_> for Stat {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        // The fields are in the order of the record. ZooKeeper added pzxid later, at the end.
        Ok(Self {
            czxid: Zxid(from.next()?),
            mzxid: Zxid(from.next()?),
            ctime: from.next()?,
            mtime: from.next()?,
            version: from.next()?,
            cversion: from.next()?,
            aversion: from.next()?,
            ephemeral_owner: SessionId(from.next()?),
            data_length: from.next()?,
            num_children: from.next()?,
            pzxid: Zxid(from.next()?),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.czxid.0.put(to);
        self.mzxid.0.put(to);
        self.ctime.put(to);
        self.mtime.put(to);
        self.version.put(to);
        self.cversion.put(to);
        self.aversion.put(to);
        self.ephemeral_owner.0.put(to);
        self.data_length.put(to);
        self.num_children.put(to);
        self.pzxid.0.put(to);
    }

    fn bytes(&self) -> usize {
        STAT_BYTES
    }
}

/// A null scheme is read as an empty scheme, which [`checked_acl`] refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AclRecord<'a> {
    pub(crate) perms: i32,
    pub(crate) scheme: Text<'a>,
    pub(crate) id: Path<'a>,
}

/// A ZooKeeper server fails on a null id if the scheme uses the id. With other schemes, it reads a null id as empty.
/// For example, kazoo sends a null id with the scheme `auth`.
///
/// If a text is not UTF-8, the entry is read without a scheme, and [`checked_acl`] refuses it. Replacing the bytes with
/// U+FFFD could make two different ids equal.
impl<'a> Jute<'a> for AclRecord<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let perms = from.next()?;
        let scheme = from.strict_text()?.unwrap_or(Ok(""));
        let id = match (scheme, from.strict_text()?) {
            (Ok("digest" | "ip" | "x509"), None) => return Err(Malformed("an id is null")),
            (_, id) => id.unwrap_or(Ok("")),
        };
        let (scheme, id) = match (scheme, id) {
            (Ok(scheme), Ok(id)) => (scheme, id),
            _ => ("", ""),
        };
        Ok(Self {
            perms,
            scheme: scheme.into(),
            id: id.into(),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.perms.put(to);
        self.scheme.put(to);
        self.id.put(to);
    }

    fn bytes(&self) -> usize {
        4 + self.scheme.bytes() + self.id.bytes()
    }
}

impl<'a> From<&'a AclEntry> for AclRecord<'a> {
    fn from(entry: &'a AclEntry) -> Self {
        Self {
            perms: entry.permissions.into(),
            scheme: Cow::Borrowed(&entry.scheme),
            id: entry.id.as_str().into(),
        }
    }
}

impl AclRecord<'_> {
    fn is_open(&self) -> bool {
        self.perms == i32::from(AclEntry::ALL) && self.scheme == "world" && self.id.0 == "anyone"
    }

    /// Drops unknown permission bits, which have no meaning in ZooKeeper either.
    fn entry(&self) -> AclEntry {
        let rights = self.perms & i32::from(AclEntry::ALL);
        AclEntry {
            permissions: u8::try_from(rights).unwrap_or(AclEntry::ALL),
            scheme: self.scheme.as_ref().to_owned(),
            id: self.id.0.as_ref().to_owned(),
        }
    }
}

/// # Errors
/// `InvalidAcl` for an empty list, or if a scheme is empty, null or not UTF-8. The store checks the other schemes and
/// the ids.
pub(crate) fn checked_acl(records: &[AclRecord<'_>]) -> Result<Acl, Code> {
    if records.is_empty() || records.iter().any(|entry| entry.scheme.is_empty()) {
        return Err(Code::InvalidAcl);
    }
    Ok(acl(records))
}

pub(crate) fn acl(records: &[AclRecord<'_>]) -> Acl {
    match records {
        [only] if only.is_open() => Acl::open(),
        list => Acl::new(list.iter().map(AclRecord::entry).collect::<Vec<_>>()),
    }
}

pub(crate) fn acl_records(acl: &Acl) -> Vec<AclRecord<'_>> {
    let open = || AclRecord {
        perms: AclEntry::ALL.into(),
        scheme: Cow::Borrowed("world"),
        id: "anyone".into(),
    };
    match acl.entries() {
        None => vec![open()],
        Some(entries) => entries.iter().map(AclRecord::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_takes_68_bytes() {
        let mut bytes = Vec::new();
        Stat::default().put(&mut bytes);
        assert_eq!(bytes.len(), STAT_BYTES);
    }

    #[test]
    fn the_open_list_is_known_and_written_out() {
        let open = Acl::open();
        assert_eq!(checked_acl(&acl_records(&open)), Ok(open.clone()));
        let own = Acl::creator_all();
        assert_eq!(checked_acl(&acl_records(&own)), Ok(own.clone()));
        assert_eq!(checked_acl(&[]), Err(Code::InvalidAcl));
    }

    #[test]
    fn a_null_id_is_refused_by_the_schemes_that_use_it() {
        for (scheme, is_good) in [
            ("auth", true),
            ("world", true),
            ("digest", false),
            ("ip", false),
        ] {
            let mut bytes = Vec::new();
            31_i32.put(&mut bytes);
            Text::from(scheme).put(&mut bytes);
            None::<Text<'_>>.put(&mut bytes);
            let read = Reader::new(&bytes).next::<AclRecord<'_>>();
            assert_eq!(read.is_ok(), is_good, "{scheme}");
        }
    }

    #[test]
    fn rights_that_there_are_not_are_dropped() {
        let record = AclRecord {
            perms: -1,
            scheme: "digest".into(),
            id: "a:b".into(),
        };
        let list = checked_acl(&[record]).unwrap();
        assert_eq!(list.entries().unwrap()[0].permissions, AclEntry::ALL);
    }
}
