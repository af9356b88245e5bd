//! Frames: a length of four bytes, and so many bytes.

use super::jute::Jute;

/// The longest frame that a server takes, in bytes without its length: ZooKeeper's `jute.maxbuffer`.
pub(crate) const LARGEST_FRAME_BYTES: usize = 0x000f_ffff;

/// The bytes of a frame's length.
pub(crate) const LENGTH_BYTES: usize = 4;

/// A buffer that has grown beyond this is given back once it is empty.
const KEPT_BYTES: usize = 16 * 1024;

/// A length that no frame has. The connection is closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes, where 0 to {limit} are allowed")]
pub(crate) struct BadLength {
    pub(crate) length: i32,
    pub(crate) limit: usize,
}

/// Finds the frames in what comes over a connection, in pieces of any size.
///
/// It holds what has arrived, in a buffer that grows with it: a length alone allocates nothing. Take
/// all frames before pushing more; then what waits is less than one frame, and the buffer at most
/// some times one frame and one piece.
#[derive(Debug)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
    /// How much of the buffer has been taken.
    taken: usize,
    limit: usize,
}

impl Frames {
    /// For frames up to this many bytes, their length not counted.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            taken: 0,
            limit,
        }
    }

    /// From now on for frames up to this many bytes.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds what has arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.make_room();
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, without its length; `None` until it has arrived.
    ///
    /// # Errors
    /// When the length is none that a frame may have, as soon as it is known. All later calls say the same.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, BadLength> {
        let Some(length) = self.waiting().first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = i32::from_be_bytes(*length);
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

    /// Whether [`next`](Self::next) would give a frame, or say that there is none.
    pub(crate) fn has_next(&self) -> bool {
        let Some(length) = self.waiting().first_chunk::<LENGTH_BYTES>() else {
            return false;
        };
        let bytes = usize::try_from(i32::from_be_bytes(*length));
        bytes.is_ok_and(|bytes| bytes > self.limit || self.waiting_bytes() >= LENGTH_BYTES + bytes)
            || bytes.is_err()
    }

    /// The first four bytes that were not taken yet: on a new connection they may be a four-letter word
    /// instead of a length. See [`Word::parse`](super::admin::Word::parse).
    pub(crate) fn word(&self) -> Option<[u8; 4]> {
        self.waiting().first_chunk().copied()
    }

    /// How many bytes have arrived and were not taken: more than 0 within a frame.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Drops what was taken, when that is worth moving the rest.
    fn make_room(&mut self) {
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            self.taken = 0;
        } else if self.taken > self.buffer.len() / 2 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
    }
}

/// Appends a frame: its length, and what `body` appends.
///
/// # Panics
/// When the body is longer than a length of 31 bits can say; replies are limited long before that.
pub(crate) fn put_frame(to: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
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
