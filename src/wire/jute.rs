//! Jute, the encoding of ZooKeeper's records. Integers are big-endian, and a length precedes each text, byte array and
//! list.
//!
//! Values borrow from the frame, and only lists allocate. We never trust a length in a frame, so a list grows while its
//! entries are read. In memory, a list takes at most sixteen times as many bytes as its entries take in the frame.

use std::borrow::Cow;
use std::str::Utf8Error;

use super::frame::LENGTH_BYTES;
use crate::model::data;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

impl Malformed {
    const CUT: Self = Self("it ends within a field");
}

/// Text. Null is read as an empty text. As in Java, bytes that are not UTF-8 are read as U+FFFD, which no path may
/// contain.
pub(crate) type Text<'a> = Cow<'a, str>;

/// Bytes or null. Null is a special empty slice ([`data::null`]). Java clients write both null and empty data, and must
/// read back the same.
pub(crate) type Data<'a> = &'a [u8];

pub(crate) trait Jute<'a>: Sized {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed>;

    fn put(&self, to: &mut Vec<u8>);

    fn bytes(&self) -> usize;
}

#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn next<T: Jute<'a>>(&mut self) -> Result<T, Malformed> {
        T::read(self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed::CUT)?;
        self.rest = rest;
        Ok(*head)
    }

    fn counted(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let length: i32 = self.next()?;
        if length == -1 {
            return Ok(None);
        }
        // Java servers also fail on a length that is below -1 or beyond the end of the frame.
        let length = usize::try_from(length).map_err(|_| Malformed("a length is negative"))?;
        let (head, rest) = self.rest.split_at_checked(length).ok_or(Malformed::CUT)?;
        self.rest = rest;
        Ok(Some(head))
    }

    fn text(&mut self) -> Result<Option<Text<'a>>, Malformed> {
        Ok(self.counted()?.map(|bytes| match str::from_utf8(bytes) {
            // Try `from_utf8` first, because most texts are UTF-8 and the lossy conversion is several times slower.
            Ok(text) => Text::Borrowed(text),
            Err(_) => String::from_utf8_lossy(bytes),
        }))
    }

    pub(super) fn strict_text(&mut self) -> Result<Option<Result<&'a str, Utf8Error>>, Malformed> {
        Ok(self.counted()?.map(str::from_utf8))
    }
}

fn put_counted(bytes: &[u8], to: &mut Vec<u8>) {
    put_count(bytes.len(), to);
    to.extend_from_slice(bytes);
}

pub(crate) fn put_count(count: usize, to: &mut Vec<u8>) {
    i32::try_from(count).unwrap_or(i32::MAX).put(to);
}

fn put_null(to: &mut Vec<u8>) {
    (-1_i32).put(to);
}

impl Jute<'_> for i32 {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.array().map(Self::from_be_bytes)
    }

    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.to_be_bytes());
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl Jute<'_> for i64 {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.array().map(Self::from_be_bytes)
    }

    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.to_be_bytes());
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

/// Any byte but 0 is true, as in Java.
impl Jute<'_> for bool {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.array().map(|[byte]| byte != 0)
    }

    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn bytes(&self) -> usize {
        1
    }
}

impl<'a> Jute<'a> for Text<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(from.text()?.unwrap_or_default())
    }

    fn put(&self, to: &mut Vec<u8>) {
        put_counted(self.as_bytes(), to);
    }

    fn bytes(&self) -> usize {
        LENGTH_BYTES + self.len()
    }
}

impl<'a> Jute<'a> for Option<Text<'a>> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.text()
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Some(text) => text.put(to),
            None => put_null(to),
        }
    }

    fn bytes(&self) -> usize {
        LENGTH_BYTES + self.as_ref().map_or(0, |text| text.len())
    }
}

impl<'a> Jute<'a> for Data<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(from.counted()?.unwrap_or(data::null()))
    }

    fn put(&self, to: &mut Vec<u8>) {
        if data::is_null(self) {
            put_null(to);
        } else {
            put_counted(self, to);
        }
    }

    fn bytes(&self) -> usize {
        LENGTH_BYTES + self.len()
    }
}

impl<'a> Jute<'a> for Option<Data<'a>> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.counted()
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Some(data) => data.put(to),
            None => put_null(to),
        }
    }

    fn bytes(&self) -> usize {
        LENGTH_BYTES + self.map_or(0, <[u8]>::len)
    }
}

/// A negative count is read as an empty list, as in Java. [`NonNullList`] refuses null.
impl<'a, T: Jute<'a>> Jute<'a> for Vec<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count: i32 = from.next()?;
        let mut list = Vec::new();
        // Reserve no capacity for `count`, because we do not trust it.
        for _ in 0..count {
            list.push(from.next()?);
        }
        Ok(list)
    }

    fn put(&self, to: &mut Vec<u8>) {
        put_count(self.len(), to);
        self.iter().for_each(|entry| entry.put(to));
    }

    fn bytes(&self) -> usize {
        LENGTH_BYTES + self.iter().map(T::bytes).sum::<usize>()
    }
}

/// A path or another text that must not be null, because a ZooKeeper server fails on null.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Path<'a>(pub(crate) Text<'a>);

impl<'a> Jute<'a> for Path<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.text()?
            .map(Self)
            .ok_or(Malformed("a text is null that may not be"))
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl<'a, T: Into<Text<'a>>> From<T> for Path<'a> {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NonNullList<T>(pub(crate) Vec<T>);

impl<'a, T: Jute<'a>> Jute<'a> for NonNullList<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        if from.rest.starts_with(&(-1_i32).to_be_bytes()) {
            return Err(Malformed("a list is null"));
        }
        from.next().map(Self)
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$about:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name $(<$life>)? { $($(#[$about])* pub(crate) $field: $kind,)* }

        $crate::wire::jute::record_impl!($name $(<$life>)? { $($field)* });
    )*};
}

macro_rules! record_impl {
    ($name:ident { $($field:ident)* }) => {
        impl<'r> $crate::wire::jute::Jute<'r> for $name {
            $crate::wire::jute::record_impl!(@body 'r $($field)*);
        }
    };
    ($name:ident <$life:lifetime> { $($field:ident)* }) => {
        impl<$life> $crate::wire::jute::Jute<$life> for $name<$life> {
            $crate::wire::jute::record_impl!(@body $life $($field)*);
        }
    };
    (@body $life:lifetime $($field:ident)*) => {
        fn read(
            from: &mut $crate::wire::jute::Reader<$life>,
        ) -> Result<Self, $crate::wire::jute::Malformed> {
            Ok(Self { $($field: from.next()?,)* })
        }

        fn put(&self, to: &mut Vec<u8>) {
            $(self.$field.put(to);)*
        }

        fn bytes(&self) -> usize {
            0 $(+ self.$field.bytes())*
        }
    };
}

/// Declares an enum whose variants are the records of operations. Variants without fields follow the semicolon.
macro_rules! by_op {
    ($(#[$doc:meta])* $enum:ident {
        $($(#[$about:meta])* $name:ident($($field:ident: $kind:ty),*) = $op:ident $(| $more:ident)*,)*
        ; $($(#[$told:meta])* $bare:ident = $bare_op:ident $(| $bare_more:ident)*,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is the record of the operation of its name")]
        pub(crate) enum $enum<'a> {
            $($(#[$about])* $name($($kind),*),)*
            $($(#[$told])* $bare,)*
        }

        impl<'a> $enum<'a> {
            /// Reads the record of an operation. Ignores bytes after the record, as ZooKeeper does.
            pub(crate) fn read(op: Op, from: &mut Reader<'a>) -> Result<Self, Malformed> {
                Ok(match op {
                    $(Op::$op $(| Op::$more)* => Self::$name($(from.next::<$kind>()?),*),)*
                    $(Op::$bare_op $(| Op::$bare_more)* => Self::$bare,)*
                    #[allow(unreachable_patterns, reason = "some enums have a record for every operation")]
                    _ => return Err(Malformed("the operation is not allowed here")),
                })
            }

            pub(crate) fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$name($($field),*) => { $($field.put(to);)* })*
                    $(Self::$bare => {})*
                }
            }

            #[allow(dead_code, reason = "only the size of responses is limited")]
            pub(crate) fn bytes(&self) -> usize {
                match self {
                    $(Self::$name($($field),*) => 0 $(+ $field.bytes())*,)*
                    $(Self::$bare => 0,)*
                }
            }

            #[allow(dead_code, reason = "a response does not know its operation")]
            pub(crate) fn op(&self) -> Op {
                match self {
                    $(Self::$name(..) => Op::$op,)*
                    $(Self::$bare => Op::$bare_op,)*
                }
            }
        }
    };
}

pub(crate) use {by_op, record_impl, records};

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a, T: Jute<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
        Reader::new(bytes).next()
    }

    #[test]
    fn null_is_empty_where_it_may_be_and_refused_where_a_server_stumbles() {
        let null = [0xff; 4];
        assert_eq!(read::<Text<'_>>(&null), Ok("".into()));
        assert_eq!(read::<Option<Text<'_>>>(&null), Ok(None));
        assert_eq!(read::<Data<'_>>(&null), Ok(&[][..]));
        assert_eq!(read::<Option<Data<'_>>>(&null), Ok(None));
        assert_eq!(read::<Vec<i32>>(&null), Ok(vec![]));
        assert_eq!(
            read::<Path<'_>>(&null),
            Err(Malformed("a text is null that may not be"))
        );
        assert_eq!(
            read::<NonNullList<i32>>(&null),
            Err(Malformed("a list is null"))
        );
    }

    #[test]
    fn other_negative_lengths_are_refused_and_other_negative_counts_are_none() {
        let negative = (-2_i32).to_be_bytes();
        let refused = Malformed("a length is negative");
        assert_eq!(read::<Text<'_>>(&negative), Err(refused));
        assert_eq!(read::<Data<'_>>(&negative), Err(refused));
        assert_eq!(read::<Path<'_>>(&negative), Err(refused));
        assert_eq!(read::<Vec<i32>>(&negative), Ok(vec![]));
        assert_eq!(read::<NonNullList<i32>>(&negative), Ok(NonNullList(vec![])));
    }

    #[test]
    fn a_length_beyond_the_end_is_refused_and_allocates_nothing() {
        let huge = [0x7f, 0xff, 0xff, 0xff, 1, 2, 3, 4];
        assert_eq!(read::<Text<'_>>(&huge), Err(Malformed::CUT));
        assert_eq!(read::<Data<'_>>(&huge), Err(Malformed::CUT));
        assert_eq!(read::<Vec<i32>>(&huge), Err(Malformed::CUT));
        assert_eq!(read::<Vec<Text<'_>>>(&huge), Err(Malformed::CUT));
    }

    #[test]
    fn what_is_no_utf_8_is_replaced_as_java_replaces_it() {
        assert_eq!(
            read::<Text<'_>>(b"\0\0\0\x03a\xffb"),
            Ok("a\u{fffd}b".into())
        );
    }

    #[test]
    fn whatever_is_not_zero_is_true() {
        assert_eq!(read::<bool>(&[7]), Ok(true));
        assert_eq!(read::<bool>(&[0]), Ok(false));
    }
}
