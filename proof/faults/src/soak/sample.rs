//! [`Sample`]: the figures of a soak at one time, by name, and their JSON form. Does no I/O.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Figures at one time. A name consists of a process and a figure: `server.rss`, `client-0.fds`,
/// `client-0.lockkeeper.grants`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Seconds since the start of the load.
    pub(super) at: f64,
    pub(super) figures: BTreeMap<String, f64>,
}

impl Sample {
    pub(super) fn add(&mut self, process: &str, figure: &str, value: f64) {
        self.figures.insert(format!("{process}.{figure}"), value);
    }

    pub(super) fn get(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    pub(super) fn sum(&self, figure: &str) -> f64 {
        let of_processes = self
            .figures
            .iter()
            .filter(|(name, _)| figure_of(name) == figure);
        of_processes.map(|(_, value)| value).sum()
    }

    pub(super) fn json(&self) -> String {
        let mut line = format!("{{\"at\":{:.1}", self.at);
        for (name, value) in &self.figures {
            let _ = write!(line, ",\"{name}\":{}", number(*value));
        }
        line.push('}');
        line
    }
}

pub(super) fn figure_of(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn number(value: f64) -> String {
    match value.fract() == 0.0 {
        true => format!("{value:.0}"),
        false => format!("{value:.2}"),
    }
}

/// Returns the values of a series between two times, given as shares of the total.
pub(super) fn between(samples: &[Sample], name: &str, from: f64, to: f64) -> Vec<f64> {
    let end = samples.last().map_or(0.0, |sample| sample.at);
    let within = samples
        .iter()
        .filter(|sample| sample.at >= from * end && sample.at <= to * end);
    within.filter_map(|sample| sample.get(name)).collect()
}

/// Returns the median, or 0 without values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_line_of_json() {
        let mut sample = Sample {
            at: 1.25,
            ..Sample::default()
        };
        sample.add("server", "rss", 12.0);
        sample.add("client-0", "p99", 0.125);
        assert_eq!(
            sample.json(),
            r#"{"at":1.2,"client-0.p99":0.12,"server.rss":12}"#
        );
        sample.add("client-1", "p99", 1.0);
        assert_eq!(sample.sum("p99"), 1.125);
    }

    #[test]
    fn a_median_ignores_a_peak() {
        assert_eq!(median(vec![1.0, 900.0, 2.0, 3.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
