//! Test support: fresh stores, virtual time, and faults by plan and by command.
//!
//! Start with [`TestStore`], a new store on a clock that only the test moves. Its sessions can lose requests, replies
//! and connections, and can expire. [`Faults`] is the wrapper behind it, for any store.

#[cfg(test)]
mod fake;
mod faults;
#[cfg(feature = "simulation")]
pub mod fuzz;
#[cfg(feature = "simulation")]
pub mod fuzz_wire;
mod plan;
mod pump;
mod session_link;
mod store;
#[cfg(test)]
mod tests;
mod traffic;

#[doc(hidden)]
pub use crate::runtime::splitmix::Random;
pub use faults::{Faults, SessionSelector};
pub use plan::Plan;
pub use store::{TestStore, seeds};
pub use traffic::{RequestKind, Traffic};
