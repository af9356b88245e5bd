//! Random sequential operations of several clients, on a recipe and on a model of it. A failing sequence is shrunk and
//! printed.
//!
//! A recipe supplies its [`Model`]. Recipes with a single queue build it on a [`Line`].

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

pub(crate) const CLIENTS: usize = 3;

/// A sequential model, together with its recipe.
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

pub(crate) fn check<M: Model>(cases: u64, env: impl AsyncFn() -> Env) {
    let config = ProptestConfig {
        cases: u32::try_from(scaled(cases)).unwrap(),
        failure_persistence: None,
        // Each case starts a store, perhaps on a real server, and shrinking must finish in time.
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

/// Declares a model's tests, one per backend with its number of cases. `lent` is a ZooKeeper with a client of the crate
/// zookeeper-client, and `foreign` is our server with such a client.
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

pub(crate) async fn clients(world: &World) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(world.client().await);
    }
    clients
}

pub(crate) async fn labels(world: &World) -> Vec<String> {
    metadata_fields(world, |metadata| metadata.label).await
}

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
