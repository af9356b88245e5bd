//! Figures: times, medians and rounding to the significant digits.

use std::collections::BTreeMap;

use super::times::PERCENTILES;
pub(crate) use super::times::{Times, rounded};

/// Figures of a round, by field name.
pub(crate) type Row = BTreeMap<String, f64>;

pub(crate) trait WriteTimes {
    /// Writes the percentiles in microseconds as `NAME_p50_us` and so on. Writes nothing if there are no times.
    fn write(&self, row: &mut Row, name: &str);
}

impl WriteTimes for Times {
    fn write(&self, row: &mut Row, name: &str) {
        if self.count() > 0 {
            let named =
                PERCENTILES.map(|(field, part)| (format!("{name}_{field}_us"), self.us(part)));
            row.extend(named);
        }
    }
}

/// Returns the median of each field over the rounds. Of violations and of grants out of arrival order, the sum.
pub(crate) fn medians(rounds: &[Row]) -> Row {
    let mut summary = Row::new();
    for field in rounds[0].keys() {
        let mut values: Vec<f64> = rounds
            .iter()
            .filter_map(|row| row.get(field).copied())
            .collect();
        // A median would hide a violation in a single round.
        let is_sum = field.ends_with("_violations") || field.starts_with("order_");
        let value = if is_sum {
            values.iter().sum()
        } else {
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        summary.insert(field.clone(), value);
    }
    summary
}
