//! The checks of a soak: nothing grows, nothing is left behind, and everything makes progress. Does no I/O.
//!
//! The first tenth of the samples is a warm-up, in which caches fill and the allocator grows. The median of the last
//! quarter of the run is then compared with the median of the second quarter. Medians ignore single peaks, such as a
//! snapshot loaded during a sample, but a leak moves them.

use std::fmt::Write;

use super::sample::{Sample, between, figure_of, median};

/// Growth that a series may show from the second quarter of the run to the last.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Allowance {
    factor: f64,
    constant: f64,
    /// Scales with the load. The backlog of background work is its arrival rate times the waiting time (Little's law),
    /// so it grows when the machine becomes free for more load.
    follows_load: bool,
}

const MIB: f64 = 1024.0 * 1024.0;

/// Returns the rule of each figure, or `None` for one that is only displayed.
fn allowance(figure: &str) -> Option<Allowance> {
    let (factor, constant) = match figure {
        // Allows for allocator pages that are mostly in use.
        "rss" => (1.2, 8.0 * MIB),
        // A snapshot, a backup and a reload each have a thread for a moment.
        "threads" => (1.0, 2.0),
        // Varies with the number of connections that open and close.
        "fds" => (1.0, 8.0),
        // Includes short-lived sessions, and dropped waits that are still being cleaned up.
        "tasks" | "sessions" | "connections" | "ephemerals" | "cleanups" => (1.2, 32.0),
        // Containers wait for the reaper, and watches for events.
        "znodes" | "watches" => (1.2, 500.0),
        "store_bytes" => (1.2, MIB),
        // Series of metrics. A label with a lock's name would create ever more of them. The time of the newest
        // snapshot is absent before the first one, which a slow machine may write late.
        "metrics" => (1.0, 1.0),
        _ => return None,
    };
    Some(Allowance {
        factor,
        constant,
        follows_load: figure == "znodes",
    })
}

/// Disk space in bytes that a store may use according to docs/durability.md.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskBound {
    pub(super) snapshot: f64,
    /// Most bytes written from the end of one snapshot to the end of the next. This includes writes during the
    /// snapshot, because its start cannot be observed.
    pub(super) between: f64,
}

impl DiskBound {
    /// Returns the bound: three snapshots, six segments of 64 MiB, and the log since the older of two snapshots. A
    /// snapshot starts after as much log as its own size but at least 16 MiB, or when the previous one is done. The
    /// log continues to grow while it is made.
    pub(super) fn bytes(self) -> f64 {
        let needed = self.snapshot.max(16.0 * MIB).max(self.between);
        3.0 * self.snapshot + 2.0 * needed + self.between + 6.0 * 64.0 * MIB
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct Growth {
    pub(super) name: String,
    /// Medians of the second and the last quarter.
    pub(super) early: f64,
    pub(super) late: f64,
    pub(super) peak: f64,
    /// Maximum that the rule allows for the last quarter.
    pub(super) limit: Option<f64>,
}

impl Growth {
    fn is_too_much(&self) -> bool {
        self.limit.is_some_and(|limit| self.late > limit)
    }
}

pub(super) fn growths(samples: &[Sample]) -> Vec<Growth> {
    let names = samples.last().map(|last| last.figures.keys());
    let names = names.into_iter().flatten();
    names.map(|name| growth(samples, name)).collect()
}

fn growth(samples: &[Sample], name: &str) -> Growth {
    // Both quarters are after the warm-up, even in a short run.
    let early = median(between(samples, name, 0.25, 0.5));
    let late = median(between(samples, name, 0.75, 1.0));
    let all = between(samples, name, 0.1, 1.0);
    let limit = |allowed: Allowance| {
        let load = match allowed.follows_load {
            true => load_growth(samples, name).max(1.0),
            false => 1.0,
        };
        allowed.factor * load * early + allowed.constant
    };
    Growth {
        name: name.to_owned(),
        early,
        late,
        peak: all.into_iter().fold(0.0, f64::max),
        limit: allowance(figure_of(name)).map(limit),
    }
}

/// Returns the rate of a process's requests in the last quarter relative to the second, or 1 if it counts none.
fn load_growth(samples: &[Sample], name: &str) -> f64 {
    let requests = name.replace(figure_of(name), "requests");
    let of = |from, to| {
        let counts = between(samples, &requests, from, to);
        let (first, last) = (counts.first()?, counts.last()?);
        (last > first).then_some(last - first)
    };
    match (of(0.25, 0.5), of(0.75, 1.0)) {
        (Some(early), Some(late)) => late / early,
        _ => 1.0,
    }
}

pub(super) fn leaks(samples: &[Sample]) -> Vec<String> {
    let grown = growths(samples).into_iter().filter(Growth::is_too_much);
    let tell = |growth: Growth| {
        let Growth {
            name, early, late, ..
        } = growth;
        let limit = growth.limit.unwrap_or_default();
        format!("growth: {name} from {early:.0} to {late:.0}, allowed {limit:.0}")
    };
    grown.map(tell).collect()
}

/// Returns a violation if a store used more disk space than it may.
pub(super) fn beyond_the_disk(samples: &[Sample], name: &str, bound: DiskBound) -> Option<String> {
    beyond(samples, name, bound.bytes())
}

/// Returns a violation if a series was ever above its limit.
pub(super) fn beyond(samples: &[Sample], name: &str, limit: f64) -> Option<String> {
    let values = between(samples, name, 0.0, 1.0);
    let most = values.into_iter().fold(0.0, f64::max);
    (most > limit).then(|| format!("limit: {name} reached {most:.0}, allowed {limit:.0}"))
}

/// Returns the counters that did not grow in the last quarter.
pub(super) fn standstills(samples: &[Sample], counters: &[&str]) -> Vec<String> {
    let Some(last) = samples.last() else {
        return vec!["progress: no samples".to_owned()];
    };
    let names = last.figures.keys();
    let counters = names.filter(|name| counters.contains(&figure_of(name)));
    let still = counters.filter(|name| {
        let late = between(samples, name, 0.75, 1.0);
        late.first() == late.last()
    });
    still
        .map(|name| format!("progress: {name} stands still"))
        .collect()
}

/// Returns conflicts at resources that no lost lease explains, and other errors that clients have reported.
pub(super) fn broken(samples: &[Sample]) -> Vec<String> {
    let Some(last) = samples.last() else {
        return Vec::new();
    };
    let (conflicts, losses) = (last.sum("conflicts"), last.sum("losses"));
    let mut wrong = Vec::new();
    if conflicts > losses {
        wrong.push(format!(
            "exclusion: {conflicts} holders met another, and {losses} leases were lost"
        ));
    }
    let refused = last.sum("refused");
    if refused > losses {
        wrong.push(format!(
            "tokens: {refused} holders were refused, and {losses} leases were lost"
        ));
    }
    wrong
}

pub(super) fn table(samples: &[Sample]) -> String {
    let mut text = String::from(
        "\n| series | second quarter | last quarter | peak | allowed |\n|---|---|---|---|---|\n",
    );
    for growth in growths(samples) {
        let Some(limit) = growth.limit else { continue };
        let show = |value| readable(figure_of(&growth.name), value);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            growth.name,
            show(growth.early),
            show(growth.late),
            show(growth.peak),
            show(limit)
        );
    }
    text
}

/// Formats a value, with bytes in MiB.
fn readable(figure: &str, value: f64) -> String {
    match figure {
        "rss" | "store_bytes" => format!("{:.1} MiB", value / MIB),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests;
