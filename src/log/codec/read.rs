//! [`Reader`]: the reading half of the codec. It believes nothing.

use bytes::Bytes;

use super::write::NULL;
use crate::acl::Acl;
use crate::core::NodeKind;
use crate::data;
use crate::path::ZnodePath;
use crate::types::AclEntry;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Takes values from the front of some bytes.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many bytes are left.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Malformed("it ends within a field"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed("a number has more than 64 bits"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A signed number that must fit 32 bits.
    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        i32::try_from(self.signed()?).map_err(|_| Malformed("a number has more than 32 bits"))
    }

    /// A number of things that take at least one byte each: no more than bytes are left.
    pub(crate) fn count(&mut self) -> Result<usize, Malformed> {
        let count = self.varint()?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.left())
            .ok_or(Malformed("it ends within a list"))
    }

    /// So many bytes.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Malformed("it ends within a field"))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.count()?;
        self.take(count)
    }

    /// A copy: a slice would keep the whole buffer alive.
    pub(crate) fn data(&mut self) -> Result<Bytes, Malformed> {
        let is_null = self.rest.starts_with(&NULL);
        let read = self.bytes()?;
        Ok(data::copy(if is_null { data::null() } else { read }))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    pub(crate) fn path(&mut self) -> Result<ZnodePath, Malformed> {
        ZnodePath::new(self.text()?).map_err(|_| Malformed("a path breaks the rules of paths"))
    }

    pub(crate) fn acl(&mut self) -> Result<Acl, Malformed> {
        let Some(count) = self.varint()?.checked_sub(1) else {
            return Ok(Acl::open());
        };
        // Grows as entries are found: a count by itself allocates nothing.
        let entries = (0..count).map(|_| self.acl_entry());
        Ok(Acl::new(entries.collect::<Result<Vec<_>, _>>()?))
    }

    fn acl_entry(&mut self) -> Result<AclEntry, Malformed> {
        Ok(AclEntry {
            permissions: u8::try_from(self.varint()?)
                .map_err(|_| Malformed("there are no such permissions"))?,
            scheme: self.text()?.to_owned(),
            id: self.text()?.to_owned(),
        })
    }

    pub(crate) fn kind(&mut self) -> Result<NodeKind, Malformed> {
        Ok(match self.varint()? {
            0 => NodeKind::Persistent,
            1 => NodeKind::Ephemeral,
            2 => NodeKind::Container,
            3 => NodeKind::Ttl { ms: self.varint()? },
            _ => return Err(Malformed("there is no such kind of znode")),
        })
    }
}
