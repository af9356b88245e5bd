//! [`Times`]: a distribution of durations.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// A histogram with three significant digits. Its memory does not grow with the number of durations.
pub struct Times(Histogram<u32>);

pub const PERCENTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are possible"))
    }
}

impl Times {
    pub fn push(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.record(ns).expect("a table for any time");
    }

    pub fn append(&mut self, other: Self) {
        self.0.add(other.0).expect("a table for any time");
    }

    pub fn count(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    /// Returns a quantile in microseconds, or NaN if there are no durations.
    pub fn us(&self, part: f64) -> f64 {
        match self.0.is_empty() {
            true => f64::NAN,
            false => self.0.value_at_quantile(part) as f64 / 1e3,
        }
    }

    pub fn p50_us(&self) -> f64 {
        self.us(0.5)
    }
}

/// Rounds to four significant digits.
pub fn rounded(value: f64) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn times(us: impl IntoIterator<Item = u64>) -> Times {
        let mut times = Times::default();
        us.into_iter()
            .for_each(|us| times.push(Duration::from_micros(us)));
        times
    }

    #[test]
    fn percentiles_are_those_of_all_times_to_three_digits() {
        let mut one = times((1..=500).map(|us| 2 * us));
        one.append(times((1..=500).map(|us| 2 * us - 1)));
        assert_eq!(one.count(), 1_000);
        for (part, us) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1_000.0)] {
            let measured = one.us(part);
            assert!((measured / us - 1.0).abs() < 0.001, "{part}: {measured}");
        }
    }

    #[test]
    fn a_second_beside_nanoseconds_is_kept() {
        let mut times = times([1_000_000; 1]);
        (0..999).for_each(|_| times.push(Duration::from_nanos(7)));
        assert_eq!(times.p50_us(), 0.007);
        assert!((times.us(1.0) / 1e6 - 1.0).abs() < 0.001);
        times.push(Duration::MAX);
        assert!(times.us(1.0) > 1e15);
    }

    #[test]
    fn no_times_have_no_percentiles() {
        assert!(
            PERCENTILES
                .iter()
                .all(|(_, part)| times([]).us(*part).is_nan())
        );
        assert!(times([]).p50_us().is_nan() && times([]).count() == 0);
    }

    #[test]
    fn four_digits_are_shown() {
        assert_eq!(rounded(1234.56), json!(1235));
        assert_eq!(rounded(12.34567), json!(12.35));
        assert_eq!(rounded(0.0123456), json!(0.01235));
        assert_eq!(rounded(7.0), json!(7));
        assert_eq!(rounded(f64::NAN), Value::Null);
    }
}
