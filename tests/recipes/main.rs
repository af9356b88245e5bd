//! The recipes' tests. `on_every_backend!` runs a test on the embedded store and on a real ZooKeeper, among others.

mod blocking;
mod busy;
mod cancel;
mod common;
mod confirmed;
mod copied;
mod curator;
mod election;
mod endings;
mod ensemble;
mod etcd;
mod events;
mod family;
mod faults;
mod foreign;
mod forked;
#[cfg(feature = "simulation")]
mod fuzzing;
mod guard;
mod harness;
mod idle;
mod kazoo;
#[cfg(target_os = "linux")]
mod killed;
mod known_bugs;
mod lease;
mod list_locks;
mod local;
mod many;
#[cfg(feature = "metrics")]
mod metrics;
mod mixed;
mod mutex;
mod nested;
mod observe;
mod old_servers;
mod once_per;
mod peer;
mod process_end;
mod reentrant;
mod refusals;
mod restore;
mod revocation;
mod runtimes;
mod rwlock;
mod scenarios;
mod self_deadlock;
mod semaphore;
mod team;
mod token;
mod traced;
mod types;
mod untaken;
mod wakes;
mod warden;
