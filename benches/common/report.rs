//! The report: one JSON object per line, with the conditions and the figures.

use serde_json::{Value, json};

use super::figures::{Row, rounded};

/// A line of the report. It contains the conditions. The figures are added by `print`.
#[derive(Clone)]
pub(crate) struct Line(Value);

impl Line {
    /// Creates a line about a workload on a system, and on a store if there is a URL.
    pub(crate) fn new(system: &str, url: &str, workload: &str) -> Self {
        let line = Self(json!({ "system": system, "workload": workload }));
        if url.is_empty() {
            line
        } else {
            line.with("url", url)
        }
    }

    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
        self
    }

    pub(crate) fn print(mut self, row: &Row) {
        for (field, value) in row {
            self.0[field] = rounded(*value);
        }
        println!("{}", self.0);
    }

    /// Prints the ratio of a figure to another system's.
    pub(crate) fn print_ratio(self, field: &str, to: &str, value: f64) {
        let line = self.with("ratio", field).with("to", to);
        line.with("value", rounded(value)).print(&Row::new());
    }

    /// Prints why there is nothing to measure.
    pub(crate) fn print_skipped(self, why: &str) {
        self.with("skipped", why).print(&Row::new());
    }
}
