//! Locks over `lockkeeper://` while connections are hurt at every byte, and while the server is killed.

mod killed;
mod lost_store;
mod script;
mod server;
