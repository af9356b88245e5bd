//! Shared machinery. A recipe's tests add only the scenario.

pub(crate) mod cancel;
pub(crate) mod costs;
pub(crate) mod model;
pub(crate) mod wire_costs;
