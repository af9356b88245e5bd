//! Revocations from the page.

use lockkeeper::{Guard, LostReason};
use serde_json::json;

use super::*;

fn about(guard: &Guard, name: &str, force: bool) -> Value {
    json!({
        "path": named(name).as_znode().as_str(),
        "entry": guard.path().as_str(),
        "token": guard.fencing_token().to_string(),
        "force": force,
        "reason": "deploy\u{1b}",
    })
}

on_each_store! {
    async fn the_holder_that_was_shown_is_asked_or_removed_and_no_other(store: StoreAt) {
        let client = store.connect().await;
        let mutex = Mutex::new(&client, named("a")).unwrap();
        let first = mutex.lock().await.unwrap();
        let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
        assert_eq!(parsed(&get(dashboard.at(), "/api/about", &[]))["revoke"], true);
        Events::of(dashboard.at(), "/api/locks").until("store", |it| it["state"] == "connected");
        let bearer = format!("Bearer {}", dashboard.token());
        let revoke = |body: &Value| {
            let page = post(dashboard.at(), &[("Authorization", &bearer)], body);
            (page.status, parsed(&page)["result"].as_str().unwrap_or_default().to_owned())
        };

        assert_eq!(revoke(&about(&first, "a", false)), (200, "asked".into()));
        let line = dashboard.logs("a lock was revoked");
        for part in ["WARN", "peer=127.0.0.1:", "path=\"/locks/a\"", "result=\"asked\"", r"deploy\\u{1b}"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let request = first.revocation_requested().await.unwrap();
        assert_eq!(request.by.as_deref(), Some("deploy\u{1b} (lockkeeper dashboard)"));
        assert!(first.is_held());

        // Send the correct znode with a wrong token, and then the correct token with a wrong znode.
        let mut wrong = about(&first, "a", true);
        wrong["token"] = "1".into();
        assert_eq!(revoke(&wrong).0, 409);
        wrong = about(&first, "a", true);
        wrong["entry"] = format!("{}0", first.path().as_str()).into();
        assert_eq!(revoke(&wrong).0, 409);
        let other = Mutex::new(&client, named("b")).unwrap().lock().await.unwrap();
        assert_eq!(revoke(&about(&other, "a", true)).0, 409);
        assert!(first.is_held() && other.is_held());

        // The lock has another holder than when it was shown.
        let old = about(&first, "a", true);
        first.release().await.unwrap();
        let second = mutex.lock().await.unwrap();
        assert_eq!(revoke(&old).0, 409);
        assert!(second.is_held());

        let waiter = Waiter::start(&store, named("a"));
        let mut queue = Events::of(dashboard.at(), "/api/lock?path=/locks/a");
        let seen = queue.until("lock", |it| it["waiters"] == 1);
        let mut waits = about(&second, "a", true);
        (waits["entry"], waits["token"]) = (seen["queue"][0]["entry"].clone(), seen["queue"][0]["token"].clone());
        assert_eq!(revoke(&waits).0, 409);
        assert_eq!(revoke(&about(&second, "a", true)), (200, "removed".into()));
        assert_eq!(second.lost().await, LostReason::Revoked);
        queue.until("lock", |it| it["holders"][0]["label"] == "second");
        assert_eq!(revoke(&about(&second, "a", true)).0, 409);
        waiter.release();
        queue.until("lock", |it| it["exists"] == false);
        assert_eq!(revoke(&about(&second, "a", false)), (200, "gone".into()));
    }
}

on_stores! {
    [unix, mortal_zookeeper]
    fn nothing_is_revoked_on_old_news(store: StoreAt) {
        let mut store = store;
        let waiter = Waiter::start(&store, named("a"));
        let options = ["--allow-revoke", "--session-timeout", "6s", "--connect-timeout", "1s"];
        let dashboard = Dashboard::start(&store, &options);
        let mut list = Events::of(dashboard.at(), "/api/locks");
        let seen = list.until("locks", |it| it["held"] == 1);
        let holder = &seen["rows"][0]["holders"][0];
        let body = json!({ "path": "/locks/a", "entry": holder["entry"], "token": holder["token"], "force": true });
        store.go_away();
        list.until("store", |it| it["state"] == "suspended" || it["state"] == "lost");
        let bearer = format!("Bearer {}", dashboard.token());
        let page = post(dashboard.at(), &[("Authorization", &bearer)], &body);
        assert_eq!(page.status, 503, "{page:?}");
        drop(waiter);
    }
}

#[test]
fn a_body_that_is_no_revocation_is_refused() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &["--allow-revoke", "jobs/"]);
    let bearer = format!("Bearer {}", dashboard.token());
    Events::of(dashboard.at(), "/api/locks").until("store", |it| it["state"] == "connected");
    let first = "POST /api/revoke HTTP/1.1";
    let ask = |kind: &str, body: &str| {
        let headers = [("Authorization", &*bearer), ("Content-Type", kind)];
        let page = super::super::metrics::http::answer(send(dashboard.at(), first, &headers, body));
        (page.status, parsed(&page)["error"].as_str().is_some())
    };
    let good = r#"{"path": "/locks/jobs%2Fa", "entry": "/x", "token": "1", "force": true}"#;
    let json = "application/json";
    assert_eq!(ask("application/json; charset=utf-8", good), (200, false));
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "",
        "application/jsonx",
    ] {
        assert_eq!(ask(kind, good), (415, true), "{kind}");
    }
    for body in [
        "",
        "{",
        "null",
        "[]",
        "{}",
        r#"{"path": 1}"#,
        &good.replace("true", "\"yes\""),
        &good.replace("\"/x\"", "null"),
        &good.replace('}', ", \"all\": true}"),
        &good.replace("/locks/jobs%2Fa", "../etc"),
        &good.replace("/locks/jobs%2Fa", "/a\\u0000b"),
    ] {
        assert_eq!(ask(json, body), (400, true), "{body}");
    }
    let hidden = good.replace("jobs%2Fa", "other");
    assert_eq!(ask(json, &hidden), (404, true));
    let long = format!("{good}{}", " ".repeat(17 << 10));
    assert_eq!(ask(json, &long), (413, true));
    let get = get(dashboard.at(), "/api/revoke", &[("Authorization", &bearer)]);
    assert_eq!(get.status, 405);
    assert!(get.head.contains("allow: POST\r\n"), "{get:?}");
}
