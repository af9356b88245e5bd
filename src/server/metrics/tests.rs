//! The table of docs/server-reference.md, and a server whose store has failed.

use std::fmt::Write;

use prometheus::TextEncoder;
use prometheus::proto::MetricType;

use super::*;
use crate::engine::Store;
use crate::server::ServerOptions;

const MAX_LISTED: usize = 6;

fn rows<T>(metrics: &[Metric<T>], from: &T, to: &mut String) {
    for metric in metrics {
        let kind = match metric.kind {
            MetricType::COUNTER => "counter",
            MetricType::GAUGE => "gauge",
            MetricType::HISTOGRAM => "histogram",
            MetricType::SUMMARY => "summary",
            MetricType::UNTYPED => "untyped",
        };
        let family = metric.family(from);
        let labels = metric.labels.iter().map(|label| {
            let pairs = family.get_metric().iter().flat_map(|it| it.get_label());
            let mut values: Vec<_> = pairs
                .filter(|pair| pair.name() == *label)
                .map(|pair| format!("`{}`", pair.value()))
                .collect();
            values.dedup();
            if values.len() > MAX_LISTED {
                values.truncate(MAX_LISTED / 2);
                values.push("…".into());
            }
            format!("`{label}`: {}", values.join(", "))
        });
        let labels: Vec<_> = labels.collect();
        let (name, labels, help) = (metric.name, labels.join("; "), metric.help);
        writeln!(to, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
}

async fn server() -> Server {
    let options = ServerOptions::new().listen("127.0.0.1:0".parse().unwrap());
    Server::bind(&Store::memory(), options).await.unwrap()
}

#[tokio::test]
async fn the_guide_has_every_metric() {
    let server = server().await;
    let mut table = "\n| metric | type | labels | |\n|---|---|---|---|\n".to_owned();
    rows(METRICS, &Readings::read(&server.shared, true), &mut table);
    rows(process::METRICS, &(), &mut table);
    let version = format!("`{}`", env!("CARGO_PKG_VERSION"));
    let table = table.replace(&version, "…");
    let guide = include_str!("../../../docs/server-reference.md");
    let guide = guide.split("<!-- metrics -->").nth(1);
    let guide = guide.expect("the mark of the metrics");
    assert!(
        guide == table,
        "docs/server-reference.md should have:\n{table}"
    );
}

#[tokio::test]
async fn a_registry_has_the_metrics_of_one_server_and_keeps_none_alive() {
    let registry = Registry::new();
    let one = server().await;
    one.register_metrics(&registry).unwrap();
    register_process_metrics(&registry).unwrap();
    let twice = one.register_metrics(&registry).unwrap_err();
    assert!(matches!(twice, Error::AlreadyReg), "{twice}");
    let text = || {
        let text = TextEncoder::new().encode_to_string(&registry.gather());
        text.unwrap()
    };
    assert!(text().contains("lockkeeper_ready 1\n"), "{}", text());
    let store = Arc::downgrade(&one.shared);
    one.shutdown().await;
    while store.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(!text().contains("lockkeeper_ready"), "{}", text());
    assert!(text().contains("lockkeeper_build_info"), "{}", text());
}
