//! The page of a lock.

use super::*;

const ENTRIES: &str = "[...document.querySelectorAll('#queue li')]";

#[test]
fn a_queue_of_ten_thousand_is_shown_in_windows() {
    let store = StoreAt::patient();
    let locks = Locks::of(&store);
    locks.folder();
    locks.entries(std::iter::repeat_n("long".to_owned(), 10_000));
    let dashboard = Dashboard::start(&store, &[]);
    let window = Window::open(&page_of(&dashboard, "long"));
    let shows = |first: &str, last: &str| {
        window.until(&format!(
            "{ENTRIES}.filter((it) => it.matches('.waiter')).at(0).querySelector('.position').textContent === {first:?} &&
                {ENTRIES}.at(-1).querySelector('.position').textContent === {last:?} &&
                document.querySelector('#queue-range').textContent.includes('{first}–{last} of 9,999')"
        ));
        assert_eq!(window.evaluate(&format!("{ENTRIES}.length <= 210")), true);
        assert_eq!(
            window.evaluate("document.querySelectorAll('*').length < 5000"),
            true
        );
    };
    shows("1", "100");
    assert_eq!(window.text("#lock-path"), "long");
    assert_eq!(
        window.evaluate("document.querySelector('#queue-prev').disabled"),
        true
    );
    window.click("#queue-next");
    shows("101", "200");
    window.press("n");
    shows("201", "300");
    window.click("#queue-prev");
    window.press("p");
    shows("1", "100");
    window.was_clean(&[]);
}

on_stores! {
    [served, zookeeper]
    fn a_lock_shows_what_its_holders_and_waiters_told(store: StoreAt) {
        let locks = Locks::of(&store);
        let told = labelled("rebuild").reason("nightly").expected_hold(Duration::from_millis(1)).backtrace();
        let first = locks.hold("jobs/a", told);
        let dashboard = Dashboard::start(&store, &[]);
        let window = Window::open(&dashboard.url);
        window.click("a.lock");
        window.until("document.body.dataset.view === 'lock' && document.querySelector('#lock-path').textContent === 'jobs/a'");
        window.until_text("#queue li.holder .label", "rebuild");
        window.until("/overdue/.test(document.querySelector('#queue li.holder').textContent)");
        let text = window.text("#queue li.holder");
        for part in ["nightly", &std::process::id().to_string(), &first.guard.fencing_token().to_string()] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let backtrace = window.text("#queue li.holder .backtrace pre");
        assert!(backtrace.contains("dashboard"), "{backtrace}");
        // The backtrace is collapsed by default.
        let is_open = "document.querySelector('#queue li.holder details').open";
        assert_eq!(window.evaluate(is_open), false);
        window.click("#queue li.holder details summary");
        window.until(is_open);
        assert_eq!(window.evaluate("[...document.querySelectorAll('[data-revoke]')].every((it) => it.hidden)"), true);

        let second = locks.wait("jobs/a", labelled("deploy"));
        window.until_text("#queue li.waiter .label", "deploy");
        assert_eq!(window.text("#queue li.waiter .position"), "1");
        first.release();
        window.until_text("#queue li.holder .label", "deploy");
        window.until("document.querySelector('#queue li.waiter') === null");
        second.held().release();
        window.until("!document.querySelector('#gone').hidden && document.querySelector('#queue').children.length === 0");
        window.press("Escape");
        window.until("document.body.dataset.view === 'list' && !document.querySelector('#empty').hidden");
        window.was_clean(&[]);
    }
}
