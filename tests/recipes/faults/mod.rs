//! Locks over `lockkeeper://` while connections are hurt at every byte, and after the server has lost its store.

mod lost_store;
mod script;
