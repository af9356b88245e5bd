//! The list of locks.

use super::*;

const ROWS: &str = "[...document.querySelectorAll('#locks tbody tr')]";

fn cell(path: &str, class: &str) -> String {
    format!("#locks tr[data-path='{path}'] .{class}")
}

on_stores! {
    [served, zookeeper]
    fn locks_and_their_handovers_appear_as_they_happen(store: StoreAt) {
        let dashboard = Dashboard::start(&store, &[]);
        let window = Window::open(&dashboard.url);
        window.until_live();
        window.until_text("[data-figure=locks]", "0");
        window.until("!document.querySelector('#empty').hidden && document.querySelector('#empty').innerText.includes('No locks')");

        let locks = Locks::of(&store);
        let first = locks.hold("jobs/a", labelled("night run").expected_hold(Duration::from_millis(1)));
        let _other = locks.hold("b", labelled("other"));
        let path = "/locks/jobs%2Fa";
        let of = |class| cell(path, class);
        window.until(&format!("document.querySelector({:?}).textContent.includes('night run')", of("holder")));
        assert_eq!(window.text(&of("lock")), "jobs/a");
        assert_eq!(window.text(&of("kind")), "mutex");
        // The row says in words that the holder is overdue, and does not only show it by a color.
        window.until(&format!("/^overdue \\d+s$|^overdue \\d+m \\d+s$/.test(document.querySelector({:?}).textContent)", of("state")));
        assert_eq!(window.evaluate(&format!("document.querySelector(\"tr[data-path='{path}']\").classList.contains('overdue')")), true);
        window.until_text("#locks tr[data-path='/locks/b'] .state", "held");
        assert_eq!(window.evaluate("document.querySelector(\"tr[data-path='/locks/b']\").classList.contains('overdue')"), false);
        // The shown time advances without an update from the server.
        let held = window.text(&of("held"));
        assert!(held.ends_with('s'), "{held}");
        window.until(&format!("document.querySelector({:?}).textContent !== {held:?}", of("held")));
        window.until_text("[data-figure=held]", "2");
        window.until_text("[data-figure=overdue]", "1");

        let second = locks.wait("jobs/a", labelled("day run"));
        window.until_text(&of("waiters"), "1");
        window.until_text("[data-figure=waiters]", "1");
        window.until("document.querySelector('#handovers-text').textContent.startsWith('0 hand-overs')");
        first.release();
        window.until(&format!("document.querySelector({:?}).textContent.includes('day run')", of("holder")));
        window.until_text(&of("state"), "held");
        window.until("document.querySelector('#handovers-text').textContent.startsWith('1 hand-over ')");
        assert_eq!(window.evaluate("document.querySelectorAll('#handovers svg *').length > 0"), true);
        second.held().release();
        window.until(&format!("document.querySelector(\"tr[data-path='{path}']\") === null"));
        window.until_text("[data-figure=locks]", "1");
        window.was_clean(&[]);
    }
}

#[test]
fn ten_thousand_locks_are_sorted_filtered_and_paged() {
    const LOCKS: usize = 10_000;
    let store = StoreAt::patient();
    let locks = Locks::of(&store);
    locks.folder();
    locks.entries((0..LOCKS).map(|number| format!("{number:04}")));
    let _late = locks.hold(
        "a-late",
        labelled("x").expected_hold(Duration::from_millis(1)),
    );
    let _wanted = locks.hold("b-wanted", labelled("needle"));
    let _waits = locks.wait("b-wanted", labelled("y"));
    let dashboard = Dashboard::start(&store, &[]);
    let window = Window::open(&dashboard.url);
    window.until_text("[data-figure=locks]", "10,002");
    window.until_text("[data-figure=waiters]", "1");
    let shows = |range: &str, first: &str, last: &str| {
        window.until(&format!(
            "document.querySelector('#range').textContent === {range:?} &&
                {ROWS}.at(0).querySelector('.lock').textContent === {first:?} &&
                {ROWS}.at(-1).querySelector('.lock').textContent === {last:?}"
        ));
        assert_eq!(window.evaluate(&format!("{ROWS}.length <= 100")), true);
    };
    let sorted = |by: &str, order: &str| {
        window.until(&format!(
            "document.querySelector('th[data-sort={by}]').getAttribute('aria-sort') === {order:?} &&
                document.querySelectorAll('th[aria-sort]').length === 1"
        ));
    };
    shows("1–100 of 10,002", "0000", "0099");
    sorted("name", "ascending");
    assert_eq!(
        window.evaluate("document.querySelector('#prev').disabled"),
        true
    );
    window.click("#next");
    shows("101–200 of 10,002", "0100", "0199");
    window.click("#prev");
    shows("1–100 of 10,002", "0000", "0099");

    window.click("th[data-sort=name] button");
    shows("1–100 of 10,002", "b-wanted", "9902");
    sorted("name", "descending");
    // At the first click, numbers are sorted in descending order.
    for (by, first) in [("overdue", "a-late"), ("waiters", "b-wanted")] {
        let header = format!("th[data-sort={by}] button");
        window.click(&header);
        sorted(by, "descending");
        let at_first = format!("{ROWS}[0].querySelector('.lock').textContent === {first:?}");
        window.until(&at_first);
        window.click(&header);
        sorted(by, "ascending");
        window.until(&format!("!({at_first})"));
    }
    window.click("th[data-sort=held] button");
    sorted("held", "descending");
    window.until(&format!(
        "!{ROWS}.some((it) => /wanted|late/.test(it.dataset.path))"
    ));
    window.click("th[data-sort=held] button");
    sorted("held", "ascending");
    window.until(&format!("/wanted/.test({ROWS}[0].dataset.path)"));

    // The filter searches paths and labels.
    window.click("th[data-sort=name] button");
    window.click("#filter");
    window.write("WANTED");
    shows("1–1 of 1", "b-wanted", "b-wanted");
    window.press("Escape");
    shows("1–100 of 10,002", "0000", "0099");
    window.press("/");
    window.write("needle");
    shows("1–1 of 1", "b-wanted", "b-wanted");
    window.until_text("[data-figure=locks]", "10,002");
    window.write("-no");
    window.until("!document.querySelector('#empty').hidden && document.querySelector('#empty').innerText.includes('needle-no')");
    assert_eq!(window.evaluate(&format!("{ROWS}.length")), 0);
    window.was_clean(&[]);
}
