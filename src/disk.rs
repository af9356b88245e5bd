//! Data directories of [`Store::file`](crate::Store::file), from outside: backup and restore, and a
//! look at their content. The command `lockkeeper` (package `lockkeeper-cli`) does the same.
//!
//! `docs/durability.md` in the repository has the formats by byte, and what survives which kind of
//! stop; `docs/operations.md` says what to do when.

pub use crate::log::backup::{Summary, backup, restore};
pub use crate::log::inspect::{
    Inspection, Problem, SegmentInfo, SegmentState, SessionInfo, SnapshotInfo, Subtree, inspect,
    inspect_top,
};
