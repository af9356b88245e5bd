//! Figures: times, medians, and rounding to the significant digits.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

/// Figures of a round, by the names of the fields.
pub(crate) type Row = BTreeMap<String, f64>;

/// The median of each field over the rounds; of faults the sum.
pub(crate) fn medians(rounds: &[Row]) -> Row {
    let mut summary = Row::new();
    for field in rounds[0].keys() {
        let mut values: Vec<f64> = rounds
            .iter()
            .filter_map(|row| row.get(field).copied())
            .collect();
        // A median would hide a violation that only one round has.
        let value = if field.ends_with("_violations") {
            values.iter().sum()
        } else {
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        summary.insert(field.clone(), value);
    }
    summary
}

/// Four significant digits; whole numbers as such.
pub(crate) fn rounded(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    let digits = 3 - value.abs().max(1e-9).log10().floor() as i32;
    if digits <= 0 || value.fract() == 0.0 {
        return json!(value.round() as i64);
    }
    let scale = 10f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// Times of one kind, collected over a round.
#[derive(Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time.as_nanos() as u64);
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the median, in microseconds.
    pub(crate) fn p50_us(mut self) -> f64 {
        self.0.sort_unstable();
        let middle = self.0.len().saturating_sub(1) / 2;
        self.0.get(middle).map_or(f64::NAN, |&ns| ns as f64 / 1e3)
    }

    /// Writes the median and the 99th percentile, in microseconds.
    pub(crate) fn write(mut self, row: &mut Row, what: &str) {
        if self.0.is_empty() {
            return;
        }
        self.0.sort_unstable();
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let at = ((self.0.len() - 1) as f64 * share) as usize;
            row.insert(format!("{what}_{name}_us"), self.0[at] as f64 / 1e3);
        }
    }
}
