//! [`Metric`]: name, help and reading of one metric, and its form in Prometheus' data model.

use std::collections::HashMap;

use prometheus::core::Desc;
use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};

use crate::runtime::histogram::Distribution;

pub(super) struct Metric<T> {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    pub(super) labels: &'static [&'static str],
    pub(super) read: fn(&T) -> Vec<Sample>,
}

pub(super) struct Sample {
    labels: Vec<String>,
    value: Value,
}

enum Value {
    Number(f64),
    Histogram(Distribution),
}

pub(super) fn one(value: f64) -> Vec<Sample> {
    vec![Sample {
        labels: Vec::new(),
        value: Value::Number(value),
    }]
}

pub(super) fn whole(value: u64) -> Vec<Sample> {
    one(value as f64)
}

pub(super) fn histogram(distribution: Option<&Distribution>) -> Vec<Sample> {
    let sample = |distribution: &Distribution| Sample {
        labels: Vec::new(),
        value: Value::Histogram(distribution.clone()),
    };
    distribution.map(sample).into_iter().collect()
}

pub(super) fn each<const L: usize>(
    samples: impl IntoIterator<Item = ([&'static str; L], u64)>,
) -> Vec<Sample> {
    let samples = samples.into_iter().map(|(labels, value)| Sample {
        labels: labels.map(str::to_owned).into(),
        value: Value::Number(value as f64),
    });
    samples.collect()
}

pub(super) fn named(samples: impl IntoIterator<Item = (String, u64)>) -> Vec<Sample> {
    let samples = samples.into_iter().map(|(label, value)| Sample {
        labels: vec![label],
        value: Value::Number(value as f64),
    });
    samples.collect()
}

impl<T> Metric<T> {
    pub(super) fn desc(&self) -> prometheus::Result<Desc> {
        let labels = self.labels.iter().map(|label| (*label).to_owned());
        Desc::new(
            self.name.into(),
            self.help.into(),
            labels.collect(),
            HashMap::new(),
        )
    }

    pub(super) fn family(&self, from: &T) -> MetricFamily {
        let samples = (self.read)(from);
        let mut family = MetricFamily::default();
        family.set_name(self.name.into());
        family.set_help(self.help.into());
        family.set_field_type(self.kind);
        family.set_metric(
            samples
                .into_iter()
                .map(|sample| self.metric(sample))
                .collect(),
        );
        family
    }

    fn metric(&self, sample: Sample) -> proto::Metric {
        let pairs = self.labels.iter().zip(sample.labels);
        let pairs = pairs.map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).into());
            pair.set_value(value);
            pair
        });
        let mut metric = proto::Metric::from_label(pairs.collect());
        match (sample.value, self.kind) {
            (Value::Number(value), MetricType::COUNTER) => {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            (Value::Number(value), _) => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            (Value::Histogram(distribution), _) => metric.set_histogram(of(&distribution)),
        }
        metric
    }
}

/// The encoder adds the last bucket, which counts all durations.
fn of(distribution: &Distribution) -> proto::Histogram {
    let buckets = distribution.buckets.iter().map(|(bound, count)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(*count);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(distribution.count);
    histogram.set_sample_sum(distribution.sum.as_secs_f64());
    histogram
}
