//! Revocations with the dialog of the page.

use lockkeeper::LostReason;

use super::*;

const IS_OPEN: &str = "document.querySelector('#revoke').open";

on_stores! {
    [served, zookeeper]
    fn a_lock_is_found_and_taken_away_by_the_keyboard_alone(store: StoreAt) {
        let locks = Locks::of(&store);
        let _others = ["a", "job-1", "z"].map(|it| locks.hold(it, labelled("other")));
        let first = locks.hold("job-2", labelled("stuck"));
        let second = locks.wait("job-2", labelled("next"));
        let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
        let window = Window::open(&dashboard.url);
        window.until_text("[data-figure=waiters]", "1");
        assert_eq!(window.evaluate("location.href.includes('token')"), false, "the token stays no longer than needed");
        window.press("/");
        window.until("document.activeElement.id === 'filter'");
        window.write("job");
        window.until_text("#range", "1–2 of 2");
        window.press("Enter");
        window.until("document.activeElement.textContent === 'job-1'");
        window.press("j");
        window.until("document.activeElement.textContent === 'job-2'");
        window.press("k");
        window.until("document.activeElement.textContent === 'job-1'");
        window.press("ArrowDown");
        window.until("document.activeElement.textContent === 'job-2'");
        window.press("Enter");
        window.until("document.querySelector('#lock-path').textContent === 'job-2' && document.querySelector('#queue li.holder')");

        // First, ask for the lock. The holder sees the reason, and keeps the lock.
        window.press("r");
        window.until(IS_OPEN);
        assert!(window.text("#revoke-who").contains("stuck"));
        window.tab_to("#revoke-reason");
        window.write("please");
        window.tab_to("#revoke-confirm");
        window.press("Enter");
        window.until(&format!("!{IS_OPEN}"));
        let request = locks.runtime.block_on(first.guard.revocation_requested()).unwrap();
        assert!(request.by.as_ref().is_some_and(|it| it.starts_with("please")), "{request:?}");
        assert!(first.guard.is_held());
        window.until("/asked to release/.test(document.querySelector('#queue li.holder').textContent)");

        // The Escape key closes only the dialog.
        window.press("r");
        window.until(IS_OPEN);
        window.press("Escape");
        window.until(&format!("!{IS_OPEN} && document.body.dataset.view === 'lock'"));

        window.press("r");
        window.until(IS_OPEN);
        window.tab_to("#revoke-ask");
        window.press("ArrowDown");
        window.until("document.querySelector('#revoke-force').checked");
        window.tab_to("#revoke-confirm");
        window.press("Enter");
        window.until_text("#queue li.holder .label", "next");
        window.until(&format!("!{IS_OPEN}"));
        let second = second.held();
        assert!(second.guard.is_held());
        let reason = locks.runtime.block_on(first.guard.lost());
        assert!(matches!(reason, LostReason::Revoked), "{reason:?}");
        window.was_clean(&[]);
    }
}

#[test]
fn a_refused_revocation_says_why() {
    let store = StoreAt::served();
    let locks = Locks::of(&store);
    let first = locks.hold("a", labelled("first"));
    let second = locks.wait("a", labelled("second"));
    let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
    // Open the page without the token in the URL, as a bookmark may do.
    let window = Window::open(&page_of(&dashboard, "a"));
    window.until_text("#queue li.waiter .label", "second");
    let error = |text: &str| {
        window.until(&format!(
            "!document.querySelector('#revoke-error').hidden && document.querySelector('#revoke-error').textContent.includes({text:?})"
        ));
    };
    window.click("[data-revoke]");
    window.until(IS_OPEN);
    window.click("#revoke-force");
    window.click("#revoke-token");
    window.write("wrong");
    window.click("#revoke-confirm");
    error("token");
    assert_eq!(window.evaluate(IS_OPEN), true);
    assert!(first.guard.is_held());

    // Another client is granted the lock while the dialog is open.
    window.click("#revoke-token");
    window.write(dashboard.token());
    first.release();
    let second = second.held();
    window.until_text("#queue li.holder .label", "second");
    error("left");
    // The dialog cannot be confirmed any more, because it is not about the new holder.
    assert_eq!(
        window.evaluate("document.querySelector('#revoke-confirm').disabled"),
        true
    );
    window.press("Enter");
    window.click("#revoke-cancel");
    window.until(&format!("!{IS_OPEN}"));
    assert!(second.guard.is_held());
    window.was_clean(&["status of 401"]);
}

#[test]
fn a_holder_that_left_unseen_is_not_mistaken_for_the_next() {
    let store = StoreAt::served();
    let locks = Locks::of(&store);
    let first = locks.hold("a", labelled("first"));
    let second = locks.wait("a", labelled("second"));
    let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
    let window = Window::open(&dashboard.url);
    window.click("a.lock");
    window.until_text("#queue li.waiter .label", "second");
    window.press("r");
    window.until(IS_OPEN);
    window.click("#revoke-force");
    // Delay the request, so that the data of the dialog is outdated when the request arrives.
    window.evaluate("(() => { const real = window.fetch; window.fetch = async (...all) => { await new Promise((resolve) => { window.__go = resolve; }); return real(...all); }; })()");
    window.click("#revoke-confirm");
    window.until("window.__go");
    first.release();
    let second = second.held();
    window.evaluate("window.__go()");
    window.until("!document.querySelector('#revoke-error').hidden && document.querySelector('#revoke-error').textContent.length > 10");
    // Later updates of the lock must not replace the answer in the dialog.
    let _third = locks.wait("a", labelled("third"));
    window.until_text("#queue li.waiter .label", "third");
    let said = window.text("#revoke-error");
    assert!(said.contains("another client holds it"), "{said}");
    assert_eq!(window.evaluate(IS_OPEN), true);
    assert!(second.guard.is_held());
    window.was_clean(&["status of 409"]);
}
