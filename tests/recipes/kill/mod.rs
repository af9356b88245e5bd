//! A server that is killed (SIGKILL) under load and started again, over and over, under clients of several
//! libraries that reconnect. What each does is told in [`line`]; what must hold, in [`judge`] and
//! [`writes`].
//!
//! All are processes of their own: the command `lockkeeper serve`, kazoo twice, Curator and this
//! library; and in each life of the server one more client, which is killed as well.

mod client;
mod ending;
mod history;
mod judge;
mod judging;
mod line;
mod ours;
mod run;
mod server;
mod writes;

use std::time::{Duration, Instant};

use testkit::{KeepOnFailure, kill_seed, report, scaled};

use client::be_client;
use run::{Plan, Run};
use server::Kind;

/// Kills the server so often, and sees that nothing is wrong.
async fn survives(plan: Plan) {
    let (kind, least) = (plan.kind, plan.kills);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let (start, seed) = (Instant::now(), kill_seed(now));
    report(format_args!("{kind:?}: LOCKKEEPER_KILL_SEED={seed}"));
    let (mut run, mut life) = Run::start(plan, seed).await;
    let history = run.history.clone();
    let kept = KeepOnFailure(|path| history.write_to(path));
    let mut kills = 0;
    // Where all sessions end with a life of the server, chance decides whether the same client holds next: then a short run
    // goes on.
    while kills < least || (kills < 10 * least && !run.has_handed_over_across()) {
        run.live(kills, life).await;
        life = run.next_life().await;
        kills += 1;
    }
    let (found, gate) = run.end(kills, life).await;
    let figures = run.judge(&found, gate);
    assert_eq!(figures.lives.len() as u64, kills + 1);
    for (life, (acknowledged, grants)) in &figures.lives {
        assert!(*acknowledged > 0 && *grants > 0, "life {life}");
    }
    assert!(figures.hand_overs_across > 0);
    // Of both clients that keep their watches, after each kill, but for sessions that were lost.
    assert!(figures.watches_across + figures.lost >= 2 * kills);
    report(format_args!(
        "{kind:?}: {} kills, {} of them early; {} writes acknowledged, {} of unknown outcome; {} hand-overs, \
         {} of them across a kill; {} watches fired after one; {} sessions went on, {} were lost, {} lapses; {:.1?}",
        kills + 1 + run.early,
        run.early,
        figures.acknowledged,
        figures.unknown,
        figures.hand_overs,
        figures.hand_overs_across,
        figures.watches_across,
        figures.back,
        figures.lost,
        figures.lapses,
        start.elapsed()
    ));
    drop(kept);
}

/// Only one at a time, for the machine's sake.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn run_alone(plan: Plan) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let _turn = TURN.lock().await;
        survives(plan).await;
    });
}

#[test]
fn nothing_acknowledged_is_lost() {
    // The clients of this library begin here, too.
    if be_client() {
        return;
    }
    run_alone(Plan {
        kind: Kind::Lockkeeper("fsync"),
        kills: scaled(10),
        timeout: Duration::from_secs(4),
    });
}

#[test]
fn nothing_acknowledged_and_persistent_is_lost_when_ephemerals_are_not_synced() {
    run_alone(Plan {
        kind: Kind::Lockkeeper("delayed-restart"),
        kills: scaled(3),
        timeout: Duration::from_secs(4),
    });
}

#[test]
fn zookeeper_passes_as_well() {
    run_alone(Plan {
        kind: Kind::ZooKeeper,
        kills: scaled(3),
        timeout: Duration::from_secs(8),
    });
}
