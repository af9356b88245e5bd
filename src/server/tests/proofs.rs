//! Tests of proofs of identity.

use super::*;
use crate::server::auth::{Admission, Policy};

#[tokio::test]
async fn a_client_without_a_proof_in_time_is_cut_off_alone() {
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .require_auth(true)
        .handshake_timeout(Duration::from_secs(1));
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let mut proven = session_opened(&server).await;
    prove(&mut proven).await;
    let mut silent = session_opened(&server).await;
    let end = tokio::time::timeout(PATIENCE, silent.read_u8()).await;
    assert!(end.expect("it is closed").is_err());
    let mut ping = Vec::new();
    put_frame(&mut ping, |to| {
        to.extend_from_slice(&[0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11]);
    });
    proven.write_all(&ping).await.unwrap();
    assert_eq!(answer(&mut proven).await[..4], [0xff, 0xff, 0xff, 0xfe]);
}

#[tokio::test]
async fn a_session_that_nobody_has_proved_ends_with_its_connection() {
    let options = |requires_auth| {
        ServerOptions::new()
            .listen(([127, 0, 0, 1], 0).into())
            .require_auth(requires_auth)
    };
    let server = Server::bind(&Store::memory(), options(true)).await.unwrap();
    let (unproven, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(sessions_left_by(unproven, &server).await, 0);

    let (former, session) = taking_up(&server, &[0; 12]).await;
    let (unproven, _) = taking_up(&server, &session).await;
    drop(former);
    assert_eq!(sessions_left_by(unproven, &server).await, 0);

    let server = Server::bind(&Store::memory(), options(false))
        .await
        .unwrap();
    let (anybody, _) = taking_up(&server, &[0; 12]).await;
    assert_eq!(sessions_left_by(anybody, &server).await, 1);
}

#[tokio::test]
async fn a_session_that_was_proved_once_outlives_a_connection_that_has_not_proved_it_yet() {
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .require_auth(true);
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let (mut proven, session) = taking_up(&server, &[0; 12]).await;
    prove(&mut proven).await;
    assert_eq!(sessions_left_by(proven, &server).await, 1);
    let (unproven, session) = taking_up(&server, &session).await;
    assert_eq!(sessions_left_by(unproven, &server).await, 1);
    let (mut again, _) = taking_up(&server, &session).await;
    prove(&mut again).await;
}

#[test]
fn the_proofs_of_a_client_have_a_limit() {
    let policy = Policy::default();
    let mut admission = Admission::new(Arc::new(policy));
    for user in 0..200 {
        admission.prove("digest", format!("user-{user}:secret").as_bytes());
        let long = format!("{user}{}:secret", "n".repeat(100_000));
        admission.prove("digest", long.as_bytes());
    }
    let who = admission.who_am_i();
    let bytes: usize = who.iter().map(|(_, user)| user.len()).sum();
    assert!(
        who.len() <= 65 && bytes <= 100_000,
        "{} of {bytes} bytes",
        who.len()
    );
}

#[tokio::test]
async fn connections_that_prove_nothing_are_limited_as_those_without_a_session() {
    let options = ServerOptions::new()
        .listen(([127, 0, 0, 1], 0).into())
        .require_auth(true)
        .max_half_open(2);
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    let mut proven = session_opened(&server).await;
    prove(&mut proven).await;
    let mut oldest = session_opened(&server).await;
    let _others = [session_opened(&server).await, session_opened(&server).await];
    let end = tokio::time::timeout(PATIENCE, oldest.read_u8()).await;
    assert!(end.expect("it is closed").is_err());
    assert_eq!(server.shared.table.half_open(), 2);
    assert_eq!(server.shared.table.counted(Count::Evicted), 1);
    prove(&mut proven).await;
}

#[tokio::test]
async fn a_wrong_password_is_answered_late_and_others_of_the_same_address_at_once() {
    let (server, clock) = timeless(ServerOptions::new()).await;
    let (_owner, session) = taking_up(&server, &[0; 12]).await;
    let mut wrong = session.clone();
    wrong[27] ^= 1;
    let mut guess = asking(&server, &wrong).await;
    until_counted(&server, Count::WrongPassword, 1).await;
    let (_next_owner, _) = taking_up(&server, &session).await;
    assert!(is_silent(&mut guess).await, "its answer is held back");
    assert_eq!(server.shared.table.half_open(), 1, "it has no session");
    clock.advance(Duration::from_millis(100));
    assert_eq!(answer(&mut guess).await[8..16], [0; 8], "no session");
}

#[tokio::test]
async fn a_failed_proof_is_answered_late_and_others_at_once() {
    let digest = "a:3OptnM09ILoVSfbZtd3mB0IViII=";
    let options = ServerOptions::new().require_auth(true).user(digest);
    let (server, clock) = timeless(options.unwrap()).await;
    let mut guess = session_opened(&server).await;
    send_proof(&mut guess, "a:wrong").await;
    until_counted(&server, Count::AuthFailed, 1).await;
    let mut honest = session_opened(&server).await;
    prove(&mut honest).await;
    assert!(is_silent(&mut guess).await, "its answer is held back");

    let mut gone = session_opened(&server).await;
    send_proof(&mut gone, "a:guess").await;
    until_counted(&server, Count::AuthFailed, 2).await;
    drop(gone);
    while server.shared.table.connections() > 2 {
        tokio::task::yield_now().await;
    }

    clock.advance(Duration::from_millis(100));
    const AUTH_FAILED: i32 = -115;
    assert_eq!(answer(&mut guess).await[12..], AUTH_FAILED.to_be_bytes());
    assert_eq!(server.shared.table.half_open(), 1, "it is not let in");
}
