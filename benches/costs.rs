//! What each recipe asks of a store: requests, events and bytes, of a free acquire and release, and
//! of a hand-over while many wait. One JSON object a line.
//!
//! `cargo bench --bench costs --features test-util -- --url memory:`; docs/performance.md has the
//! tables, and says what is counted.

#[path = "costs/args.rs"]
mod args;
#[path = "costs/line.rs"]
mod line;
#[path = "costs/meter.rs"]
mod meter;
#[path = "costs/scenes.rs"]
mod scenes;
#[path = "costs/subjects.rs"]
mod subjects;

use args::Args;
use lockkeeper::{Client, LockPath};
use meter::{Cost, Ground};
use serde_json::json;
use subjects::{Permits, Stand, Subject, Two};

use crate::scenes::Scene;

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
    bench
        .recipe("mutex", &[Scene::ONE_BY_ONE], subjects::mutex)
        .await;
    bench
        .recipe("rwlock", &Scene::OF_RWLOCK, subjects::rwlock)
        .await;
    bench
        .recipe("semaphore", &[Scene::OF_SEMAPHORE], Permits::new)
        .await;
    bench
        .recipe("election", &[Scene::ONE_BY_ONE], Stand::new)
        .await;
    bench
        .recipe("lock-all", &[Scene::ONE_BY_ONE], Two::new)
        .await;
}

struct Bench {
    ground: Ground,
    args: Args,
}

impl Bench {
    /// Measures a recipe, unless others are asked for: when it is free, and in each of the scenes.
    async fn recipe<S: Subject>(
        &self,
        recipe: &str,
        scenes: &[Scene],
        subject: impl Fn(&Client, LockPath) -> S,
    ) {
        if self
            .args
            .recipe
            .as_deref()
            .is_some_and(|only| only != recipe)
        {
            return;
        }
        for side in S::SIDES {
            let client = self.ground.client().await;
            let subject = subject(&client, self.ground.fresh_path());
            let [acquire, release] = scenes::when_free(&self.ground, &subject, *side).await;
            let name = format!("{recipe}{}", side.suffix(S::SIDES));
            self.print(&name, "acquire", 0, acquire);
            self.print(&name, "release", 0, release);
            client.close().await.expect("closed");
        }
        for scene in scenes {
            for n in self.args.sizes() {
                let client = self.ground.client().await;
                let subject = subject(&client, self.ground.fresh_path());
                let cost = scene.hand_over(&self.ground, &subject, n).await;
                self.print(&format!("{recipe}{}", scene.suffix), "hand-over", n, cost);
                client.close().await.expect("closed");
            }
        }
    }

    fn print(&self, recipe: &str, operation: &str, n: usize, cost: Cost) {
        let line = json!({
            "recipe": recipe,
            "url": self.args.url,
            "operation": operation,
            "n": n,
            "requests": cost.requests,
            "events": cost.events,
            "bytes": cost.bytes,
        });
        println!("{line}");
    }
}
