//! `contrib/`: the alert rules and the dashboard refer only to metrics that we export, and Prometheus accepts both.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use super::*;

fn contrib(file: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib");
    root.join(file)
}

/// Returns all metrics that are exported by a server with a data directory, by a warden, and by a program that uses the
/// library.
fn pages() -> String {
    let folder = TempFolder::short();
    let data = folder.at("data");
    let mut command = serve_metrics(data.to_str().unwrap());
    command.args(["--dashboard=127.0.0.1:0", "--backup-every=1h"]);
    let server = Server::start(command.arg("--backup-dir").arg(folder.path()));
    values::until(&metrics_of(&server), "lockkeeper_server_locks_held", 0.0);
    let url = format!("lockkeeper://{}", server.address());
    // The metric of the first snapshot needs a file with the name of a snapshot. A real snapshot would take many
    // writes.
    std::fs::write(data.join("snapshot-0000000000000001"), "").unwrap();
    let mut warden = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    warden.args(["warden", "--url", &url, "--metrics-listen=127.0.0.1:0"]);
    warden.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut warden = warden.spawn().unwrap();
    let mut log = BufReader::new(warden.stderr.take().unwrap()).lines();
    let line = log.find_map(|line| line.ok().filter(|it| it.contains("metrics and health")));
    let address = line.unwrap().rsplit_once("address=").unwrap().1.to_owned();
    let mut pages = request(&metrics_of(&server), "GET", "/metrics").body;
    pages.push_str(&request(&address, "GET", "/metrics").body);
    warden.kill().unwrap();
    warden.wait().unwrap();
    pages
}

/// Returns the names of the exported samples. They include metrics that are exported only after their first event.
fn exported(pages: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in pages.lines() {
        let name = match line.strip_prefix("# HELP ") {
            Some(rest) => rest.split(' ').next().unwrap(),
            None => line.split(['{', ' ']).next().unwrap(),
        };
        names.insert(name.to_owned());
    }
    // The metrics of the library are listed in its documentation, which has a separate test.
    let table = include_str!("../../../../recipes/src/metrics.rs");
    for row in table
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"))
    {
        let (name, rest) = row.split_once('`').unwrap();
        if rest.starts_with(" | histogram") {
            for part in ["bucket", "sum", "count"] {
                names.insert(format!("{name}_{part}"));
            }
        } else {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Returns the names of our metrics that an expression contains.
fn names(expression: &str) -> Vec<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("lockkeeper_") || word.starts_with("process_"))
        .collect()
}

fn matchers(expression: &str) -> Vec<String> {
    let pairs = expression.split(['{', ',', '}']).map(str::trim);
    let is_matcher = |pair: &&str| pair.contains("=\"") && pair.ends_with('"');
    pairs.filter(is_matcher).map(str::to_owned).collect()
}

fn dashboard() -> Vec<String> {
    fn collect(value: &Value, to: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                to.extend(object.get("expr").map(|it| it.as_str().unwrap().to_owned()));
                object.values().for_each(|value| collect(value, to));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, to)),
            _ => {}
        }
    }
    let text = std::fs::read_to_string(contrib("grafana/lockkeeper.json")).unwrap();
    let mut expressions = Vec::new();
    collect(&serde_json::from_str(&text).unwrap(), &mut expressions);
    assert!(expressions.len() > 20, "{expressions:?}");
    expressions
}

#[track_caller]
fn check(arguments: &[&str], file: &Path) {
    let mut command = Command::new("promtool");
    command.args(arguments).arg(file.file_name().unwrap());
    command.current_dir(file.parent().unwrap());
    let output = command.output().expect("the Debian package `prometheus`");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_alerts_and_the_dashboard_name_what_is_exported() {
    let pages = pages();
    let exported = exported(&pages);
    let alerts = std::fs::read_to_string(contrib("prometheus/alerts.yml")).unwrap();
    // Skip comments and texts for people.
    let lines = alerts.lines().map(str::trim).filter(|line| {
        !line.starts_with('#') && !line.starts_with("summary:") && !line.starts_with("description:")
    });
    let alerts: Vec<_> = lines.map(str::to_owned).collect();
    let mut used = 0;
    for expression in alerts.iter().chain(&dashboard()) {
        for name in names(expression) {
            assert!(
                exported.contains(name),
                "{name} is not exported: {expression}"
            );
            used += 1;
        }
        for pair in matchers(expression) {
            let is_known = pair.starts_with("job=") || pages.contains(&pair);
            assert!(is_known, "no sample has {pair}: {expression}");
        }
    }
    assert!(used > 50, "{used}");
}

#[test]
fn prometheus_reads_the_alerts_and_they_fire() {
    let alerts = contrib("prometheus/alerts.yml");
    check(&["check", "rules"], &alerts);
    check(&["test", "rules"], &contrib("prometheus/alerts-test.yml"));
}

#[test]
fn prometheus_reads_every_expression_of_the_dashboard() {
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (number, expression) in dashboard().into_iter().enumerate() {
        // Replace the variables as Grafana would do.
        let expression = expression.replace("$__rate_interval", "1m");
        let expression = Value::from(expression.replace("$instance", ".*"));
        writeln!(rules, "  - {{record: \"r{number}\", expr: {expression}}}").unwrap();
    }
    let folder = TempFolder::short();
    let file = folder.at("rules.yml");
    std::fs::write(&file, rules).unwrap();
    check(&["check", "rules"], &file);
}
