//! The lines that say what has been measured.

use serde_json::{Value, json};

use crate::figures::{Row, rounded};

/// A line that says under which conditions, yet to be filled with figures.
pub(crate) struct Line(Value);

impl Line {
    pub(crate) fn new(url: &str, mix: &str, threads: usize) -> Self {
        let system = url.split(':').next().unwrap_or(url);
        Self(json!({ "system": system, "url": url, "mix": mix, "threads": threads }))
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
}
