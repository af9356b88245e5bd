//! Locks over `lockkeeper://` with faults at every byte of the connection, and after the server has lost its store.

mod lost_store;
mod script;
