//! Guides: which lock for which job, fencing, testing, operation, migration. They contain prose alone; their code is
//! compiled with the tests.
//!
//! - [`which_lock`]: the recipe and the store for a job.
//! - [`fencing`]: how a resource refuses the writes of former holders.
//! - [`testing`]: a lock that is lost on demand, in virtual time.
//! - [`operating`]: the server `lockkeeper serve`.
//! - [`operations`]: locks in operation, and the data directory.
//! - [`migrating`]: from Redis, Redlock, etcd, Curator or kazoo.
//! - [`interop`]: one path shared with other clients of ZooKeeper.

// The guides link to each other as files, for readers of the repository. A definition before a guide's text takes
// precedence over that in the file, and leads to the module here.

/// [fencing]: crate::guides::fencing
/// [migrating]: crate::guides::migrating
///
#[doc = include_str!("../guides/which-lock.md")]
pub mod which_lock {}

/// [migrating]: crate::guides::migrating
/// [testing]: crate::guides::testing
///
#[doc = include_str!("../guides/fencing.md")]
pub mod fencing {}

// Of this guide and of the one on migration, the code needs a feature; the text does not.
#[cfg(any(not(doctest), feature = "test-util"))]
#[cfg_attr(
    feature = "test-util",
    doc = "[`TestStore`]: crate::testing::TestStore"
)]
#[cfg_attr(feature = "test-util", doc = "[`Plan`]: crate::testing::Plan\n\n")]
#[doc = include_str!("../guides/testing.md")]
pub mod testing {}

#[doc = include_str!("../guides/operating.md")]
pub mod operating {}

#[doc = include_str!("../guides/operations.md")]
pub mod operations {}

/// [interop]: crate::guides::interop
///
#[cfg(any(not(doctest), feature = "test-util"))]
#[doc = include_str!("../guides/migrating.md")]
pub mod migrating {}

#[doc = include_str!("../guides/interop.md")]
pub mod interop {}
