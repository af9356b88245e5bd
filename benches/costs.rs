//! The costs of each recipe at a store: requests, events and bytes of a free acquire and release, and of a hand-over
//! while many wait. One JSON object per line.
//!
//! `cargo bench -p lockkeeper-bench --bench costs -- --url memory:`. docs/performance.md has the tables and explains
//! the counts.

#[path = "common/mod.rs"]
mod common;
#[path = "costs/line.rs"]
mod line;
#[path = "costs/meter.rs"]
mod meter;
#[path = "costs/scenes.rs"]
mod scenes;

use clap::{Parser, ValueEnum};
use common::figures::Row;
use common::more_recipes::Two;
use common::options::{count, name};
use common::recipes::{BenchLock, Permits, Side};
use common::report::Line;
use lockkeeper::{Election, Mutex, RwLock};
use meter::{Cost, Ground};

use crate::scenes::Scene;

/// The costs of each recipe at a store.
#[derive(Debug, Parser)]
#[command(name = "costs")]
struct Args {
    /// memory:, or zookeeper://HOST:PORT[/CHROOT]
    #[arg(long, default_value = "memory:")]
    url: String,
    /// Only this recipe
    #[arg(long, value_enum)]
    recipe: Option<Recipe>,
    /// Only the hand-overs with this many waiters
    #[arg(long, value_delimiter = ',', value_parser = count, default_values_t = [2, 100, 1_000])]
    n: Vec<usize>,
    /// `cargo bench` passes this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Recipe {
    Mutex,
    #[value(name = "rwlock")]
    RwLock,
    Semaphore,
    Election,
    LockAll,
}

fn main() {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(run(args));
}

async fn run(args: Args) {
    let bench = Bench {
        ground: Ground::at(&args.url),
        args,
    };
    let one_by_one = &[Scene::ONE_BY_ONE];
    bench.recipe::<Mutex>(Recipe::Mutex, one_by_one).await;
    let scenes = &Scene::OF_RWLOCK;
    let sides = &[(Side::Write, " write"), (Side::Read, " read")];
    bench
        .recipe_by_sides::<RwLock>(Recipe::RwLock, sides, scenes)
        .await;
    let scenes = &[Scene::OF_SEMAPHORE];
    bench
        .recipe::<Permits<{ scenes::PERMITS }>>(Recipe::Semaphore, scenes)
        .await;
    bench.recipe::<Election>(Recipe::Election, one_by_one).await;
    bench.recipe::<Two>(Recipe::LockAll, one_by_one).await;
}

struct Bench {
    ground: Ground,
    args: Args,
}

impl Bench {
    /// Measures a recipe with a single mode.
    async fn recipe<S: BenchLock>(&self, recipe: Recipe, scenes: &[Scene]) {
        let only = &[(Side::Write, "")];
        self.recipe_by_sides::<S>(recipe, only, scenes).await;
    }

    /// Measures a recipe unless another was requested: the free lock in each mode, with the mode's suffix in the
    /// report, and each of the scenes.
    async fn recipe_by_sides<S: BenchLock>(
        &self,
        recipe: Recipe,
        sides: &[(Side, &str)],
        scenes: &[Scene],
    ) {
        if self.args.recipe.is_some_and(|only| only != recipe) {
            return;
        }
        let recipe = &*name(recipe);
        for (side, suffix) in sides {
            let client = self.ground.client().await;
            let subject = S::new(&client, self.ground.fresh_path());
            let [acquire, release] =
                scenes::when_free(&self.ground, &client, &subject, *side).await;
            let name = format!("{recipe}{suffix}");
            self.print(&name, "acquire", 0, acquire);
            self.print(&name, "release", 0, release);
            client.close().await.expect("closed");
        }
        for scene in scenes {
            for &n in &self.args.n {
                let client = self.ground.client().await;
                let subject = S::new(&client, self.ground.fresh_path());
                let cost = scene.hand_over(&self.ground, &client, &subject, n).await;
                self.print(&format!("{recipe}{}", scene.suffix), "hand-over", n, cost);
                client.close().await.expect("closed");
            }
        }
    }

    fn print(&self, recipe: &str, operation: &str, n: usize, cost: Cost) {
        let figures = [
            ("requests", cost.requests),
            ("events", cost.events),
            ("bytes", cost.bytes),
        ];
        let row: Row = figures
            .map(|(name, value)| (name.to_owned(), value as f64))
            .into();
        let line = Line::new("lockkeeper", &self.args.url, operation);
        line.with("recipe", recipe).with("n", n).print(&row);
    }
}
