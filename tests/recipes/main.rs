//! The tests of the recipes. Those in `on_every_backend!` run on the embedded store and on a real
//! ZooKeeper.

#[path = "../support/mod.rs"]
mod support;

mod cancel;
mod common;
mod events;
mod guard;
#[cfg(feature = "zookeeper")]
mod kazoo;
mod known_bugs;
mod mutex;
mod observe;
mod seeds;
mod types;
mod wakes;
