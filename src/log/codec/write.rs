//! [`Put`]: the writing half of the codec.

use crate::acl::Acl;
use crate::core::NodeKind;
use crate::data;
use crate::path::ZnodePath;

/// Null data: a length of 0, longer than it has to be. Who does not know it reads empty data.
pub(super) const NULL: [u8; 2] = [0x80, 0];

/// Appends values to a buffer.
pub(crate) trait Put {
    fn put_varint(&mut self, value: u64);
    fn put_bytes(&mut self, bytes: &[u8]);

    /// The data of a znode. Null has a length of 0 as well, in two bytes.
    fn put_data(&mut self, data: &[u8]);

    /// One byte, 0 or 1.
    fn put_flag(&mut self, flag: bool) {
        self.put_varint(flag.into());
    }

    /// As a zigzag varint: small numbers of either sign are short.
    fn put_signed(&mut self, value: i64) {
        self.put_varint(((value << 1) ^ (value >> 63)) as u64);
    }

    fn put_path(&mut self, path: &ZnodePath) {
        self.put_bytes(path.as_str().as_bytes());
    }

    /// 0 for the open list, else the number of entries + 1, and the entries.
    fn put_acl(&mut self, acl: &Acl) {
        let Some(entries) = acl.entries() else {
            return self.put_varint(0);
        };
        self.put_varint(entries.len() as u64 + 1);
        for entry in entries {
            self.put_varint(entry.permissions.into());
            self.put_bytes(entry.scheme.as_bytes());
            self.put_bytes(entry.id.as_bytes());
        }
    }

    fn put_kind(&mut self, kind: NodeKind) {
        match kind {
            NodeKind::Persistent => self.put_varint(0),
            NodeKind::Ephemeral => self.put_varint(1),
            NodeKind::Container => self.put_varint(2),
            NodeKind::Ttl { ms } => {
                self.put_varint(3);
                self.put_varint(ms);
            }
        }
    }
}

impl Put for Vec<u8> {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_data(&mut self, data: &[u8]) {
        if data::is_null(data) {
            self.extend_from_slice(&NULL);
        } else {
            self.put_bytes(data);
        }
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}
