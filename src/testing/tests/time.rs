//! Virtual time.

use super::*;

#[test]
fn running_lets_time_pass_when_nothing_else_moves() {
    let world = World::lossy();
    let (client, session) = world.open();
    world.store.lose_request(&client, RequestKind::Create);
    let start = world.store.clock().now();
    let work = async {
        assert_eq!(
            create(&session, "/a").await.unwrap_err(),
            Error::ConnectionLoss
        );
        create(&session, "/a").await.unwrap();
        session.clock().sleep(Duration::from_secs(5)).await;
        session.state()
    };
    assert_eq!(block_on(world.store.run(work)), SessionState::Reconnected);
    let passed = world.store.clock().now().since(start);
    assert_eq!(passed, Duration::from_secs(5) + 10 * MS);
}

#[test]
fn advancing_stops_at_every_timer() {
    let world = World::new();
    let clock = world.store.clock().clone();
    let start = clock.now();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    crate::spawn_detached({
        let clock = clock.clone();
        async move {
            for _ in 0..3 {
                clock.sleep(Duration::from_secs(1)).await;
                let _ = tell.send(clock.now().since(start));
            }
        }
    });
    block_on(world.store.advance(Duration::from_secs(10)));
    assert_eq!(clock.now().since(start), Duration::from_secs(10));
    let told: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
    assert_eq!(told, [1, 2, 3].map(Duration::from_secs));
}
