//! Tests of the store and its ZooKeeper backend through the public API.

mod acl;
mod common;
mod descendants;
mod differential;
mod durable;
mod extension;
mod formats;
mod four_letter_words;
#[cfg(feature = "simulation")]
mod fuzzing;
mod hostile;
mod model;
mod naive;
#[cfg(target_os = "linux")]
mod process_exit;
mod program;
mod proof;
mod refusals;
mod renegotiation;
mod rules;
mod rules_in_time;
mod rules_over_a_wire;
mod sessions;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod unix;
mod zookeeper;
