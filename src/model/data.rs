//! Null data. A server's clients distinguish null from empty data. Code in this process treats null as empty data.
//!
//! We recognize null by its address. It is an empty slice inside a static of this module, where no other slice can
//! start or end. So null passes through the store like any other data.

use bytes::Bytes;

static PLACE: [u8; 2] = [0; 2];

pub(crate) fn null() -> &'static [u8] {
    &PLACE[1..1]
}

pub(crate) fn is_null(data: &[u8]) -> bool {
    data.is_empty() && std::ptr::eq(data.as_ptr(), null().as_ptr())
}

pub(crate) fn copy(data: &[u8]) -> Bytes {
    if is_null(data) {
        Bytes::from_static(null())
    } else {
        Bytes::copy_from_slice(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_stays_null_and_nothing_else_becomes_it() {
        let kept = copy(null());
        assert!(is_null(&kept) && is_null(&kept.clone()));
        assert_eq!(kept, Bytes::new());
        for other in [copy(b""), Bytes::new(), copy(b"x"), copy(b"x").slice(1..)] {
            assert!(!is_null(&other) && !is_null(&other.clone()));
        }
    }
}
