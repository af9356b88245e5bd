//! The tests of the recipes. Those in `on_every_backend!` run on the embedded store and on a real
//! ZooKeeper.

#[path = "../support/mod.rs"]
mod support;

mod blocking;
mod busy;
mod cancel;
mod common;
mod confirmed;
mod copied;
#[cfg(feature = "zookeeper")]
mod curator;
mod election;
mod endings;
#[cfg(feature = "zookeeper")]
mod ensemble;
mod events;
mod family;
#[cfg(all(feature = "file", feature = "server", feature = "client"))]
mod faults;
mod foreign;
mod forked;
#[cfg(feature = "simulation")]
mod fuzzing;
mod guard;
mod harness;
mod idle;
#[cfg(feature = "zookeeper")]
mod kazoo;
#[cfg(feature = "zookeeper")]
mod kill;
#[cfg(all(feature = "server", feature = "client", target_os = "linux"))]
mod killed;
mod known_bugs;
mod lease;
mod list_locks;
mod local;
mod many;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "zookeeper")]
mod mixed;
mod mutex;
mod nested;
mod observe;
mod old_servers;
mod once_per;
#[cfg(feature = "zookeeper")]
mod peer;
#[cfg(all(feature = "file", feature = "server", feature = "client"))]
mod process_end;
mod reentrant;
mod refusals;
#[cfg(all(feature = "file", feature = "server", feature = "client"))]
mod restore;
mod revocation;
#[cfg(all(feature = "file", feature = "server", feature = "client"))]
mod runtimes;
mod rwlock;
mod scenarios;
mod seeds;
mod self_deadlock;
mod semaphore;
mod team;
mod token;
mod traced;
mod types;
mod untaken;
mod wakes;
mod warden;
