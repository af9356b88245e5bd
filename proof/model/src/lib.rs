//! A model of the queue protocol, checked exhaustively for a few clients by the model checker stateright.
//!
//! A state contains a store, the sessions and connections of its clients, and each client's recipe as a state machine.
//! Faults are actions limited by a budget. The properties are the invariants of ARCHITECTURE.md, by number. The
//! command checks the [configurations](Config::standard). A [`Mistake`] changes one rule of the protocol, to show that
//! a property detects it.
//!
//! A second model, [`LeaseModel`], contains the rule by which a client proves an etcd lease.

mod check;
mod client;
mod config;
mod connection;
mod faults;
mod lease;
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
pub use lease::{LEASE, LeaseAction, LeaseMistake, LeaseModel, LeaseState, check_lease};
pub use mistake::Mistake;
pub use model::{Action, QueueModel, State};
pub use properties::{EXCLUSION, FIFO, LEFT_BEHIND, PROGRESS, TOKENS, VERIFIED, WATCHES};
