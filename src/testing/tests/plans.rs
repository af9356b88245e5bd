//! Faults by plan.

use super::*;

fn story(seed: u64) -> Vec<String> {
    let world = World::with(
        Plan::rough(seed)
            .lose_requests(0.1)
            .lose_replies(0.1)
            .expiries(0.02),
    );
    let clients: Vec<_> = (0..3)
        .map(|_| {
            world
                .open_with(ConnectOptions::new().session_timeout(Duration::from_secs(10)))
                .0
        })
        .collect();
    let mut seen = Vec::new();
    for round in 0..40 {
        for (number, client) in clients.iter().enumerate() {
            let Some(Ok(session)) = now(client.session()) else {
                continue;
            };
            let mine = path(&format!("/n{number}"));
            let next = path(&format!("/n{}", (number + 1) % 3));
            let mut create = create(&session, mine.as_str());
            let mut watch = session.watch_exists(&next);
            let mut delete = session.delete(&mine, None);
            world.advance(Duration::from_millis(7));
            let watched = match peek(&mut watch) {
                Some(Ok((_, mut watcher))) => format!("{:?}", peek(&mut watcher)),
                other => format!("{:?}", other.map(|answer| answer.map(|_| ()))),
            };
            let (created, deleted) = (peek(&mut create), peek(&mut delete));
            seen.push(format!(
                "{round} {number} {created:?} {watched} {deleted:?}"
            ));
        }
    }
    seen.extend(world.log());
    seen
}

#[test]
fn a_seed_replays() {
    for seed in crate::testing::seeds(20) {
        assert_eq!(story(seed), story(seed), "seed {seed}");
    }
    assert_ne!(story(1), story(2));
}

#[test]
fn after_all_faults_every_request_is_answered() {
    for seed in crate::testing::seeds(300) {
        let world = World::with(Plan::rough(seed).lose_requests(0.1).expiries(0.02));
        let (client, _) = world.open();
        let mut calls = Vec::new();
        for number in 0..60 {
            let session = now(client.session()).unwrap().unwrap();
            let at = format!("/n{number}");
            calls.push((number, create(&session, &at)));
            world.advance(MS);
        }
        world.store.heal();
        world.advance(Duration::from_secs(60));
        let log = world.log();
        for (number, mut call) in calls {
            let answer = peek(&mut call).unwrap_or_else(|| panic!("seed {seed}: {number} waits"));
            let suffix = format!(" create /n{number}");
            let applied = log.iter().filter(|line| line.ends_with(&suffix)).count();
            assert!(applied <= 1, "seed {seed}: {number} was carried out twice");
            assert!(answer.is_err() || applied == 1, "seed {seed}: {number}");
        }
    }
}
