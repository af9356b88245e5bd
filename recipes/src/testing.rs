//! Test support: fresh stores, virtual time, and faults by plan and by command.
//!
//! Start with [`TestStore`]: a new store, on a clock that stands still until the test moves it. Its sessions can lose
//! requests, replies and connections, and can expire. [`Faults`] is the wrapper behind it, for any store.

#[cfg(feature = "simulation")]
pub mod fuzz_entries;

#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use crate::metadata::simulate_process;

#[doc(inline)]
pub use lockkeeper_store::testing::*;
