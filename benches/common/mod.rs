//! Parts that the benchmarks share: options, the format of the report, servers, and a plain connection.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

pub(crate) mod connection;
pub(crate) mod disk;
pub(crate) mod figures;
pub(crate) mod jute;
pub(crate) mod options;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod store_server;
