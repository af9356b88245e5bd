//! Random operations of several clients, one after the other, on a recipe and on a sequential model of it.
//! A sequence that fails is shortened, and shown.
//!
//! A recipe supplies its [`Model`]; those in which contenders stand in one line build theirs on a [`Line`].

mod line;

use std::fmt::Debug;

use lockkeeper::{Client, LockMetadata, queue};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use testkit::{Env, scaled, within_reason};

use crate::common::*;

pub(crate) use line::{
    Line, Queued, State, Step, attempt, drop_at, expire, leave, reconnect, wait,
};

/// Number of clients in a run.
pub(crate) const CLIENTS: usize = 3;

/// A sequential model, beside the recipe that it is a model of.
pub(crate) trait Model: Sized {
    type Operation: Debug;

    fn operation() -> impl Strategy<Value = Self::Operation>;

    async fn start(env: Env) -> Self;

    async fn carry_out(&mut self, operation: Self::Operation);

    /// Waits until the recipe agrees with the model, and checks that nothing else has happened.
    async fn agree(&mut self);

    /// Ends all waits and holds, and waits until nothing is left of them.
    async fn end(self);
}

/// Carries out random operations on fresh stores, in so many cases.
pub(crate) fn check<M: Model>(cases: u64, env: impl AsyncFn() -> Env) {
    let config = ProptestConfig {
        cases: u32::try_from(scaled(cases)).unwrap(),
        failure_persistence: None,
        // Each case starts a store, perhaps on a real server: shrinking must end within the test's time.
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let operations = prop::collection::vec(M::operation(), 1..40);
    let outcome = TestRunner::new(config).run(&operations, |operations| {
        runtime.block_on(within_reason(async {
            let mut model = M::start(env().await).await;
            for operation in operations {
                model.carry_out(operation).await;
                model.agree().await;
            }
            model.end().await;
        }));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Declares the tests of a model, one for each backend, each with its number of cases. `lent` is a
/// ZooKeeper with a client of the crate zookeeper-client, `foreign` our server with such a client.
macro_rules! model_tests {
    (
        $model:ty,
        memory: $memory:ident($in_memory:literal),
        file: $file:ident($in_file:literal),
        served: $served:ident($on_served:literal),
        zookeeper: $zookeeper:ident($on_zookeeper:literal),
        lent: $lent:ident($on_lent:literal),
        $(foreign: $foreign:ident($on_foreign:literal),)?
    ) => {
        #[test]
        fn $memory() {
            $crate::harness::model::check::<$model>($in_memory, testkit::Env::memory);
        }

        #[test]
        fn $file() {
            $crate::harness::model::check::<$model>($in_file, testkit::Env::file);
        }

        #[test]
        fn $served() {
            $crate::harness::model::check::<$model>($on_served, testkit::Env::served);
        }

        #[test]
        fn $zookeeper() {
            $crate::harness::model::check::<$model>($on_zookeeper, testkit::Env::zookeeper);
        }

        #[test]
        fn $lent() {
            $crate::harness::model::check::<$model>($on_lent, testkit::Env::lent);
        }

        $(
            #[test]
            fn $foreign() {
                $crate::harness::model::check::<$model>($on_foreign, testkit::Env::foreign);
            }
        )?
    };
}
pub(crate) use model_tests;

/// Opens the clients of a run.
pub(crate) async fn clients(world: &World) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(world.client().await);
    }
    clients
}

/// The labels of all entries of the queue, in order.
pub(crate) async fn labels(world: &World) -> Vec<String> {
    metadata_fields(world, |metadata| metadata.label).await
}

/// A field of the metadata of each entry of the queue, in order.
pub(crate) async fn metadata_fields(
    world: &World,
    field: impl Fn(LockMetadata) -> Option<String>,
) -> Vec<String> {
    let entries = queue(&world.observer, LOCK).await.unwrap().into_iter();
    let field = |metadata: Option<LockMetadata>| field(metadata?);
    entries
        .map(|entry| field(entry.metadata).expect("each entry has the field"))
        .collect()
}
