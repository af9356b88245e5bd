//! The memory of the machine, where the system does not tell it without C.

/// Returns that of a small machine, in bytes.
pub(super) fn bytes() -> u64 {
    2 << 30
}
