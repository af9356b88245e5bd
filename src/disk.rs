//! Data directories of [`Store::file`](crate::Store::file), from outside: backup, restore, inspection and salvage. The command
//! `lockkeeper` (package `lockkeeper-cli`) offers the same.
//!
//! In the repository, `docs/durability.md` has the formats by byte and the guarantees for each kind of stop, and
//! `docs/operations.md` the procedures.

pub use crate::log::backup::{Summary, backup, backup_to, restore};
pub use crate::log::inspect::{
    Inspection, Problem, SegmentInfo, SegmentState, SessionInfo, SnapshotInfo, Subtree, inspect,
    inspect_top,
};
pub use crate::log::salvage::{Loss, LostPlace, Salvage, salvage};
