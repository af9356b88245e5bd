//! Stand-in for the machine's memory on systems that report it only to C code.

/// Returns the memory of a small machine, in bytes.
pub(super) fn bytes() -> u64 {
    2 << 30
}
