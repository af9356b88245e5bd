//! Test support: fresh stores, virtual time, and fault injection.
//!
//! Start with [`TestStore`], a new store whose clock only moves when the test moves it. Its sessions can lose requests,
//! replies and connections, and can expire. [`Faults`] wraps any store.

#[cfg(feature = "simulation")]
pub mod fuzz_entries;

#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use crate::metadata::simulate_process;

#[doc(inline)]
pub use lockkeeper_store::testing::*;
