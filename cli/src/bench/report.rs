//! [`Report`]: prints a run's results as a table or JSON, line by line.

use std::io::{ErrorKind, Write};

use serde_json::{Value, json};

use super::Workload;
use super::heading::Heading;
use crate::exit::Failure;
use lockkeeper_cli::bench::times::{PERCENTILES, Times, rounded};

pub(super) struct Row {
    pub(super) workload: Workload,
    pub(super) operation: &'static str,
    pub(super) clients: usize,
    pub(super) keys: usize,
    pub(super) per_s: Option<f64>,
    pub(super) times: Times,
    /// Number of grants that violated mutual exclusion, and number of grants out of order. `None` if these were not
    /// checked.
    pub(super) violations: Option<(usize, usize)>,
    pub(super) session_timeout_ms: Option<u64>,
}

pub(super) struct Report {
    is_json: bool,
    /// Round trip in microseconds. The report also shows times as multiples of this round trip. The result of the
    /// workload `round-trip` replaces the value that was measured for the heading.
    round_trip_us: f64,
}

impl Report {
    pub(super) fn new(is_json: bool, round_trip_us: f64) -> Self {
        Self {
            is_json,
            round_trip_us,
        }
    }

    pub(super) fn begin(&mut self, heading: &Heading) -> Result<(), Failure> {
        match self.is_json {
            true => self.line(&heading.object().to_string()),
            false => self.line(&format!("{heading}\n{}", titles())),
        }
    }

    pub(super) fn row(&mut self, row: &Row) -> Result<(), Failure> {
        if row.workload == Workload::RoundTrip {
            self.round_trip_us = row.times.p50_us();
        }
        match self.is_json {
            true => self.line(&object(row, self.round_trip_us).to_string()),
            false => self.line(&shown(row, self.round_trip_us)),
        }
    }

    pub(super) fn skipped(&mut self, workload: Workload, why: &str) -> Result<(), Failure> {
        let workload = workload.name();
        match self.is_json {
            true => {
                let object = json!({ "event": "skipped", "workload": workload, "reason": why });
                self.line(&object.to_string())
            }
            false => self.line(&format!("{workload:<11} skipped: {why}")),
        }
    }

    fn line(&self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let written = writeln!(out, "{text}").and_then(|()| out.flush());
        written.map_err(|error| match error.kind() {
            // Stop the run, because its remaining results would be lost.
            ErrorKind::BrokenPipe => Failure::Other("stopped: nobody reads the output".into()),
            _ => error.into(),
        })
    }
}

fn line(cells: [&str; 10]) -> String {
    let [
        workload,
        operation,
        clients,
        count,
        per_s,
        p50,
        p99,
        p999,
        max,
        trips,
    ] = cells;
    format!(
        "{workload:<11} {operation:<13} {clients:>7} {count:>9} {per_s:>9} {p50:>9} {p99:>9} {p999:>9} {max:>9} {trips:>11}"
    )
}

fn titles() -> String {
    line([
        "WORKLOAD",
        "OPERATION",
        "CLIENTS",
        "COUNT",
        "PER S",
        "P50",
        "P99",
        "P99.9",
        "MAX",
        "ROUND TRIPS",
    ])
}

fn shown(row: &Row, round_trip_us: f64) -> String {
    let [p50, p99, p999, max] = PERCENTILES.map(|(_, part)| us(row.times.us(part)));
    line([
        &row.workload.name(),
        row.operation,
        &row.clients.to_string(),
        &row.times.count().to_string(),
        &row.per_s.map_or_else(|| "-".into(), per_s),
        &p50,
        &p99,
        &p999,
        &max,
        &match row.session_timeout_ms {
            // Do not compare this time with the round trip, because it depends on the session timeout and not on the
            // network.
            Some(_) => "-".to_owned(),
            None => format!("{:.1}", row.times.p50_us() / round_trip_us),
        },
    ])
}

fn object(row: &Row, round_trip_us: f64) -> Value {
    let mut object = json!({
        "event": "measured",
        "workload": row.workload.name(),
        "operation": row.operation,
        "clients": row.clients,
        "keys": row.keys,
        "count": row.times.count(),
        "per_s": row.per_s.map(rounded),
        "round_trips": rounded(row.times.p50_us() / round_trip_us),
    });
    for (name, part) in PERCENTILES {
        object[format!("{name}_us")] = rounded(row.times.us(part));
    }
    if let Some((exclusion, order)) = row.violations {
        object["exclusion_violations"] = exclusion.into();
        object["order_violations"] = order.into();
    }
    if let Some(timeout) = row.session_timeout_ms {
        object["session_timeout_ms"] = timeout.into();
    }
    object
}

pub(super) fn us(us: f64) -> String {
    match us {
        _ if us.is_nan() => "-".into(),
        ..999.5 => format!("{} µs", digits(us)),
        ..999_500.0 => format!("{} ms", digits(us / 1e3)),
        _ => format!("{} s", digits(us / 1e6)),
    }
}

fn per_s(rate: f64) -> String {
    if rate < 100.0 {
        return digits(rate);
    }
    let text = format!("{rate:.0}");
    let mut shown = String::new();
    for (at, digit) in text.char_indices() {
        if at > 0 && (text.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

fn digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(times_us: &[u64]) -> Row {
        let mut times = Times::default();
        times_us
            .iter()
            .for_each(|us| times.push(Duration::from_micros(*us)));
        Row {
            workload: Workload::HandOver,
            operation: "wait",
            clients: 8,
            keys: 1,
            per_s: Some(12_345.6),
            times,
            violations: Some((0, 0)),
            session_timeout_ms: None,
        }
    }

    #[test]
    fn times_and_rates_have_three_digits_and_a_unit() {
        let times = [
            (0.35, "0.35 µs"),
            (23.14, "23.1 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (99_960.0, "100 ms"),
            (4_012_000.0, "4.01 s"),
            (123_456_789.0, "123 s"),
            (f64::NAN, "-"),
        ];
        for (time, text) in times {
            assert_eq!(us(time), text);
        }
        for (rate, text) in [
            (0.5, "0.50"),
            (99.0, "99.0"),
            (1_234.5, "1,234"),
            (1e6, "1,000,000"),
        ] {
            assert_eq!(per_s(rate), text);
        }
    }

    #[test]
    fn the_cells_stand_below_their_titles() {
        let end = |line: &str, cell: &str| {
            let at = line.find(cell).unwrap_or_else(|| panic!("{cell}: {line}"));
            line[..at + cell.len()].chars().count()
        };
        let (titles, shown) = (titles(), shown(&row(&[10, 20, 3_000]), 10.0));
        assert!(shown.starts_with("hand-over   wait "), "{shown}");
        for (title, cell) in [
            ("CLIENTS", " 8"),
            ("COUNT", " 3"),
            ("PER S", "12,346"),
            ("P50", "20.0 µs"),
            ("MAX", "3.00 ms"),
            ("ROUND TRIPS", " 2.0"),
        ] {
            match title {
                "MAX" => assert!(shown.matches(cell).count() == 3, "{shown}"),
                _ => assert_eq!(end(&titles, title), end(&shown, cell), "{titles}\n{shown}"),
            }
        }
        assert_eq!(titles.chars().count(), shown.chars().count());
    }

    #[test]
    fn objects_have_a_field_for_each_cell() {
        // The histogram is exact for such short times.
        let object = object(&row(&[1]), 0.5);
        assert_eq!(object["workload"], "hand-over");
        assert_eq!(
            (&object["p50_us"], &object["round_trips"]),
            (&1.into(), &2.into())
        );
        assert_eq!(object["per_s"], 12_346);
        assert_eq!(object["exclusion_violations"], 0);
        assert!(object.get("session_timeout_ms").is_none(), "{object}");
        let nothing = super::object(&row(&[]), 10.0);
        assert_eq!(
            (&nothing["count"], &nothing["p50_us"]),
            (&0.into(), &Value::Null)
        );
    }
}
