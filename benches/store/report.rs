//! The lines that say what has been measured.

use serde_json::Value;

use crate::args::Args;
use crate::figures::{Row, rounded};

/// A line that says under which conditions, yet to be filled with figures.
pub(crate) struct Line(Value);

impl Line {
    pub(crate) fn new(args: &Args, workload: &str) -> Self {
        let mut line = serde_json::json!({
            "system": "lockkeeper",
            "url": args.url,
            "workload": workload,
            "threads": args.threads,
        });
        let is_served = args.url.starts_with("lockkeeper:");
        if is_served {
            line["data"] = args.data.as_str().into();
        }
        if args.folder().is_some() || is_served && args.data != "memory" {
            line["durability"] = args.durability.name().into();
        }
        Self(line)
    }

    /// A line of something else than the store.
    pub(crate) fn system(self, system: &str) -> Self {
        self.with("system", system)
    }

    /// Adds a condition.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
        self
    }

    /// Prints the line with these figures.
    pub(crate) fn print(mut self, row: &Row) {
        for (field, value) in row {
            self.0[field] = rounded(*value);
        }
        println!("{}", self.0);
    }

    /// Prints how one figure compares with another.
    pub(crate) fn print_ratio(self, field: &str, to: &str, value: f64) {
        let line = self.with("ratio", field).with("to", to);
        line.with("value", rounded(value)).print(&Row::new());
    }

    /// Says why there is nothing to measure.
    pub(crate) fn print_skipped(self, why: &str) {
        self.with("skipped", why).print(&Row::new());
    }
}
