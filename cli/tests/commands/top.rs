//! `lockkeeper top` on a real terminal.

pub(crate) mod screen;

use std::path::Path;
use std::time::Duration;

use lockkeeper::{Election, LockOptions, LostReason, Mutex, RwLock};
use rustix::process::Signal;

use super::locks::named;
use super::server::{Server, bare};
use super::stores::*;
use super::support::*;
use super::waiter::Waiter;
use screen::Top;

fn serve_at(data: &Path, address: &str) -> Server {
    Server::start(bare().args(["--listen", address, "--data"]).arg(data))
}

on_each_store! {
    async fn the_locks_are_shown_as_they_change(store: StoreAt) {
        let client = store.connect().await;
        let mut top = Top::start(&store.url, &[]);
        top.shows("no locks");
        let label = |text: &str| LockOptions::new().label(text);
        let mutex = Mutex::new(&client, named("jobs/a")).unwrap();
        let guard = mutex.lock_with(label("first")).await.unwrap();
        top.until(|screen| screen.row(3).starts_with("jobs/a") && screen.row(3).contains("first"));
        assert!(top.row(0).starts_with("1 locks, 0 waiting, by name"), "{}", top.text());
        let next = Waiter::start(&store, named("jobs/a"));
        top.shows("1 locks, 1 waiting");
        guard.release().await.unwrap();
        top.until(|screen| screen.row(3).contains("second") && screen.row(0).contains("0 waiting"));
        next.release();
        top.shows("no locks");
        top.types("q");
        top.ends_well();
    }

    async fn a_lock_is_taken_from_the_holder_that_was_shown(store: StoreAt) {
        let client = store.connect().await;
        let shared = RwLock::new(&client, named("shared")).unwrap();
        let with = |label: &str| LockOptions::new().label(label);
        let one = shared.read_with(with("one")).await.unwrap();
        let two = shared.read_with(with("two")).await.unwrap();
        let mut top = Top::start(&store.url, &["sha"]);
        top.until(|screen| screen.row(3).contains("one") && screen.row(4).contains("two"));
        top.types("jr");
        top.shows("Ask for the lock?");
        top.shows(&two.fencing_token().to_string());
        top.types("y");
        assert!(two.revocation_requested().await.unwrap().by.unwrap().contains("lockkeeper top"));
        top.shows(&format!("shared: asked token {}, two", two.fencing_token()));
        let queue = lockkeeper::lock_queue(&client, named("shared")).await.unwrap();
        let asked = queue.holders.iter().map(|it| it.metadata.as_ref().unwrap().revocation.is_some());
        assert_eq!(asked.collect::<Vec<_>>(), [false, true], "the one that was shown, and no other");
        assert!(one.is_held() && two.is_held());
        top.types("R");
        top.shows("Take the lock away?");
        top.types("\r");
        top.until(|screen| !screen.text().contains("Take the lock away?"));
        assert!(two.is_held(), "Enter is a no");
        top.types("R");
        top.shows(&two.fencing_token().to_string());
        top.types("y");
        assert_eq!(two.lost().await, LostReason::Revoked);
        top.shows(&format!("shared: removed token {}, two", two.fencing_token()));
        assert!(one.is_held());
        top.types("q");
        top.ends_well();
    }

    async fn the_holder_that_comes_next_is_not_the_one_that_was_shown(store: StoreAt) {
        let client = store.connect().await;
        let mutex = Mutex::new(&client, named("a")).unwrap();
        let shown = mutex.lock().await.unwrap();
        let mut top = Top::start(&store.url, &[]);
        top.until(|screen| screen.row(3).starts_with("a "));
        top.types("R");
        top.shows(&format!("token {}", shown.fencing_token()));
        let token = shown.fencing_token();
        shown.release().await.unwrap();
        let next = mutex.lock().await.unwrap();
        top.shows("This holder has already left.");
        assert!(top.text().contains(&token.to_string()), "{}", top.text());
        top.types("y");
        top.shows("that holder has already left: nothing was done");
        top.types("R");
        top.shows(&format!("token {}", next.fencing_token()));
        top.types("n");
        top.until(|screen| !screen.text().contains("Take the lock away?"));
        assert!(next.is_held());
    }

    async fn a_long_text_and_a_leaders_data_fit_on_the_screen(store: StoreAt) {
        let client = store.connect().await;
        let long = LockOptions::new().label("日".repeat(40_000)).reason("y".repeat(40_000));
        let _long = Mutex::new(&client, named("a")).unwrap().lock_with(long).await.unwrap();
        let election = Election::new(&client, named("leader")).unwrap();
        let _leader = election.campaign("me:8080").await.unwrap();
        let mut top = Top::start(&store.url, &[]);
        top.shows("me:8080");
        top.types("\r");
        top.shows("a: mutex, 1 holding, 0 waiting");
        top.shows("reason: yyy");
        top.types("q");
        top.ends_well();
    }

    async fn one_queue_is_shown_in_full(store: StoreAt) {
        let client = store.connect().await;
        let mutex = Mutex::new(&client, named("a")).unwrap();
        let options = LockOptions::new().label("first").reason("rows").backtrace();
        let guard = mutex.lock_with(options).await.unwrap();
        let _next = Waiter::start(&store, named("a"));
        let mut top = Top::start(&store.url, &[]);
        top.shows("1 locks, 1 waiting");
        top.types("\r");
        top.shows("a: mutex, 1 holding, 1 waiting");
        top.shows("reason: rows");
        top.types("G");
        top.until(|screen| !screen.text().contains("1 holding"));
        top.types("g");
        top.shows("a: mutex, 1 holding");
        for _ in 0..8 {
            top.types("l");
        }
        top.until(|screen| screen.text().contains("second"));
        top.types("h");
        guard.release().await.unwrap();
        top.types("g");
        top.shows("1 holding, 0 waiting");
        top.types("\x1b");
        top.until(|screen| screen.row(2).starts_with("LOCK"));
        top.types("q");
        top.ends_well();
    }
}

#[test]
fn signals_give_the_terminal_back() {
    let store = StoreAt::served();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut top = Top::start(&store.url, &[]);
        top.shows("no locks");
        assert!(top.is_taken());
        top.signal(signal);
        top.ends_well();
    }
    let mut top = Top::start(&store.url, &[]);
    top.shows("no locks");
    top.types("\x03");
    top.ends_well();
}

#[test]
fn a_signal_ends_it_at_a_terminal_that_is_not_read() {
    let store = StoreAt::served();
    for signal in [Signal::TERM, Signal::HUP] {
        let mut top = Top::start(&store.url, &[]);
        top.shows("no locks");
        top.fill();
        top.signal(signal);
        top.ends_unread();
    }
}

#[test]
fn it_ends_when_the_terminal_is_gone() {
    let store = StoreAt::served();
    let mut top = Top::start(&store.url, &[]);
    top.shows("no locks");
    top.hang_up();
}

#[test]
fn ctrl_z_gives_the_terminal_back_until_fg() {
    let store = StoreAt::served();
    let script = r#"set -m
        "$0" top; echo "stopped $?"
        read line; echo "the shell got $line"
        fg; echo "status $?""#;
    let mut top = Top::start_shell(&store.url, script);
    top.shows("no locks");
    top.types("\x1a");
    top.shows("stopped 1");
    assert!(!top.is_taken(), "{}", top.text());
    top.types("a line\n");
    top.until(|screen| screen.text().contains("no locks") && screen.is_taken());
    top.types("q");
    // The screen of the shell is restored, and its new output is below its earlier output.
    top.until(|screen| {
        screen.text().contains("the shell got a line") && screen.text().contains("status 0")
    });
    top.ends_well();
}

#[test]
fn in_the_background_it_stays_stopped_until_a_signal_ends_it() {
    let store = StoreAt::served();
    let script = r#"set -m
        "$0" top; bg
        until jobs -s | grep -q top; do sleep 0.1; done
        pid=$(jobs -p %1); kill %1
        while kill -0 $pid 2>/dev/null; do sleep 0.1; done
        jobs"#;
    // Do not use `wait`. It returns immediately for a job that the shell has not yet seen as continued.
    let mut top = Top::start_shell(&store.url, script);
    top.shows("no locks");
    top.types("\x1a");
    top.shows("Done");
    top.ends_well();
}

#[test]
fn a_store_that_is_lost_is_never_shown_as_if_it_was_there() {
    let folder = TempFolder::short();
    let data = folder.at("data");
    let server = serve_at(&data, "127.0.0.1:0");
    let address = server.address().to_owned();
    let url = format!("lockkeeper://{address}");
    let mut top = Top::start(
        &url,
        &["--session-timeout", "4s", "--connect-timeout", "1s"],
    );
    block_on(async {
        let client = lockkeeper::connect(&url).await.unwrap();
        let _guard = Mutex::new(&client, named("a"))
            .unwrap()
            .lock()
            .await
            .unwrap();
        top.until(|screen| screen.row(3).starts_with("a "));
        drop(server);
        top.until(|screen| {
            screen.row(1).starts_with("DISCONNECTED for ") && screen.row(3).starts_with("a ")
        });
        top.types("R");
        top.shows("not connected: another client may hold it by now");
        let _server = serve_at(&data, &address);
        top.until(|screen| screen.row(1).contains(&url) && screen.row(3).starts_with("a "));
        top.types("q");
        top.ends_well();
    });
}

#[test]
fn a_store_that_was_replaced_by_another_is_shown() {
    let server = serve_at(Path::new("memory"), "127.0.0.1:0");
    let address = server.address().to_owned();
    let url = format!("lockkeeper://{address}");
    let mut top = Top::start(
        &url,
        &["--session-timeout", "2s", "--connect-timeout", "1s"],
    );
    top.shows("no locks");
    drop(server);
    top.until(|screen| screen.row(1).starts_with("DISCONNECTED for "));
    let _server = serve_at(Path::new("memory"), &address);
    block_on(async {
        let client = lockkeeper::connect(&url).await.unwrap();
        let _guard = Mutex::new(&client, named("new"))
            .unwrap()
            .lock()
            .await
            .unwrap();
        top.until(|screen| screen.row(3).starts_with("new "));
        assert!(top.row(1).contains(&url), "{}", top.text());
    });
}

#[test]
fn a_server_that_stands_still_is_told_of() {
    let server = serve_at(Path::new("memory"), "127.0.0.1:0");
    let url = format!("lockkeeper://{}", server.address());
    let mut top = Top::start(&url, &["--session-timeout", "1m"]);
    top.shows("no locks");
    server.signal(Signal::STOP);
    top.until(|screen| screen.row(1).starts_with("NO ANSWER for "));
    server.signal(Signal::CONT);
    top.until(|screen| screen.row(1).contains(&url));
}

#[test]
fn the_screen_follows_the_size_of_the_terminal() {
    let store = StoreAt::served();
    block_on(async {
        let client = store.connect().await;
        let mut guards = Vec::new();
        for name in 10..40 {
            let name = format!("\u{1b}[2J日本{name}");
            guards.push(
                Mutex::new(&client, named(&name))
                    .unwrap()
                    .lock()
                    .await
                    .unwrap(),
            );
        }
        let mut top = Top::start(&store.url, &[]);
        top.until(|screen| screen.row(22).contains("日本29"));
        top.types("G");
        top.until(|screen| screen.row(22).contains("日本39"));
        top.resize(10, 40);
        top.until(|screen| {
            screen.row(8).starts_with(r"\u{1b}[2J日本39") && screen.row(9).starts_with("? help")
        });
        top.types("R");
        top.shows("Take the lock away?");
        top.shows("y: take it away");
        top.shows(&guards[29].fencing_token().to_string());
        top.types("n");
        top.resize(2, 3);
        top.resize(1, 1);
        top.resize(24, 80);
        top.until(|screen| screen.row(22).contains("日本39") && !screen.text().contains("Take"));
        top.types("q");
        top.ends_well();
    });
}

#[test]
fn it_needs_a_terminal() {
    let store = StoreAt::served();
    let output = store.run(&["top"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("lockkeeper locks --watch"), "{said}");
    let output = store.run(&["top", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("locks --watch --json"), "{said}");
}

#[test]
fn no_color_means_none() {
    let store = StoreAt::served();
    block_on(async {
        let client = store.connect().await;
        let options = LockOptions::new().expected_hold(Duration::from_millis(1));
        let _guard = Mutex::new(&client, named("a"))
            .unwrap()
            .lock_with(options)
            .await
            .unwrap();
        for (setting, colored) in [("", true), ("1", false)] {
            let mut top = Top::start_with(&store.url, &[], &[("NO_COLOR", setting)]);
            top.until(|screen| screen.row(3).starts_with("a "));
            assert_eq!(top.has_color(3), colored);
            assert!(top.is_inverse(3), "the selected row");
        }
    });
}
