//! Frames: a length of four bytes, followed by that many bytes.

use super::jute::Jute;

/// Default limit of a frame, in bytes without its length: ZooKeeper's `jute.maxbuffer`, 1 MiB less one byte.
pub(crate) const LARGEST_FRAME_BYTES: usize = 0x000f_ffff;

pub(crate) const LENGTH_BYTES: usize = 4;

const KEPT_BYTES: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes, where 0 to {limit} are allowed")]
pub(crate) struct BadLength {
    pub(crate) length: i32,
    pub(crate) limit: usize,
}

/// Splits the bytes of a connection, which arrive in pieces of any size, into frames.
///
/// The buffer grows only when bytes arrive, whatever length a frame announces. Take all complete frames before you push
/// more bytes. The buffer then stays within a small multiple of one frame and one piece.
#[derive(Debug)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
    taken: usize,
    limit: usize,
}

impl Frames {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            taken: 0,
            limit,
        }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.make_room();
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame, without its length. `None` until the whole frame has arrived.
    ///
    /// # Errors
    /// [`BadLength`] for a length out of range, as soon as the length has arrived and on every later call.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, BadLength> {
        let Some(length) = self.waiting().first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = i32::from_be_bytes(*length);
        // Refuse the length before the rest of the frame arrives, so that a client cannot fill the buffer.
        let bytes = usize::try_from(length).ok().filter(|it| *it <= self.limit);
        let bytes = bytes.ok_or(BadLength {
            length,
            limit: self.limit,
        })?;
        let start = self.taken + LENGTH_BYTES;
        let Some(frame) = self.buffer.get(start..start + bytes) else {
            return Ok(None);
        };
        self.taken = start + bytes;
        Ok(Some(frame))
    }

    pub(crate) fn has_next(&self) -> bool {
        let Some(length) = self.waiting().first_chunk::<LENGTH_BYTES>() else {
            return false;
        };
        let bytes = usize::try_from(i32::from_be_bytes(*length));
        bytes.is_ok_and(|bytes| bytes > self.limit || self.waiting_bytes() >= LENGTH_BYTES + bytes)
            || bytes.is_err()
    }

    /// Returns the first four waiting bytes. On a new connection, they may be a four-letter word instead of a length.
    pub(crate) fn word(&self) -> Option<[u8; 4]> {
        self.waiting().first_chunk().copied()
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    fn make_room(&mut self) {
        if self.taken == self.buffer.len() {
            // Shrink the buffer, so that an idle connection does not keep the memory of a large request.
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            self.taken = 0;
        // Move the waiting bytes only if they are fewer than the taken bytes. Otherwise we would move all pipelined
        // frames again after each frame.
        } else if self.taken > self.buffer.len() / 2 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
    }
}

pub(crate) const SPEAKS_TLS: &str = "it speaks TLS";

pub(crate) fn foreign_protocol(answer: [u8; LENGTH_BYTES]) -> Option<&'static str> {
    match answer {
        [b'H', b'T', b'T', b'P'] => Some("it speaks HTTP"),
        [0x15 | 0x16, 3, ..] => Some(SPEAKS_TLS),
        _ => None,
    }
}

/// Appends a frame: its length, and the bytes that `body` appends.
///
/// # Panics
/// Panics if the body has 2^31 bytes or more. Replies are limited long before that.
pub(crate) fn put_frame(to: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    // Fill in the length afterwards, because computing the length first would encode every record twice.
    0_i32.put(to);
    body(to);
    let length = to.len() - start - LENGTH_BYTES;
    let length = i32::try_from(length).expect("a frame is shorter than 2^31 bytes");
    to[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(bodies: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for body in bodies {
            put_frame(&mut bytes, |to| to.extend_from_slice(body));
        }
        bytes
    }

    fn all(frames: &mut Frames) -> Result<Vec<Vec<u8>>, BadLength> {
        let mut found = Vec::new();
        while let Some(frame) = frames.next()? {
            found.push(frame.to_vec());
        }
        Ok(found)
    }

    #[test]
    fn frames_are_found_however_the_bytes_come() {
        let bodies: [&[u8]; 4] = [b"one", b"", &[7; 300], b"four"];
        let bytes = framed(&bodies);
        for piece in [1, 2, 3, 5, 7, 64, bytes.len()] {
            let mut frames = Frames::new(LARGEST_FRAME_BYTES);
            let mut found = Vec::new();
            for bytes in bytes.chunks(piece) {
                frames.push(bytes);
                found.extend(all(&mut frames).unwrap());
            }
            assert_eq!(found, bodies, "in pieces of {piece}");
            assert_eq!(frames.waiting_bytes(), 0);
        }
    }

    #[test]
    fn a_length_alone_takes_no_room() {
        let mut frames = Frames::new(LARGEST_FRAME_BYTES);
        frames.push(&(LARGEST_FRAME_BYTES as i32).to_be_bytes());
        for _ in 0..100 {
            frames.push(b"x");
            assert_eq!(frames.next(), Ok(None));
        }
        assert_eq!(frames.waiting_bytes(), 104);
        assert!(frames.buffer.capacity() < 1_000);
    }

    #[test]
    fn the_largest_frame_is_taken_and_a_larger_one_refused_at_its_length() {
        let mut frames = Frames::new(LARGEST_FRAME_BYTES);
        frames.push(&framed(&[&vec![1; LARGEST_FRAME_BYTES]]));
        let frame = frames.next().unwrap().unwrap();
        assert_eq!(frame.len(), LARGEST_FRAME_BYTES);
        for length in [LARGEST_FRAME_BYTES as i32 + 1, i32::MAX, -1, i32::MIN] {
            let mut frames = Frames::new(LARGEST_FRAME_BYTES);
            frames.push(&length.to_be_bytes());
            let limit = LARGEST_FRAME_BYTES;
            assert_eq!(frames.next(), Err(BadLength { length, limit }));
            frames.push(b"more");
            assert_eq!(frames.next(), Err(BadLength { length, limit }));
        }
    }

    #[test]
    fn a_large_frame_leaves_no_large_buffer() {
        let mut frames = Frames::new(LARGEST_FRAME_BYTES);
        frames.push(&framed(&[&vec![1; LARGEST_FRAME_BYTES]]));
        assert!(frames.next().unwrap().is_some());
        frames.push(b"");
        assert!(frames.buffer.capacity() <= KEPT_BYTES);
    }

    #[test]
    fn the_first_four_bytes_can_be_looked_at() {
        let mut frames = Frames::new(LARGEST_FRAME_BYTES);
        frames.push(b"ruo");
        assert_eq!(frames.word(), None);
        frames.push(b"k\n");
        assert_eq!(frames.word(), Some(*b"ruok"));
    }
}
