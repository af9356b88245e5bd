//! Colors and widths.

use serde_json::json;

use super::*;

/// Name, label, host, expected hold in seconds, and number of waiters of each lock.
const JOBS: [(&str, &str, &str, u64, usize); 21] = [
    ("backup/orders-db", "nightly backup", "db-02", 1, 0),
    (
        "billing/close-month",
        "close of October",
        "batch-01",
        3600,
        2,
    ),
    ("billing/invoices", "invoice run 4711", "batch-03", 600, 0),
    ("cache/warm-up", "", "web-05", 0, 0),
    ("cron/expire-sessions", "expire sessions", "web-02", 60, 0),
    (
        "cron/rotate-keys",
        "rotate signing keys",
        "vault-01",
        120,
        0,
    ),
    ("deploy/checkout", "release 412 (mara)", "ci-07", 900, 3),
    ("deploy/payments", "release 98 (tom)", "ci-04", 2, 4),
    ("deploy/search", "release 1207 (ines)", "ci-02", 900, 0),
    ("etl/clickstream", "hour 14", "etl-01", 1800, 0),
    ("etl/customers", "full load", "etl-02", 1800, 1),
    ("etl/stock-levels", "delta load", "etl-02", 1, 0),
    ("index/products", "rebuild of shard 3", "search-03", 3600, 2),
    ("mail/newsletter", "issue of November", "mail-01", 7200, 0),
    ("migrate/orders-db", "schema 81", "ci-07", 300, 5),
    ("reports/daily", "daily report", "batch-02", 900, 0),
    ("reports/weekly", "week 47", "batch-02", 3600, 1),
    ("shop/42/import", "import of prices", "app-11", 300, 0),
    ("shop/77/import", "import of prices", "app-09", 300, 0),
    ("terraform/production", "plan 2231 (jo)", "ci-01", 1200, 6),
    ("terraform/staging", "apply 518 (ana)", "ci-05", 1200, 0),
];

/// Finds the visible text with the lowest contrast ratio. The ratio is defined by WCAG 2, and is computed against all
/// backgrounds behind the text. Disabled elements are exempt.
const WORST_CONTRAST: &str = r"(() => {
    const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = (color) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = color;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((it, at) => it * a + below[at] * (1 - a)).concat(1);
    const light = (it) => (it /= 255) <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
    const background = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) {
            layers.push(rgba(getComputedStyle(at).backgroundColor));
            if (layers.at(-1)[3] === 1) break;
        }
        return layers.reverse().reduce((below, layer) => over(layer, below), rgba('Canvas'));
    };
    const opacity = (element) => {
        let all = 1;
        for (let at = element; at; at = at.parentElement) all *= getComputedStyle(at).opacity;
        return all;
    };
    let worst = { ratio: 21, text: '' };
    let seen = 0;
    const look = (element, style, text) => {
        const behind = background(element);
        const color = rgba(element instanceof SVGElement ? style.fill : style.color);
        color[3] *= opacity(element);
        const [a, b] = [luminance(over(color, behind)), luminance(behind)];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        seen += 1;
        if (ratio < worst.ratio) worst = { ratio, text: `${element.tagName}.${element.getAttribute('class')} ${text.trim().slice(0, 60)}` };
    };
    for (const element of document.body.querySelectorAll('*')) {
        const texts = [...element.childNodes].filter((it) => it.nodeType === Node.TEXT_NODE && it.data.trim() !== '');
        const isShown = element.checkVisibility({ visibilityProperty: true }) && element.getBoundingClientRect().width > 1;
        if (!isShown || element.matches(':disabled')) continue;
        if (texts.length > 0) look(element, getComputedStyle(element), texts[0].data);
        if (element.placeholder && element.value === '') look(element, getComputedStyle(element, '::placeholder'), element.placeholder);
    }
    return { ...worst, seen };
})()";

/// Many locks with plausible names. Their metadata looks as if programs on several machines had written it.
struct Scene {
    store: StoreAt,
    locks: Locks,
}

impl Scene {
    fn new() -> Self {
        let store = StoreAt::patient();
        let scene = Self {
            locks: Locks::of(&store),
            store,
        };
        scene.locks.folder();
        for (number, (name, label, host, expected, waiters)) in JOBS.into_iter().enumerate() {
            let expected = (expected > 0).then_some(expected * 1000);
            scene.enter(name, label, host, 1200 + number * 37, expected);
            for waiter in 0..waiters {
                let (label, host) = (
                    format!("{label}, attempt {}", waiter + 2),
                    format!("ci-0{}", waiter + 1),
                );
                scene.enter(name, &label, &host, 3000 + waiter * 211, expected);
            }
        }
        scene
    }

    fn enter(&self, name: &str, label: &str, host: &str, pid: usize, expected: Option<u64>) {
        let mut data = json!({"v": 1, "host": host, "pid": pid});
        if !label.is_empty() {
            data["label"] = label.into();
        }
        if let Some(expected) = expected {
            data["expected_hold_ms"] = expected.into();
        }
        if name.starts_with("migrate") {
            data["reason"] = "orders need a column for the currency".into();
        }
        let lock = named(name);
        let enter = async {
            let session = self.locks.client.session().await.unwrap();
            session
                .create_all(lock.as_znode(), CreateMode::Persistent)
                .await
                .unwrap();
            let entry = lock.as_znode().join("_c_x-lock-").unwrap();
            session
                .create(&entry, data.to_string(), CreateMode::EphemeralSequential)
                .await
                .unwrap();
        };
        self.locks.runtime.block_on(enter);
    }
}

fn contrast_is_enough(window: &Window, place: &str) {
    let worst = window.evaluate(WORST_CONTRAST);
    assert!(worst["seen"].as_u64().unwrap() > 20, "{place}: {worst}");
    assert!(worst["ratio"].as_f64().unwrap() >= 4.5, "{place}: {worst}");
}

fn fits_360_pixels(window: &Window) {
    let widest = window.evaluate(
        "document.scrollingElement.scrollWidth <= 360 || [...document.querySelectorAll('body *')]
            .filter((it) => it.getBoundingClientRect().right > 360).map((it) => `${it.tagName} ${it.id} ${it.className}`).join(', ')",
    );
    assert_eq!(widest, true, "wider than a phone");
}

#[test]
fn texts_have_contrast_and_fit_a_phone() {
    let scene = Scene::new();
    let dashboard = Dashboard::start(&scene.store, &["--allow-revoke"]);
    let list = Window::open(&dashboard.url);
    list.until_text("[data-figure=locks]", "21");
    list.until("document.querySelectorAll('tr.overdue').length >= 3");
    let lock = Window::open(&page_of(&dashboard, "deploy/payments"));
    lock.until("document.querySelectorAll('#queue li').length === 5 && document.querySelector('#queue li.overdue')");
    let dialog = Window::open(&page_of(&dashboard, "migrate/orders-db"));
    dialog.click("[data-revoke]");
    dialog.until("document.querySelector('#revoke').open");
    for scheme in ["light", "dark"] {
        for (place, window) in [("list", &list), ("lock", &lock), ("dialog", &dialog)] {
            window.look(1200, 760, scheme);
            let is_dark = format!("matchMedia('(prefers-color-scheme: {scheme})').matches");
            assert_eq!(window.evaluate(&is_dark), true);
            contrast_is_enough(window, &format!("{place}, {scheme}"));
            window.look(360, 740, scheme);
            window.until("document.documentElement.clientWidth === 360");
            fits_360_pixels(window);
            contrast_is_enough(window, &format!("{place}, {scheme}, narrow"));
        }
    }
    // The two color schemes differ.
    let color = "getComputedStyle(document.body).backgroundColor";
    let dark = list.evaluate(color);
    list.look(1200, 760, "light");
    assert_ne!(list.evaluate(color), dark);
    for window in [&list, &lock, &dialog] {
        window.was_clean(&[]);
    }
}
