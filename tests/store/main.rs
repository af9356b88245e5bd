//! The tests of the store and of its ZooKeeper backend, through their public interface.

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod common;
#[cfg(feature = "file")]
mod descendants;
mod differential;
#[cfg(feature = "file")]
mod durable;
#[cfg(all(feature = "file", feature = "server"))]
mod extension;
#[cfg(feature = "file")]
mod formats;
#[cfg(feature = "server")]
mod four_letter_words;
#[cfg(feature = "file")]
#[cfg(feature = "simulation")]
mod fuzzing;
mod hostile;
mod model;
mod naive;
#[cfg(all(feature = "server", feature = "client", target_os = "linux"))]
mod process_exit;
mod program;
mod proof;
#[cfg(all(feature = "server", feature = "client"))]
mod refusals;
mod renegotiation;
mod rules;
mod rules_in_time;
mod rules_over_a_wire;
mod sessions;
#[cfg(all(feature = "server", feature = "tls"))]
mod tls;
#[cfg(all(feature = "server", feature = "tls", feature = "client"))]
mod unix;
#[cfg(feature = "server")]
#[path = "../support/wire.rs"]
mod wire;
mod zookeeper;
