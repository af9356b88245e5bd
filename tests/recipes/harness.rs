//! Machinery that the recipes' tests share: a recipe supplies only its scenario.

pub(crate) mod cancel;
pub(crate) mod costs;
pub(crate) mod model;
pub(crate) mod wire_costs;
