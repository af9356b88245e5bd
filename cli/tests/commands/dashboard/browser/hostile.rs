//! Names and labels that try to be more than text.

use super::*;

const SCRIPTS: [&str; 6] = [
    "<script>window.__hit=1</script>",
    "<img src=x onerror=\"window.__hit=1\">",
    "javascript:window.__hit=1",
    "\"><svg onload=window.__hit=1>",
    "'-window.__hit=1-'${window.__hit=1}`{{1}}",
    "<a href=http://127.0.0.1:1/>&lt;b&gt;</a><iframe srcdoc=x>",
];

/// Characters that reverse the following text, are invisible, end a line, or end a C string.
const INVISIBLE: &str = "a\u{202e}b\u{200b}c\u{0}d\n\u{1b}[31m\u{feff}\u{2066}\u{2028}";

fn text_of(value: &str) -> String {
    serde_json::to_string(value).unwrap()
}

fn until_shown(window: &Window, text: &str) {
    window.until(&format!(
        "document.body.textContent.includes({})",
        text_of(text)
    ));
}

fn nothing_became_an_element(window: &Window) {
    let found = "document.querySelectorAll('main script, main img, main svg[onload], iframe, main b b, [onerror], [onload], a[href^=javascript], a[href^=http]').length";
    assert_eq!(window.evaluate(found), 0);
    assert_eq!(window.evaluate("performance.getEntriesByType('resource').every((it) => it.name.startsWith(location.origin + '/'))"), true);
}

#[test]
fn markup_in_names_labels_and_reasons_is_shown_as_text() {
    let store = StoreAt::served();
    let locks = Locks::of(&store);
    let _held: Vec<_> = SCRIPTS
        .iter()
        .map(|it| locks.hold(it, labelled(it).reason(*it)))
        .collect();
    let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
    let window = Window::open(&dashboard.url);
    for script in SCRIPTS {
        let found = format!(
            "[...document.querySelectorAll('#locks tbody tr')].some((it) =>
                it.querySelector('.lock').textContent === {0} && it.querySelector('.holder').textContent.includes({0}))",
            text_of(script)
        );
        window.until(&found);
    }
    nothing_became_an_element(&window);
    // A filter that matches no lock is also shown as text.
    window.press("/");
    window.write("<img src=y onerror=window.__hit=1>");
    window.until("!document.querySelector('#empty').hidden");
    until_shown(&window, "<img src=y onerror=window.__hit=1>");
    nothing_became_an_element(&window);
    for script in SCRIPTS {
        window.go(&page_of(&dashboard, "none"));
        window.until("!document.querySelector('#gone').hidden");
        let path = named(script);
        let path = text_of(path.as_znode().as_str());
        window.evaluate(&format!(
            "void (location.hash = '#/lock/' + encodeURIComponent({path}))"
        ));
        window.until(&format!(
            "document.querySelector('#lock-path').textContent === {}",
            text_of(script)
        ));
        window.until(&format!(
            "document.querySelector('#queue li.holder .label').textContent === {}",
            text_of(script)
        ));
        window.until(&format!(
            "document.querySelector('#queue li.holder').textContent.includes('reason: ' + {})",
            text_of(script)
        ));
        nothing_became_an_element(&window);
        window.press("r");
        window.until("document.querySelector('#revoke').open");
        assert!(window.text("#revoke-who").contains(script));
        nothing_became_an_element(&window);
        window.press("Escape");
        window.until("!document.querySelector('#revoke').open");
    }
    window.was_clean(&[]);
}

#[test]
fn what_cannot_be_seen_is_written_out_and_what_is_long_does_not_widen_the_page() {
    let store = StoreAt::served();
    let locks = Locks::of(&store);
    let long = "w".repeat(1_000);
    let name = format!("a\u{202e}b\u{200b}\n{}", "x".repeat(120));
    let options = labelled(INVISIBLE).reason(long.as_str());
    let _held = locks.hold(&name, options);
    let _long = locks.hold("b", labelled(&long).reason(INVISIBLE));
    let dashboard = Dashboard::start(&store, &[]);
    let window = Window::open_as(&dashboard.url, 360, 740, "light");
    until_shown(&window, r"a\u{202e}b\u{200b}");
    until_shown(&window, r"a\u{202e}b\u{200b}c\u{0}d\n\u{1b}[31m");
    let is_clean = "!/[\\u202e\\u200b\\u0000\\u001b\\ufeff\\u2066\\u2028]/.test(document.body.textContent + document.title)";
    let is_narrow = "document.scrollingElement.scrollWidth <= 360";
    assert_eq!(window.evaluate(is_clean), true);
    assert_eq!(window.evaluate(is_narrow), true);
    for row in [0, 1] {
        window.until("document.querySelectorAll('#locks tbody tr').length === 2");
        window.evaluate(&format!(
            "document.querySelectorAll('a.lock')[{row}].click()"
        ));
        window.until("document.querySelector('#queue li.holder .label')");
        until_shown(&window, r"a\u{202e}b\u{200b}c\u{0}d\n\u{1b}[31m");
        until_shown(&window, &"w".repeat(100));
        assert_eq!(window.evaluate(is_clean), true);
        assert_eq!(window.evaluate(is_narrow), true);
        window.press("Escape");
    }
    window.was_clean(&[]);
}

/// Entries that our clients would never write. Every field has the wrong type or contains markup.
#[test]
fn entries_that_others_wrote_are_shown_as_text() {
    let store = StoreAt::served();
    let locks = Locks::of(&store);
    locks.folder();
    let script = SCRIPTS[1];
    let data = [
        serde_json::json!({"v": 1, "label": script, "host": script, "reason": script, "backtrace": format!("{script}\n{INVISIBLE}"), "pid": 7}).to_string(),
        script.to_owned(),
        "\u{0}\u{ff}{{{".to_owned(),
        "[".repeat(50_000),
    ];
    let create = async {
        let session = locks.client.session().await.unwrap();
        for (number, data) in data.iter().enumerate() {
            let lock = named(&format!("odd-{number}"));
            session
                .create_all(lock.as_znode(), CreateMode::Persistent)
                .await
                .unwrap();
            let entry = lock.as_znode().join("_c_x-lock-").unwrap();
            let create = lockkeeper_store::Create {
                path: entry,
                data: data.clone().into_bytes().into(),
                mode: CreateMode::EphemeralSequential,
                acl: session.acl().clone(),
            };
            session.multi(vec![Op::Create(create)]).await.unwrap();
        }
    };
    locks.runtime.block_on(create);
    let dashboard = Dashboard::start(&store, &[]);
    let window = Window::open(&dashboard.url);
    window.until_text("[data-figure=held]", "4");
    nothing_became_an_element(&window);
    for number in 0..data.len() {
        window.go(&page_of(&dashboard, &format!("odd-{number}")));
        window.until(&format!(
            "document.querySelector('#lock-path').textContent === 'odd-{number}'"
        ));
        window.until("document.querySelector('#queue li.holder')");
        if number == 0 {
            let all = window.text("#queue li.holder");
            assert!(all.matches(script).count() >= 3, "{all}");
            let backtrace = window.text("#queue li.holder .backtrace pre");
            assert!(backtrace.starts_with(script), "{backtrace}");
        }
        nothing_became_an_element(&window);
    }
    window.was_clean(&[]);
}
