//! Figures: times, medians, and rounding to the significant digits.

use std::collections::BTreeMap;

use super::times::PERCENTILES;
pub(crate) use super::times::{Times, rounded};

/// Figures of a round, by the names of the fields.
pub(crate) type Row = BTreeMap<String, f64>;

/// Writes times into a row.
pub(crate) trait WriteTimes {
    /// Writes the percentiles, in microseconds, as `NAME_p50_us` and so on. Writes nothing where there are no times.
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

/// The median of each field over the rounds; of faults, and of grants in another order than that of arrival, the sum.
pub(crate) fn medians(rounds: &[Row]) -> Row {
    let mut summary = Row::new();
    for field in rounds[0].keys() {
        let mut values: Vec<f64> = rounds
            .iter()
            .filter_map(|row| row.get(field).copied())
            .collect();
        // A median would hide a violation that only one round has.
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
