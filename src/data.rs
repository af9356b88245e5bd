//! Data that are null: served clients tell them from empty ones. In this process they are empty.
//!
//! Null is a place, not a value: an empty slice that lies within a static of this module, where no
//! other slice can end or begin. So it goes through the store as any data do, in no more room.

use bytes::Bytes;

static PLACE: [u8; 2] = [0; 2];

/// Returns the slice that stands for null.
pub(crate) fn null() -> &'static [u8] {
    &PLACE[1..1]
}

/// Returns true if these data are null.
pub(crate) fn is_null(data: &[u8]) -> bool {
    data.is_empty() && std::ptr::eq(data.as_ptr(), null().as_ptr())
}

/// Copies data; null stays null.
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
