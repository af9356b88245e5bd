//! Model of the queue protocol, checked exhaustively for a few clients by the model checker stateright.
//!
//! A state holds a store, the sessions and connections of its clients, and the recipe of each client as a state machine;
//! faults are actions that a budget bounds. The properties are the invariants of ARCHITECTURE.md, by number. The command
//! checks the [configurations](Config::standard); a [`Mistake`] changes one rule of the protocol, to show that a property
//! notices.

mod check;
mod client;
mod config;
mod connection;
mod faults;
mod mistake;
mod model;
mod properties;
mod queue;
mod recipe;
mod server;
mod story;
mod symmetry;

pub use check::{Outcome, Violation, check, shortest_violation};
pub use config::{Budgets, Config, StoreKind};
pub use mistake::Mistake;
pub use model::{Action, QueueModel, State};
pub use properties::{EXCLUSION, FIFO, LEFT_BEHIND, PROGRESS, TOKENS, VERIFIED, WATCHES};
