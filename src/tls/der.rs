//! [`Reader`]: a DER reader for certificates that rustls has already verified. Even so, it returns `None` for malformed
//! input and never panics.

pub(super) struct Reader<'a>(&'a [u8]);

#[derive(Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// All bytes of the value, including its tag and length.
    pub(super) whole: &'a [u8],
}

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next value, or `None` at the end and for malformed DER. Treats multi-byte tags as malformed, because
    /// the parts that we read have none.
    pub(super) fn next(&mut self) -> Option<Value<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        if tag & 0x1f == 0x1f {
            return None;
        }
        let digits = usize::from(first & 0x7f);
        let (length, rest) = match first < 0x80 {
            true => (digits, rest),
            false if (1..=4).contains(&digits) => {
                let (digits, rest) = rest.split_at_checked(digits)?;
                let length = digits
                    .iter()
                    .fold(0, |length, digit| length << 8 | usize::from(*digit));
                (length, rest)
            }
            false => return None,
        };
        let (content, after) = rest.split_at_checked(length)?;
        let (whole, _) = self.0.split_at_checked(self.0.len() - after.len())?;
        self.0 = after;
        Some(Value {
            tag,
            content,
            whole,
        })
    }

    pub(super) fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let value = self.next()?;
        (value.tag == tag).then_some(value.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_each_other() {
        let mut reader = Reader::new(&[0x02, 0x01, 0x05, 0x30, 0x81, 0x01, 0x07]);
        assert_eq!(reader.expect(0x02), Some(&[5][..]));
        let value = reader.next().unwrap();
        assert_eq!((value.tag, value.content), (SEQUENCE, &[7][..]));
        assert_eq!(value.whole, [0x30, 0x81, 0x01, 0x07]);
        assert!(reader.is_empty() && reader.next().is_none());
    }

    #[test]
    fn what_is_cut_off_or_no_der_is_an_absence() {
        for bytes in [
            &[0x30][..],
            &[0x30, 0x02, 0x00],
            &[0x30, 0x80, 0x00, 0x00],
            &[0x30, 0x85, 0, 0, 0, 0, 0],
            &[0x30, 0x82, 0x01],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 0x00],
            &[0x1f, 0x81, 0x01, 0x00],
        ] {
            assert!(Reader::new(bytes).next().is_none(), "{bytes:x?}");
        }
    }
}
