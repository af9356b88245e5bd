//! A holder falls silent. It learns of its loss, the next one is granted the lock, and a late write is refused.

use std::time::Duration;

use lockkeeper::{
    Client, ConnectOptions, FencingGate, LockEvent, LockEvents, LockOptions, LostReason, Mutex,
    lock_events,
};
use testkit::{Mortal, on_every_backend};

const LOCK: &str = "/silence";

fn contender(client: &Client) -> (Mutex, LockOptions, LockEvents) {
    let (sink, events) = lock_events();
    let mutex = Mutex::new(client, LOCK).unwrap();
    (mutex, LockOptions::new().events(sink), events)
}

async fn next(events: &mut LockEvents) -> LockEvent {
    loop {
        match events.next().await.expect("the events go on") {
            LockEvent::Suspended { .. } | LockEvent::Resumed => {}
            event => return event,
        }
    }
}

on_every_backend! {
    async fn a_holder_that_falls_silent_is_told_and_followed(env: Env) {
        let first = env.client().await;
        let options = ConnectOptions::new().session_timeout(Duration::from_secs(3));
        let eve = Mortal::open(&first, options).await.unwrap();
        let (mutex, options, mut eves) = contender(eve.client());
        let lost = mutex.lock_with(options).await.unwrap();
        assert!(matches!(next(&mut eves).await, LockEvent::Acquired { .. }));

        let (mutex, options, mut fays) = contender(&first);
        let waiting = tokio::spawn(async move { mutex.lock_with(options).await });
        assert!(matches!(next(&mut fays).await, LockEvent::Queued { position: 1, .. }));
        eve.cut();
        let LockEvent::Lost { reason } = next(&mut eves).await else {
            panic!("Eve is told something else");
        };
        // Her own clock says so before the store does.
        assert!(matches!(reason, LostReason::LeaseExpired | LostReason::SessionExpired), "{reason}");
        assert!(matches!(next(&mut fays).await, LockEvent::Acquired { .. }));
        assert!(!lost.is_held());

        let guard = waiting.await.unwrap().unwrap();
        let mut gate = FencingGate::default();
        gate.admit(lost.fencing_token()).unwrap();
        gate.admit(guard.fencing_token()).unwrap();
        assert!(gate.admit(lost.fencing_token()).is_err());
        guard.release().await.unwrap();
        assert!(matches!(next(&mut fays).await, LockEvent::Released));
    }
}
