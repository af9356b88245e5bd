//! Requests that the dashboard answers, and requests that it refuses.

use super::*;

/// Sends a request for the page, a read and a revocation, each with these headers. Returns their statuses.
fn statuses(dashboard: &Dashboard, headers: &[(&str, &str)]) -> [u16; 3] {
    [
        get(dashboard.at(), "/", headers).status,
        get(dashboard.at(), "/api/about", headers).status,
        // The status is 400 if the request was admitted, because null is not a valid revocation.
        post(dashboard.at(), headers, &Value::Null).status,
    ]
}

#[test]
fn a_name_that_leads_here_is_refused_unless_it_is_allowed() {
    let store = StoreAt::served();
    let allowed = ["--dashboard-host", "locks.example", "--allow-revoke"];
    let dashboard = Dashboard::start(&store, &allowed);
    let bearer = format!("Bearer {}", dashboard.token());
    let with = |host| statuses(&dashboard, &[("Host", host), ("Authorization", &bearer)]);
    for own in [
        dashboard.at(),
        "localhost",
        "LocalHost:2180",
        "127.0.0.1",
        "[::1]:2180",
        "192.168.1.7:80",
        "locks.example",
        "Locks.Example:8080",
    ] {
        assert_eq!(with(own), [200, 200, 400], "{own}");
    }
    for foreign in [
        "example.com",
        "evil.locks.example",
        "locks.example.evil",
        "localhost.evil",
        "127.0.0.1.evil",
        "127.0.0.1@evil",
        "evil@127.0.0.1",
        "localhost, evil",
        "",
        "/",
        "ä",
    ] {
        assert_eq!(with(foreign), [421; 3], "{foreign}");
    }
    for twice in [
        [("Host", "localhost"), ("Host", "evil")],
        [("Host", "evil"), ("Host", "localhost")],
    ] {
        assert_eq!(statuses(&dashboard, &twice), [421; 3]);
    }
    let without = super::super::metrics::http::answer(send(
        dashboard.at(),
        "GET http://evil.example/api/about HTTP/1.1",
        &[],
        "",
    ));
    assert_eq!(without.status, 421);
}

#[test]
fn a_page_of_another_site_reads_and_revokes_nothing() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
    let bearer = format!("Bearer {}", dashboard.token());
    let with = |headers: &[(&str, &str)]| {
        let mut all = vec![("Authorization", &*bearer)];
        all.extend(headers);
        statuses(&dashboard, &all)
    };
    let own = format!("http://{}", dashboard.at());
    let proxied = format!("https://{}", dashboard.at());
    for headers in [
        &[("Origin", &*own), ("Sec-Fetch-Site", "same-origin")][..],
        &[("Origin", &*proxied)],
        &[("Sec-Fetch-Site", "none")],
    ] {
        assert_eq!(with(headers), [200, 200, 400], "{headers:?}");
    }
    let other_port = "http://127.0.0.1:1".to_owned();
    let longer = format!("{own}.evil");
    for headers in [
        &[("Origin", "http://evil.example")][..],
        &[("Origin", "null")],
        &[("Origin", "")],
        &[("Origin", &*other_port)],
        &[("Origin", &*longer)],
        &[("Origin", dashboard.at())],
        &[("Origin", &*own), ("Origin", "http://evil.example")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
        &[("Origin", &*own), ("Sec-Fetch-Site", "cross-site")],
    ] {
        // The page itself is served, because other sites may link to it.
        assert_eq!(with(headers), [200, 403, 403], "{headers:?}");
        let stream = Events::open(dashboard.at(), "/api/locks", headers);
        assert_eq!(stream.err().map(|page| page.status), Some(403));
    }
}

#[test]
fn a_token_is_needed_to_revoke_and_reading_at_home_needs_none() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
    let token = dashboard.token().to_owned();
    assert_eq!(token.len(), 43, "32 bytes in base64");
    assert_ne!(Dashboard::start(&store, &["--allow-revoke"]).token(), token);
    let with = |value: &str| statuses(&dashboard, &[("Authorization", value)]);
    assert_eq!(with(&format!("Bearer {token}")), [200, 200, 400]);
    assert_eq!(with(&format!("bearer {token}")), [200, 200, 400]);
    let mut wrong = token.clone();
    let last = if wrong.pop() == Some('A') { 'B' } else { 'A' };
    for value in [
        format!("Bearer {wrong}{last}"),
        format!("Bearer {wrong}"),
        format!("Bearer {token}x"),
        format!("Basic {token}"),
        "Bearer ".into(),
        "Bearer".into(),
        token.clone(),
        String::new(),
    ] {
        assert_eq!(with(&value), [200, 200, 401], "{value}");
    }
    let none = post(dashboard.at(), &[], &Value::Null);
    assert_eq!(none.status, 401);
    assert!(none.head.contains("www-authenticate: Bearer\r\n"));
    assert!(!none.body.contains(&token), "{none:?}");
    // A token in the path has no effect, because logs and histories store paths.
    let path = format!("POST /api/revoke?token={token} HTTP/1.1");
    let page = super::super::metrics::http::answer(send(dashboard.at(), &path, &[], "{}"));
    assert_eq!(page.status, 401);
}

#[test]
fn nothing_is_revoked_without_leave() {
    let store = StoreAt::served();
    let dashboard = Dashboard::start(&store, &[]);
    for value in ["Bearer ", "Bearer x", ""] {
        let refused = post(dashboard.at(), &[("Authorization", value)], &Value::Null);
        assert_eq!(refused.status, 403, "{refused:?}");
    }
}

#[test]
fn reading_where_other_machines_can_needs_the_token() {
    let store = StoreAt::served();
    let mut command = store.command(&["dashboard", "--listen", "0.0.0.0:0"]);
    let dashboard = Dashboard::start_as(&mut command);
    assert!(dashboard.url.starts_with("http://localhost:"));
    let bearer = format!("Bearer {}", dashboard.token());
    assert_eq!(statuses(&dashboard, &[]), [200, 401, 403]);
    let with = [("Authorization", &*bearer)];
    assert_eq!(statuses(&dashboard, &with), [200, 200, 403]);
    for path in ["/api/locks", "/api/lock?path=/a"] {
        let refused = Events::open(dashboard.at(), path, &[]).err();
        assert_eq!(refused.map(|page| page.status), Some(401));
        let mut events = Events::open(dashboard.at(), path, &with).ok().unwrap();
        assert!(events.next().is_some());
    }
}
