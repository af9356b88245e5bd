//! What the tests against models have in common: random operations, one after the other, each
//! sequence on a fresh store; and what a queue says of those who stand in it.

use std::fmt::Debug;

use lockkeeper::queue;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::common::*;
use crate::support::{Env, scaled, within_reason};

/// Has random operations followed in so many cases. A sequence that fails is shortened, and shown.
pub(crate) fn check<O: Debug>(
    cases: u64,
    operation: impl Strategy<Value = O>,
    env: impl AsyncFn() -> Env,
    follow: impl AsyncFn(Env, Vec<O>),
) {
    let config = ProptestConfig {
        cases: u32::try_from(scaled(cases)).unwrap(),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let operations = prop::collection::vec(operation, 1..40);
    let outcome = TestRunner::new(config).run(&operations, |operations| {
        runtime.block_on(within_reason(async {
            follow(env().await, operations).await;
        }));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The labels of those who stand in the queue, in order.
pub(crate) async fn labels(world: &World) -> Vec<String> {
    let entries = queue(&world.observer, LOCK).await.unwrap();
    let label = |metadata: Option<lockkeeper::LockMetadata>| metadata?.label;
    entries
        .into_iter()
        .map(|entry| label(entry.metadata).expect("all wrote a label"))
        .collect()
}
