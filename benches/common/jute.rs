//! The encoding of requests, as far as they are needed here: big-endian numbers, and text and data with
//! their length in front.

use std::time::Duration;

/// Session timeout that every connection requests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Operations, by ZooKeeper's numbers.
pub(crate) mod op {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const PING: i32 = 11;
}

/// Create modes: the lifetime of a znode, and a numbered name.
pub(crate) const PERSISTENT: i32 = 0;
pub(crate) const EPHEMERAL_SEQUENTIAL: i32 = 3;

/// Encoder that appends to a request.
pub(crate) trait Put {
    fn int(&mut self, value: i32);
    fn long(&mut self, value: i64);
    fn flag(&mut self, value: bool);
    fn data(&mut self, value: &[u8]);

    fn text(&mut self, value: &str) {
        self.data(value.as_bytes());
    }

    /// Appends the ACL that permits everything to all.
    fn open_acl(&mut self) {
        self.int(1);
        self.int(0x1f);
        self.text("world");
        self.text("anyone");
    }
}

impl Put for Vec<u8> {
    fn int(&mut self, value: i32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn long(&mut self, value: i64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn flag(&mut self, value: bool) {
        self.push(value.into());
    }

    fn data(&mut self, value: &[u8]) {
        self.int(value.len() as i32);
        self.extend_from_slice(value);
    }
}

/// Appends a frame with this body.
pub(crate) fn frame(to: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.int(0);
    body(to);
    let length = (to.len() - start - 4) as i32;
    to[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends the handshake of a new session.
pub(crate) fn handshake(to: &mut Vec<u8>) {
    to.int(0);
    to.long(0);
    to.int(TIMEOUT.as_millis() as i32);
    to.long(0);
    to.data(&[0; 16]);
    to.flag(false);
}

/// Appends the body of a create.
pub(crate) fn create(to: &mut Vec<u8>, path: &str, data: &[u8], mode: i32) {
    to.text(path);
    to.data(data);
    to.open_acl();
    to.int(mode);
}

/// Appends the body of a delete of any version.
pub(crate) fn delete(to: &mut Vec<u8>, path: &str) {
    to.text(path);
    to.int(-1);
}

/// Appends the body of a read without a watch.
pub(crate) fn read(to: &mut Vec<u8>, path: &str) {
    to.text(path);
    to.flag(false);
}

/// Returns the path of a contender in a queue, with a fixed UUID.
pub(crate) fn entry(queue: &str) -> String {
    format!("{queue}/_c_6f1d2c9a-3b7e-4c58-9a43-0d5e8f7a1b26-lock-")
}

/// Returns the number at this offset.
pub(crate) fn int_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
