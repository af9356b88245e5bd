//! Test support: fresh stores, virtual time, and fault injection.
//!
//! Start with [`TestStore`], a new store whose clock moves only when the test moves it. Its sessions can lose requests,
//! replies and connections, and can expire. [`Faults`] injects the same faults into any other store.

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
