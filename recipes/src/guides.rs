//! Guides on choosing a lock, fencing, testing, operation and migration.

// The guides are files in docs/ with reference links (`[text][name]`), which each file defines at its end. Markdown
// uses the first definition of a name, so the definitions here, which precede the text, redirect the links to modules
// or repository pages.

/// Defines a link to a repository file that has no module, based on the manifest's `repository`.
macro_rules! repository {
    ($name:literal, $path:literal) => {
        concat!(
            "[",
            $name,
            "]: ",
            env!("CARGO_PKG_REPOSITORY"),
            "/blob/main/",
            $path
        )
    };
}

/// [fencing]: crate::guides::fencing
/// [interop]: crate::guides::interop
/// [migrating]: crate::guides::migrating
/// [operating]: crate::guides::operating
#[doc = repository!("others", "docs/guarantees.md#comparison-with-other-locks")]
#[doc = repository!("run", "docs/commands/run.md")]
///
#[doc = include_str!("../guides/which-lock.md")]
pub mod which_lock {}

/// [migrating]: crate::guides::migrating
/// [testing]: crate::guides::testing
#[doc = repository!("contrib", "contrib/fencing/README.md")]
///
#[doc = include_str!("../guides/fencing.md")]
pub mod fencing {}

// The code in this guide and in the migration guide needs the feature `test-util`.
#[cfg(any(not(doctest), feature = "test-util"))]
#[cfg_attr(
    feature = "test-util",
    doc = "[`TestStore`]: crate::testing::TestStore"
)]
#[cfg_attr(feature = "test-util", doc = "[`Plan`]: crate::testing::Plan")]
#[cfg_attr(not(feature = "test-util"), doc = repository!("`TestStore`", "src/testing/store.rs"))]
#[cfg_attr(not(feature = "test-util"), doc = repository!("`Plan`", "src/testing/plan.rs"))]
///
#[doc = include_str!("../guides/testing.md")]
pub mod testing {}

/// [cutover]: crate::guides::migrating#the-cutover-in-two-phases
/// [differences]: crate::guides::interop#differences-from-zookeeper
/// [directory]: crate::guides::operations#looking-after-a-data-directory
/// [operations]: crate::guides::operations
/// [operations-metrics]: crate::guides::operations#metrics
#[doc = repository!("alerts", "contrib/prometheus/alerts.yml")]
#[doc = repository!("durability", "docs/durability.md")]
#[doc = repository!("fairness", "docs/performance.md#fairness")]
#[doc = repository!("grafana", "contrib/grafana/lockkeeper.json")]
#[doc = repository!("limits", "docs/server-reference.md#when-a-limit-is-reached")]
#[doc = repository!("metrics", "docs/server-reference.md#metrics")]
#[doc = repository!("packaging", "docs/packaging.md")]
#[doc = repository!("pause", "docs/durability.md#the-pause")]
#[doc = repository!("polling", "docs/performance.md#busy-polling-of-the-server")]
#[doc = repository!("profiles", "docs/commands/local.md#profiles")]
#[doc = repository!("reference", "docs/server-reference.md")]
#[doc = repository!("unit", "contrib/systemd/lockkeeper.service")]
#[doc = repository!("warden", "docs/commands/locks.md#lockkeeper-warden-prefix")]
#[doc = repository!("words", "docs/four-letter-words.md")]
///
#[doc = include_str!("../guides/operating.md")]
pub mod operating {}

/// [operating]: crate::guides::operating
#[doc = repository!("durability", "docs/durability.md")]
#[doc = repository!("pause", "docs/durability.md#the-pause")]
#[doc = repository!("salvage", "docs/commands/salvage.md")]
///
#[doc = include_str!("../guides/operations.md")]
pub mod operations {}

/// [interop]: crate::guides::interop
#[doc = repository!("etcd-store", "docs/guarantees.md#etcd-as-the-store")]
#[doc = repository!("known-bugs", "docs/known-bugs.md")]
#[doc = repository!("performance", "docs/performance.md")]
///
#[cfg(any(not(doctest), feature = "test-util"))]
#[doc = include_str!("../guides/migrating.md")]
pub mod migrating {}

#[doc = repository!("architecture", "ARCHITECTURE.md")]
#[doc = repository!("etcd", "docs/protocol.md#keys-on-etcd")]
#[doc = repository!("protocol", "docs/protocol.md")]
///
#[doc = include_str!("../guides/interop.md")]
pub mod interop {}
