//! A store or a dashboard that disappears while a user looks at the page.

use super::*;

fn until_old(window: &Window) {
    window.until(
        "document.body.dataset.link === 'old' && !document.querySelector('#banner').hidden &&
            document.querySelector('#banner').innerText.includes('old')",
    );
}

fn until_live(window: &Window) {
    window
        .until("document.body.dataset.link === 'live' && document.querySelector('#banner').hidden");
}

#[test]
fn a_store_that_is_away_makes_the_page_old_until_it_is_back() {
    let mut store = StoreAt::unix();
    let locks = Locks::of(&store);
    let _held = locks.hold("a", labelled("stays"));
    let dashboard = Dashboard::start(
        &store,
        &["--session-timeout", "6s", "--connect-timeout", "1s"],
    );
    let windows = [&*dashboard.url, &page_of(&dashboard, "a")].map(Window::open);
    for window in &windows {
        until_live(window);
        window.until("document.querySelector('main').innerText.includes('stays')");
    }
    store.go_away();
    for window in &windows {
        until_old(window);
        // The last known state is still shown.
        assert_eq!(
            window.evaluate("document.querySelector('main').innerText.includes('stays')"),
            true
        );
    }
    store.come_back();
    windows.iter().for_each(until_live);
    windows.iter().for_each(|it| it.was_clean(&[]));
}

#[test]
fn a_dashboard_that_is_away_makes_the_page_old_until_it_is_back() {
    let store = StoreAt::served();
    let locks = Locks::of(&store);
    let first = locks.hold("a", labelled("before"));
    let dashboard = Dashboard::start(&store, &[]);
    let at = dashboard.at().to_owned();
    let windows = [&*dashboard.url, &page_of(&dashboard, "a")].map(Window::open);
    for window in &windows {
        until_live(window);
        window.until("document.querySelector('main').innerText.includes('before')");
    }
    drop(dashboard);
    windows.iter().for_each(until_old);
    first.release();
    let _second = locks.hold("a", labelled("after"));
    let mut again = store.command(&["dashboard", "--listen", &at]);
    let _dashboard = Dashboard::start_as(&mut again);
    for window in &windows {
        until_live(window);
        window.until("document.querySelector('main').innerText.includes('after')");
        window.until("!document.querySelector('main').innerText.includes('before')");
        window.was_clean(&[
            "ERR_CONNECTION",
            "ERR_INCOMPLETE_CHUNKED",
            "ERR_EMPTY",
            "ERR_SOCKET_NOT_CONNECTED",
        ]);
    }
}
