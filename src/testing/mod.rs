//! Fresh stores, virtual time and faults, by plan and by command.
//!
//! [`TestStore`] is the way in: a store of its own, on a clock that stands still until it is told
//! to move, whose sessions can be made to lose replies, connections and themselves. [`Faults`] is
//! the wrapper behind it, for any store.

#[cfg(test)]
mod fake;
mod faults;
#[cfg(feature = "file")]
pub mod fuzz;
#[cfg(feature = "server")]
pub mod fuzz_wire;
mod line;
mod plan;
mod pump;
mod store;
#[cfg(test)]
mod tests;
mod traffic;

pub use faults::{Faults, Whose};
pub use plan::Plan;
pub use store::{TestStore, seeds};
pub use traffic::{On, Traffic};
